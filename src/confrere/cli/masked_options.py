"""The options of `confrere epsilon` and `confrere calibrate` for masked sums."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from confrere.core.errors import StudyError

if TYPE_CHECKING:
    from confrere.evaluate.privacy_cost import MaskedPlan

InMaskedSums = Annotated[
    bool, typer.Option("--masked", help="Masked sums: the sites share the noise of one release.")
]
Sites = Annotated[int | None, typer.Option(help="With --masked: how many sites add up.")]
Colluding = Annotated[int, typer.Option(help="With --masked: how many sites may collude.")]
Dropouts = Annotated[int, typer.Option(help="With --masked: how many sites may be missing in a round.")]
Rounds = Annotated[int, typer.Option(help="With --masked: how many sums each site is part of.")]
Clipping = Annotated[float, typer.Option(help="With --masked: the clipping norm.")]
Parameters = Annotated[int, typer.Option(help="With --masked: how many numbers the sum has.")]

MASKED = "with --masked, where a round uses all records of a site"


def masked_plan(sites: int | None, delta: float, unit: str, **options: Any) -> MaskedPlan:
    """The plan that the options describe."""
    from confrere.evaluate.privacy_cost import MaskedPlan

    if sites is None:
        raise StudyError("--masked needs --sites, the number of sites that add up")
    return MaskedPlan(sites, delta, unit=unit, **options)  # type: ignore[arg-type]


def training_options(records: int | None, batch: int | None, epochs: int | None) -> dict[str, int]:
    """What a plan without masks needs; refuses the first that is missing."""
    found = {}
    for name, value in {"records": records, "batch": batch, "epochs": epochs}.items():
        if value is None:
            raise StudyError(f"Missing option --{name}; for masked sums give --masked and --sites instead")
        found[name] = value
    return found


def refuse_options(where: str, options: Mapping[str, object]) -> None:
    """Refuse options that have no meaning here."""
    for name, value in options.items():
        if value is not None:
            raise StudyError(f"{name} does not apply {where}")
