"""The chart of `confrere traffic`: how the time of a round grows with the number of sites."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from confrere.core.errors import StudyError
from confrere.core.registry import strategies

Points = Sequence[tuple[int, float]]
"""Number of sites, seconds per round."""
MARKS = ("o", "s", "^", "D", "v", "x")
WIDTHS = (5.0, 3.0, 1.5)
"""Lines that overlap can still be distinguished."""
COLOURS = ("#0b62ad", "#2e7d32", "#b3123a", "#cf6f05", "#8a3fa0", "#8a6d00", "#c0408f", "#7a4a21")
"""One for each strategy, in the order of the chart; the first is that of ProxyFL in the report."""


def draw_growth(methods: Mapping[str, Points], title: str, path: Path) -> Path:
    """Draw seconds per round against the number of sites, both on a logarithmic scale; the ending says PNG, SVG or PDF.

    A method is a strategy and its topology: «proxyfl, exponential».
    """
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise StudyError(f"{path}: a figure ends with .png, .svg or .pdf")
    figure, axes = plt.subplots(figsize=(4.8, 3.6), layout="constrained")
    try:
        order = list(dict.fromkeys(name.partition(",")[0] for name in methods))
        for number, (name, points) in enumerate(methods.items()):
            strategy, comma, topology = name.partition(",")
            label = getattr(strategies[strategy], "label", strategy) + comma + topology
            colour, width = COLOURS[order.index(strategy) % len(COLOURS)], WIDTHS[number % len(WIDTHS)]
            across, up = [n for n, _ in points], [s for _, s in points]
            axes.plot(
                across, up, "-", marker=MARKS[number % len(MARKS)], label=label, markersize=4,
                linewidth=width, color=colour,
            )  # fmt: skip
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlabel("sites")
        axes.set_ylabel("seconds per round (estimated)")
        axes.set_title(title, fontsize=10)
        ticks = sorted({n for points in methods.values() for n, _ in points})
        shown = ticks if len(ticks) <= 7 else [n for n in ticks if n & (n - 1) == 0]  # powers of two
        axes.set_xticks(shown, [f"{n:,}" for n in shown])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        figure.legend(fontsize=8, ncols=2, loc="outside lower center", frameon=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        with plt.rc_context({"svg.hashsalt": path.stem}):  # the same figures give the same file
            figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
    finally:
        plt.close(figure)
    return path
