"""`confrere epsilon`: the ε of a training plan."""

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


def epsilon(
    noise_multiplier: Annotated[float, typer.Option(help="Noise, in multiples of the clipping norm.")],
    delta: Delta,
    records: Records = None,
    batch: Batch = None,
    epochs: Epochs = None,
    accountant: AccountantName = "pld",
    unit: UnitName = "record",
    records_per_patient: Annotated[
        int | None, typer.Option(help="The most records of a patient, if that is enforced.", min=1)
    ] = None,
    masked: InMaskedSums = False,
    sites: Sites = None,
    colluding: Colluding = 1,
    dropouts: Dropouts = 0,
    rounds: Rounds = 1,
    clipping: Clipping = 1.0,
    parameters: Parameters = 1000,
    as_json: AsJson = False,
) -> None:
    """Compute the ε of a training plan, for whom it holds, and what it means.

    Example: `confrere epsilon --records 2338 --batch 32 --epochs 30 --noise-multiplier 1.4 --delta 1e-5`

    Example: `confrere epsilon --masked --sites 8 --colluding 1 --dropouts 0 --rounds 100 --noise-multiplier 15 --delta 1e-5`
    """
    from confrere.evaluate.privacy_cost import epsilon as cost_of
    from confrere.evaluate.privacy_cost import masked_epsilon

    if masked:
        refuse_options(MASKED, {"--records": records, "--batch": batch, "--epochs": epochs})
        plan = masked_plan(
            sites, delta, unit, colluding=colluding, dropouts=dropouts, rounds=rounds, clipping=clipping,
            parameters=parameters,
        )  # fmt: skip
        cost = masked_epsilon(plan, noise_multiplier)
    else:
        refuse_options("without --masked", {"--sites": sites})
        cost = cost_of(
            **training_options(records, batch, epochs), noise_multiplier=noise_multiplier, delta=delta,
            accountant=accountant, unit=unit, records_per_patient=records_per_patient,
        )  # fmt: skip
    if as_json:
        print_json(cost.as_json())
    else:
        console.print(cost.words, soft_wrap=True)
