"""The answer of a partner search in one sentence: whom to learn from, and what that brings on how many patients."""

from __future__ import annotations

from collections.abc import Sequence

from confrere.core.results import Tested
from confrere.partners.approaches import ALL_SITES, ALONE, CHOICE, ChoiceOutcome, JudgedGain
from confrere.report import words
from confrere.statistics.verdict import Gain

COMPARED = {
    "better": "clearly better than {other}",
    "worse": "clearly worse than {other}",
    "no clear difference": "not clearly better than {other}",
}


def recommendation(site: str, chosen: Sequence[str], outcome: ChoiceOutcome) -> str:
    """«A should learn from B: on 60 test patients, 14 of them «ill», that is clearly better than alone …»."""
    start = (
        f"The choice for {site} is {words.listing(chosen, 20)}" if chosen else f"No site is chosen for {site}"
    )
    by_name = {a.name: a.gain_over_alone for a in outcome.approaches}
    gain, metric = by_name.get(CHOICE if chosen else ALL_SITES), outcome.metric
    if gain is None or metric is None:
        return f"{start}; what that brings was not measured, because {site} has no test patients."
    what = "that" if chosen else "learning with all sites"
    tested = _tested(outcome.tested)
    if gain.word == "too few to judge":
        return f"{start}; {tested} are too few to judge what {what} brings."
    if chosen and gain.word == "better":
        start = f"{site} should learn from {words.listing(chosen, 20)}"
    found = f"{start}: on {tested} {what} is {compared(metric, gain, ALONE)}"
    if not chosen:
        return f"{found}."
    if outcome.over_all_sites is None:
        return f"{found}; these are all sites."
    return f"{found}, and {compared(metric, outcome.over_all_sites, 'learning with all sites')}."


def compared(metric: str, gain: JudgedGain, other: str) -> str:
    """«clearly better than alone (log loss +0.039, corrected 95 % interval …)»; positive gains are better."""
    if gain.word == "too few to judge":
        return f"not to be judged against {other}: there are too few patients"
    low, high = gain.interval or (None, None)
    figures = words.gained(metric, Gain(gain.mean, None, low, high, 1, gain.word))
    return f"{COMPARED[gain.word].format(other=other)}: {words.metric(metric).label} {figures}"


def _tested(counts: Tested | None) -> str:
    text = words.tested(counts)
    number, patients, rest = text.partition("patient")
    return f"{number}test {patients}{rest}{',' if ',' in rest else ''}"
