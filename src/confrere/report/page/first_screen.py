"""Report section: the first screen, with the answer in plain words, seven questions, and the sites one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from confrere.core.results import ComparisonResult
from confrere.report import words
from confrere.report.gains import (
    mean_gain,
    measured_at,
    not_worth_it,
    site_gain,
    tested_singly,
    too_few,
    words_stated,
)
from confrere.report.history import History
from confrere.report.page.answers import Answer, for_the_researcher, laid_out
from confrere.report.page.by_how_much import by_how_much, condition, featured, in_metric, later_than, pooling
from confrere.report.page.in_patients import hundred_patients
from confrere.report.page.markup import Markup, tag
from confrere.report.page.next_step import next_step
from confrere.report.page.odd_records import odd_records
from confrere.report.page.privacy_left import privacy_left
from confrere.report.page.sections import Page, report_section
from confrere.report.page.site_table import CLASSES, MANY, site_table
from confrere.report.page.what_left import what_left
from confrere.report.page.who_helped import tried_models, who_helped
from confrere.statistics.verdict import EARLIER, LEAST_RARER, LEAST_SEEDS, Gain

Phrase = tuple[str | None, str]
"""Words, and the class that colours them (better, worse, unclear) if they matter."""


def verdict(judged: dict[str, Gain], mean: Gain | None = None) -> list[Phrase]:
    """The answer as a sentence, its decisive words marked.

    `mean` is the gain averaged over the sites; it is part of the answer where it is clear and no single site is.
    """
    by = {word: [s for s, g in judged.items() if g.word == word] for word in CLASSES}
    better, worse, unclear, few = (
        by[w] for w in ("better", "worse", "no clear difference", "too few to judge")
    )
    total = len(judged)
    if by[EARLIER]:
        return [("unclear", f"{words.capital(EARLIER)}.")]
    if mean is not None and mean.clear and total > 1 and not better and not worse:
        kind = CLASSES[mean.word]
        on_average = f"averaged over the sites, together is {mean.word} than alone."
        apart = "can be judged by itself" if len(few) == total else "is clearly better or worse by itself"
        return [(None, f"No single site {apart}; "), (kind, on_average)]
    if few and len(few) == total:
        ahead = sum(g.mean > 0 for g in judged.values())
        rest = f" Together is ahead at {ahead} of {words.count(total, 'site')}, which may be chance."
        seeds = max(g.pairs for g in judged.values())
        if seeds < LEAST_SEEDS:
            why = f"Too few to judge: {words.count(seeds, 'seed')}, and at least {LEAST_SEEDS} are needed."
        else:
            why = (
                f"Too few to judge: fewer than {LEAST_RARER} test patients of the rarer class at every site."
            )
        return [("unclear", why), (None, rest)]
    if few:
        has = "has" if len(few) == 1 else "have"
        rest = f" {_these(few, total)} {has} too few test patients to judge."
        return [*verdict({s: g for s, g in judged.items() if s not in few}), (None, rest)]
    if better and len(better) == total:
        where = "at the one site" if total == 1 else f"at all {total} sites"
        return [("better", "Yes."), (None, f" Together is better than alone {where}.")]
    if not better and not worse:
        none = "neither" if total == 2 else "none"
        where = f" At {none} of the {total} sites is together clearly better than alone, and at {none} worse."
        if total == 1:
            where = " At the one site together is neither clearly better than alone nor worse."
        return [("unclear", "No clear benefit."), (None, where)]
    phrases: list[Phrase] = [("worse", "No."), (None, " Together is nowhere better than alone")]
    if better:
        phrases = [("better", f"Together is better than alone at {len(better)} of {total} sites")]
        if len(better) <= 3:
            phrases.append((None, f" ({_these(better, total)})" if total <= MANY else ""))
    if unclear:
        phrases.append((None, f"; at {_these(unclear, total)} there is no clear difference"))
    if worse:
        phrases += [(None, f"; at {_these(worse, total)} "), ("worse", "it is worse")]
        phrases.append((None, f": alone serves {'it' if len(worse) == 1 else 'them'} better"))
    return [*phrases, (None, ".")]


def answer(
    comparison: ComparisonResult, histories: Sequence[History], found: Mapping[str, str] | None = None
) -> Markup:
    """Everything a clinician needs, before any chapter begins.

    `histories` are those of the collaboration, one per seed; `found` is what partner searches found, by site.
    """
    name = comparison.headline
    together, alone = comparison.together, comparison.alone
    question = (
        comparison.question
        or words.capital(comparison.title)
        or "Is learning together better than learning alone?"
    )
    kicker = [
        comparison.title if comparison.question else "",
        words.count(len(comparison.sites), "site"),
        repetitions(comparison),
    ]
    head = [
        tag("p", tag("b", "Confrère"), *(f" · {k}" for k in kicker if k), class_="kicker"),
        tag("h1", question),
    ]
    if name is None or together is None or alone is None:
        return tag("header", *head, tag("p", _nothing(comparison), class_="answer"))
    judged = _judged(comparison, name)
    overall = mean_gain(comparison, name)
    phrases = (tag("strong", text, class_=kind) if kind else text for kind, text in verdict(judged, overall))
    worth = not_worth_it(comparison)
    words_of = tag(
        "div",
        *head,
        tag("p", "Is it better than learning alone?", class_="asked"),
        tag("p", *phrases, class_="answer"),
        tag("p", tag("strong", worth, class_="worse")) if worth else None,
    )
    shown = featured(comparison, judged)
    picture = hundred_patients(_like(shown[0]), shown[1], condition(comparison)) if shown else None
    return tag(
        "header",
        tag("div", words_of, picture, class_="opening") if picture else words_of,
        laid_out(answers(comparison, histories, found)),
        site_table(comparison, name, judged),
        tag("p", _spreads(comparison), class_="under"),
        tag("p", _others(comparison, name), class_="under"),
        tag("p", pooled, class_="under") if (pooled := pooling(comparison, name)) else None,
    )


def _like(site: str | None) -> str:
    """Whose patients the picture shows, and why theirs."""
    if site is None:
        return "those of all sites, each counting by its test patients"
    return f"those of «{site}», the site with the largest gain"


def answers(
    comparison: ComparisonResult, histories: Sequence[History], found: Mapping[str, str] | None = None
) -> list[Answer]:
    """The questions after the first; none where the comparison has no answer."""
    name, together = comparison.headline, comparison.together
    if name is None or together is None or comparison.alone is None:
        return []
    judged = _judged(comparison, name)
    first, sites = next(iter(histories), None), list(together.sites.values())
    return [
        by_how_much(comparison, name, judged),
        what_left(sites, first),
        privacy_left(sites, first),
        who_helped(judged, histories, found, tried=tried_models(comparison, judged)),
        odd_records(comparison.records),
        next_step(comparison, name, judged, first),
    ]


def _judged(comparison: ComparisonResult, name: str) -> dict[str, Gain]:
    return {s: g for s in comparison.sites if (g := site_gain(comparison, s, name))}


def _spreads(comparison: ComparisonResult) -> str | None:
    """What ± and the bars mean."""
    seeds = len(comparison.seeds)
    if seeds < 2:
        return None
    varied = "other random splits and starting values"
    if later_than(comparison):
        varied = "other starting values and other validation patients, on the same test patients"
    return (
        f"± is one standard deviation over {seeds} seeds: repetitions with {varied}. It does "
        "not decide: the word follows from the bar, the interval of the paired difference, which is clear where it does not "
        "reach 0."
    )


def _others(comparison: ComparisonResult, name: str) -> str:
    """What the answer is judged by, and the means by the other metrics."""
    plain = words.metric(name).meaning
    judged = f"Judged by {words.metric(name).label}" + (f": {plain}." if plain else ".")
    count = words_stated(comparison)
    judged += f" Words and their intervals are corrected for {words.count(count, 'word')}." if count else ""
    others, every, few = [], len(comparison.sites), too_few(comparison)
    for other in (m for m in comparison.metrics if m != name and not words.metric(m).detail):
        means = [s.mean.get(other) for s in (comparison.alone, comparison.together) if s]
        if all(m is not None for m in means):
            measured = measured_at(comparison, other)
            some = f" (mean of {len(measured)} of {every} sites)" if len(measured) < every else ""
            few = [s for s in few if s in measured]
            others.append(
                f"{words.metric(other).label} {' → '.join(words.measured(other, m) for m in means)}{some}"
            )
    shown = f" Also shown, mean over sites: {'; '.join(others)}." if others else ""
    note = f" The means include {_these(few, every)}, with too few test patients." if few else ""
    mean = in_metric(comparison, name)
    single = tested_singly(comparison)
    why = f" A mean that includes {_these(single, every)} is not judged: {words.SINGLE}." if single else ""
    return judged + (f" {mean}" if mean else "") + why + shown + (note if others else "")


def _these(sites: Sequence[str], total: int) -> str:
    if total > MANY:
        return str(len(sites))
    names = words.listing([f"«{s}»" for s in sites])
    return names if len(sites) <= 3 or total == len(sites) else f"{len(sites)} ({names})"


def repetitions(comparison: ComparisonResult) -> str:
    """«30 repetitions with other random splits (seeds)»; by date the split is always the same."""
    count = len(comparison.seeds)
    if count == 1:
        return "one seed, so no spread"
    varied = "" if later_than(comparison) else " with other random splits"
    return f"{count} repetitions{varied} (seeds)"


def _nothing(comparison: ComparisonResult) -> str:
    if comparison.alone is None:
        return "There is no answer: training alone was not run, so there is nothing to compare with."
    return "There is no answer: this comparison holds no way of learning together."


@report_section("answer", order=10)
def _answer(page: Page) -> Markup | None:
    if page.comparison is None:
        return None
    return answer(page.comparison, page.histories.get("together", ()), page.partners)


@report_section("commands", order=145)
def _commands(page: Page) -> Markup | None:
    if page.comparison is None:
        return None
    return for_the_researcher(answers(page.comparison, page.histories.get("together", ()), page.partners))
