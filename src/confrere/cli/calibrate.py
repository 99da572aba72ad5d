"""`confrere calibrate`: the noise that keeps a training plan within an ε."""

from __future__ import annotations

from typing import Annotated

import typer

from confrere.cli.masked_options import (
    MASKED,
    Clipping,
    Colluding,
    Dropouts,
    InMaskedSums,
    Parameters,
    Rounds,
    Sites,
    masked_plan,
    refuse_options,
    training_options,
)
from confrere.cli.options import AccountantName, AsJson, Batch, Delta, Epochs, Records, UnitName
from confrere.cli.output import console, print_json


def calibrate(
    epsilon: Annotated[float, typer.Option(help="The ε that the training may cost.")],
    delta: Delta,
    records: Records = None,
    batch: Batch = None,
    epochs: Epochs = None,
    accountant: AccountantName = "pld",
    unit: UnitName = "record",
    masked: InMaskedSums = False,
    sites: Sites = None,
    colluding: Colluding = 1,
    dropouts: Dropouts = 0,
    rounds: Rounds = 1,
    clipping: Clipping = 1.0,
    parameters: Parameters = 1000,
    as_json: AsJson = False,
) -> None:
    """Find the least noise that keeps a training plan within ε.

    Example: `confrere calibrate --epsilon 3 --records 2338 --batch 32 --epochs 30 --delta 1e-5`

    Example: `confrere calibrate --masked --epsilon 3 --sites 8 --colluding 1 --dropouts 0 --rounds 100 --delta 1e-5`
    """
    from confrere.evaluate.privacy_cost import calibrate as least_noise
    from confrere.evaluate.privacy_cost import masked_calibrate

    if masked:
        refuse_options(MASKED, {"--records": records, "--batch": batch, "--epochs": epochs})
        plan = masked_plan(
            sites, delta, unit, colluding=colluding, dropouts=dropouts, rounds=rounds, clipping=clipping,
            parameters=parameters,
        )  # fmt: skip
        cost = masked_calibrate(plan, epsilon)
    else:
        refuse_options("without --masked", {"--sites": sites})
        plain = training_options(records, batch, epochs)
        cost = least_noise(epsilon, **plain, delta=delta, accountant=accountant, unit=unit)
    if as_json:
        print_json(cost.as_json())
    else:
        found = f"A noise multiplier of {cost.noise_multiplier:g} keeps within ε = {epsilon:g}."
        console.print(f"{found}\n{cost.words}", soft_wrap=True)
