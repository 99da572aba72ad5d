"""What a comparison of a study runs, and what its source reports: beside the agreement, and no part of it.

[comparison]
arms = ["regular", "fedavg", "proxyfl"]      # strategies or [variants], what `confrere compare` runs unless told otherwise
seeds = 5
[comparison.settings."p 0.1"]                # every arm is run in every setting: «fedavg@p 0.1» …
data.options.p = 0.1

[reported]
source = "Kalra et al. 2023"
shows = "Fig. 3"
[reported.values.proxyfl]                    # by arm and measure: the mean, or [mean, spread]
accuracy = [0.81, 0.08]
[[reported.claims]]                          # what it says without figures, or beside them
better = "proxyfl"
than = "fedavg"
p = 1e-5
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import with_config

from confrere.core.errors import StudyError
from confrere.study.strict import STRICT

FULL = "full"
"""The scale of a study as it is written."""

Value = float | list[float]


@with_config(STRICT)
@dataclass(frozen=True)
class Comparing:
    """What `confrere compare` runs where the command does not say it."""

    arms: list[str] = field(default_factory=list)
    seeds: int = 3
    pooled: bool = True
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Named changes to the study; every arm is run in every one of them."""

    def names(self) -> list[str]:
        """Every arm, in every setting where there are settings."""
        return [f"{arm}@{setting}" for setting in self.settings for arm in self.arms] or list(self.arms)

    def parts(self, name: str) -> tuple[str, str | None]:
        """Arm and setting behind a name."""
        arm, at, setting = name.rpartition("@")
        return (arm, setting) if at and setting in self.settings else (name, None)

    def check(self) -> None:
        if self.seeds < 1:
            raise StudyError(f"comparison.seeds is {self.seeds}; a comparison needs at least one")
        if len(set(self.arms)) < len(self.arms):
            raise StudyError("comparison.arms names an arm twice")
        if self.settings and not self.arms:
            raise StudyError("comparison.settings are for comparison.arms, and there are none")


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
            raise StudyError("reported.source is missing: say whose results these are")
        if not all(c.better and c.than for c in self.claims):
            raise StudyError("reported.claims: each names two arms, better and than")
        for arm, measures in self.values.items():
            for measure, value in measures.items():
                if isinstance(value, list) and len(value) != 2:
                    raise StudyError(
                        f"reported.values.{arm}.{measure} is a number, or [mean, spread], not {value}"
                    )
