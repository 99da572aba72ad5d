"""Several studies side by side: what together gains over alone in each, and how far that is from pooling records."""

from __future__ import annotations

from collections.abc import Mapping

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from confrere.core.events import Json
from confrere.observe import words
from confrere.observe.results import Comparison, comparison_of
from confrere.observe.verdict import Gain, gain, gap_closed, mean_gain, not_worth_it

STYLES = {"better": "green", "worse": "red", "no clear difference": "dim", "one seed only": "dim"}


def studies_table(documents: Mapping[str, Mapping[str, Json]]) -> RenderableType:
    """A line for each study and measure: alone, together, the gain with its interval, and the gap to pooling."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold", show_edge=False, padding=(0, 1))
    for name in ("Study", "Measure"):
        table.add_column(name, overflow="fold")
    for name in ("Alone", "Together", "Pooled", "Gain (95 % interval)", "Gap closed"):
        table.add_column(name, justify="right")
    table.add_column("In a word")
    verdicts = []
    for name, document in documents.items():
        comparison = comparison_of(document)
        for row in _rows(name, comparison):
            table.add_row(*row)
        table.add_section()
        if not_worth_it(comparison):
            verdicts.append(f"{name}: {words.NOT_WORTH_IT}")
        together = comparison.together
        if together is not None:
            verdicts.append(f"{name}: privacy spent at most {words.privacy(together.privacy)}")
    return Group(table, Text(""), *(Text(v) for v in verdicts))


def _rows(study: str, comparison: Comparison) -> list[list[RenderableType]]:
    alone, together, pooled = comparison.alone, comparison.together, comparison.pooled
    if alone is None or together is None:
        return [[study, "no way of learning together", *["–"] * 6]]
    rows: list[list[RenderableType]] = []
    sites = words.count(len(comparison.sites), "site")
    for name in [m for m in comparison.metrics if m != "macro_accuracy"]:
        gained, closed = mean_gain(comparison, name), gap_closed(comparison, name)
        share = (
            "–"
            if closed is None
            else "no clear gap"
            if closed.share is None
            else f"{closed.share * 100:.0f} %"
        )
        means = [words.measured(name, s.mean.get(name)) if s else "–" for s in (alone, together, pooled)]
        rows.append(
            [study if not rows else sites if len(rows) == 1 else "", words.metric(name).label, *means]
        )
        rows[-1] += [_gained(name, gained), share, _word(gained)]
    if together.common is not None and alone.common is not None:
        for name in [m for m in ("accuracy", "auc", "rmse") if m in together.common.gains]:
            stated = together.common.gains[name]
            gained = gain((v for v in stated.values if v is not None), stated.interval)
            groups = (alone.common, together.common, pooled.common if pooled else None)
            means = [words.measured(name, g.mean.get(name)) if g else "–" for g in groups]
            rows.append(
                ["", f"{words.metric(name).label}, common", *means, _gained(name, gained), "", _word(gained)]
            )
    return rows


def _gained(name: str, gained: Gain | None) -> str:
    return "–" if gained is None else words.gained(name, gained).replace("95 % interval ", "")


def _word(gained: Gain | None) -> Text:
    return Text("–") if gained is None else Text(gained.word, style=STYLES[gained.word])
