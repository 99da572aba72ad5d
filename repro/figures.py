"""Pictures of comparisons: curves over rounds, settings side by side, grouped stacked bars, and two ways as a pyramid."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from confrere.core.errors import StudyError

Points = Sequence[Mapping[str, float]]
"""`round`, `mean` and `std` of each point of a curve."""
Measured = Mapping[str, Mapping[str, float]]
"""A figure by site (or setting) and arm."""

COLOURS = (
    "#0b6e8f",
    "#c65102",
    "#3a7d2c",
    "#7a4fa3",
    "#a3142e",
    "#8a6d00",
    "#4d4d4d",
    "#c0408f",
    "#2c5fb3",
    "#5b8c85",
)
DOTTED = "/"
"""In the name of an arm: what stands behind it is a second model of that arm, and drawn in the same colour."""
LOSS = "////"


def colours(arms: Sequence[str]) -> dict[str, str]:
    """One colour for each arm; its second model has the same."""
    stems = list(dict.fromkeys(arm.split(DOTTED)[0] for arm in arms))
    return {arm: COLOURS[stems.index(arm.split(DOTTED)[0]) % len(COLOURS)] for arm in arms}


def draw_curves(
    found: Mapping[str, Points],
    path: Path,
    *,
    measure: str,
    lines: Mapping[str, float] | None = None,
    dotted: Mapping[str, Points] | None = None,
) -> Path:
    """Each arm round by round, mean and standard deviation; `lines` are levels (dashed), `dotted` go with a second axis."""

    def fill(axes: Axes) -> None:
        ink = colours(list(found))
        for arm, points in found.items():
            at, mean = [p["round"] for p in points], [p["mean"] for p in points]
            style = ":" if DOTTED in arm else "-"
            marker = "o" if len(at) < 20 else ""
            axes.plot(at, mean, style, marker=marker, markersize=3, color=ink[arm], label=arm)
            low = [p["mean"] - p["std"] for p in points]
            high = [p["mean"] + p["std"] for p in points]
            axes.fill_between(at, low, high, color=ink[arm], alpha=0.12, linewidth=0)
        for name, level in (lines or {}).items():
            axes.axhline(level, linestyle="--", color="#a3142e", linewidth=1, label=name)
        if dotted:
            beside = axes.twinx()
            shades = colours(list(dotted))
            for name, points in dotted.items():
                across, up = [p["round"] for p in points], [p["mean"] for p in points]
                beside.plot(across, up, ":", color=shades[name], linewidth=1.5, label=name)
            beside.set_ylim(0, 1.05)
            beside.set_ylabel("weight")
            beside.legend(fontsize=7, loc="lower left")
        axes.set_xlabel("round")
        axes.locator_params(axis="x", integer=True)
        axes.set_ylabel(measure)
        axes.grid(alpha=0.3)
        if dotted:  # inside, the weights have their own
            axes.legend(fontsize=7, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0))
        else:
            axes.legend(fontsize=7, ncols=2)

    return _drawn(fill, path)


def draw_settings(found: Measured, spread: Measured, path: Path, *, measure: str) -> Path:
    """Each arm over the settings of a comparison (`found[setting][arm]`), with bars of one standard deviation."""

    def fill(axes: Axes) -> None:
        arms = list(dict.fromkeys(a for values in found.values() for a in values))
        ink, settings = colours(arms), list(found)
        for number, arm in enumerate(arms):
            at = [i for i, s in enumerate(settings) if arm in found[s]]
            up = [found[settings[i]][arm] for i in at]
            error = [spread[settings[i]].get(arm, 0.0) for i in at]
            moved = [i + (number - len(arms) / 2) * 0.02 for i in at]
            style = "o:" if DOTTED in arm else "o-"
            axes.errorbar(
                moved, up, yerr=error, fmt=style, markersize=4, capsize=2, color=ink[arm], label=arm
            )
        axes.set_xticks(range(len(settings)), settings)
        axes.set_ylabel(measure)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7, ncols=2)

    return _drawn(fill, path)


def draw_stacked(
    found: Measured, baselines: Mapping[str, str], path: Path, *, measure: str, floor: float = 0.0
) -> Path:
    """Grouped stacked bars: for each group and method one bar against each baseline.

    `found[group][arm]` are the figures; `baselines` names two arms in words. A bar stands on the baseline, in grey; what
    the method gains comes on top, in colour, and what it loses is taken off the baseline's top, hatched.
    """
    groups = list(found)
    methods = [a for a in dict.fromkeys(a for v in found.values() for a in v) if a not in baselines]
    if not groups or not methods:
        raise StudyError(f"{path.name}: there is no method to draw beside {', '.join(baselines)}")

    def fill(axes: Axes) -> None:
        ink = colours(methods)
        each = 0.84 / (len(methods) * len(baselines))
        for g, group in enumerate(groups):
            values, at = found[group], g - 0.42
            for method in methods:
                for number, (arm, words) in enumerate(baselines.items()):
                    if method in values and arm in values:
                        own, base = values[method], values[arm]
                        shade = ("#bdbdbd", "#d9d9d9")[number % 2]
                        label = words if g == 0 and method == methods[0] else None
                        axes.bar(
                            at + each / 2,
                            min(own, base) - floor,
                            each * 0.92,
                            bottom=floor,
                            color=shade,
                            label=label,
                        )
                        if own >= base:
                            axes.bar(at + each / 2, own - base, each * 0.92, bottom=base, color=ink[method])
                        else:
                            axes.bar(
                                at + each / 2, base - own, each * 0.92, bottom=own, color="white",
                                edgecolor=ink[method], hatch=LOSS, linewidth=0.6,
                            )  # fmt: skip
                    at += each
        for method in methods:
            axes.bar(0, 0, color=ink[method], label=f"{method}: gained (hatched: lost)")
        axes.set_xticks(range(len(groups)), groups, fontsize=8)
        axes.set_ylabel(measure)
        highest = max(v for values in found.values() for v in values.values())
        axes.set_ylim(floor, highest + 0.05 * (highest - floor))
        axes.grid(alpha=0.3, axis="y")
        axes.legend(fontsize=7, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)

    return _drawn(fill, path, width=max(7.0, 1.1 * len(groups) * len(methods) * 0.6))


def draw_reached(
    found: Mapping[str, Sequence[tuple[str, float]]], path: Path, *, measure: str, floor: float = 0.0
) -> Path:
    """One stacked bar for each arm: what was reached by the first milestone, and what each later one added."""

    def fill(axes: Axes) -> None:
        stages = list(dict.fromkeys(name for steps in found.values() for name, _ in steps))
        for at, (_, steps) in enumerate(found.items()):
            below = floor
            for name, value in steps:
                colour = COLOURS[stages.index(name) % len(COLOURS)]
                if value > below:  # a later milestone that brought nothing adds nothing
                    axes.bar(at, value - below, 0.6, bottom=below, color=colour, alpha=0.85)
                    below = value
            axes.text(at, below, f"{below:.3f}", ha="center", va="bottom", fontsize=7)
        for number, name in enumerate(stages):
            axes.bar(0, 0, color=COLOURS[number % len(COLOURS)], label=f"within {name}")
        axes.set_xticks(range(len(found)), list(found), fontsize=7)
        highest = max(value for steps in found.values() for _, value in steps)
        axes.set_ylim(floor, highest + 0.1 * (highest - floor))
        axes.set_ylabel(f"best {measure} so far")
        axes.grid(alpha=0.3, axis="y")
        axes.legend(fontsize=7, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)

    return _drawn(fill, path)


def draw_scope(
    found: Mapping[str, Sequence[tuple[str, float, float]]], path: Path, *, measure: str, floor: float = 0.0
) -> Path:
    """A stacked bar for each arm and user: the best within a number of sites. Dots are each scope itself, with its spread.

    A larger scope that brings less adds nothing to the bar: the dot below its top shows what it cost.
    """

    def fill(axes: Axes) -> None:
        stages = list(dict.fromkeys(name for steps in found.values() for name, _, _ in steps))
        ink = {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(stages)}
        for at, steps in enumerate(found.values()):
            below = floor
            for place, (name, value, spread) in enumerate(steps):
                if value > below:
                    axes.bar(at, value - below, 0.8, bottom=below, color=ink[name], alpha=0.55)
                    below = value
                aside = at + 0.25 * (place - (len(steps) - 1) / 2)
                axes.errorbar(
                    aside, value, spread, fmt="o", color=ink[name], markersize=4, elinewidth=1, markeredgecolor="black",
                    markeredgewidth=0.5,
                )  # fmt: skip
        for name in stages:
            axes.bar(0, 0, color=ink[name], alpha=0.55, label=f"best within {name}; dot: with {name}")
        axes.set_xticks(range(len(found)), list(found), fontsize=6)
        highest = max(value + spread for steps in found.values() for _, value, spread in steps)
        axes.set_ylim(floor, highest + 0.05 * (highest - floor))
        axes.set_ylabel(measure)
        axes.grid(alpha=0.3, axis="y")
        axes.legend(fontsize=7, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(stages))

    return _drawn(fill, path, width=max(7.0, 0.95 * len(found)))


def draw_pyramid(
    found: Measured, left: str, right: str, path: Path, *, measure: str, floor: float = 0.0
) -> Path:
    """Two methods back to back, one line for each group: `found[group][arm]`."""
    groups = [g for g, values in found.items() if left in values and right in values]
    if not groups:
        raise StudyError(f"{path.name}: {left} and {right} were not both measured")

    def fill(axes: Axes) -> None:
        top = max(found[g][arm] for g in groups for arm in (left, right)) - floor
        at = range(len(groups))
        for arm, sign, colour in ((left, -1.0, COLOURS[0]), (right, 1.0, COLOURS[1])):
            lengths = [found[g][arm] - floor for g in groups]
            axes.barh(list(at), [sign * v for v in lengths], color=colour, height=0.8, label=arm)
            for i, v in zip(at, lengths, strict=True):
                side = "right" if sign < 0 else "left"
                axes.text(sign * (v + 0.02 * top), i, f"{v + floor:.3f}", va="center", ha=side, fontsize=7)
        axes.set_yticks(list(at), groups, fontsize=8)
        axes.axvline(0, color="black", linewidth=0.8)
        reach = 1.2 * top
        ticks = [sign * reach * share for sign in (-1, 1) for share in (0.25, 0.5, 0.75)]
        axes.set_xticks([*ticks, 0.0], [f"{abs(t) + floor:.2f}" for t in [*ticks, 0.0]])
        axes.set_xlim(-reach, reach)
        axes.set_xlabel(f"{measure} (bars begin at {floor:g})" if floor else measure)
        axes.legend(fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)

    return _drawn(fill, path, height=1.6 + 0.4 * len(groups))


def _drawn(fill: Callable[[Any], None], path: Path, width: float = 7.0, height: float = 4.2) -> Path:
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise StudyError(f"{path}: a figure ends with .png, .svg or .pdf")
    figure, axes = plt.subplots(figsize=(width, height), layout="constrained")
    try:
        fill(axes)
        path.parent.mkdir(parents=True, exist_ok=True)
        # the same figures give the same file
        with plt.rc_context({"svg.hashsalt": path.stem}):
            figure.savefig(path, dpi=130, metadata={"Date": None} if path.suffix == ".svg" else None)
    finally:
        plt.close(figure)
    return path
