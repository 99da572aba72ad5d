"""Report section: who sent what to whom, how many bytes, and which sites were missing when."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence

from confrere.report import words
from confrere.report.history import History, Remark
from confrere.report.page import charts
from confrere.report.page.graph import Edges, circle, edge_id, patterns
from confrere.report.page.markup import Child, Markup, section, table, tag
from confrere.report.page.sections import Page, report_section

SHOWN = 10
"""The most graphs that are drawn; further ones are counted."""
GRID = 40
"""More sites than this get no grid of who was there."""

CHANGES = ("joined", "left", "lost", "budget-spent")

CUSTODY = {
    "PUBLIC": "public: independent of any record",
    "PROTECTED": "differentially private",
    "UNPROVEN": "shaped by records, without a proven guarantee or above the ceiling on ε",
    "PRIVATE": "private: this must never leave a site",
}


def who_sent_what(history: History | None, sites: Sequence[str], run: str) -> Markup | None:
    """The graph of all rounds (with a slider where scripts run), and each different graph by itself."""
    if history is None:
        return None
    if not history.sendings:
        return section("Who sent what to whom", lead=f"No site sent anything ({run}).")
    everyone = list(history.sites) or list(sites)  # in the order in which the topology counts them
    rounds = {turn: edges for turn, edges in history.edges().items() if edges}
    total: Counter[tuple[str, str]] = Counter()
    for edges in rounds.values():
        total.update(edges)
    found = patterns(rounds)
    few = len(everyone) <= 24
    numbered = tag(
        "div",
        circle(everyone, total, size=320, named=few, numbered=few),
        tag("p", "All rounds together; a wider arrow carried more bytes.", class_="under"),
    )
    side = tag("div", _slider(len(rounds)), _weights(history, everyone))
    lead = (
        f"Each arrow is a model that went from one site to another ({run}). "
        f"All sites together sent {words.count(len(history.sendings), 'model')}, "
        f"{words.size(sum(s.bytes for s in history.sendings))}, in {words.count(len(rounds), 'round')}: "
        f"{_held(history)}."
    )
    small = [
        tag(
            "div",
            tag("h3", _turns(p.rounds), " ", tag("small", f"{words.count(len(p.edges), 'arrow')}")),
            circle(everyone, p.edges, size=150 if few else 260, numbered=few),
        )
        for p in found[:SHOWN]
    ]
    more = len(found) - SHOWN
    return section(
        "Who sent what to whom",
        tag("div", numbered, side, class_="network", data_rounds=json.dumps(_steps(rounds, everyone))),
        tag("h3", "The same, round by round") if len(found) > 1 else None,
        tag("p", _how_many(len(found), len(rounds)), class_="under"),
        tag("div", *small, class_="rounds") if len(found) > 1 else None,
        tag("p", f"{words.count(more, 'further graph')} not drawn.", class_="under") if more > 0 else None,
        lead=lead,
    )


def _how_many(graphs: int, rounds: int) -> str:
    if graphs == 1:
        return (
            "In every round the same sites sent to the same sites." if rounds > 1 else "There was one round."
        )
    return f"{graphs} different graphs in {words.count(rounds, 'round')}."


def who_was_missing(history: History | None, sites: Sequence[str], run: str) -> Markup | None:
    """Which site did not take part in which round, and whose parcels did not arrive."""
    if history is None or not history.members:
        return None
    absent = history.absent()
    away = Counter(site for turn in absent.values() for site in turn)
    late = Counter(sender for m in history.missed for sender in m.senders)
    title = "Who was missing when"
    events = [_sentence(r) for r in history.remarks if r.kind in CHANGES]
    listed = tag("ul", *(tag("li", e) for e in events), class_="plain") if events else None
    if not away and not late:
        return section(
            title, listed, lead=f"Every site took part in all {len(history.members)} rounds ({run})."
        )
    everyone = [*sites, *(s for s in history.sites if s not in sites)]
    absences = [f"{s}: {words.count(n, 'round')}" for s, n in away.most_common()]
    lead = (
        f"Of {len(history.members)} rounds ({run}) these were missed: {words.listing(absences, 8)}."
        if absences
        else f"Every site took part in all {len(history.members)} rounds ({run})."
    )
    if late:
        names = [f"{s} ({n})" for s, n in late.most_common()]
        lead += f" Parcels that did not arrive in time: {words.listing(names, 8)}."
    grid = None
    if away and len(everyone) <= GRID:
        why = {(r.site, r.round): r.text for r in history.remarks if r.kind == "absent"}
        turns = sorted(history.members)
        grid = tag(
            "figure",
            tag(
                "div",
                tag("ul", *(tag("li", s, title=s) for s in everyone)),
                charts.presence(
                    everyone,
                    turns,
                    lambda s, t: (why.get((s, t)) or "did not take part") if s in absent.get(t, ()) else None,
                ),
                class_="timeline",
            ),
            tag(
                "figcaption",
                f"Rounds {turns[0] + 1} to {turns[-1] + 1} from left to right; "
                "coloured where a site did not take part.",
            ),
        )
    return section(title, grid, listed, lead=lead)


def _sentence(remark: Remark) -> str:
    """«Round 3, SVI: left for good»."""
    when = f"Round {remark.round + 1}" if remark.round is not None else ""
    place = ", ".join(w for w in (when, remark.site or "") if w)
    return f"{place}: {remark.text or remark.kind}" if place else remark.text


def _steps(rounds: Mapping[int, Edges], sites: Sequence[str]) -> list[dict[str, object]]:
    return [
        {
            "round": turn + 1,
            "words": f"{words.count(len(edges), 'arrow')}, {words.size(sum(edges.values()))}",
            "edges": [edge_id(sites, a, b) for a, b in edges],
        }
        for turn, edges in rounds.items()
    ]


def _slider(rounds: int) -> Markup:
    return tag(
        "label",
        "Show ",
        tag("output", "all rounds"),
        tag("input", type="range", min=0, max=rounds, value=0, step=1, aria_label="Round to show"),
        class_="slider",
    )


def _weights(history: History, sites: Sequence[str]) -> Markup:
    sent = history.bytes_by_sender()
    got: Counter[str] = Counter()
    for s in history.sendings:
        got[s.receiver] += s.bytes
    rows: list[list[Child]] = [
        [f"{i}  {site}" if len(sites) <= 24 else site, words.size(sent.get(site, 0)), words.size(got[site])]
        for i, site in enumerate(sites, 1)
    ]
    if len(rows) > 24:
        values = sorted(sent.values())
        if values[0] == values[-1]:
            return tag("p", f"Every site sends {words.size(values[0])}.")
        return tag(
            "p",
            f"A site sends {words.size(values[0])} to {words.size(values[-1])}, "
            f"{words.size(values[len(values) // 2])} in the middle.",
        )
    return table(["Site", "Sent", "Received"], rows)


def _held(history: History) -> str:
    kinds = Counter(s.custody for s in history.sendings)
    if len(kinds) == 1:
        return f"all {CUSTODY.get(next(iter(kinds)), 'of unknown custody')}"
    return "; ".join(f"{n} {CUSTODY.get(kind, 'of unknown custody')}" for kind, n in kinds.most_common())


def _turns(rounds: Sequence[int]) -> str:
    """«Rounds 1, 4, 7 …»."""
    numbers = [str(r + 1) for r in rounds]
    if len(numbers) == 1:
        return f"Round {numbers[0]}"
    return f"Rounds {', '.join(numbers[:3])}{' …' if len(numbers) > 3 else ''}"


@report_section("who sent what", order=100)
def _sent(page: Page) -> Markup | None:
    return who_sent_what(page.history, page.sites, page.shown)


@report_section("who was missing", order=120)
def _missing(page: Page) -> Markup | None:
    return who_was_missing(page.history, page.sites, page.shown)
