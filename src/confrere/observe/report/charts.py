"""Small charts as inline SVG. They stretch with the page: positions are percentages, type stays in pixels.

Colours are classes (`alone`, `together`, `pooled`, `worse` …) that style.css fills in, so that one chart
serves light, dark and print. Every mark has a <title>.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from confrere.observe.report.markup import Child, Markup, tag
from confrere.observe.report.scale import Scale
from confrere.observe.words import even

Format = Callable[[float], str]


@dataclass(frozen=True)
class Mark:
    """A value with its spread, as drawn: a dot and a bar from low to high."""

    kind: str
    value: float
    low: float | None
    high: float | None
    title: str


@dataclass(frozen=True)
class Line:
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
        parts.append(
            tag(
                "circle",
                tag("title", mark.title),
                cx=scale.percent(mark.value),
                cy=at,
                r=4.5,
                class_=f"dot {mark.kind}",
            )
        )
    return tag(
        "svg", *parts, class_="strip", height=height, role="img", aria_label="; ".join(m.title for m in marks)
    )


def axis(scale: Scale, words: Format, *, most: int = 5) -> Markup:
    """The labels that belong above rows."""
    ticks = scale.ticks(most)
    return tag(
        "svg",
        *(_text(w, scale.percent(t), 13, _anchor(scale(t))) for t, w in _labelled(ticks, words)),
        *(_upright(scale.percent(t), 17, 20, "tick") for t in ticks),
        class_="strip axis",
        height=20,
        aria_hidden="true",
    )


def lines(
    series: Sequence[Line],
    x: Scale,
    y: Scale,
    *,
    x_words: Format,
    y_words: Format,
    limit: tuple[float, str] | None = None,
    height: int = 170,
    label: str,
    most: int = 5,
) -> Markup:
    """Lines with bands over a shared x; `limit` is a horizontal line with its words, such as a budget."""
    top, bottom = 14.0, height - 22.0
    tall = bottom - top

    def at(value: float) -> float:
        return bottom - tall * min(max(y(value), 0.0), 1.0)

    frame: list[Child] = []
    for t, label_words in _labelled(y.ticks(most), y_words):
        frame.append(tag("line", x1="0", x2="100%", y1=at(t), y2=at(t), class_="grid"))
        frame.append(_text(label_words, "0", at(t) - 3, "start"))
    ticks = x.ticks(6)
    if (
        len(ticks) > 2 and x(ticks[-1]) - x(ticks[-2]) < 0.2
    ):  # the last one says what is counted, and needs room
        del ticks[-2]
    frame += [_text(x_words(t), x.percent(t), height - 6.0, _anchor(x(t))) for t in ticks]
    if limit is not None:
        frame.append(tag("line", x1="0", x2="100%", y1=at(limit[0]), y2=at(limit[0]), class_="limit"))
        frame.append(_text(limit[1], "100%", at(limit[0]) - 4, "end", "limit-words"))
    drawn: list[Child] = []
    for s in series:
        if len(s.band) > 1:
            edge = [(a, h) for a, _, h in s.band] + [(a, low) for a, low, _ in reversed(s.band)]
            drawn.append(tag("path", d=_path(edge, x, y) + "Z", class_=f"band {s.kind}"))
    for s in series:
        if len(s.points) > 1:
            drawn.append(tag("path", tag("title", s.title), d=_path(s.points, x, y), class_=f"line {s.kind}"))
    plot = tag(
        "svg",
        *drawn,
        x="0",
        y=top,
        width="100%",
        height=tall,
        viewBox="0 0 1000 1000",
        preserveAspectRatio="none",
    )
    ends = [
        tag(
            "circle",
            tag("title", s.title),
            cx=x.percent(s.points[-1][0]),
            cy=at(s.points[-1][1]),
            r=3.5,
            class_=f"dot {s.kind}",
        )
        for s in series
        if s.points
    ]
    return tag("svg", *frame, plot, *ends, class_="chart", height=height, role="img", aria_label=label)


def scatter(
    dots: Sequence[Dot],
    x: Scale,
    y: Scale,
    *,
    x_words: Format,
    y_words: Format,
    height: int = 300,
    label: str,
    names: bool = True,
) -> Markup:
    """Dots with upright intervals; the line at zero is drawn."""
    top, bottom = 14.0, height - 26.0

    def at(value: float) -> float:
        return bottom - (bottom - top) * y(value)

    parts: list[Child] = []
    for t, label_words in _labelled(y.ticks(), y_words):
        kind = "zero" if t == 0 else "grid"
        parts.append(tag("line", x1="0", x2="100%", y1=at(t), y2=at(t), class_=kind))
        parts.append(_text(label_words, "0", at(t) - 3, "start"))
    parts += [_text(x_words(t), x.percent(t), height - 8.0, _anchor(x(t))) for t in x.ticks()]
    for dot in dots:
        place = x.percent(dot.x)
        if dot.low is not None and dot.high is not None:
            parts.append(
                tag("line", x1=place, x2=place, y1=at(dot.low), y2=at(dot.high), class_=f"bar {dot.kind}")
            )
        parts.append(
            tag("circle", tag("title", dot.title), cx=place, cy=at(dot.y), r=5.5, class_=f"dot {dot.kind}")
        )
        if names:
            side = x(dot.x) > 0.8
            parts.append(
                tag(
                    "text",
                    dot.label,
                    x=place,
                    y=at(dot.y) + 4,
                    dx=-11 if side else 11,
                    text_anchor="end" if side else "start",
                    class_="name",
                )
            )
    return tag("svg", *parts, class_="chart", height=height, role="img", aria_label=label)


def presence(
    sites: Sequence[str], rounds: Sequence[int], absent: Callable[[str, int], str | None], *, cell: int = 18
) -> Markup:
    """Sites by rounds: a light cell where a site took part, a dark one where it did not."""
    width = 100 / max(len(rounds), 1)
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


def _anchor(at: float) -> str:
    return "start" if at < 0.02 else "end" if at > 0.98 else "middle"
