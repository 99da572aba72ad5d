"""Audit a study: attack what leaves a site, and compare what was detected with the ε that is claimed.

All attacks run the real training and read what passed the gate. Canaries (canaries.py) give a lower bound on ε, which
can show that a guarantee is broken and never that one holds. Membership inference and reconstruction attack the
study's own records and networks, and also the models that stay at the site, for which no ε is claimed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from typing import Any

from confrere.evaluate.audit import canaries, membership_inference, reconstruction
from confrere.evaluate.audit.audit_statistics import Detected
from confrere.evaluate.audit.canaries import CanaryResult
from confrere.evaluate.audit.effort import QUICK, AuditEffort
from confrere.evaluate.audit.membership_inference import MembershipResult
from confrere.evaluate.audit.observed_simulation import largest, most_exposed
from confrere.evaluate.audit.reconstruction import ReconstructionResult
from confrere.privacy.charges import Guarantee
from confrere.site.open_sites import Source, open_sites
from confrere.study import Study
from confrere.study.masked_settings import masked_of

ATTACKER_KNOWS = (
    "all other records, all weights that a training began with and every setting;"
    " not the coins, the samples and the noise"
)
"""What the attacker knows."""

Tick = Callable[[float, str], None]
"""(share of the work that is done, what is being done)"""


@dataclass(frozen=True)
class Audit:
    """The result of an audit."""

    study: Study
    site: str
    canaries: CanaryResult
    membership: Mapping[str, MembershipResult] = field(default_factory=dict)
    reconstruction: Mapping[str, ReconstructionResult] = field(default_factory=dict)
    seconds: float = field(compare=False, default=0.0)

    @property
    def detected(self) -> Detected:
        return self.canaries.detected

    @property
    def claimed(self) -> Guarantee | None:
        return self.canaries.claimed

    @property
    def broken(self) -> bool:
        """Whether more was detected than was claimed."""
        return self.claimed is not None and self.detected.breaks(self.claimed.epsilon)

    @property
    def verdict(self) -> str:
        """The audit in one sentence."""
        if self.claimed is None:
            return f"{self.detected}; the study claims no guarantee"
        doubt = "" if self.claimed.proven else " (as published, not proven)"
        return f"{self.detected.against(self.claimed.epsilon)}{doubt}"

    @property
    def known(self) -> str:
        """What the attacker knew."""
        settings = masked_of(self.study)
        if settings is None:
            return ATTACKER_KNOWS
        missing = f"; {_were(settings.dropouts)} missing" if settings.dropouts else ""
        return (
            f"every opened sum, the vectors and the noise of {_many(settings.colluding, 'colluding site')}{missing};"
            f" {ATTACKER_KNOWS}"
        )

    def sentences(self) -> list[str]:
        """The audit for people."""
        c = self.canaries
        lines = [
            _capital(self.verdict) + ".",
            f"{c.trials:,} trials in {self.seconds:.0f} s: {c.runs:,} runs of {_many(c.rounds, 'round')}, each with "
            f'{c.canaries} canaries at site "{self.site}" that were in or out by a coin of their own. '
            f"{_many(c.releases, 'release')} of each run {'was' if c.releases == 1 else 'were'} read together; "
            f"half of the runs chose the test, the others judged it.",
            f"The attacker knew {self.known}.",
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

    def as_json(self) -> dict[str, Any]:
        """What `confrere audit --json` prints; keys stay stable."""
        c = self.canaries
        return {
            "study": self.study.hash(),
            "strategy": self.study.strategy_name,
            "seed": self.study.seed,
            "site": self.site,
            "claimed": asdict(self.claimed) if self.claimed else None,
            "detected": asdict(self.detected),
            "broken": self.broken,
            "verdict": self.verdict,
            "trials": c.trials,
            "runs": c.runs,
            "rounds": c.rounds,
            "canaries": c.canaries,
            "releases": c.releases,
            "known": self.known,
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
            "seconds": round(self.seconds, 2),
        }


def audit(
    study: Study,
    sites: Mapping[str, Source] | None = None,
    *,
    effort: AuditEffort | None = None,
    tick: Tick = lambda done, what: None,
) -> Audit:
    """Attack a study and report how large an ε an attacker detects, beside the ε that is claimed.

    Canaries attack the largest site, membership inference and reconstruction the smallest. `sites` are your own records,
    as in `simulate`; `effort` is how hard the attackers try; `tick` is called with the share of the work that is done
    and what is being done.

    >>> effort = confrere.AuditEffort(runs=8, canaries=40, shadows=0, attempts=0)  # a real one takes two minutes
    >>> confrere.audit(study, sites, effort=effort).broken
    False
    """
    effort = effort or AuditEffort()
    began = time.perf_counter()
    study = replace(study, variants={})
    federation = open_sites(study, sites)
    site = largest(federation)
    found = canaries.attack(study, federation, site, effort, tick=lambda done: tick(done, "canaries"))
    seconds = time.perf_counter() - began
    guessed: dict[str, MembershipResult] = {}
    rebuilt: dict[str, ReconstructionResult] = {}
    exposed = most_exposed(federation)
    if effort.shadows:
        step = _steps(tick, "membership", effort.shadows)
        guessed = membership_inference.attack(study, federation, exposed, runs=effort.shadows, tick=step)
    if effort.attempts:
        step = _steps(tick, "reconstruction", 2 * effort.attempts)
        rebuilt = reconstruction.attack(study, federation, exposed, attempts=effort.attempts, tick=step)
    return Audit(study, site, found, guessed, rebuilt, seconds)


def _steps(tick: Tick, what: str, total: int) -> Callable[[], None]:
    done = count(1)
    return lambda: tick(next(done) / total, what)


def _where(role: str) -> str:
    if role == "released":
        return "what leaves"
    if role == "released without noise":
        return "what would leave without noise"
    return f"the {role} model, which stays"


def _key(role: str) -> str:
    return role.replace(" ", "_")


def _many(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")


def _were(count: int) -> str:
    return f"{count} more {'was' if count == 1 else 'were'}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


__all__ = ["QUICK", "Audit", "AuditEffort", "audit"]
