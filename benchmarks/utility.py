"""Forecasts of the planner against measured gains: a table, a figure, and the planner's limits judged on held-out federations.

    confrere compare studies/together-beats-alone-*.toml --seeds 5 --pooled --out runs/together
    python benchmarks/utility.py runs/together --figure docs/records/figures/planner.svg

Takes folders of comparisons (those with comparison.json and study.toml, at any depth), plans each study and each variant that
spent privacy, and shows its forecast beside the gain over training alone: in log loss (or RMSE), as a share of the loss alone,
with the interval and the word of the comparison, on the common test records where there are any. Then it chooses the
planner's limits on every other federation, in alphabetical order, and judges them on the rest, by the words of the sites.
Nothing is trained. The records are read to count the proxy's parameters. `--numbers FILE` keeps the rows; given in place of
a folder, such a file is read without the records.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from rich.console import Console
from rich.table import Table

from confrere.core.errors import ConfrereError
from confrere.core.results import ALONE, POOLED
from confrere.evaluate.compare import variant
from confrere.evaluate.plan import plan as plan_study
from confrere.privacy.forecast import CANNOT_KNOW, CLEAR, ENOUGH, NEGLIGIBLE, USEFUL
from confrere.site.open_sites import open_sites
from confrere.statistics.verdict import WORDS
from confrere.study import load

MEASURES = ("log_loss", "rmse")
PROXYFL_COLOUR, POOLED_COLOUR = "#0b62ad", "#18202b"
"""As in the report."""
POOLED_LABEL = "All records pooled, no noise"
_FILLED: dict[str, Any] = {"linestyle": "", "marker": "o", "markersize": 5, "color": PROXYFL_COLOUR}
_OPEN = {**_FILLED, "markerfacecolor": "white"}
_CROSS = {**_FILLED, "marker": "x"}
MARKS: dict[str, tuple[str, dict[str, Any]]] = {
    "gain likely": ("ProxyFL, forecast «signal»", _FILLED),
    CANNOT_KNOW: ("ProxyFL, forecast «signal»", _FILLED),
    "signal": ("ProxyFL, forecast «signal»", _FILLED),
    "unclear": ("ProxyFL, forecast «unclear»", _OPEN),
    "expect little": ("ProxyFL, forecast «noise»", _CROSS),
    "noise": ("ProxyFL, forecast «noise»", _CROSS),
}
"""By forecast, its words for a study and its mark; all are ProxyFL and have its colour."""
POOLED_MARK: dict[str, Any] = {
    "linestyle": "", "markersize": 4, "color": POOLED_COLOUR, "markerfacecolor": "white",
}  # fmt: skip
NAMES = {
    "mnist": "MNIST", "fashion": "Fashion-MNIST", "cifar": "CIFAR-10", "aids": "AIDS", "pbc": "liver (PBC)",
    "medicare": "Medicare", "titanic": "Titanic",
}  # fmt: skip
COLUMNS = (
    "study", "variant", "ε", "parameters", "records", "S/N", "worth", "forecast", "gain", "interval", "outcome",
    "pooled",
)  # fmt: skip

LIKELY, SELDOM = 2 / 3, 0.05
"""A gain is likely if this share of the judged sites is better; a loss is seldom if at most this share is worse."""
USEFUL_TRIED = (0.5, 1.0, 2.0, 3.0, 5.0, 8.0)
ENOUGH_TRIED = (0.0, 5.0, 8.0, 10.0, 20.0)


def found_in(place: Path) -> Iterator[dict[str, Any]]:
    """The rows of all comparisons in and below a folder, or those that a file of `--numbers` keeps."""
    if place.is_file():
        yield from json.loads(place.read_text(encoding="utf-8"))
        return
    folders = sorted({p.parent for p in place.rglob("comparison.json")})
    if not folders:
        raise SystemExit(f"{place}: no comparison.json in or below it; `confrere compare --out` writes one")
    for folder in folders:
        yield from rows(folder)


def rows(folder: Path) -> Iterator[dict[str, Any]]:
    """A row for each strategy of a comparison that spent privacy: forecast and outcome."""
    result = json.loads((folder / "comparison.json").read_text(encoding="utf-8"))
    study = load(folder / "study.toml")
    federation = open_sites(study)
    alone = result["strategies"][ALONE]
    for name, measured in result["strategies"].items():
        if name in (ALONE, POOLED) or measured["privacy"] is None:
            continue
        chosen = variant(study, name)
        same = (chosen.data, chosen.sites, chosen.schema) == (study.data, study.sites, study.schema)
        try:
            plan = plan_study(chosen, federation if same else None)
        except ConfrereError as error:
            print(f"{folder} {name}: {error}", file=sys.stderr)
            continue
        where, base = measured.get("common", measured), alone.get("common", alone)
        metric = next(m for m in MEASURES if m in where["gain_over_alone"])
        forecast = plan.forecast
        yield {
            "study": study.name.removeprefix("together-beats-alone-"),
            "strategy": name,
            "seeds": len(result["seeds"]),
            "privacy": measured["privacy"],
            "parameters": forecast.parameters,
            "records": forecast.records,
            "signal_to_noise": forecast.signal_to_noise,
            "worth": forecast.worth,
            "prediction": forecast.judged(),
            "metric": metric,
            "test": "common" if "common" in measured else "own",
            **gained(where["gain_over_alone"][metric], base["mean"][metric]["mean"]),
            "pooled": pooled_gain(result["strategies"], metric, base["mean"][metric]["mean"]),
            "sites": {
                s.name: {
                    "records": s.records,
                    "new_worth": forecast.worth_beside(s),
                    "outlook": forecast.outlook(s),
                    **gained(
                        where["sites"][s.name]["gain"][metric],
                        base["sites"][s.name]["metrics"][metric]["mean"],
                    ),
                }
                for s in forecast.sites
            },
        }


def by_the_rule(row: Mapping[str, Any]) -> bool:
    """Whether its interval and word are those of the one rule; rows of earlier versions are kept with «"rule": "earlier"»."""
    return row.get("rule") != "earlier"


def pooled_gain(strategies: Mapping[str, Any], metric: str, alone: float) -> float | None:
    """What one model of all records without noise gains, likewise: how much there is to gain at all."""
    if POOLED not in strategies:
        return None
    entry = strategies[POOLED].get("common", strategies[POOLED])["gain_over_alone"][metric]
    gain: float | None = gained(entry, alone)["gain"]
    return gain


def gained(entry: Mapping[str, Any], alone: float | None) -> dict[str, Any]:
    """The gain as a share of what alone has, its interval, and what that means in a word."""
    interval = entry.get("interval")
    if entry["mean"] is None or not alone:
        return {"gain": None, "interval": None, "word": None}
    share = [end / alone for end in interval] if interval else None
    return {"gain": entry["mean"] / alone, "interval": share, "word": entry.get("word")}


def counted(entries: Sequence[Mapping[str, Any]], key: str) -> dict[str, dict[str, Any]]:
    """For each forecast: the number of outcomes of each kind, and the mean gain."""
    out: dict[str, dict[str, Any]] = {}
    for entry in entries:
        if entry["gain"] is None or not by_the_rule(entry):
            continue
        here = out.setdefault(entry[key], {**dict.fromkeys((*WORDS, "no word"), 0), "gains": []})
        here[entry["word"] or "no word"] += 1
        here["gains"].append(entry["gain"])
    return {
        k: {**v, "gains": len(v["gains"]), "mean": sum(v["gains"]) / len(v["gains"])} for k, v in out.items()
    }


Row = Mapping[str, Any]
Chooses = Callable[[Row, Mapping[str, Any]], bool]


@dataclass(frozen=True)
class Outcomes:
    """The words of the one rule for some sites."""

    federations: int
    words: tuple[str, ...]

    @property
    def judged(self) -> int:
        return sum(self._number(w) for w in ("better", "worse", "no clear difference"))

    @property
    def better(self) -> float:
        """Share of the judged sites."""
        return self._number("better") / max(1, self.judged)

    @property
    def worse(self) -> float:
        return self._number("worse") / max(1, self.judged)

    def _number(self, word: str) -> int:
        return self.words.count(word)

    def __str__(self) -> str:
        if not self.words:
            return "no site"
        few = self._number("too few to judge")
        return (
            f"{len(self.words)} sites: {self._number('better')} better, {self._number('worse')} worse,"
            f" {self._number('no clear difference')} no clear difference, {few} too few to judge"
        )


def outcomes(rows_of: Sequence[Row], chooses: Chooses) -> Outcomes:
    words = [[s["word"] for s in row["sites"].values() if s["word"] and chooses(row, s)] for row in rows_of]
    return Outcomes(sum(bool(w) for w in words), tuple(w for part in words for w in part))


def halves(found: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Tables at ε = 3: every other federation in alphabetical order, and the rest."""
    tables = [r for r in found if r["test"] == "own" and abs(r["privacy"]["epsilon"] - 3) < 0.05]
    names = sorted({r["study"] for r in tables})
    first = names[::2]
    return [r for r in tables if r["study"] in first], [r for r in tables if r["study"] not in first]


