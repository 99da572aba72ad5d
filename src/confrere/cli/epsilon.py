"""`confrere epsilon`: the ε of a training plan."""

from __future__ import annotations

from typing import Annotated

import typer

from confrere.cli.options import AccountantName, AsJson, Batch, Delta, Epochs, Records, UnitName
from confrere.cli.output import console, print_json


def epsilon(
    records: Records,
    batch: Batch,
    epochs: Epochs,
    noise_multiplier: Annotated[float, typer.Option(help="Noise, in multiples of the clipping norm.")],
    delta: Delta,
    accountant: AccountantName = "pld",
    unit: UnitName = "record",
    records_per_patient: Annotated[
        int | None, typer.Option(help="The most records of a patient, if that is enforced.", min=1)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compute the ε of a training plan, for whom it holds, and what it means.

    Example: `confrere epsilon --records 2338 --batch 32 --epochs 30 --noise-multiplier 1.4 --delta 1e-5`
    """
    from confrere.evaluate.privacy_cost import epsilon as cost_of

    cost = cost_of(
        records=records, batch=batch, epochs=epochs, noise_multiplier=noise_multiplier, delta=delta,
        accountant=accountant, unit=unit, records_per_patient=records_per_patient,
    )  # fmt: skip
    if as_json:
        print_json(cost.as_json())
    else:
        console.print(cost.words, soft_wrap=True)
