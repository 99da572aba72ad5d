"""Answers «What should we do next?» on the first screen: one step, with its reason."""

from __future__ import annotations

from collections.abc import Mapping

from confrere.core.results import ComparisonResult, StrategyResult
from confrere.report import words
from confrere.report.gains import mean_gain, site_gain
from confrere.report.history import History
from confrere.report.page.answers import Answer, sentences
from confrere.statistics.verdict import EARLIER, LEAST_RARER, LEAST_SEEDS, Gain

QUESTION = "What next?"
REHEARSE, SETTINGS, REFUSE = (
    "Rehearse it with your IT department",
    "Look for better settings",
    "Do not take part with these settings",
)
_PLAN = ("What other settings or a larger ε would bring, as an estimate", "confrere plan STUDY.toml")
COMMANDS = {
    REHEARSE: ("A rehearsal with real nodes on one machine", "confrere rehearse STUDY.toml"),
    SETTINGS: _PLAN,
    REFUSE: _PLAN,
}


def next_step(
    comparison: ComparisonResult,
    name: str,
    judged: Mapping[str, Gain],
    history: History | None,
    question: str = QUESTION,
    site: str | None = None,
) -> Answer:
    """The step that the verdicts of these sites suggest; for `site` alone, by its own figures only."""
    assert comparison.together is not None
    short, reason = _step(comparison, name, judged, _pooled(comparison, name, site))
    unproven, commands = _unproven(comparison.together, history)
    found = (COMMANDS[short],) if short in COMMANDS else ()
    return Answer(question, short, (sentences(reason, unproven),), commands=(*found, *commands))


def _step(
    comparison: ComparisonResult, name: str, judged: Mapping[str, Gain], pooled: Gain | None
) -> tuple[str, str]:
    by = {w: [s for s, g in judged.items() if g.word == w] for w in ("better", "worse", "too few to judge")}
    better, worse, few = by["better"], by["worse"], by["too few to judge"]
    seeds = max((g.pairs for g in judged.values()), default=0)
    one = len(judged) == 1
    if any(g.word == EARLIER for g in judged.values()):
        return (
            "Run the comparison again",
            f"Because it was {EARLIER.partition(';')[0]}, which judged by another rule.",
        )
    if seeds < LEAST_SEEDS:
        have = words.count(seeds, "seed")
        return (
            "Run more seeds",
            f"Because {have} cannot be judged; at least {LEAST_SEEDS} are needed, five is the default.",
        )
    overall = None if one else mean_gain(comparison, name)
    if overall is not None and overall.clear and not better and not worse:
        return _on_average(overall)
    if few and len(few) == len(judged):
        return "Test on more patients", f"Because {_too_few(comparison, few)}."
    if better and not worse:
        who = (
            "this site gains clearly"
            if one
            else f"{_these(better)} {_gain(better)} clearly and no site loses clearly"
        )
        return (
            REHEARSE,
            f"Because {who}. This was a simulation; a rehearsal runs the real software of all sites on one machine.",
        )
    if better:
        return (
            "Go on without the sites that lose",
            f"Because {_these(better)} {_gain(better)} clearly, and {_these(worse)} {_lose(worse)}: alone serves them better.",
        )
    if worse:
        who = "this site loses" if one else f"{_these(worse)} {_lose(worse)} clearly and no site gains"
        return (
            REFUSE,
            f"Because {who}. Other settings, or a larger ε, may help; that can be estimated first.",
        )
    return _unclear(name, pooled, one)


def _on_average(overall: Gain) -> tuple[str, str]:
    """The mean over the sites is clear, and no single site is."""
    if overall.word == "better":
        return (
            REHEARSE,
            "Because together is clearly better averaged over the sites, though at no single site by itself. More test patients "
            "would show which sites gain. This was a simulation; a rehearsal runs the real software of all sites on one machine.",
        )
    return (
        REFUSE,
        "Because together is clearly worse averaged over the sites, though at no single site by itself. Other settings, or a "
        "larger ε, may help; that can be estimated first.",
    )


def _pooled(comparison: ComparisonResult, name: str, site: str | None) -> Gain | None:
    """What pooling would gain, at one site or averaged over all; None where that cannot be judged."""
    if comparison.pooled is None:
        return None
    if site is None:
        found = mean_gain(comparison, name, comparison.pooled)
    else:
        found = site_gain(comparison, site, name, comparison.pooled)
    return found if found is not None and found.judged else None


def _unclear(name: str, pooled: Gain | None, one: bool) -> tuple[str, str]:
    """No gain and no loss is clear: is there anything to gain?"""
    wait = "Until a gain is clear, alone costs no privacy."
    if pooled is None:
        return (
            "Repeat with more seeds or patients",
            f"Because the interval includes both a gain and a loss. {wait}",
        )
    where = "at this site" if one else "averaged over the sites"
    found = f"Pooling {where}, by {words.metric(name).label}: {words.compared(name, pooled)}."
    if pooled.word == "better":
        return (
            SETTINGS,
            "Because pooling all records would gain, so there is something to gain. What other settings or a larger ε would "
            f"bring can be estimated first. {found} {wait}",
        )
    if pooled.word == "worse":
        return (
            "Stay alone",
            "Because even one model trained on the records of all sites, without noise, is worse than alone. "
            f"{found} {wait}",
        )
    return (
        "Wait, or collect more patients",
        "Because pooling all records does not gain clearly either, so it is not known whether there is anything to gain. "
        f"More seeds, and above all more test patients, make intervals narrower. {found} {wait}",
    )


def _too_few(comparison: ComparisonResult, few: list[str]) -> str:
    tested = comparison.alone.sites[few[0]].tested if comparison.alone and len(few) == 1 else None
    have = f" (now {tested.rarer})" if tested else ""
    return f"at least {LEAST_RARER} test patients of the rarer class are needed{have} at a site to judge it"


def _unproven(
    together: StrategyResult, history: History | None
) -> tuple[str | None, tuple[tuple[str, str], ...]]:
    """A guarantee that is not proven comes before everything else that leaves a site."""
    spent = [s.privacy for s in together.sites.values() if s.privacy]
    if not spent or all(p.proven for p in spent):
        return None, ()
    why = history.started.get("unproven") if history else None
    remedy: tuple[tuple[str, str], ...] = ()
    if why and "schema" in str(why):
        remedy = (("A schema, which a proven guarantee needs", "confrere schema draft FILE.csv"),)
    return "Before real records are used, make the guarantee a proven one" + (
        f": {why}." if why else "."
    ), remedy


def _these(sites: list[str]) -> str:
    return words.listing([f"«{s}»" for s in sites], 3)


def _gain(sites: list[str]) -> str:
    return "gains" if len(sites) == 1 else "gain"


def _lose(sites: list[str]) -> str:
    return "loses" if len(sites) == 1 else "lose"
