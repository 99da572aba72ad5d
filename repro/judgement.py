"""What a source reports beside what was measured here: by arm and measure, and claim by claim."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import stats

from confrere.core.metrics import METRICS, named
from confrere.simulation.finished_run import Run
from confrere.statistics.contributions import Effects, effects
from confrere.statistics.intervals import MeanDifference, clear
from confrere.statistics.verdict import LEAST_RARER, LEAST_SEEDS, Effect, Gain, judge_all, shown
from repro.reported import Claim, Reported

PROXY = "/proxy"
"""An arm's proxy rather than the model that a site would use: «proxyfl/proxy»."""

NOT_KEPT = "cannot be judged: predictions for patients were not kept"

MANY = 10**6
"""Degrees of freedom of patients, where their number was not recorded."""

Points = dict[tuple[int, str], float]
"""A measure by seed and site."""


def beside(reported: Reported, runs: Mapping[str, Sequence[Run]]) -> dict[str, Any]:
    """All that the source reports, each with what was measured; what was not run here is left open."""
    measured = {}
    for arm in _arms(runs):
        found = {m: _spread(_points(runs, arm, m, reported.test)) for m in (*METRICS, "epsilon")}
        measured[arm] = {m: s for m, s in found.items() if s is not None}
        if "epsilon" in measured[arm]:
            measured[arm]["epsilon"] |= _guarantee(runs[arm])
    return {
        "source": reported.source,
        "shows": reported.shows,
        "test": reported.test,
        "says": list(reported.says),
        "differs": list(reported.differs),
        "remarks": list(reported.remarks),
        "values": {
            arm: {m: _stated(v) for m, v in measures.items()} for arm, measures in reported.values.items()
        },
        "measured": measured,
        "claims": _all_judged(reported, runs),
    }


def _guarantee(runs: Sequence[Run]) -> dict[str, Any]:
    """The largest ε of all sites, and what it says nothing without: δ, for whom, by which accountant, whether it is proven."""
    spent = [p for run in runs for entry in run.sites.values() if (p := entry.privacy)]
    largest = max(spent, key=lambda p: p.epsilon)
    return {
        "mean": largest.epsilon,
        **{k: getattr(largest, k) for k in ("delta", "unit", "accountant", "proven")},
    }


def _arms(runs: Mapping[str, Sequence[Run]]) -> list[str]:
    """Every arm, and after it its proxy where it has one."""
    out = []
    for name, found in runs.items():
        out.append(name)
        if any(entry.proxy_metrics for entry in found[0].sites.values()):
            out.append(name + PROXY)
    return out


def _stated(value: float | list[float]) -> dict[str, float | None]:
    return (
        {"mean": value[0], "spread": value[1]} if isinstance(value, list) else {"mean": value, "spread": None}
    )


def _points(runs: Mapping[str, Sequence[Run]], arm: str, metric: str, test: str) -> Points:
    """The measure of each seed and site; empty where the arm was not run or has no such measure."""
    name, proxy = arm.removesuffix(PROXY), arm.endswith(PROXY)
    part = ("common_" if test == "common" else "") + ("proxy_metrics" if proxy else "metrics")
    out: Points = {}
    for run in runs.get(name, ()):
        for site, entry in run.sites.items():
            if metric == "epsilon":
                value = entry.privacy.epsilon if entry.privacy and not proxy else None
            else:
                value = (getattr(entry, part) or {}).get(metric)
            if value is not None and math.isfinite(value):
                out[run.study.seed, site] = float(value)
    return out


def _by_seed(points: Points) -> dict[int, float]:
    """The mean over sites, seed by seed."""
    seeds = sorted({seed for seed, _ in points})
    return {s: statistics.fmean(v for (seed, _), v in points.items() if seed == s) for s in seeds}


def _spread(points: Points) -> dict[str, Any] | None:
    """Mean over seeds and sites, the standard deviation over seeds (of means over sites) and over all of them."""
    if not points:
        return None
    means = list(_by_seed(points).values())
    return {
        "mean": statistics.fmean(points.values()),
        "over_seeds": statistics.stdev(means) if len(means) > 1 else None,
        "over_all": statistics.stdev(points.values()) if len(points) > 1 else None,
        "seeds": len(means),
        "sites": len({site for _, site in points}),
    }


