"""What the source of an experiment reports, read from repro/reported/NAME.toml.

source = "Kalra et al. 2023"
shows = "Fig. 3"
[values.proxyfl]              # by arm and metric: the mean, or [mean, spread]
accuracy = [0.81, 0.08]
[[claims]]                    # what it states without figures, or beside them
better = "proxyfl"
than = "fedavg"
p = 1e-5
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import with_config

from confrere.core.errors import StudyError
from confrere.core.strict_reader import STRICT
from confrere.study import Study, build, load

ROOT = Path(__file__).resolve().parents[1]
STUDIES, REPORTED = ROOT / "studies", ROOT / "repro" / "reported"

Value = float | list[float]


@with_config(STRICT)
@dataclass(frozen=True)
class Claim:
    """One way does better than another, as the source says; an arm's proxy is «ARM/proxy»."""

    better: str = ""
    than: str = ""
    metric: str = "accuracy"
    p: float | None = None
    """The p-value below which the source puts it."""
    about: Literal["more", "as good"] = "more"
    """«as good»: the two do equally well, or nearly."""
    test: Literal["", "own", "common"] = ""
    """On which records, where that is not what the source uses otherwise."""


@with_config(STRICT)
@dataclass(frozen=True)
class Reported:
    """What the source of a study reports, to be put beside what is measured."""

    source: str = ""
    shows: str = ""
    """The figure or table that the study repeats."""
    test: Literal["own", "common"] = "own"
    """Whether the source tests each site on its own records or on common ones."""
    by: Literal["compare", "traffic", "epsilon"] = "compare"
    """The command that repeats it: one that trains, one that counts what is sent, or one that adds up privacy."""
    figures: list[Literal["curves", "settings", "bars", "pyramid", "weights", "reached", "scope"]] = field(
        default_factory=list
    )
    says: list[str] = field(default_factory=list)
    """What the source reports in words."""
    differs: list[str] = field(default_factory=list)
    """What is not as in the source: data, sizes, rounds."""
    remarks: list[str] = field(default_factory=list)
    """Where the results differ, and why, as far as that is known."""
    values: dict[str, dict[str, Value]] = field(default_factory=dict)
    claims: list[Claim] = field(default_factory=list)

    def check(self) -> None:
        if not self.source.strip():
            raise StudyError("source is missing: say whose results these are")
        if not all(c.better and c.than for c in self.claims):
            raise StudyError("claims: each names two arms, better and than")
        for arm, measures in self.values.items():
            for measure, value in measures.items():
                if isinstance(value, list) and len(value) != 2:
                    raise StudyError(f"values.{arm}.{measure} is a number, or [mean, spread], not {value}")


@dataclass(frozen=True)
class Experiment:
    """A study and what its source reports about it."""

    study: Study
    reported: Reported


def read_reported(path: Path) -> Reported:
    """What a source reports, from a TOML file."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StudyError(f"{path}: cannot be read: {error}") from None
    found: Reported = build(Reported, table, str(path))
    found.check()
    return found


def experiments() -> dict[str, Experiment]:
    """Every published experiment, by the name of its study."""
    return {
        path.stem: Experiment(load(STUDIES / path.name), read_reported(path))
        for path in sorted(REPORTED.glob("*.toml"))
    }
