"""Small inline SVG charts that stretch with the page while their text keeps its size.

Colours are classes (`alone`, `together`, `pooled`, `worse` …) that style.css fills in, so that one chart
serves light, dark and print. Every mark has a <title>.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from confrere.report.page.axes import Scale
from confrere.report.page.markup import Child, Markup, tag
from confrere.report.words import even

Format = Callable[[float], str]


NARROWEST = 285
"""Charts over the whole page are at least this wide, in pixels; names that would overlap there are moved."""
NARROW = 150
"""Panels are at least this wide; labels that would overlap there are left out."""
STRIP = 125
"""The same for strips in tables."""


@dataclass(frozen=True)
class Mark:
    """A value with its spread, as drawn: a dot and a bar from low to high."""

    kind: str
    value: float
    low: float | None
    high: float | None
    title: str


@dataclass(frozen=True)
class ChartLine:
    """A line of (x, y), with the band of its spread if it has one."""

    kind: str
    points: Sequence[tuple[float, float]]
    band: Sequence[tuple[float, float, float]] = ()
    title: str = ""


@dataclass(frozen=True)
class Dot:
    """A point in a scatter chart, with the interval of its height."""

    kind: str
    x: float
    y: float
    low: float | None
    high: float | None
    label: str
    title: str


@dataclass(frozen=True)
class Axes:
    """The scales of a chart, and how values on them are written."""

    x: Scale
    y: Scale
    x_words: Format
    y_words: Format
    y_labels: int = 5
    """The most labels of the upright axis."""

    def labelled(self) -> list[tuple[float, str]]:
        """The values to label upwards."""
        return _labelled(self.y.ticks(self.y_labels), self.y_words)


def over_rounds(x: Scale, y: Scale, y_words: Format) -> Axes:
    """Rounds to the right; the last label says that they are rounds."""
    return Axes(x, y, lambda v: f"round {v:.0f}" if v == x.ticks(6)[-1] else f"{v:.0f}", y_words)


def legend(*entries: tuple[str, str]) -> Markup:
    """(class, words) pairs, each with its mark."""
    keys = (
        tag(
            "li",
            tag(
                "svg",
                tag("circle", cx=7, cy=7, r=5, class_=f"dot {kind}"),
                width=14,
                height=14,
                aria_hidden="true",
            ),
            words,
        )
        for kind, words in entries
    )
    return tag("ul", *keys, class_="legend")


def row(marks: Sequence[Mark], scale: Scale, *, zero: bool = False) -> Markup:
    """One line of a dumbbell or interval chart, for a table cell; each mark keeps to its own lane."""
    lane = 9.0
    height = 17 + lane * len(marks)
    parts: list[Child] = [_upright(scale.percent(t), 0, height, "grid") for t in scale.ticks(5)]
    if zero:
        parts.append(_upright(scale.percent(0), 0, height, "zero"))
    for index, mark in enumerate(marks):
        at = height / 2 + lane * (index - (len(marks) - 1) / 2)
        ends = (mark.low, mark.high)
        if ends[0] is not None and ends[1] is not None:
            places = {"x1": scale.percent(ends[0]), "x2": scale.percent(ends[1])}
            parts.append(tag("line", **places, y1=at, y2=at, class_=f"bar {mark.kind}"))
        parts.append(_dot(mark.kind, mark.title, scale.percent(mark.value), at, 4.5))
    return tag(
        "svg", *parts, class_="strip", height=height, role="img", aria_label="; ".join(m.title for m in marks)
    )


def axis(scale: Scale, words: Format, *, most: int = 5, kind: str = "") -> Markup:
    """The labels above rows. Of the kind «own» it belongs to one row, and is shown where the table has no head."""
    ticks = scale.ticks(most)
    labels = _labelled(ticks, words)
    kept = labels
    for step in range(1, len(labels) + 1):  # label every one, every second … until none covers another
        kept = labels[ticks.index(0.0) % step if 0.0 in ticks else 0 :: step]
        ends = [_extent(scale(t), w) for t, w in kept]
        if all(right + 4 <= left for (_, right), (left, _) in pairwise(ends)):
            break
    return tag(
        "svg",
        *(_text(w, scale.percent(t), 13, _anchor(scale(t))) for t, w in kept),
        *(_upright(scale.percent(t), 17, 20, "tick") for t in ticks),
        class_=f"strip axis {kind}".strip(),
        height=20,
        aria_hidden="true",
    )


def lines(
    series: Sequence[ChartLine],
    axes: Axes,
    *,
    limit: tuple[float, str] | None = None,
    height: int = 170,
    width: int = NARROW,
    label: str,
) -> Markup:
    """Lines with bands over a shared x; `limit` is a horizontal line with its words, such as a budget.

    `width` is the least that the chart has on any screen.
    """
    top, bottom = 14.0, height - 22.0

    def at(value: float) -> float:
        return bottom - (bottom - top) * min(max(axes.y(value), 0.0), 1.0)

    upright = axes.labelled()
    side = _side(upright)
    labels = [_text(written, str(side - 6), at(t) + 4, "end") for t, written in upright]
    frame: list[Child] = [
        tag("line", x1="0", x2="100%", y1=at(t), y2=at(t), class_="grid") for t, _ in upright
    ]
    x = axes.x
    frame += [
        _text(axes.x_words(t), x.percent(t), height - 6.0, _anchor(x(t))) for t in _x_ticks(axes, width)
    ]
    if limit is not None:
        frame.append(tag("line", x1="0", x2="100%", y1=at(limit[0]), y2=at(limit[0]), class_="limit"))
        frame.append(_text(limit[1], "100%", at(limit[0]) - 4, "end", "limit-words"))
    plot = tag(
        "svg", *_drawn(series, axes), x="0", y=top, width="100%", height=bottom - top,
        viewBox="0 0 1000 1000", preserveAspectRatio="none",
    )  # fmt: skip
    ends = [
        _dot(s.kind, s.title, x.percent(s.points[-1][0]), at(s.points[-1][1]), 3.5)
        for s in series
        if s.points
        and s.kind != "ideal"
        and -0.02 <= axes.y(s.points[-1][1]) <= 1.02  # not where a line is cut off
    ]
    chart = tag("svg", *frame, plot, *ends, class_="chart", height=height, role="img", aria_label=label)
    return _beside(labels, side, height, chart)


def _side(labels: Sequence[tuple[float, str]]) -> int:
    """The width of the margin that holds all labels of the upright axis."""
    longest = max((len(written) for _, written in labels), default=0)
    return round(6.8 * longest + 8)


def _beside(labels: Sequence[Markup], side: int, height: int, chart: Markup) -> Markup:
    """A chart to the right of the labels of its upright axis, which no line can cross."""
    upright = tag("svg", *labels, class_="upright", width=side, height=height, aria_hidden="true")
    return tag("div", upright, chart, class_="framed")


def _x_ticks(axes: Axes, width: int) -> list[float]:
    """The last label says what is counted, and needs room."""
    x, ticks = axes.x, axes.x.ticks(6)
    last, other = (len(axes.x_words(t)) for t in (ticks[-1], ticks[0])) if ticks else (0, 0)
    room = (6.4 * last + 3.2 * other + 8) / width
    while len(ticks) > 2 and x(ticks[-1]) - x(ticks[-2]) < room:
        del ticks[-2]
    return ticks


def _drawn(series: Sequence[ChartLine], axes: Axes) -> list[Child]:
    """All bands, and above them all lines."""
    drawn: list[Child] = []
    for s in series:
        if len(s.band) > 1:
            edge = [(a, h) for a, _, h in s.band] + [(a, low) for a, low, _ in reversed(s.band)]
            drawn.append(tag("path", d=_path(edge, axes.x, axes.y) + "Z", class_=f"band {s.kind}"))
    for s in series:
        if len(s.points) > 1:
            path = _path(s.points, axes.x, axes.y)
            drawn.append(tag("path", tag("title", s.title), d=path, class_=f"line {s.kind}"))
    return drawn


def _dot(kind: str, title: str, x: str, y: float, radius: float) -> Markup:
    return tag("circle", tag("title", title), cx=x, cy=y, r=radius, class_=f"dot {kind}")


def scatter(
    dots: Sequence[Dot],
    axes: Axes,
    *,
    label: str,
    names: bool = True,
) -> Markup:
    """Dots with upright intervals; the line at zero is drawn."""
    height = 300
    top, bottom = 14.0, height - 26.0
    x = axes.x

    def at(value: float) -> float:
        return bottom - (bottom - top) * axes.y(value)

    upright = axes.labelled()
    margin = _side(upright)
    labels = [_text(written, str(margin - 6), at(t) + 4, "end") for t, written in upright]
    parts: list[Child] = []
    for t, _ in upright:
        kind = "zero" if t == 0 else "grid"
        parts.append(tag("line", x1="0", x2="100%", y1=at(t), y2=at(t), class_=kind))
    parts += [_text(axes.x_words(t), x.percent(t), height - 8.0, _anchor(x(t))) for t in x.ticks()]
    for dot in dots:
        place = x.percent(dot.x)
        if dot.low is not None and dot.high is not None:
            parts.append(
                tag("line", x1=place, x2=place, y1=at(dot.low), y2=at(dot.high), class_=f"bar {dot.kind}")
            )
        parts.append(_dot(dot.kind, dot.title, place, at(dot.y), 5.5))
    if names:
        parts += [
            tag("text", dot.label, x=x.percent(dot.x), y=y, dx=dx, text_anchor=anchor, class_="name")
            for dot, (dx, y, anchor) in zip(dots, _places(dots, x, at), strict=True)
        ]
    chart = tag("svg", *parts, class_="chart", height=height, role="img", aria_label=label)
    return _beside(labels, margin, height, chart)


def _places(dots: Sequence[Dot], x: Scale, at: Callable[[float], float]) -> list[tuple[float, float, str]]:
    """For each dot a place for its name that no other name covers, even in a narrow chart: (dx, y, anchor)."""
    taken: list[tuple[float, float, float]] = []
    places = []
    for dot in dots:
        middle, long = NARROWEST * x(dot.x), 7.0 * len(dot.label)
        tries = [
            (dx, at(dot.y) + 4 + up, anchor, left)
            for up in (0, -15, 15, -30, 30)
            for dx, anchor, left in ((11.0, "start", middle + 11), (-11.0, "end", middle - 11 - long))
        ]
        free = [
            t
            for t in tries
            if t[3] >= 0 and t[3] + long <= NARROWEST
            and all(abs(t[1] - y) >= 14 or t[3] >= right or t[3] + long <= left for left, right, y in taken)
        ]  # fmt: skip
        dx, y, anchor, left = (free or tries)[0]
        taken.append((left, left + long, y))
        places.append((dx, y, anchor))
    return places


def presence(sites: Sequence[str], rounds: Sequence[int], absent: Callable[[str, int], str | None]) -> Markup:
    """Sites by rounds: a light cell where a site took part, a dark one where it did not."""
    width, cell = 100 / max(len(rounds), 1), 18
    parts: list[Child] = []
    for line, site in enumerate(sites):
        parts.append(tag("rect", x="0", y=line * cell + 2, width="100%", height=cell - 4, class_="here"))
        for column, turn in enumerate(rounds):
            why = absent(site, turn)
            if why is not None:
                parts.append(
                    tag(
                        "rect",
                        tag("title", f"{site}, round {turn + 1}: {why}"),
                        x=f"{column * width:.3f}%",
                        y=line * cell + 2,
                        width=f"{width:.3f}%",
                        height=cell - 4,
                        class_="away",
                    )
                )
    return tag(
        "svg", *parts, class_="chart", height=cell * len(sites), role="img", aria_label="Who took part when"
    )


def _labelled(ticks: Sequence[float], words: Format) -> list[tuple[float, str]]:
    return list(zip(ticks, even([words(t) for t in ticks]), strict=True))


def _path(points: Sequence[tuple[float, float]], x: Scale, y: Scale) -> str:
    step = max(1, len(points) // 200)
    kept = [*points[:-1:step], points[-1]]
    return "M" + "L".join(f"{1000 * x(a):.1f} {1000 * (1 - y(b)):.1f}" for a, b in kept)


def _text(words: str, x: str, y: float, anchor: str, kind: str = "tick-words") -> Markup:
    return tag("text", words, x=x, y=y, text_anchor=anchor, class_=kind)


def _upright(x: str, top: float, bottom: float, kind: str) -> Markup:
    return tag("line", x1=x, x2=x, y1=top, y2=bottom, class_=kind)


def _extent(at: float, words: str) -> tuple[float, float]:
    """From where to where a label reaches on the narrowest strip, in pixels."""
    long, middle = 6.5 * len(words), STRIP * at
    left = {"start": middle, "end": middle - long}.get(_anchor(at), middle - long / 2)
    return left, left + long


def _anchor(at: float) -> str:
    return "start" if at < 0.02 else "end" if at > 0.98 else "middle"