def _all_judged(reported: Reported, runs: Mapping[str, Sequence[Run]]) -> list[dict[str, Any]]:
    """Every claim with the difference that was measured; all claims of a source are corrected together."""
    paired = PairedEffects(runs)
    found = [_measured(claim, runs, paired, claim.test or reported.test) for claim in reported.claims]
    gains = judge_all({n: effect for n, (_, effect) in enumerate(found) if effect is not None})
    for number, (claim, (out, _)) in enumerate(zip(reported.claims, found, strict=True)):
        if number in gains:
            out["verdict"] = _verdict(claim.about, gains[number])
    return [out for out, _ in found]


@dataclass(frozen=True)
class PairedEffects:
    """What arms gain over one another, patient by patient, on the mean over sites; computed once per reference."""

    runs: Mapping[str, Sequence[Run]]
    _known: dict[tuple[str, str], dict[str, Effects]] = field(default_factory=dict)

    def of(self, better: str, than: str, part: str, metric: str) -> Effect | None:
        """None where an arm's predictions were not kept, or are for other records."""
        if (than, part) not in self._known:
            ways = {
                name: [
                    {s: k.parts[part] for s, k in run.predictions.items() if part in k.parts} for run in found
                ]
                for name, found in self.runs.items()
            }
            whole = {name: way for name, way in ways.items() if way and all(way)}
            self._known[than, part] = effects(whole, than) if than in whole else {}
        found = self._known[than, part].get(better)
        return found.groups.get("all", {}).get(metric) if found is not None else None


def _measured(
    claim: Claim, runs: Mapping[str, Sequence[Run]], paired: PairedEffects, test: str
) -> tuple[dict[str, Any], Effect | None]:
    """The claim with what was measured, and its effect: positive is as the source says.

    The rule needs the predictions for each patient. Proxies and ε have none: then only the luck of the runs counts, and
    `basis` says so. Two p-values are shown for comparison, both of a paired t-test: over seeds (means over sites), and over
    all sites of all seeds, which is what sources tend to count although sites of one seed have learned from one another.
    """
    sign = -1.0 if claim.metric == "epsilon" else named(claim.metric).sign
    better, than = (_points(runs, arm, claim.metric, test) for arm in (claim.better, claim.than))
    out: dict[str, Any] = {
        "better": claim.better, "than": claim.than, "metric": claim.metric, "about": claim.about, "test": claim.test,
        "reported_p": claim.p, "difference": None, "p_seeds": None, "p_sites": None, "basis": None, "verdict": "not run",
    }  # fmt: skip
    one, two = _by_seed(better), _by_seed(than)
    over_seeds = [sign * (one[s] - two[s]) for s in sorted(one.keys() & two.keys())]
    if not over_seeds:  # no seed has both
        return out, None
    pairs = sorted(better.keys() & than.keys())
    if len(pairs) < max(len(better), len(than)):  # one model for all sites: each site against it
        pairs_of = [sign * (v - two[seed]) for (seed, _), v in better.items() if seed in two]
    else:
        pairs_of = [sign * (better[k] - than[k]) for k in pairs]
    spread = statistics.stdev(over_seeds) if len(over_seeds) > 1 else None
    part = "common_test" if test == "common" else "test"
    effect = paired.of(claim.better, claim.than, part, claim.metric)
    between = (spread or 0.0) ** 2 / len(over_seeds)
    out |= {
        "difference": {"mean": statistics.fmean(over_seeds), "over_seeds": spread, "seeds": len(over_seeds)},
        "p_seeds": paired_p(over_seeds),
        "p_sites": paired_p(pairs_of),
        "basis": "seeds" if effect is None else "patients and seeds",
    }
    return out, effect or Effect(tuple(over_seeds), between, 0.0, LEAST_RARER)


