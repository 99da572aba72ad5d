"""An audit: what an attacker really detects in what leaves a site, beside what the site claims.

All attacks run the real training and look at what passed the gate. A bound from below can show that a
guarantee is broken; it never shows that one holds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from confrere.core.errors import StudyError
from confrere.privacy.accounting import Guarantee, rounded_up
from confrere.privacy.detect import Detected
from confrere.runtime.audit import canaries as canary_attack
from confrere.runtime.audit import membership as membership_attack
from confrere.runtime.audit import outlier as outlier_attack
from confrere.runtime.audit import reconstruction as reconstruction_attack
from confrere.runtime.audit.canaries import Canaries
from confrere.runtime.audit.membership import Guessed
from confrere.runtime.audit.outlier import Outlier
from confrere.runtime.audit.reconstruction import Rebuilt
from confrere.runtime.audit.watch import most_exposed
from confrere.runtime.records import Source, open_sites
from confrere.study import Study

CONFIDENCE = 0.975
"""Of each of the two bounds on ε; so a verdict from both is wrong in at most 5 of 100 audits."""

Tick = Callable[[int, int, str], None]
"""(done, total, what is being done)"""


@dataclass(frozen=True)
class Effort:
    """How hard the attackers try: training runs with and without the outlier, canaries, shadows, attempts."""

    runs: int = 100
    canaries: int = 100
    shadows: int = 16
    attempts: int = 10

    def __post_init__(self) -> None:
        if self.runs < 20:  # with fewer, no bound could be above 0
            raise StudyError(
                f"--runs is {self.runs}; an audit needs at least 20 with the record and 20 without"
            )
        if self.canaries < 10:
            raise StudyError(f"--canaries is {self.canaries}; an audit needs at least 10")

    @property
    def steps(self) -> int:
        return 2 * self.runs + 1 + 2 * (max(self.shadows, 8) // 2) + 2 * self.attempts


QUICK = Effort(runs=40, canaries=50, shadows=8, attempts=5)


@dataclass(frozen=True)
class Audit:
    """What came of an audit; `result` is what `confrere audit --json` prints."""

    study: Study
    site: str
    claimed: Guarantee | None
    one_run: Canaries
    many_runs: Outlier
    membership: Mapping[str, Guessed]
    reconstruction: Mapping[str, Rebuilt]
    seconds: float = field(compare=False, default=0.0)

    @property
    def bounds(self) -> list[tuple[Detected, Guarantee | None]]:
        """Both bounds, each with what was claimed for the rounds that were watched."""
        return [
            (self.many_runs.detected, self.many_runs.claimed),
            (self.one_run.detected, self.one_run.claimed),
        ]

    @property
    def detected(self) -> Detected:
        """The larger of the two bounds."""
        return max((found for found, _ in self.bounds), key=lambda d: d.epsilon)

    @property
    def broken(self) -> bool:
        """Whether more was detected than was claimed."""
        return any(claimed is not None and found.breaks(claimed.epsilon) for found, claimed in self.bounds)

    @property
    def verdict(self) -> str:
        """The audit in one sentence."""
        for found, claimed in self.bounds:
            if claimed is not None and found.breaks(claimed.epsilon):
                return found.against(claimed.epsilon)
        if self.claimed is None:
            return f"{self.detected}; the study claims no guarantee"
        doubt = "" if self.claimed.proven else "; the claim is as published, not proven"
        return (
            f"nothing beyond the claimed ε = {rounded_up(self.claimed.epsilon)} was detected"
            f" ({self.detected}; a low value proves nothing){doubt}"
        )

    def sentences(self) -> list[str]:
        """The audit for people."""
        one, many = self.one_run, self.many_runs
        worth = f", worth ε = {rounded_up(many.claimed.epsilon)}" if many.claimed else ""
        lines = [
            _capital(self.verdict) + ".",
            f"Many runs: the first {many.rounds} rounds{worth}, {many.runs} times with one constructed record "
            f"and {many.runs} times without it; {many.detected}.",
            f"One run of {self.site}, the site with the fewest records: {one.canaries} made-up records, "
            f"{one.included} of them put in by coin toss; {one.detected}.",
        ]
        for role, found in self.membership.items():
            a = found.attack
            lines.append(
                f"Membership, {_where(role)}: {a}; ± {found.spread:.2f} over {found.runs} runs, "
                f"{found.records} records."
            )
        for role, built in self.reconstruction.items():
            lines.append(
                f"Reconstruction, {_where(role)}: a record that was trained on alone is rebuilt with "
                f"similarity {built.similarity:.2f} ± {built.error:.2f} (others: {built.unrelated:.2f}); "
                f"it was picked out of {built.among} records in {100 * built.found:.0f} % of "
                f"{built.attempts} attempts."
            )
        return lines

    @property
    def result(self) -> dict[str, Any]:
        """The audit for machines; keys stay stable."""
        return {
            "study": self.study.hash(),
            "strategy": self.study.strategy_name,
            "seed": self.study.seed,
            "site": self.site,
            "claimed": asdict(self.claimed) if self.claimed else None,
            "detected": {"epsilon": self.detected.epsilon, "confidence": self.detected.confidence},
            "broken": self.broken,
            "verdict": self.verdict,
            "attacks": {
                "one_run": {
                    "epsilon": self.one_run.detected.epsilon,
                    "confidence": self.one_run.detected.confidence,
                    "canaries": self.one_run.canaries,
                    "included": self.one_run.included,
                },
                "many_runs": {
                    "epsilon": self.many_runs.detected.epsilon,
                    "confidence": self.many_runs.detected.confidence,
                    "runs": self.many_runs.runs,
                    "rounds": self.many_runs.rounds,
                    "claimed": self.many_runs.claimed.epsilon if self.many_runs.claimed else None,
                    "far": self.many_runs.far,
                },
                "membership": {
                    _key(role): {
                        "area": g.attack.area,
                        "error": g.spread,
                        "advantage": g.attack.advantage,
                        "false_alarms": g.attack.false_alarms,
                        "caught": g.attack.caught,
                        "caught_at_least": g.attack.caught_at_least,
                        "records": g.records,
                        "runs": g.runs,
                    }
                    for role, g in self.membership.items()
                },
                "reconstruction": {_key(role): asdict(r) for role, r in self.reconstruction.items()},
            },
            "seconds": round(self.seconds, 2),
        }


def audit(
    study: Study,
    sites: Mapping[str, Source] | None = None,
    *,
    effort: Effort | None = None,
    tick: Tick = lambda done, total, what: None,
) -> Audit:
    """Attack a study in all ways there are."""
    effort = effort or Effort()
    began = time.perf_counter()
    study = replace(study, variants={})
    federation = open_sites(study, sites)
    site = most_exposed(federation)
    count = [0]

    def ticking(what: str) -> Callable[[], None]:
        tick(count[0], effort.steps, what)

        def step() -> None:
            count[0] += 1
            tick(count[0], effort.steps, what)

        return step

    many = outlier_attack.attack(
        study,
        federation,
        runs=effort.runs,
        confidence=CONFIDENCE,
        tick=ticking("one record, many runs"),
    )
    step = ticking("canaries")
    one = canary_attack.attack(study, federation, site, canaries=effort.canaries, confidence=CONFIDENCE)
    step()
    guessed = membership_attack.attack(
        study, federation, site, runs=effort.shadows, tick=ticking("membership")
    )
    rebuilt = reconstruction_attack.attack(
        study, federation, site, attempts=effort.attempts, tick=ticking("reconstruction")
    )
    return Audit(
        study, site, one.claimed or many.claimed, one, many, guessed, rebuilt, time.perf_counter() - began
    )


def _where(role: str) -> str:
    if role == "released":
        return "what leaves"
    if role == "released without noise":
        return "what would leave without noise"
    return f"the {role} model, which stays"


def _key(role: str) -> str:
    return role.replace(" ", "_")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


__all__ = ["QUICK", "Audit", "Effort", "audit"]
