"""The report for one hospital: seven questions, each with its answer.

Nothing that records or models of other sites shaped is on it, but for the results of learning together. Of a public data set
the page also shows how the site's records differ from those of the others, and what single peers' models do for its patients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from confrere.core.errors import StudyError
from confrere.core.registry import nearest
from confrere.core.results import ComparisonResult, Measured
from confrere.report import words
from confrere.report.gains import site_gain
from confrere.report.history import History
from confrere.report.page.answers import Answer, for_the_researcher, laid_out
from confrere.report.page.by_how_much import based_on, both_ways, condition, of_100
from confrere.report.page.first_screen import repetitions
from confrere.report.page.in_patients import hundred_patients, in_patients, sentence
from confrere.report.page.markup import Child, tag
from confrere.report.page.next_step import next_step
from confrere.report.page.odd_records import own_picture, own_records
from confrere.report.page.privacy_left import privacy_left
from confrere.report.page.provenance import how_to_read
from confrere.report.page.site_table import CLASSES
from confrere.report.page.what_left import what_left
from confrere.report.page.who_helped import Tried, tried_models, who_helped
from confrere.statistics.verdict import EARLIER

BETTER = {
    "better": "Yes: together is better than alone",
    "worse": "No: together is worse than alone",
    "no clear difference": "Not clearly: no difference could be told from chance",
    "too few to judge": "There is too little to judge",
    "not judged": "Not judged",
    EARLIER: "Not judged: the comparison was made by an earlier version",
}


def site_page(
    comparison: ComparisonResult,
    site: str,
    histories: Sequence[History] = (),
    found: Mapping[str, str] | None = None,
) -> tuple[str, list[Child]]:
    """Title and body. `histories` are those of the collaboration; `found` is what partner searches found, by site."""
    if site not in comparison.sites:
        known = list(comparison.sites)
        raise StudyError(
            f'"{site}" is not a site of this comparison{nearest(site, known)}; its sites: {", ".join(known)}'
        )
    strategies = {
        n: replace(s, sites={k: v for k, v in s.sites.items() if k == site}, in_patients=None)
        for n, s in comparison.strategies.items()
    }
    own = comparison.records.get(site)
    records = {site: replace(own, apart={}, shares={})} if own else {}
    trials: Mapping[str, Mapping[str, Measured]] = {}
    if comparison.public:
        records, trials = dict(comparison.records), {s: t for s, t in comparison.trials.items() if s == site}
    only = replace(comparison, strategies=strategies, records=records, trials=trials)
    title = comparison.title or comparison.question or "A comparison"
    found_answers = answers(only, site, histories, found)
    head = [
        tag("p", tag("b", "Confrère"), f" · {title} · {repetitions(comparison)}", class_="kicker"),
        tag("h1", f"What learning together means for {site}"),
    ]
    if found_answers:
        first, *others = found_answers
        head += [
            tag("p", first.question, class_="asked"),
            tag("p", tag("strong", first.short, class_=_kind(only, site)), class_="answer"),
            tag("p", *first.rest, class_="under"),
        ]
        both = both_ways(only, site)
        picture = hundred_patients("yours", both, condition(only)) if both else None
        opening = tag("div", tag("div", *head), picture, class_="opening") if picture else tag("div", *head)
        header = tag("header", opening, laid_out(others))
    else:
        header = tag("header", *head, tag("p", "There is no answer: this site was not measured both ways."))
    pictures = (own_picture(site, only.records), in_patients(only))
    body: list[Child] = [header, *pictures, for_the_researcher(found_answers)]
    return f"{site}: {title}", [*body, how_to_read(only.metrics, len(only.seeds))]


def _kind(comparison: ComparisonResult, site: str) -> str:
    """The class that colours the verdict: better, worse or unclear."""
    gain = site_gain(comparison, site, comparison.headline or "")
    return CLASSES[gain.word] if gain else "unclear"


def answers(
    comparison: ComparisonResult,
    site: str,
    histories: Sequence[History] = (),
    found: Mapping[str, str] | None = None,
) -> list[Answer]:
    """Better for me? By how much? What left? Privacy? Who helped? Is my data odd? What now?"""
    together, alone, name = comparison.together, comparison.alone, comparison.headline
    if together is None or alone is None or name is None or site not in together.sites:
        return []
    gain, own, before = site_gain(comparison, site, name), together.sites[site], alone.sites[site]
    if gain is None:
        return []
    label, judged, first = words.metric(name).label, {site: gain}, next(iter(histories), None)
    figures = " → ".join(words.measured(name, s.metrics.get(name)) for s in (before, own))
    based = f", on {based_on(comparison, before.tested)}" if before.tested else ""
    patients = sentence(comparison, site, "yours")
    both = both_ways(comparison, site)
    private = "Models of single peers are private to them, so this page does not try them on your patients."
    tried = tried_models(comparison, judged, "your") if comparison.public else Tried(None, (private,))
    short = of_100(*both) if both else words.compared(name, gain)
    return [
        Answer(
            "Is it better for us?",
            BETTER[gain.word],
            (f"{words.capital(label)} {figures}: {words.compared(name, gain)}{based}.",),
        ),
        Answer(
            "By how much, in patients?",
            words.capital(short),
            (
                patients
                or f"Patients are counted for tasks with two classes only; this is the gain in {label}.",
            ),
        ),
        what_left([own], first, "What left our building?"),
        privacy_left([own], first),
        who_helped(judged, histories, found, "Who helped us?", tried),
        own_records(before, comparison.records, "Is our data odd?"),
        next_step(comparison, name, judged, first, "What should we do next?", site),
    ]