def paired_p(differences: Sequence[float]) -> float | None:
    """The two-sided p-value of Student's t-test that the mean of paired differences is zero; None for fewer than two."""
    if len(differences) < 2:
        return None
    if all(d == differences[0] for d in differences):
        return 1.0 if differences[0] == 0 else 0.0
    return float(stats.ttest_1samp(differences, 0.0).pvalue)


def rejudged(claims: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The claims of one source; those recorded by an earlier version are judged again, as far as its record allows.

    Such a record has the mean and the standard deviation over seeds, and no predictions for patients. Claims about proxies
    and ε need no more. For the others, what patients add to the variance is unknown. A difference
    that is not clear with any such variance is not clear; every other cannot be judged.
    """
    found = [dict(claim) for claim in claims]
    old = {n: _recorded(c) for n, c in enumerate(found) if "basis" not in c and c["difference"] is not None}
    by_seeds = {n for n in old if _needs_seeds_only(found[n])}
    unknown = Effect((0.0,) * LEAST_SEEDS, 1.0, 0.0, LEAST_RARER)
    judged = judge_all({n: effect if n in by_seeds else unknown for n, effect in old.items()})
    possible = _possibly_clear(old)
    for number, effect in old.items():
        claim, known = found[number], number in by_seeds
        claim["basis"] = "seeds" if known else "seeds, of an earlier version"
        if known or not effect.enough:
            claim["verdict"] = _verdict(claim["about"], judged[number] if known else shown(effect))
        elif possible[number]:
            claim["verdict"] = NOT_KEPT
        else:
            claim["verdict"] = _verdict(
                claim["about"], Gain(effect.mean, None, None, None, 0, "no clear difference")
            )
    return found


def _possibly_clear(effects: Mapping[int, Effect]) -> dict[int, bool]:
    """Whether each difference could be clear by the rule, whatever patients add to its variance."""
    added, least = np.linspace(0, 20, 201), {}
    for number, e in effects.items():
        if e.enough:
            p = MeanDifference(e.mean, e.between, e.between * added, len(e.values), MANY).p()
            least[number] = float(p.min())
    return dict(zip(least, clear(np.array(list(least.values()))).tolist(), strict=True))


def _recorded(claim: Mapping[str, Any]) -> Effect:
    """The difference as it was recorded, with the variance between seeds only."""
    known = claim["difference"]
    seeds = int(known["seeds"])
    return Effect(
        (float(known["mean"]),) * seeds, (known["over_seeds"] or 0.0) ** 2 / seeds, 0.0, LEAST_RARER
    )


def _needs_seeds_only(claim: Mapping[str, Any]) -> bool:
    """Proxies and ε have no predictions for single patients."""
    return claim["metric"] == "epsilon" or any(str(claim[k]).endswith(PROXY) for k in ("better", "than"))


def _verdict(about: str, found: Gain) -> str:
    """The claim in a word, by the rule of all comparisons."""
    if not found.judged:
        return found.word
    if about == "as good":
        return "no clear difference" if not found.clear else "one is clearly better"
    if not found.clear:
        return "same direction, not clear" if found.mean > 0 else "other direction, not clear"
    return "holds here" if found.mean > 0 else "the opposite holds here"


def curves(runs: Mapping[str, Sequence[Run]], metric: str, test: str) -> dict[str, list[dict[str, float]]]:
    """How each arm's measure went, round by round: mean and standard deviation over sites and seeds."""
    part = "common_test" if test == "common" else "test"
    out: dict[str, list[dict[str, float]]] = {}
    for name, found in runs.items():
        by_role: dict[str, dict[int, list[float]]] = {}
        for event in (
            e for run in found for e in run.events if e.kind == "evaluated" and e.round is not None
        ):
            for role, measures in (event.data.get(part) or {}).items():
                if metric in measures:
                    assert event.round is not None
                    by_role.setdefault(role, {}).setdefault(event.round + 1, []).append(measures[metric])
        for index, (role, rounds) in enumerate(by_role.items()):
            out[name if index == 0 else f"{name}/{role}"] = [
                {"round": r, "mean": statistics.fmean(v), "std": statistics.stdev(v) if len(v) > 1 else 0.0}
                for r, v in sorted(rounds.items())
            ]
    return out