def within(useful: float, enough: float) -> Chooses:
    """Sites with a clear signal that these limits would call useful."""

    def chooses(row: Row, site: Mapping[str, Any]) -> bool:
        return (
            row["signal_to_noise"] >= CLEAR
            and row["worth"] >= enough * row["parameters"]
            and site["new_worth"] >= useful * site["records"]
        )

    return chooses


def forecast_as(word: str) -> Chooses:
    """Sites with this forecast."""
    return lambda row, site: bool(site["outlook"] == word)


def show_calibration(found: Sequence[Row], console: Console) -> None:
    """Choose the limits on one half of the federations; judge them, and the planner's words, on the other."""
    first, second = halves(found)
    if not first or not second:
        return
    console.print("\nCalibrated on " + ", ".join(sorted(r["study"] for r in first)))
    console.print("Judged on " + ", ".join(sorted(r["study"] for r in second)))
    likely = [u for u in USEFUL_TRIED if outcomes(first, within(u, ENOUGH)).better >= LIKELY]
    for useful in USEFUL_TRIED:
        console.print(f"  new ≥ {useful:g} × own records: {outcomes(first, within(useful, ENOUGH))}")
    console.print(
        f"A gain is likely from {likely[0]:g} × own records on" if likely else "No limit makes a gain likely"
    )
    seldom = [e for e in ENOUGH_TRIED if outcomes(first, within(USEFUL, e)).worse <= SELDOM]
    for enough in ENOUGH_TRIED:
        console.print(f"  ≥ {enough:g} records per parameter: {outcomes(first, within(USEFUL, enough))}")
    console.print(
        f"Losses are seldom from {seldom[0]:g} records per parameter on"
        if seldom
        else "Losses are not seldom"
    )
    console.print(f"The planner: {NEGLIGIBLE:g} and {USEFUL:g} × own records, {ENOUGH} records per parameter")
    for word in (CANNOT_KNOW, "unclear", "expect little"):
        for name, half in (("calibrated", first), ("held out", second)):
            console.print(f"  «{word}», {name}: {outcomes(half, forecast_as(word))}")


