"""Draw the graph of an exchange: sites on a circle, an arrow for every edge."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from confrere.report import words
from confrere.report.page.markup import Child, Markup, tag

Edges = Mapping[tuple[str, str], int]
NAME = 12
"""Letters of a name that fit beside the circle; the table next to it has whole names."""


@dataclass(frozen=True)
class Pattern:
    """Rounds in which the same sites sent to the same sites."""

    edges: Edges
    rounds: tuple[int, ...]


def patterns(rounds: Mapping[int, Edges]) -> list[Pattern]:
    """The different graphs of a run, in the order in which they first appear."""
    found: dict[frozenset[tuple[str, str]], list[int]] = {}
    for turn, edges in rounds.items():
        found.setdefault(frozenset(edges), []).append(turn)
    return [Pattern(rounds[turns[0]], tuple(turns)) for turns in found.values()]


def circle(
    sites: Sequence[str], edges: Edges, *, size: int = 150, named: bool = False, numbered: bool = True
) -> Markup:
    """The graph of one round, or of all rounds: a wider arrow carries more bytes."""
    roomy = numbered and len(sites) <= 24
    dot = 9.0 if roomy else min(3.5, 0.5 * math.pi * size / (2 * len(sites)))
    radius = size / 2 - (dot + (24 if named else 4))
    wide = size + 120 if named else size  # room for the names at both sides
    middle = size / 2
    place = {
        site: (
            wide / 2 + radius * math.sin(2 * math.pi * i / len(sites)),
            middle - radius * math.cos(2 * math.pi * i / len(sites)),
        )
        for i, site in enumerate(sites)
    }
    most = max(edges.values(), default=1) or 1
    arrows = [
        _arrow(
            place[a],
            place[b],
            dot,
            0.8 + 1.4 * count / most,
            edge_id(sites, a, b),
            f"{a} to {b}: {words.size(count)}",
        )
        for (a, b), count in edges.items()
        if a in place and b in place and a != b
    ]
    nodes: list[Child] = []
    for number, site in enumerate(sites, 1):
        x, y = place[site]
        nodes.append(tag("circle", tag("title", site), cx=x, cy=y, r=dot, class_="node"))
        if dot > 5:
            nodes.append(tag("text", str(number), x=x, y=y + 3.5, text_anchor="middle", class_="number"))
        if named:
            nodes.append(
                _name(site, (x, y), math.sin(2 * math.pi * (number - 1) / len(sites)), dot, y < middle)
            )
    return tag(
        "svg",
        *arrows,
        *nodes,
        class_="graph crowded" if len(edges) > 60 else "graph",
        viewBox=f"0 0 {wide} {size}",
        role="img",
        aria_label=f"{words.count(len(edges), 'arrow')} between {words.count(len(sites), 'site')}",
    )


def _name(site: str, at: tuple[float, float], side: float, dot: float, above: bool) -> Markup:
    """The name of a site beside its dot, or above or below it at the top and the bottom of the circle."""
    anchor = "middle" if abs(side) < 0.2 else "start" if side > 0 else "end"
    rise = 0.0 if anchor != "middle" else (-dot - 6 if above else dot + 12)
    shift = 0.0 if anchor == "middle" else math.copysign(dot + 5, side)
    label = site if len(site) <= NAME else site[: NAME - 1] + "…"
    return tag("text", label, x=at[0] + shift, y=at[1] + 4 + rise, text_anchor=anchor, class_="name")


def edge_id(sites: Sequence[str], sender: str, receiver: str) -> str:
    """A name for an arrow that says nothing a site could have chosen."""
    return f"{sites.index(sender)}-{sites.index(receiver)}"


def _arrow(
    start: tuple[float, float], end: tuple[float, float], dot: float, width: float, name: str, title: str
) -> Markup:
    """A curved arrow that keeps to one side, so that two directions do not cover each other."""
    (x1, y1), (x2, y2) = start, end
    long = math.hypot(x2 - x1, y2 - y1) or 1.0
    ux, uy = (x2 - x1) / long, (y2 - y1) / long
    bend = 0.12 * long
    cx, cy = (x1 + x2) / 2 - uy * bend, (y1 + y2) / 2 + ux * bend
    away = math.hypot(x2 - cx, y2 - cy) or 1.0
    vx, vy = (x2 - cx) / away, (y2 - cy) / away  # the direction in which it arrives
    head = min(4.0 + width, 0.3 * long)
    tip = (x2 - vx * (dot + 1), y2 - vy * (dot + 1))
    base = (tip[0] - vx * head, tip[1] - vy * head)
    wing = head * 0.42
    corners = (tip, (base[0] - vy * wing, base[1] + vx * wing), (base[0] + vy * wing, base[1] - vx * wing))
    return tag(
        "g",
        tag("title", title),
        tag(
            "path",
            d=f"M{x1:.1f} {y1:.1f}Q{cx:.1f} {cy:.1f} {base[0]:.1f} {base[1]:.1f}",
            stroke_width=round(width, 2),
        ),
        tag("polygon", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in corners)),
        class_="edge",
        data_edge=name,
    )
