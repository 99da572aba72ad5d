"""The first screen: the question, the answer in plain words, what left the building and what it cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from confrere.core.results import ComparisonResult, PrivacySpent, SiteResult, StrategyResult
from confrere.core.seeds import NOT_PRIVATE
from confrere.report import words
from confrere.report.gains import gap_closed, mean_gain, not_worth_it, site_gain, too_few
from confrere.report.history import History
from confrere.report.page import charts
from confrere.report.page.markup import Child, Markup, tag
from confrere.report.page.scale import Scale, around
from confrere.report.page.sections import Page, report_section
from confrere.statistics.verdict import LEAST_RARER, LEAST_SEEDS, Gain, Word

CLASSES: dict[Word, str] = {
    "better": "better",
    "worse": "worse",
    "no clear difference": "unclear",
    "too few to judge": "unclear",
}
SIGNS: dict[Word, str] = {"better": "▲", "worse": "▼", "no clear difference": "=", "too few to judge": "·"}
MANY = 16
"""More sites than this are summed up; the table of all of them comes at the end."""


Phrase = tuple[str | None, str]
"""Words, and the class that colours them (better, worse, unclear) if they matter."""


def verdict(judged: dict[str, Gain]) -> list[Phrase]:
    """The answer as a sentence, its decisive words marked."""
    by = {word: [s for s, g in judged.items() if g.word == word] for word in CLASSES}
    better, worse, unclear, few = (
        by[w] for w in ("better", "worse", "no clear difference", "too few to judge")
    )
    total = len(judged)
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
        said = f" At none of the {total} sites is together clearly better than alone, and at none worse."
        if total == 1:
            said = " At the one site together is neither clearly better than alone nor worse."
        return [("unclear", "No clear benefit."), (None, said)]
    told: list[Phrase] = [("worse", "No."), (None, " Together is nowhere better than alone")]
    if better:
        told = [("better", f"Together is better than alone at {len(better)} of {total} sites")]
    if unclear:
        told.append((None, f"; at {_these(unclear, total)} there is no clear difference"))
    if worse:
        told += [(None, f"; at {_these(worse, total)} "), ("worse", "it is worse")]
        told.append((None, f": alone serves {'it' if len(worse) == 1 else 'them'} better"))
    return [*told, (None, ".")]


def answer(comparison: ComparisonResult, history: History | None) -> Markup:
    """Everything a clinician needs, before any chapter begins."""
    name = comparison.headline
    together, alone = comparison.together, comparison.alone
    question = comparison.question or comparison.title or "Is learning together better than learning alone?"
    seeds = len(comparison.seeds)
    kicker = [
        comparison.title if comparison.question else "",
        words.count(len(comparison.sites), "site"),
        _seeds(seeds),
    ]
    head = [
        tag("p", tag("b", "Confrère"), *(f" · {k}" for k in kicker if k), class_="kicker"),
        tag("h1", question),
    ]
    if name is None or together is None or alone is None:
        return tag("header", *head, tag("p", _nothing(comparison), class_="answer"))
    judged = {s: g for s in comparison.sites if (g := site_gain(comparison, s, name))}
    told = (tag("strong", text, class_=kind) if kind else text for kind, text in verdict(judged))
    return tag(
        "header",
        *head,
        tag("p", *told, class_="answer"),
        tag("p", tag("strong", loss, class_="worse")) if (loss := not_worth_it(comparison)) else None,
        tag("p", *_overall(comparison, name, together, alone, judged)),
        tag("p", _others(comparison, name), class_="under"),
        cards(comparison, together, history, name),
        site_table(comparison, name, judged),
    )


def cards(
    comparison: ComparisonResult, together: StrategyResult, history: History | None, name: str
) -> Markup:
    """What left, what it cost, and how far pooling every record would have come."""
    boxes = [left_card(together.sites.values(), history), privacy_card(together.sites.values())]
    closed = gap_closed(comparison, name)
    label = words.metric(name).label
    if closed is not None and closed.share is not None:
        boxes.append(
            card(
                "Compared with pooling all records",
                f"{words.share_closed(closed)} of the gap closed",
                f"between alone and one model trained on the records of all sites without noise, by {label}; "
                f"pooling gains {words.gained(name, closed.gap)}.",
            )
        )
    elif closed is not None:
        big, rest = {
            "better": ("There is a gap", "how much of it was closed is too uncertain to state"),
            "worse": ("Pooling is worse", "so there is no gap to close"),
            "too few to judge": ("Too few to judge", "which may be chance"),
        }.get(closed.gap.word, ("No clear gap", "so there is no clear gap to close"))
        boxes.append(
            card(
                "Compared with pooling all records",
                big,
                "One model trained on the records of all sites without noise gains "
                f"{words.gained(name, closed.gap)} in {label} over alone; {rest}.",
            )
        )
    return tag("div", *boxes, class_="cards")


def card(title: str, big: str, *small: Child) -> Markup:
    return tag("div", tag("h3", title), tag("p", big, class_="big"), tag("p", *small), class_="card")


def left_card(sites: Iterable[SiteResult[object]], history: History | None) -> Markup:
    """What left the building."""
    rows = list(sites)
    sent = [s.bytes_sent for s in rows if s.bytes_sent is not None]
    title = "What left the buildings"
    if not sent and (history is None or not history.sendings):
        return card(title, "Not recorded", "The results do not say what was sent.")
    if not sent and history is not None:
        sent = list(history.bytes_by_sender().values())
    if not any(sent):
        return card(title, "Nothing", "No site sent a model or a record.")
    low, high = words.size(min(sent)), words.size(max(sent))
    each = f"{high} per site" if low == high else f"{low} to {high} per site"
    if history is None or not history.sendings:
        return card(title, each, "In one run. The journal that lists the parcels is not here.")
    held = {s.custody for s in history.sendings}
    parcels = f"{words.count(len(history.sendings), 'parcel')} in {words.count(len(history.rounds), 'round')}"
    if held <= {"PUBLIC", "PROTECTED"}:
        how = f"{parcels}, each a model made differentially private before it left."
    elif held <= {"PUBLIC", "PROTECTED", "UNPROVEN"}:
        how = f"{parcels}: models shaped by records, without a proven guarantee or above a ceiling on ε."
    else:
        marks = ", ".join(sorted(held - {"PUBLIC", "PROTECTED", "UNPROVEN"}))
        how = (
            f"{parcels}, and the journal marks some of them {marks}: this must not happen. Ask who ran this."
        )
    return card(title, each, how, " No record is among them.")


def privacy_card(sites: Iterable[SiteResult[object]]) -> Markup:
    """The dearest ε of any site, with all that belongs to it."""
    rows = list(sites)
    spent: list[PrivacySpent] = [s.privacy for s in rows if s.privacy is not None]
    if not spent:
        return card("Privacy spent", "No guarantee", f"{words.capital(words.NO_NOISE)}.")
    worst = max(spent, key=lambda p: p.epsilon)
    budget = f" of {words.epsilon(worst.budget)}" if worst.budget is not None else ""
    who = (
        "at every site"
        if len({p.epsilon for p in spent}) == 1 and len(spent) == len(rows)
        else "at most, at any site"
    )
    terms = f"ε, δ = {words.delta(worst.delta)}, {words.per(worst.unit)}, " + (
        f"accountant {worst.accountant}" if worst.accountant else "accountant not recorded"
    )
    how = ", ".join(words.reservations(worst)) or (
        "proven" if all(p.proven for p in spent) else "as published, not proven"
    )
    missing = len(rows) - len(spent)
    return card(
        "Privacy spent" if all(p.proven for p in spent) else "Privacy claimed, not proven",
        f"{words.epsilon(worst.epsilon)}{budget}",
        f"{terms}; {how}; {who}. {words.capital(NOT_PRIVATE)}.",
        *(
            f" {words.capital(words.per(u))}: {'no bound' if v is None else words.epsilon(v)}."
            for u, v in worst.others
        ),
        f" {words.count(missing, 'site has', 'sites have')} {words.NO_NOISE}." if missing else None,
    )


def site_table(comparison: ComparisonResult, name: str, judged: dict[str, Gain]) -> Markup:
    """Per site: alone, together, the difference as a picture, and a word."""
    shown, note = list(judged), None
    if len(judged) > MANY:
        ranked = sorted(judged, key=lambda s: judged[s].mean)
        shown = [*reversed(ranked[-4:]), *reversed(ranked[:4])]
        note = tag(
            "p",
            f"The four sites that gain most and the four that gain least; all {len(judged)} are at the end.",
            class_="under",
        )
    return tag("div", note, answers(comparison, name, judged, shown))


def answers(comparison: ComparisonResult, name: str, judged: dict[str, Gain], shown: Sequence[str]) -> Markup:
    ends = [v for g in judged.values() for v in (g.low, g.high, g.mean) if v is not None]
    scale = around(ends, zero=True)
    label = words.metric(name).label
    unit = ", points" if words.metric(name).percent else ""
    lower = " (lower is better)" if not words.metric(name).higher_is_better else ""
    head = tag(
        "tr",
        tag("th", "Site", scope="col"),
        tag("th", "Records", scope="col", class_="figure"),
        tag("th", "Tested on", scope="col"),
        tag("th", f"Alone, {label}", scope="col", class_="figure"),
        tag("th", f"Together, {label}{lower}", scope="col", class_="figure"),
        tag(
            "th",
            f"What together adds{unit}",
            charts.axis(scale, lambda v: words.signed(name, v)),
            scope="col",
            class_="picture",
        ),
        tag("th", "In a word", scope="col"),
    )
    return tag(
        "table",
        tag("thead", head),
        tag("tbody", *(_site_row(comparison, name, judged[s], s, scale) for s in shown)),
        class_="answers",
    )


def word(gain: Gain) -> Markup:
    return tag("span", f"{SIGNS[gain.word]} {gain.word}", class_=f"word {CLASSES[gain.word]}")


def _site_row(comparison: ComparisonResult, name: str, gain: Gain, site: str, scale: Scale) -> Markup:
    alone, together = comparison.alone, comparison.together
    assert alone is not None
    assert together is not None
    records = alone.sites[site].records
    title = f"{site}: {words.gained(name, gain)}"
    mark = charts.Mark(CLASSES[gain.word], gain.mean, gain.low, gain.high, title)
    return tag(
        "tr",
        tag("th", site, scope="row"),
        tag(
            "td",
            "–" if records is None else f"{records:,}".replace(",", "\u2009"),
            class_="figure",
            data_label="Records",
        ),
        tag("td", words.tested(alone.sites[site].tested) or "–", data_label="Tested on", class_="tested"),
        tag(
            "td",
            words.measured(name, alone.sites[site].metrics.get(name)),
            class_="figure",
            data_label="Alone",
        ),
        tag(
            "td",
            words.measured(name, together.sites[site].metrics.get(name)),
            class_="figure",
            data_label="Together",
        ),
        tag("td", charts.row([mark], scale, zero=True), class_="picture"),
        tag("td", word(gain), class_="word"),
    )


def _overall(
    comparison: ComparisonResult,
    name: str,
    together: StrategyResult,
    alone: StrategyResult,
    judged: dict[str, Gain],
) -> list[Child]:
    gain = mean_gain(comparison, name)
    label = words.metric(name).label
    lower = ", where lower is better," if not words.metric(name).higher_is_better else ""
    said: list[Child] = []
    if gain and name in alone.mean and name in together.mean:
        said.append(
            f"{'Averaged over the sites' if len(judged) > 1 else 'There'}, {label}{lower} goes "
            f"from {words.measured(name, alone.mean[name])} alone "
            f"to {words.measured(name, together.mean[name])} together ({together.label}): "
            f"{words.gained(name, gain)}. "
        )
    if len(judged) > 1:
        worst = min(judged, key=lambda s: judged[s].mean)
        said.append(f"«{worst}» {fares(name, judged[worst].mean)}: {words.gained(name, judged[worst])}.")
    return said


def fares(name: str, gain: float) -> str:
    """How the site with the smallest gain does, judged by the figure as it is shown: no site «loses 0.000»."""
    return "loses most" if words.signed(name, gain).startswith("−") else "gains least"


def _others(comparison: ComparisonResult, name: str) -> str:
    """What the answer is judged by, and the means by the measures that it does not rest on."""
    plain = words.metric(name).meaning
    judged = f"Judged by {words.metric(name).label}" + (f": {plain}." if plain else ".")
    others = []
    for other in (m for m in comparison.metrics if m != name and not words.metric(m).detail):
        means = [s.mean.get(other) for s in (comparison.alone, comparison.together) if s]
        if all(m is not None for m in means):
            others.append(
                f"{words.metric(other).label} {' → '.join(words.measured(other, m) for m in means)}"
            )
    shown = f" Shown beside it, mean over sites: {'; '.join(others)}." if others else ""
    few = too_few(comparison)
    note = (
        f" The means include {_these(few, len(comparison.sites))}, with too few test patients." if few else ""
    )
    return judged + shown + (note if others else "")


def _these(sites: Sequence[str], total: int) -> str:
    if total > MANY:
        return str(len(sites))
    names = words.listing([f"«{s}»" for s in sites])
    return names if len(sites) <= 3 or total == len(sites) else f"{len(sites)} ({names})"


def _seeds(count: int) -> str:
    return words.count(count, "seed") if count != 1 else "one seed, so no spread"


def _nothing(comparison: ComparisonResult) -> str:
    if comparison.alone is None:
        return "There is no answer: training alone was not run, so there is nothing to compare with."
    return "There is no answer: this comparison holds no way of learning together."


@report_section("answer", order=10)
def _answer(page: Page) -> Markup | None:
    return answer(page.comparison, page.history) if page.comparison is not None else None