def draw(found: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Above, sites by what is new to them; below, studies by signal-to-noise, with what pooling all records gains."""
    found = [row for row in found if by_the_rule(row)]
    rows_of = sorted((row for row in found if row["gain"] is not None), key=lambda r: r["signal_to_noise"])
    figure, (above, below) = plt.subplots(
        2,
        1,
        figsize=(5.6, 3.4 + 0.21 * len(rows_of)),
        height_ratios=[2.5, 0.21 * len(rows_of)],
        layout="constrained",
    )
    for forecast, (_, mark) in MARKS.items():
        sites = [
            s
            for row in found
            for s in row["sites"].values()
            if s["gain"] is not None and s["outlook"] == forecast
        ]
        if sites:
            across = [s["new_worth"] / s["records"] for s in sites]
            above.plot(across, [100 * s["gain"] for s in sites], label=forecast, alpha=0.8, **mark)
    above.axhline(0, color="black", linewidth=0.8)
    above.set_ylim(-10, 72)
    above.set_xscale("log")
    above.set_xlabel("what is new to the site, in multiples of its records (estimated)", fontsize=9)
    above.set_ylabel("gain over alone, in % of its loss", fontsize=9)
    above.legend(
        fontsize=8,
        title="sites, by the planner's forecast",
        title_fontsize=8,
        frameon=False,
        loc="upper left",
    )
    for place, row in enumerate(rows_of):
        low, high = row["interval"] or (row["gain"], row["gain"])
        below.plot([100 * low, 100 * high], [place, place], color=PROXYFL_COLOUR, linewidth=1.2)
        below.plot([100 * row["gain"]], [place], **MARKS[row["prediction"]][1])
        if row["pooled"] is not None:
            below.plot([100 * row["pooled"]], [place], marker="D", **POOLED_MARK)
    below.axvline(0, color="black", linewidth=0.8)
    below.set_yticks(
        range(len(rows_of)), [f"{label(row)}   {row['signal_to_noise']:.2g}" for row in rows_of], fontsize=8
    )
    below.set_ylim(-0.7, len(rows_of) - 0.3)
    below.set_xlabel("gain over alone, in % of its loss, with its interval", fontsize=9)
    below.set_title(
        "studies, by estimated signal-to-noise (the number beside the name)", fontsize=9, loc="right"
    )
    keys = {
        word: mark for word, mark in MARKS.values() if any(MARKS[r["prediction"]][0] == word for r in rows_of)
    }
    handles = [Line2D([], [], label=word, **mark) for word, mark in keys.items()]
    handles.append(Line2D([], [], label=POOLED_LABEL, marker="D", **POOLED_MARK))
    figure.legend(handles=handles, fontsize=8, loc="outside lower center", ncols=2, frameon=False)
    for axes in (above, below):
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.25)
    _save(figure, path)


def draw_curve(found: Sequence[Mapping[str, Any]], path: Path) -> None:
    """The gain against ε, with a line for each study of which there are several ε, one for its masked form, and what pooling
    all records gains.

    A gain that an earlier version measured has an open mark and no interval.
    """
    figure, axes = plt.subplots(figsize=(5.6, 4.4), layout="constrained")
    styles = {"unmasked": "-"}
    places = iter((("o", -52), ("s", 9), ("^", 9), ("v", 9)))
    for name in sorted({row["study"] for row in found}):
        line, title = _by_epsilon(found, name, False), NAMES.get(name, name)
        if len(line) < 3:
            continue
        mark, away = next(places)
        _draw_line(axes, line, f"ProxyFL, {title}", mark, away)
        if len(masked := _by_epsilon(found, name, True)) > 1:
            beside = [(1.05 * epsilon, row) for epsilon, row in masked]  # so that intervals can be told apart
            _draw_line(axes, beside, "", mark, 0, linestyle="--")
            styles["masked sums"] = "--"
        pooled = next((row["pooled"] for _, row in line if row["pooled"] is not None), None)
        if pooled is not None:
            axes.axhline(100 * pooled, color=POOLED_COLOUR, linestyle=":", linewidth=1)
            axes.annotate(
                f"{POOLED_LABEL}, {title}: +{100 * pooled:.0f} %", (0.5, 100 * pooled), xytext=(0, 3),
                textcoords="offset points", fontsize=9, color=POOLED_COLOUR,
            )  # fmt: skip
    if len(styles) > 1:
        handles = [
            Line2D([], [], color=PROXYFL_COLOUR, linestyle=s, label=text) for text, s in styles.items()
        ]
        axes.legend(handles=handles, fontsize=9, frameon=False, loc="upper left", bbox_to_anchor=(0, 0.9))
    axes.set_xscale("log")
    axes.set_xticks([0.5, 1, 3, 8], ["0.5", "1", "3", "8"])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.margins(y=0.1)
    axes.set_xlabel("ε (proven, δ = 1e-5, per record)")
    axes.set_ylabel("gain over alone, in % of its log loss")
    axes.grid(alpha=0.25)
    _save(figure, path)


def _by_epsilon(
    found: Sequence[Mapping[str, Any]], study: str, masked: bool
) -> list[tuple[float, Mapping[str, Any]]]:
    """The rows of a study, with masked sums or without, by ε."""
    own = [row for row in found if row["study"] == study and row["gain"] is not None]
    chosen = [row for row in own if bool(row["privacy"].get("condition")) == masked]
    return sorted({round(row["privacy"]["epsilon"], 1): row for row in chosen}.items())


def _draw_line(
    axes: Axes,
    line: Sequence[tuple[float, Mapping[str, Any]]],
    title: str,
    mark: str,
    away: float,
    linestyle: str = "-",
) -> None:
    gains = [100 * row["gain"] for _, row in line]
    ends = [
        [100 * e for e in (row["interval"] if by_the_rule(row) else None) or (row["gain"],) * 2]
        for _, row in line
    ]
    reach = [
        [max(g - e[0], 0) for g, e in zip(gains, ends, strict=True)],
        [max(e[1] - g, 0) for g, e in zip(gains, ends, strict=True)],
    ]
    style: dict[str, Any] = {"marker": mark, "markersize": 5, "color": PROXYFL_COLOUR}
    axes.errorbar([e for e, _ in line], gains, yerr=reach, capsize=2, linestyle=linestyle, **style)
    earlier = [(e, 100 * row["gain"]) for e, row in line if not by_the_rule(row)]
    axes.plot(
        [e for e, _ in earlier], [g for _, g in earlier], linestyle="", markerfacecolor="white", zorder=5, **style,
    )  # fmt: skip
    axes.annotate(
        title, (line[-1][0], gains[-1]), xytext=(-6, away), textcoords="offset points", ha="right", fontsize=9,
        color=PROXYFL_COLOUR,
    )  # fmt: skip


def _save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with plt.rc_context({"svg.hashsalt": path.stem}):  # the same figures give the same file
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)


def share(value: float) -> str:
    return f"{100 * value:+.1f} %"


def outcome(row: Mapping[str, Any]) -> str:
    return str(row["word"] or "–") if by_the_rule(row) else "not judged by this rule"


def label(row: Mapping[str, Any]) -> str:
    """The study, with what makes this row another than its usual one."""
    other = "" if row["strategy"] == "proxyfl" or row["strategy"].startswith("epsilon-") else row["strategy"]
    spent = row["privacy"]["epsilon"]
    budget = "" if abs(spent - 3) < 0.05 else f"ε = {spent:.2g}"
    return ", ".join(part for part in (NAMES.get(row["study"], row["study"]), other, budget) if part)


def show(found: Sequence[Mapping[str, Any]]) -> None:
    console = Console(highlight=False, width=170)
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in COLUMNS:
        table.add_column(column)
    for row in found:
        ends = " to ".join(share(v) for v in row["interval"]) if row["interval"] else "–"
        table.add_row(
            row["study"], row["strategy"], f"{row['privacy']['epsilon']:.3g}", f"{row['parameters']:,}",
            f"{row['records']:,}", f"{row['signal_to_noise']:.2g}", f"{row['worth']:,.0f}", row["prediction"],
            "–" if row["gain"] is None else share(row["gain"]), ends, outcome(row),
            "–" if row["pooled"] is None else share(row["pooled"]),
        )  # fmt: skip
    console.print(table)
    sites = [s for row in found if by_the_rule(row) for s in row["sites"].values()]
    for title, counts in (
        ("studies", counted(found, "prediction")),
        ("sites", counted(sites, "outlook")),
    ):
        for forecast, here in counts.items():
            words = ", ".join(f"{here[w]} {w}" for w in (*WORDS, "no word") if here[w])
            console.print(f"{title}, forecast «{forecast}»: {words}; mean gain {share(here['mean'])}")
    show_calibration(found, console)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("places", nargs="+", type=Path, help="folders of comparisons, or files of --numbers")
    parser.add_argument("--figure", type=Path, help="draw it: .svg, .png or .pdf")
    parser.add_argument("--curve", type=Path, help="draw the gain against ε of studies with at least three ε")
    parser.add_argument("--numbers", type=Path, help="keep what was found, as JSON")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    try:
        found = [row for place in options.places for row in found_in(place)]
    except ConfrereError as error:
        raise SystemExit(str(error)) from None
    if options.numbers:
        options.numbers.parent.mkdir(parents=True, exist_ok=True)
        options.numbers.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if options.figure:
        draw(found, options.figure)
    if options.curve:
        draw_curve(found, options.curve)
    if options.json:
        print(json.dumps(found, indent=1, ensure_ascii=False))
    else:
        show(found)


if __name__ == "__main__":
    main()
