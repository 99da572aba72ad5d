"""`confrere calibrate`: how much noise keeps a plan of training within a budget."""

from __future__ import annotations

from typing import Annotated

import typer

from confrere.cli.epsilon import AccountantName, AsJson, Batch, Delta, Epochs, Records, UnitName, plan
from confrere.cli.output import console, print_json
from confrere.privacy import accounting


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
    """Find the least noise that keeps a plan of private training within ε.

    Example: `confrere calibrate --epsilon 3 --records 2338 --batch 32 --epochs 30 --delta 1e-5`
    """
    training = plan(records, batch, epochs, delta, unit, accountant)
    noise = accounting.calibrate(
        epsilon, delta, sample_rate=training.rate, steps=training.steps, accountant=training.accountant
    )
    if as_json:
        print_json({**training.document(noise), "target_epsilon": epsilon})
    else:
        console.print(f"A noise multiplier of {noise:g} keeps within ε = {epsilon:g}.", soft_wrap=True)
        console.print(training.sentences(noise), soft_wrap=True)
