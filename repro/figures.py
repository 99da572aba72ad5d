"""Pictures of comparisons: curves over rounds, settings side by side, groups as dots, and two ways as a pyramid.

Methods have one name and one colour in all figures (`repro.method_style`). Bars begin at zero; what would need a
cut axis is drawn as dots. Figures are small, so that their type is legible in a column of text.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from confrere.core.errors import StudyError
from repro.method_style import method_styles

Points = Sequence[Mapping[str, float]]
"""`round`, `mean` and `std` of each point of a curve."""
Measured = Mapping[str, Mapping[str, float]]
"""A figure by site (or setting) and arm."""

STAGES = ("#9ecae1", "#4f9bd0", "#1f6cb0", "#08306b")
"""Stages of one thing, from light to dark."""
PEERS = ("#cf6f05", "#6a2c00", "#5a9088", "#0b0730", "#3a14f0", "#b3123a")
PUBLISHED: dict[str, Any] = {
    "marker": "D",
    "markerfacecolor": "white",
    "markersize": 5,
    "linestyle": "none",
}


def draw_curves(
    found: Mapping[str, Points],
    path: Path,
    *,
    measure: str,
    lines: Mapping[str, float] | None = None,
    dotted: Mapping[str, Points] | None = None,
    published: Mapping[str, float] | None = None,
) -> Path:
    """Each arm round by round, mean and standard deviation; `published` are diamonds at the right end.

    `lines` are levels (dashed); `dotted` go with an axis of their own, below.
    """

    def fill(axes: Axes) -> None:
        styles = method_styles(list(found))
        last = max((p["round"] for points in found.values() for p in points), default=1)
        for arm, points in found.items():
            style = styles[arm]
            at, mean = [p["round"] for p in points], [p["mean"] for p in points]
            marker = "o" if len(at) < 20 else ""
            axes.plot(
                at, mean, style.line, marker=marker, markersize=3, color=style.colour, label=style.label
            )
            low = [p["mean"] - p["std"] for p in points]
            high = [p["mean"] + p["std"] for p in points]
            axes.fill_between(at, low, high, color=style.colour, alpha=0.1, linewidth=0)
            if arm in (published or {}):
                axes.plot([last], [(published or {})[arm]], color=style.colour, **PUBLISHED)
        if published:
            axes.plot([], [], color="black", label="published", **PUBLISHED)
        for name, level in (lines or {}).items():
            axes.axhline(level, linestyle=(0, (5, 2)), color="#b3123a", linewidth=1, label=name)
        axes.set_xlabel("round")
        axes.locator_params(axis="x", integer=True)
        axes.set_ylabel(measure)
        axes.grid(alpha=0.3)

    if not dotted:
        return _drawn(fill, path)

    def both(upper: Axes) -> None:
        figure = upper.figure
        upper.remove()
        top, bottom = figure.subplots(2, 1, sharex=True)
        fill(top)
        top.set_xlabel("")
        for number, (name, points) in enumerate(dotted.items()):
            across, up = [p["round"] for p in points], [p["mean"] for p in points]
            bottom.plot(across, up, ":", color=PEERS[number % len(PEERS)], linewidth=1.5, label=name)
        bottom.set_ylim(-0.03, 1.05)
        bottom.set_ylabel("weight of the peer")
        bottom.set_xlabel("round")
        bottom.grid(alpha=0.3)

    return _drawn(both, path, height=5.4)


def draw_settings(
    found: Measured, spread: Measured, path: Path, *, measure: str, published: Measured | None = None
) -> Path:
    """Each arm over the settings of a comparison (`found[setting][arm]`), with bars of one standard deviation."""

    def fill(axes: Axes) -> None:
        arms = list(dict.fromkeys(a for values in found.values() for a in values))
        styles, settings = method_styles(arms), list(found)
        for number, arm in enumerate(arms):
            style = styles[arm]
            at = [i for i, s in enumerate(settings) if arm in found[s]]
            up = [found[settings[i]][arm] for i in at]
            error = [spread[settings[i]].get(arm, 0.0) for i in at]
            moved = [i + (number - (len(arms) - 1) / 2) * 0.05 for i in at]
            axes.errorbar(
                moved, up, yerr=error, fmt=f"o{style.line}", markersize=4, capsize=2, color=style.colour,
                label=style.label,
            )  # fmt: skip
            for i, x in zip(at, moved, strict=True):
                if arm in (published or {}).get(settings[i], {}):
                    axes.plot([x], [(published or {})[settings[i]][arm]], color=style.colour, **PUBLISHED)
        if any((published or {}).values()):
            axes.plot([], [], color="black", label="published", **PUBLISHED)
        axes.set_xticks(range(len(settings)), [textwrap.fill(s.replace("=", " = "), 11) for s in settings])
        axes.set_xlim(-0.5, len(settings) - 0.5)
        axes.set_ylabel(measure)
        axes.grid(alpha=0.3)

    return _drawn(fill, path)


def draw_groups(found: Measured, baselines: Mapping[str, str], path: Path, *, measure: str) -> Path:
    """Dots, a line for each group: `found[group][arm]`. Arms of `baselines` have the words given there."""
    groups = list(found)
    methods = [a for a in dict.fromkeys(a for v in found.values() for a in v) if a not in baselines]
    if not groups or not methods:
        raise StudyError(f"{path.name}: there is no method to draw beside {', '.join(baselines)}")

    def fill(axes: Axes) -> None:
        arms = [*baselines, *methods]
        styles = method_styles(arms)
        for number, arm in enumerate(arms):
            at = [i for i, g in enumerate(groups) if arm in found[g]]
            moved = [i + 0.14 * (number - (len(arms) - 1) / 2) for i in at]
            values = [found[groups[i]][arm] for i in at]
            face = "white" if arm in baselines or styles[arm].line != "-" else styles[arm].colour
            axes.plot(
                values, moved, "s" if arm in baselines else "o", color=styles[arm].colour, markersize=5,
                markerfacecolor=face, label=baselines.get(arm, styles[arm].label),
            )  # fmt: skip
        _lines(axes, groups, measure)

    return _drawn(fill, path, height=1.4 + 0.42 * len(groups))


def draw_reached(found: Mapping[str, Sequence[tuple[str, float]]], path: Path, *, measure: str) -> Path:
    """A line of dots for each arm: the best that was reached by each milestone, light to dark."""

    def fill(axes: Axes) -> None:
        stages = list(dict.fromkeys(name for steps in found.values() for name, _ in steps))
        for at, steps in enumerate(found.values()):
            best, values = 0.0, []
            for _, value in steps:  # a later milestone that brought nothing adds nothing
                best = max(best, value)
                values.append(best)
            measured = [v for v in values if v > 0]
            axes.plot(measured, [at] * len(measured), "-", color="#c8ccd2", zorder=1)
            for (name, _), value in zip(steps, values, strict=True):
                if value > 0:
                    axes.plot(
                        [value], [at], "o", color=STAGES[stages.index(name) % len(STAGES)], markersize=6
                    )
            axes.annotate(
                f"{best:.3f}", (best, at), xytext=(6, 0), textcoords="offset points", va="center", fontsize=8
            )
        for number, name in enumerate(stages):
            axes.plot([], [], "o", color=STAGES[number % len(STAGES)], label=f"within {name}")
        axes.margins(x=0.3)
        _lines(axes, [name.replace("\n", ", ") for name in found], f"best {measure} so far")

    return _drawn(fill, path, height=1.6 + 0.42 * len(found))


def draw_scope(found: Mapping[str, Sequence[tuple[str, float, float]]], path: Path, *, measure: str) -> Path:
    """For each arm and user a dot for each number of sites taking part, with its standard deviation."""

    def fill(axes: Axes) -> None:
        stages = list(dict.fromkeys(name for steps in found.values() for name, _, _ in steps))
        for at, steps in enumerate(found.values()):
            for place, (name, value, spread) in enumerate(steps):
                aside = at + 0.2 * (place - (len(steps) - 1) / 2)
                colour = STAGES[1 + stages.index(name) % (len(STAGES) - 1)]
                axes.errorbar(value, aside, xerr=spread, fmt="o", color=colour, markersize=4, elinewidth=1)
        for number, name in enumerate(stages):
            axes.plot([], [], "o", color=STAGES[1 + number % (len(STAGES) - 1)], label=f"with {name}")
        _lines(axes, [name.replace("\n", ", ") for name in found], measure)

    return _drawn(fill, path, height=1.4 + 0.5 * len(found))


def draw_pyramid(found: Measured, left: str, right: str, path: Path, *, measure: str) -> Path:
    """Two methods back to back, one line for each group: `found[group][arm]`. Bars begin at zero."""
    groups = [g for g, values in found.items() if left in values and right in values]
    if not groups:
        raise StudyError(f"{path.name}: {left} and {right} were not both measured")

    def fill(axes: Axes) -> None:
        styles = method_styles([left, right])
        top = max(found[g][arm] for g in groups for arm in (left, right))
        at = list(range(len(groups)))
        for arm, sign in ((left, -1.0), (right, 1.0)):
            style = styles[arm]
            lengths = [found[g][arm] for g in groups]
            axes.barh(
                at, [sign * v for v in lengths], height=0.75, label=style.label, edgecolor=style.colour,
                color=style.colour if style.line == "-" else "white", hatch=None if style.line == "-" else "////",
            )  # fmt: skip
            for i, v in zip(at, lengths, strict=True):
                side = "right" if sign < 0 else "left"
                axes.text(sign * (v + 0.02 * top), i, f"{v:.3f}", va="center", ha=side, fontsize=8)
        axes.axvline(0, color="black", linewidth=0.8)
        _lines(axes, groups, measure)
        reach = 1.3 * top
        ticks = [t for t in (-0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75) if abs(t) <= reach]
        axes.set_xticks(ticks, [f"{abs(t):g}" for t in ticks])
        axes.set_xlim(-reach, reach)

    return _drawn(fill, path, height=1.4 + 0.42 * len(groups))


def _lines(axes: Axes, names: Sequence[str], measure: str) -> None:
    """Names from top to bottom, the measure to the right."""
    axes.set_yticks(range(len(names)), [n.replace("\n", ", ") for n in names], fontsize=8)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlabel(measure)
    axes.grid(alpha=0.3, axis="x")


def _drawn(fill: Callable[[Any], None], path: Path, width: float = 4.8, height: float = 3.6) -> Path:
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise StudyError(f"{path}: a figure ends with .png, .svg or .pdf")
    with plt.rc_context({"svg.hashsalt": path.stem, "font.size": 9}):  # the same figures give the same file
        figure, axes = plt.subplots(figsize=(width, height), layout="constrained")
        try:
            fill(axes)
            entries = dict[str, Any]()
            for part in figure.axes:
                entries |= {
                    words: handle for handle, words in zip(*part.get_legend_handles_labels(), strict=True)
                }
            rows = -(-len(entries) // 2)
            figure.set_size_inches(width, height + 0.2 * max(0, rows - 1))
            figure.legend(
                entries.values(),
                entries.keys(),
                fontsize=8,
                ncols=2,
                loc="outside lower center",
                handlelength=2.8,
                frameon=False,
            )
            path.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(path, dpi=130, metadata={"Date": None} if path.suffix == ".svg" else None)
        finally:
            plt.close(figure)
    return path
