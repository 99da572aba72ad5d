"""Draw how the sites of a federation differ, as PNG, SVG or one HTML page."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from confrere.core.errors import StudyError
from confrere.data.federation_profile import FederationProfile, profile
from confrere.data.records import Federation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = (
    "#d9dee4",
    "#1f5fa8",
    "#d98032",
    "#3d8f6f",
    "#a33b55",
    "#7661a8",
    "#8a6b4a",
    "#5aa7c7",
    "#b9a338",
    "#55606e",
)
MOST_SITES, MOST_FEATURES = 40, 16


def draw(federation: Federation, path: Path) -> Path:
    """Write the picture; the ending of the path says in which form."""
    figure = _figure(federation)
    kind = path.suffix.lower().removeprefix(".")
    if kind not in ("png", "svg", "pdf", "html"):
        raise StudyError(f"{path}: a picture ends in .png, .svg, .pdf or .html")
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "html":
        path.write_text(_page(federation, figure), encoding="utf-8")
    else:
        figure.savefig(path, format=kind, dpi=150)
    return path


def _figure(federation: Federation) -> Figure:
    from matplotlib.figure import Figure

    seen = profile(federation)
    order = sorted(range(len(seen.sites)), key=lambda i: -seen.sites[i].records)[:MOST_SITES]
    pictures = len(federation.task.inputs) == 3
    gaps = {c for i in order for c, share in seen.sites[i].missing.items() if share > 0}
    wide = seen.most_apart(MOST_FEATURES) if len(federation.task.inputs) == 1 else []
    lower = pictures or bool(wide)
    height = 1.6 + 0.32 * len(order)
    figure = Figure(figsize=(12, height * (2 if lower else 1) + 0.9), layout="constrained")
    rows: Any = figure.subfigures(2, 1) if lower else figure
    top = rows[0] if lower else figure
    axes = top.subplots(1, 3 if gaps else 2, sharey=True, width_ratios=[1, 1.3, 1.5] if gaps else [1, 1.3])
    _sizes(axes[0], seen, order)
    _labels(axes[1], federation, seen, order)
    if gaps:
        _gaps(axes[2], seen, order, sorted(gaps), figure)
    if pictures:
        _mean_pictures(rows[1], federation, seen, order)
    elif wide:
        _apart(rows[1].subplots(), seen, order, wide, figure)
    figure.suptitle(
        f"{federation.name}: how {len(seen.sites)} sites differ",
        x=0.01,
        ha="left",
        fontsize=14,
        fontweight="bold",
    )
    return figure


def _rows(axes: Axes, seen: FederationProfile, order: list[int]) -> Any:
    where = np.arange(len(order))
    axes.set_yticks(where, [seen.sites[i].name for i in order])
    axes.set_ylim(len(order) - 0.5, -0.5)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return where


def _sizes(axes: Axes, seen: FederationProfile, order: list[int]) -> None:
    where = _rows(axes, seen, order)
    counts = [seen.sites[i].records for i in order]
    wide = max(counts) > 20 * min(counts)
    if wide:  # bars have no zero on a logarithmic axis
        axes.plot(counts, where, "o", color="#55606e", markersize=7)
        axes.set_xscale("log")
    else:
        axes.barh(where, counts, color="#55606e", height=0.7)
    for y, n in zip(where, counts, strict=True):
        axes.annotate(
            f"{n:,}",
            (n, y),
            xytext=(7 if wide else 3, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    axes.margins(x=0.2)
    axes.set_title("Records, logarithmic" if wide else "Records", loc="left", fontsize=11)


def _labels(axes: Axes, federation: Federation, seen: FederationProfile, order: list[int]) -> None:
    where = _rows(axes, seen, order)
    task = federation.task
    if task.traits.chart == "mean and spread":
        means = [seen.sites[i].labels["mean"] for i in order]
        spread = [seen.sites[i].labels["spread"] for i in order]
        axes.errorbar(means, where, xerr=spread, fmt="o", color=COLOURS[1], capsize=3)
        axes.set_title(f"What is predicted: mean and spread {task.unit}".strip(), loc="left", fontsize=11)
        return
    if task.traits.chart == "rate":
        rates = np.array([seen.sites[i].labels[task.classes[1]] for i in order])
        counts = np.array([seen.sites[i].records for i in order])
        low, high = _interval(rates, counts)
        axes.barh(where, rates, color=COLOURS[1], height=0.7)
        errors = np.maximum([rates - low, high - rates], 0)
        axes.errorbar(rates, where, xerr=errors, fmt="none", ecolor="#1a2733", capsize=2, lw=1)
        for y, (rate, top) in enumerate(zip(rates, high, strict=True)):
            axes.annotate(
                f"{rate:.0%}", (top, y), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8
            )
        axes.set_xlim(0, min(1.0, float(high.max()) * 1.25 + 0.03))
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:.0%}")
        axes.set_title(f"Share of «{task.classes[1]}», 95 % interval", loc="left", fontsize=11)
        return
    left = np.zeros(len(order))
    for k, name in enumerate(task.classes):
        shares = np.array([seen.sites[i].labels[name] for i in order])
        axes.barh(where, shares, left=left, color=COLOURS[k % len(COLOURS)], height=0.7, label=name)
        left += shares
    axes.set_xlim(0, 1)
    axes.legend(fontsize=7, ncols=2, bbox_to_anchor=(1.0, 1.0), loc="upper left", frameon=False)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:.0%}")
    axes.set_title("Classes", loc="left", fontsize=11)


def _interval(rates: Any, counts: Any) -> tuple[Any, Any]:
    """Wilson's interval for a share."""
    z = 1.96
    middle = (rates + z * z / (2 * counts)) / (1 + z * z / counts)
    half = z * np.sqrt(rates * (1 - rates) / counts + z * z / (4 * counts**2)) / (1 + z * z / counts)
    return middle - half, middle + half


