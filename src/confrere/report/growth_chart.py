"""A picture of how long a round takes as there are more sites, method by method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from confrere.core.errors import StudyError

Points = Sequence[tuple[int, float]]
"""Number of sites, seconds per round."""
STYLES = ("o-", "s--", "^:", "D-", "v--", "x-")
WIDTHS = (5.0, 3.0, 1.5)
"""Lines that fall on one another can still be told apart."""


def draw_growth(methods: Mapping[str, Points], title: str, path: Path) -> Path:
    """Draw seconds per round against the number of sites, both on a logarithmic scale; the ending says PNG, SVG or PDF."""
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise StudyError(f"{path}: a figure ends with .png, .svg or .pdf")
    figure, axes = plt.subplots(figsize=(7.0, 4.2), layout="constrained")
    try:
        for number, (name, points) in enumerate(methods.items()):
            style, width = STYLES[number % len(STYLES)], WIDTHS[number % len(WIDTHS)]
            across, up = [n for n, _ in points], [s for _, s in points]
            axes.plot(across, up, style, label=name, markersize=4, linewidth=width, alpha=0.8)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlabel("sites")
        axes.set_ylabel("seconds of exchange per round (estimated)")
        axes.set_title(title, fontsize=10)
        ticks = sorted({n for points in methods.values() for n, _ in points})
        axes.set_xticks(ticks, [f"{n:,}" for n in ticks])
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
        path.parent.mkdir(parents=True, exist_ok=True)
        with plt.rc_context({"svg.hashsalt": path.stem}):  # the same figures give the same file
            figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
    finally:
        plt.close(figure)
    return path
