"""The `[comparison]` table of a study: what `confrere compare` runs. Not part of what the sites agree on.

[comparison]
arms = ["regular", "fedavg", "proxyfl"]      # strategies or [variants]
seeds = 5
[comparison.settings."p 0.1"]                # every arm runs in every setting: "fedavg@p 0.1" …
data.options.p = 0.1
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pydantic import with_config

from confrere.core.errors import StudyError
from confrere.core.strict_reader import STRICT

FULL = "full"
"""The scale of a study as it is written."""


@with_config(STRICT)
@dataclass(frozen=True)
class ComparisonSettings:
    """What `confrere compare` runs where the command does not say it."""

    arms: list[str] = field(default_factory=list)
    """The strategies, or names under [variants], to compare. Empty: the study as it stands."""
    seeds: int = 5
    """How many seeds each of them runs with."""
    pooled: bool = True
    """Whether training on all records in one place is added as a reference."""
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
        if len(set(self.arms)) < len(self.arms):
            raise StudyError("comparison.arms names an arm twice")
        if self.settings and not self.arms:
            raise StudyError("comparison.settings are for comparison.arms, and there are none")
