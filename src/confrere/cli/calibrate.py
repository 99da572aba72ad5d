"""`confrere calibrate`: the noise that keeps a training plan within an ε."""

from __future__ import annotations

from typing import Annotated

import typer

from confrere.cli.options import AccountantName, AsJson, Batch, Delta, Epochs, Records, UnitName
from confrere.cli.output import console, print_json


def calibrate(
    epsilon: Annotated[float, typer.Option(help="The ε that the training may cost.")],
    records: Records,
    batch: Batch,
    epochs: Epochs,
    delta: Delta,
    accountant: AccountantName = "pld",
    unit: UnitName = "record",
    as_json: AsJson = False,
) -> None:
    """Find the least noise that keeps a training plan within ε.

    Example: `confrere calibrate --epsilon 3 --records 2338 --batch 32 --epochs 30 --delta 1e-5`
    """
    from confrere.evaluate.privacy_cost import calibrate as least_noise

    cost = least_noise(
        epsilon, records=records, batch=batch, epochs=epochs, delta=delta, accountant=accountant, unit=unit
    )
    if as_json:
        print_json(cost.as_json())
    else:
        found = f"A noise multiplier of {cost.noise_multiplier:g} keeps within ε = {epsilon:g}."
        console.print(f"{found}\n{cost.words}", soft_wrap=True)
