"""Small charts as inline SVG. They stretch with the page: positions are percentages, type stays in pixels.

Colours are classes (`alone`, `together`, `pooled`, `worse` …) that style.css fills in, so that one chart
serves light, dark and print. Every mark has a <title>.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from confrere.report.page.markup import Child, Markup, tag
from confrere.report.page.scale import Scale
from confrere.report.words import even

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

    def labelled(self, most: int = 5) -> list[tuple[float, str]]:
        """The values to label upwards."""
        return _labelled(self.y.ticks(most), self.y_words)


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
    series: Sequence[ChartLine],
    axes: Axes,
    *,
    limit: tuple[float, str] | None = None,
    height: int = 170,
    label: str,
    most: int = 5,
) -> Markup:
    """Lines with bands over a shared x; `limit` is a horizontal line with its words, such as a budget."""
    top, bottom = 14.0, height - 22.0

    def at(value: float) -> float:
        return bottom - (bottom - top) * min(max(axes.y(value), 0.0), 1.0)

    frame: list[Child] = []
    for t, written in axes.labelled(most):
        frame.append(tag("line", x1="0", x2="100%", y1=at(t), y2=at(t), class_="grid"))
        frame.append(_text(written, "0", at(t) - 3, "start"))
    x = axes.x
    frame += [_text(axes.x_words(t), x.percent(t), height - 6.0, _anchor(x(t))) for t in _x_ticks(x)]
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
    ]
    return tag("svg", *frame, plot, *ends, class_="chart", height=height, role="img", aria_label=label)


def _x_ticks(x: Scale) -> list[float]:
    """The last label says what is counted, and needs room."""
    ticks = x.ticks(6)
    if len(ticks) > 2 and x(ticks[-1]) - x(ticks[-2]) < 0.2:
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
    height: int = 300,
    label: str,
    names: bool = True,
) -> Markup:
    """Dots with upright intervals; the line at zero is drawn."""
    top, bottom = 14.0, height - 26.0
    x = axes.x

    def at(value: float) -> float:
        return bottom - (bottom - top) * axes.y(value)

    parts: list[Child] = []
    for t, label_words in axes.labelled():
        kind = "zero" if t == 0 else "grid"
        parts.append(tag("line", x1="0", x2="100%", y1=at(t), y2=at(t), class_=kind))
        parts.append(_text(label_words, "0", at(t) - 3, "start"))
    parts += [_text(axes.x_words(t), x.percent(t), height - 8.0, _anchor(x(t))) for t in x.ticks()]
    for dot in dots:
        place = x.percent(dot.x)
        if dot.low is not None and dot.high is not None:
            parts.append(
                tag("line", x1=place, x2=place, y1=at(dot.low), y2=at(dot.high), class_=f"bar {dot.kind}")
            )
        parts.append(_dot(dot.kind, dot.title, place, at(dot.y), 5.5))
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
