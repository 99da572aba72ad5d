"""Report section: how much each peer counted in a site's model, round by round."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from confrere.report import words
from confrere.report.history import History, Weighing
from confrere.report.page import charts
from confrere.report.page.axes import Scale
from confrere.report.page.markup import Markup, section, tag
from confrere.report.page.sections import Page, report_section

PANELS = 12
"""More users than this are not drawn; the first ones are."""

COLOURS = 6
"""Peers with different colours; further ones share the last. More could not be told apart by everyone."""


def who_counted(history: History | None, sites: Sequence[str], seed: str) -> Markup | None:
    """A panel per user: accuracy solid, the peers' weights dotted, the majority class dashed."""
    if history is not None and history.masked and not history.weighings:
        return section("Who counted how much", tag("p", words.HIDDEN_BY_MASKS))
    if history is None or not history.weighings:
        return None
    users = [s for s in sites if any(w.site == s for w in history.weighings)]
    peers = sorted({peer for w in history.weighings for peer in w.shares})
    colour = {peer: f"w{min(n, COLOURS - 1)}" for n, peer in enumerate(peers)}
    last = max(w.round for w in history.weighings)
    if last == 0:
        return None
    x, shown = Scale(0, last + 1), users[:PANELS]
    panels = [_panel(history, user, colour, x, 280 if len(shown) == 1 else 190) for user in shown]
    accurate = any(history.deployed(user, "accuracy", "test") for user in shown)
    entries = [("together", "accuracy of the user's model")] if accurate else []
    legend = [*entries, *((kind, f"weight of {peer}") for peer, kind in list(colour.items())[:COLOURS])]
    lead = (
        f"Each user's own run ({seed}). A peer starts with weight 1 and loses weight in every round in which its "
        "gradient points away from the user's; at 0 it no longer counts."
    )
    if accurate:
        lead += (
            " The solid line is the accuracy on the user's own test records, the dashed one that of always saying the "
            "class that is most frequent there; dotted lines are weights."
        )
    hidden = [note for user in shown if (note := _silence(history, user))]
    return section(
        "Who counted how much",
        charts.legend(*legend),
        tag("div", *panels, class_="panels" if len(panels) > 1 else None),
        tag("p", " ".join(hidden), class_="under") if hidden else None,
        tag("p", f"Not drawn: {words.count(len(users) - len(shown), 'more user')}.", class_="under")
        if len(users) > len(shown)
        else None,
        lead=lead,
    )


def _panel(history: History, user: str, colour: dict[str, str], x: Scale, height: int) -> Markup:
    mine = [w for w in history.weighings if w.site == user]
    series = []
    for peer, kind in colour.items():
        course = [(w.round + 1.0, w.shares[peer]) for w in mine if peer in w.shares]
        if course:
            title = f"{peer}: weight {course[-1][1]:.2f} after round {course[-1][0]:.0f}"
            series.append(charts.ChartLine(f"weight {kind}", course, title=title))
    curve = history.deployed(user, "accuracy", "test")
    if curve is not None:
        points = [(p.round + 1.0, p.value) for p in curve.points if p.round <= x.high]
        title = f"accuracy {words.figure('accuracy', points[-1][1])} on {user}'s test records"
        series.append(charts.ChartLine("together", points, title=title))
    usual = history.majority.get((user, "test"))
    return tag(
        "div",
        tag("h3", f"{user} is the user"),
        charts.lines(
            series,
            charts.over_rounds(x, Scale(0, 1.04), lambda v: f"{v:g}" if v else ""),
            limit=None
            if usual is None
            else (usual, f"most frequent class {words.figure('accuracy', usual)}"),
            height=height,
            label=f"{user} is the user: weights of its peers and accuracy over rounds",
        ),
        tag("p", _ranking(mine), class_="under"),
        tag("p", f"Accuracy on {words.tested(counts)}.", class_="under")
        if curve is not None and (counts := history.patients.get((user, "test")))
        else None,
    )


def _ranking(mine: Sequence[Weighing]) -> str:
    """Who counted most over all rounds, in words."""
    peers = sorted({peer for w in mine for peer in w.shares})
    mean = {p: statistics.fmean([w.shares[p] for w in mine if p in w.shares]) for p in peers}
    order = sorted(mean, key=lambda peer: -mean[peer])
    return "On average: " + ", ".join(f"{peer} {mean[peer]:.2f}" for peer in order) if order else ""


def _silence(history: History, user: str) -> str | None:
    """What kept weights from moving, where something did."""
    notes = [w.note for w in history.weighings if w.site == user]
    silent, alone = notes.count("hidden by noise"), notes.count("alone")
    if "stopped" in notes:
        return f"{user} stopped early: its own gradient was zero, so its model was its local optimum."
    if alone:
        return (
            f"In {words.count(alone, 'round')} {user} went on alone: fewer peers counted than k_min asks for."
        )
    if unserved := notes.count("no servers"):
        return (
            f"In {words.count(unserved, 'round')} {user} went on alone: a server or the dealer of its distances was missing,"
            " and its peers' weights stayed what they were."
        )
    if silent:
        return (
            f"In {silent} of {words.count(len(notes), 'round')} noise hid the gradient of {user}, and its peers' weights"
            " stayed what they were."
        )
    return None


@report_section("who counted", order=90)
def _counted(page: Page) -> Markup | None:
    return who_counted(page.history, page.sites, page.shown)
