"""How much work the attackers of an audit do."""

from __future__ import annotations

from dataclasses import dataclass

from confrere.core.errors import StudyError

MOST_SECONDS = 7 * 24 * 3600
MOST_RUNS = 100_000


@dataclass(frozen=True)
class AuditEffort:
    """How hard the attackers of an audit try.

    >>> confrere.AuditEffort(runs=40, shadows=0, attempts=0).canaries  # repeatable, and canaries only
    500
    """

    seconds: float = 120.0
    """How long to run canaries."""
    runs: int | None = None
    """Runs with canaries, instead of `seconds`: the same result every time."""
    canaries: int = 500
    """Canaries in each run."""
    shadows: int = 16
    """Shadow models for membership inference; 0 leaves it out."""
    attempts: int = 10
    """Records to reconstruct; 0 leaves it out."""

    def __post_init__(self) -> None:
        if not 0 < self.seconds <= MOST_SECONDS:
            raise StudyError(
                f"--seconds is {self.seconds:g}; an audit takes more than 0 and at most {MOST_SECONDS:,} (a week)"
            )
        if self.runs is not None and not 8 <= self.runs <= MOST_RUNS:
            raise StudyError(f"--runs is {self.runs}; an audit takes at least 8 and at most {MOST_RUNS:,}")
        if not 10 <= self.canaries <= 5000:
            raise StudyError(f"--canaries is {self.canaries}; an audit uses at least 10 and at most 5,000")


QUICK = AuditEffort(seconds=45.0, shadows=0, attempts=0)
"""About a minute, and canaries only."""
