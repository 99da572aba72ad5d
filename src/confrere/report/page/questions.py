"""The first screen of one hospital: seven questions, each with its answer or with what would answer it."""

from __future__ import annotations

from dataclasses import replace

from confrere.core.errors import StudyError
from confrere.core.registry import nearest
from confrere.core.results import ComparisonResult, SiteResult
from confrere.report import words
from confrere.report.gains import site_gain
from confrere.report.history import History
from confrere.report.page.in_patients import in_patients, sentence
from confrere.report.page.markup import Child, Markup, tag
from confrere.report.page.provenance import how_to_read
from confrere.statistics.verdict import LEAST_RARER, LEAST_SEEDS, Gain

BETTER = {
    "better": "Yes: together is better than alone.",
    "worse": "No: together is worse than alone.",
    "no clear difference": "Not clearly: no difference could be told from chance.",
    "too few to judge": "There is too little to judge.",
}


def questions(comparison: ComparisonResult, site: str, history: History | None) -> Markup | None:
    """Better for me? By how much? What left? Privacy? Who helped? Is my data odd? What now?"""
    together, alone, name = comparison.together, comparison.alone, comparison.headline
    if together is None or alone is None or name is None or site not in together.sites:
        return None
    gain, own, before = site_gain(comparison, site, name), together.sites[site], alone.sites[site]
    if gain is None:
        return None
    label = words.metric(name).label
    figures = " → ".join(words.measured(name, s.metrics.get(name)) for s in (before, own))
    based = f", on {words.tested(before.tested)}" if before.tested else ""
    answers: list[tuple[str, Child]] = [
        (
            "Is it better for us?",
            f"{BETTER[gain.word]} {words.capital(label)} {figures}: {words.gained(name, gain)}{based}.",
        ),
        (
            "By how much, in patients?",
            sentence(comparison, site, "yours") or f"Not stated for this task; see {label}.",
        ),
        ("What left our building?", _left(own)),
        ("How much privacy is left?", _privacy(own, history)),
        (
            "Who helped us?",
            f"Not measured by a comparison. «confrere partners STUDY.toml --site {site}» measures it.",
        ),
        ("Is our data odd?", _odd(before)),
        ("What should we do next?", _next(gain, before)),
    ]
    rows = (tag("div", tag("dt", question), tag("dd", answer)) for question, answer in answers)
    return tag("dl", *rows, class_="questions")


def _left(own: SiteResult[object]) -> str:
    if own.bytes_sent is None:
        return "It was not recorded."
    if not own.bytes_sent:
        return "Nothing."
    private = own.privacy is not None and own.privacy.proven
    what = "models with noise" if private else "models without a proven guarantee"
    return f"{words.size(own.bytes_sent)} of {what} in one run, and no record."


def _privacy(own: SiteResult[object], history: History | None) -> str:
    spent = own.privacy
    if spent is None:
        return (
            "There is no guarantee: nothing was trained with noise."
            if own.bytes_sent
            else "All of it: nothing left."
        )
    left = None if spent.budget is None else max(0.0, spent.budget - spent.epsilon)
    rest = "" if left is None else f" About {left:.2f} of ε is left."
    found = ((history.finished or {}).get("result") or {}).get("privacy") if history else None
    meaning = f" {found['sentence']}" if found and found.get("sentence") else ""
    return f"Spent: {words.privacy(spent)}.{rest}{meaning}"


def _odd(own: SiteResult[object]) -> str:
    """What the site's own records show; those of other sites are private to them."""
    lacks = f" They lack {words.lacks(own.missing_columns)}." if own.missing_columns else ""
    share = (
        f"{100 * own.in_patients.ill:.0f} % of your test patients have the condition."
        if own.in_patients
        else ""
    )
    rest = "How your records differ from those of other sites is not part of a comparison; «confrere partners» measures it."
    return f"{share}{lacks} {rest}".strip()


def _next(gain: Gain, own: SiteResult[object]) -> str:
    if gain.word == "better":
        return "Take part: the gain is clear. Rehearse with real nodes next (confrere rehearse)."
    if gain.word == "worse":
        return "Do not take part with these settings: alone serves you better."
    if gain.pairs < LEAST_SEEDS:
        return f"Run at least {LEAST_SEEDS} seeds; five is the default."
    if gain.word == "too few to judge":
        have = f" (now {own.tested.rarer})" if own.tested else ""
        return f"Collect more patients: at least {LEAST_RARER} of the rarer class are needed in the test records{have}."
    return (
        "Repeat with more seeds, or with more patients: the interval includes both a gain and a loss. Until then, alone costs "
        "no privacy."
    )


def site_page(comparison: ComparisonResult, site: str, history: History | None) -> tuple[str, list[Child]]:
    """Title and body of the report for one hospital: nothing of any other site is on it."""
    if site not in comparison.sites:
        known = list(comparison.sites)
        raise StudyError(
            f'"{site}" is not a site of this comparison{nearest(site, known)}; its sites: {", ".join(known)}'
        )
    strategies = {
        n: replace(s, sites={k: v for k, v in s.sites.items() if k == site})
        for n, s in comparison.strategies.items()
    }
    only = replace(comparison, strategies=strategies)
    title = comparison.title or comparison.question or "A comparison"
    seeds = words.count(len(comparison.seeds), "seed")
    header = tag(
        "header",
        tag("p", tag("b", "Confrère"), f" · {title} · {seeds}", class_="kicker"),
        tag("h1", f"What learning together means for {site}"),
        questions(only, site, history)
        or tag("p", "There is no answer: this site was not measured both ways."),
    )
    return f"{site}: {title}", [header, in_patients(only), how_to_read(only.metrics, len(only.seeds))]