def _gaps(axes: Axes, seen: FederationProfile, order: list[int], columns: list[str], figure: Figure) -> None:
    shares = np.array([[seen.sites[i].missing[c] for c in columns] for i in order])
    _heat(
        axes, shares, columns, "Blues", (0.0, 1.0),
        lambda y, x: f"{shares[y, x]:.0%}" if shares[y, x] > 0.0005 else "",
    )  # fmt: skip
    axes.set_title("Missing values", loc="left", fontsize=11)


def _apart(axes: Axes, seen: FederationProfile, order: list[int], columns: list[int], figure: Figure) -> None:
    values = seen.apart[np.ix_(order, columns)]
    limit = max(0.5, float(np.abs(values).max()))

    def text(y: int, x: int) -> str:
        if seen.two_valued[columns[x]]:
            return f"{seen.sites[order[y]].means[columns[x]]:.0%}"
        return f"{values[y, x]:+.1f}" if abs(values[y, x]) >= 0.05 else "0"

    _heat(axes, values, [seen.features[c] for c in columns], "RdBu_r", (-limit, limit), text)
    axes.set_yticks(np.arange(len(order)), [seen.sites[i].name for i in order])
    axes.set_title(
        "The columns that differ most, coloured by how far a site's mean lies from that of all records,\n"
        "in standard deviations; columns with two values show the share of the site's records",
        loc="left",
        fontsize=11,
    )


def _heat(
    axes: Axes,
    values: Any,
    columns: list[str],
    colours: str,
    limits: tuple[float, float],
    text: Callable[[int, int], str],
) -> None:
    low, high = limits
    axes.imshow(values, cmap=colours, vmin=low, vmax=high, aspect="auto")
    axes.set_xticks(range(len(columns)), columns, rotation=40, ha="right", rotation_mode="anchor", fontsize=8)
    for y in range(values.shape[0]):
        for x in range(values.shape[1]):
            share = (values[y, x] - low) / (high - low)
            dark = share > (0.8 if low < 0 else 0.65) or (low < 0 and share < 0.2)
            axes.text(
                x,
                y,
                text(y, x),
                ha="center",
                va="center",
                fontsize=7,
                color="white" if dark else "#1a2733",
            )


def _mean_pictures(part: Any, federation: Federation, seen: FederationProfile, order: list[int]) -> None:
    shown = order[:8]
    axes = part.subplots(2, len(shown), squeeze=False)
    for x, i in enumerate(shown):
        site = federation.sites[seen.sites[i].name].train.inputs
        for y, picture in enumerate((site[0], site.mean(dim=0))):
            pixels = picture.permute(1, 2, 0).squeeze(-1).clamp(0, 1).numpy()
            axes[y][x].imshow(pixels, cmap="gray_r", vmin=0, vmax=1)
            axes[y][x].set_xticks([])
            axes[y][x].set_yticks([])
        axes[0][x].set_title(seen.sites[i].name, fontsize=9)
    axes[0][0].set_ylabel("one picture", fontsize=9)
    axes[1][0].set_ylabel("mean picture", fontsize=9)


def _page(federation: Federation, figure: Figure) -> str:
    """One page without any link to elsewhere."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130)
    picture = base64.b64encode(buffer.getvalue()).decode()
    card = federation.card
    rows = []
    if card is not None:
        rows = [f"<tr><th>{k}</th><td>{html.escape(v)}</td></tr>" for k, v in card.facts().items() if v]
        rows += [f"<tr><th>Mind</th><td>{html.escape(c)}</td></tr>" for c in card.caveats]
    rows += [f"<tr><th>Note</th><td>{html.escape(n)}</td></tr>" for n in federation.notes]
    title = html.escape(card.summary if card else federation.name)
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{html.escape(federation.name)}</title>
<style>body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem }}
img {{ width: 100% }}
th {{ text-align: left; padding-right: 1rem; vertical-align: top; white-space: nowrap }}</style>
<h1>{title}</h1>
<img alt="How the sites of {html.escape(federation.name)} differ" src="data:image/png;base64,{picture}">
<table>{"".join(rows)}</table>
</html>
"""
