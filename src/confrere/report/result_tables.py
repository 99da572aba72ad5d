"""Results in the terminal: plain words, figures with their spread, for wide screens and for 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from confrere.core.events import Json
from confrere.core.metrics import in_order
from confrere.core.results import ComparisonResult, Measured, RunResult, SiteResult, StrategyResult
from confrere.core.seeds import NOT_PRIVATE
from confrere.report import words
from confrere.report.gains import (
    gap_closed,
    mean_gain,
    measured_at,
    not_worth_it,
    site_gain,
    stated_gain,
    tested_at,
    tested_singly,
    too_few,
    words_stated,
)
from confrere.report.history import read_history
from confrere.report.results_folder import primary_of, with_ledgers
from confrere.statistics.verdict import EARLIER, LEAST_RARER, LEAST_SEEDS, Gain

STYLES = {
    "better": "green",
    "worse": "red",
    "no clear difference": "dim",
    "too few to judge": "dim",
    "not judged": "dim",
    EARLIER: "dim",
}


def comparison_table(comparison: ComparisonResult) -> RenderableType:
    """What `compare --json` prints, for people. `read_comparison(folder)` also knows the budgets."""
    return _ComparisonTable(comparison)


def profile_table(profile: Mapping[str, Json]) -> RenderableType:
    """Where the time of a run went, most expensive part first."""
    table = _table()
    table.add_column("Spent on")
    for heading in ("CPU seconds", "Share", "Calls"):
        table.add_column(heading, justify="right")
    for part, found in profile["parts"].items():
        calls = "" if found["calls"] is None else f"{found['calls']:,}"
        table.add_row(part, f"{found['cpu_seconds']:.2f}", f"{found['share']:.0%}", calls)
    table.add_row("in all", f"{profile['cpu_seconds']:.2f}", "", "", style="bold")
    return table


def run_table(result: RunResult) -> RenderableType:
    """What `simulate --json` prints, for people."""
    run = _with_journal(result)
    metrics = words.primary_first(in_order(m for s in run.sites.values() for m in s.metrics), primary_of(run))
    table = _table()
    table.add_column("Site", overflow="fold")
    table.add_column("Records", justify="right")
    for name in metrics:
        table.add_column(words.capital(words.metric(name).label), justify="right")
    table.add_column("Sent", justify="right")
    for site in sorted(run.sites.values(), key=lambda s: (-(s.records or 0), s.name)):
        figures = (words.measured(m, site.metrics.get(m)) for m in metrics)
        named = _named(site)
        if site.tested is not None:
            named.append(f"\ntested on {words.tested(site.tested)}", "dim")
        table.add_row(named, _records(site), *figures, words.size(site.bytes_sent))
    if len(run.sites) > 1:
        table.add_section()
        means = (words.measured(m, run.mean.get(m)) for m in metrics)
        table.add_row("mean over sites", "", *means, "", style="bold")
    for kind, group in run.by_columns.items():
        means = (words.measured(m, group.mean.get(m)) for m in metrics)
        table.add_row(f"mean over {words.of_kind(kind, len(group.sites))}", "", *means, "")
    notes = [
        *_privacy_lines(run.sites.values()),
        "One seed, so no spread; «confrere compare» shows it.",
        *_scale_lines(run.scale),
    ]
    return Group(table, Text(""), *(Text(n) for n in notes))


def _with_journal(result: RunResult) -> RunResult:
    """The run with what only its journal knows (the budget), if that is at hand."""
    path = Path(result.run or "") / "journal.jsonl"
    return with_ledgers(result, read_history(path)) if result.run and path.exists() else result


class _ComparisonTable:
    """Chooses its layout when the width of the terminal is known."""

    def __init__(self, comparison: ComparisonResult) -> None:
        self.comparison = comparison

    def _fits(self, console: Console, options: ConsoleOptions) -> bool:
        """Whether the wide layout fits without breaking a cell."""
        comparison = self.comparison
        tables = [_strategies(comparison, wide=True)]
        if comparison.together is not None and comparison.alone is not None:
            tables.append(_sites(comparison, comparison.alone, comparison.together, wide=True))
        unlimited = options.update(max_width=10_000)
        return all(Measurement.get(console, unlimited, t).maximum <= options.max_width for t in tables)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        comparison, wide = self.comparison, self._fits(console, options)
        if comparison.title:
            yield Text(comparison.title, style="bold")
        if comparison.question:
            yield Text(comparison.question)
        yield Text("")
        if comparison.together is not None and comparison.alone is not None:
            yield _sites(comparison, comparison.alone, comparison.together, wide)
            yield Text("")
        yield _strategies(comparison, wide)
        yield Text("")
        if comparison.headline and any(s.by_columns for s in comparison.strategies.values()):
            yield _by_columns(comparison, comparison.headline)
            yield Text("")
        if comparison.together is not None:
            for line in _privacy_lines(comparison.together.sites.values()):
                yield Text(line)
        if verdict := not_worth_it(comparison):
            yield Text(verdict, style="bold")
        for line in (
            *_common_lines(comparison),
            *_gap_lines(comparison),
            _footnote(comparison),
            *_scale_lines(str(comparison.facts.get("scale") or "full")),
            *comparison.notes,
        ):
            yield Text(line)


def _sites(
    comparison: ComparisonResult, alone: StrategyResult, together: StrategyResult, wide: bool
) -> Table:
    """A line for each site and metric; facts about the site are in its first line."""
    table = _table()
    table.add_column("Site", overflow="fold", max_width=28 if wide else 15)
    if wide:
        table.add_column("Records", justify="right")
        table.add_column("Test patients")
    table.add_column("Metric")
    table.add_column("Alone", justify="right", no_wrap=True)
    table.add_column("Together", justify="right", no_wrap=True)
    if wide:
        table.add_column("Gain", justify="right", no_wrap=True)
    table.add_column("In a word", no_wrap=True)
    if wide:
        table.add_column("Sent", justify="right", no_wrap=True)
    shown = [m for m in comparison.metrics if wide or not words.metric(m).detail] or comparison.metrics
    names = words.primary_first(shown, comparison.headline)
    for site in comparison.sites:
        for index, name in enumerate(names):
            gain = site_gain(comparison, site, name)
            other = together.sites.get(site, SiteResult(site))
            row: list[RenderableType] = [_label(alone.sites[site], other, index, wide)]
            if wide:
                row.append(_records(alone.sites[site]) if index == 0 else "")
                row.append((" ".join(_tested(alone.sites[site])) or "–") if index == 0 else "")
            row += [
                _measure(name),
                words.measured(name, alone.sites[site].metrics.get(name)),
                words.measured(name, other.metrics.get(name)),
            ]
            if wide:
                row.append(_gain(name, gain))
            row.append(_word(gain) if name == comparison.headline else Text(""))
            if wide:
                row.append(words.size(other.bytes_sent) if index == 0 else "")
            table.add_row(*row)
        if not wide:
            for fact in _facts(alone.sites[site], other)[max(0, len(names) - 1) :]:
                table.add_row(Text(fact, style="dim"), "", "", "", "")
        table.add_section()
    return table


def _strategies(comparison: ComparisonResult, wide: bool) -> Table:
    """Means over sites for each way to learn."""
    table = _table()
    shown = [m for m in comparison.metrics if wide or not words.metric(m).detail]
    names = words.primary_first(shown, comparison.headline)[: 4 if wide else 2]
    table.add_column("Mean over sites")
    for name in names:
        table.add_column(words.capital(_measure(name)), justify="right", no_wrap=True)
    headline = comparison.headline
    table.add_column(f"Against alone ({words.metric(headline or '').label})", no_wrap=wide)
    if wide:
        table.add_column("Sent, all sites", justify="right")
        table.add_column("Time", justify="right")
    for strategy in comparison.strategies.values():
        gain = mean_gain(comparison, headline, strategy) if headline else None
        against = Text("–")
        if strategy.name != comparison.reference and gain is not None and headline:
            against = Text.assemble(_word(gain), f" {_gain(headline, gain)}" if wide else "")
        row: list[RenderableType] = [strategy.label]
        row += [words.measured(m, strategy.mean.get(m)) for m in names]
        row.append(against)
        if wide:
            row += [words.size(strategy.bytes_sent), words.duration(strategy.seconds)]
        table.add_row(*row)
    return table


def _by_columns(comparison: ComparisonResult, metric: str) -> Table:
    """The mean over sites with all columns beside that over sites that lack some."""
    kinds = next(s.by_columns for s in comparison.strategies.values() if s.by_columns)
    table = _table()
    table.add_column(f"Mean {words.metric(metric).label} over")
    for kind, group in kinds.items():
        counts = words.tested(tested_at(comparison, group.sites))
        heading = words.of_kind(kind, len(group.sites))
        table.add_column(f"{heading}\n{counts}" if counts else heading, justify="right")
    for strategy in comparison.strategies.values():
        groups = (strategy.by_columns.get(kind) for kind in kinds)
        means = (words.measured(metric, g.mean.get(metric) if g else None) for g in groups)
        table.add_row(strategy.label, *means)
    return table


def _named(site: SiteResult[object]) -> Text:
    """The site, and beneath its name the columns that it lacks."""
    lacks = (f"\nlacks {words.lacks(site.missing_columns)}", "dim") if site.missing_columns else ""
    return Text.assemble(site.name, lacks)


def _privacy_lines(sites: Iterable[SiteResult[object]]) -> list[str]:
    """«Privacy spent: 1.8 of 3.0 (ε, δ = 1e-5, per record)», once for all sites that spent the same."""
    sites = list(sites)
    names_by_text: dict[str, list[str]] = {}
    for site in sites:
        if site.privacy is None and site.bytes_sent == 0:
            text = "nothing left the site"
        else:
            text = words.privacy(site.privacy, accountant=False)
        names_by_text.setdefault(text, []).append(site.name)
    label = [f"{words.capital(NOT_PRIVATE)}."] if any(s.privacy is not None for s in sites) else []
    if len(names_by_text) == 1:
        return [f"Privacy spent at every site: {next(iter(names_by_text))}", *label]
    return [
        f"Privacy spent at {words.listing(names, 4)}: {text}" for text, names in names_by_text.items()
    ] + label


def _common_lines(comparison: ComparisonResult) -> list[str]:
    """The same on the common test records, by accuracy where there is one: they are balanced."""
    together, alone = comparison.together, comparison.alone
    if together is None or alone is None or together.common is None or alone.common is None:
        return []
    lines = []
    for name in [m for m in in_order(together.common.gains) if not words.metric(m).detail][:2]:
        gained = stated_gain(together.common.gains[name])
        if gained is not None:
            lines.append(
                f"On the common test records, mean {words.metric(name).label} over sites: alone "
                f"{words.measured(name, alone.common.mean.get(name))}, together "
                f"{words.measured(name, together.common.mean.get(name))}: {words.gained(name, gained)}."
            )
    return lines


def _gap_lines(comparison: ComparisonResult) -> list[str]:
    name = comparison.headline
    closed = gap_closed(comparison, name) if name else None
    if closed is None or name is None:
        return []
    label = words.metric(name).label
    if closed.share is None:
        found = {"worse": "worse than alone", "better": "better than alone"}.get(
            closed.gap.word, closed.gap.word
        )
        share = (
            " How much of that gap is closed is too uncertain to state."
            if closed.gap.word == "better"
            else ""
        )
        return [f"Pooling all records: {found} by {label}, {words.gained(name, closed.gap)}.{share}"]
    return [
        f"Share of the gap to pooling all records that is closed, by {label}: {words.share_closed(closed)}."
    ]


def _scale_lines(scale: str) -> list[str]:
    """Which smaller version of the study was run, where one was."""
    return (
        []
        if scale == "full"
        else [f"Scale «{scale}»: a smaller version of the study, not the study as it is written."]
    )


def _footnote(comparison: ComparisonResult) -> str:
    seeds = len(comparison.seeds)
    if seeds < 2:
        return "One seed, so no spread and no verdict: run more seeds."
    spread = f"± is one standard deviation over {seeds} seeds."
    counts = words.tested(tested_at(comparison, comparison.sites))
    if counts:
        spread += f" Each site: its training records, and its test patients over all seeds; the means rest on {counts}."
    if not comparison.judged:
        return f"{spread} No words: {EARLIER}."
    if seeds < LEAST_SEEDS:
        return f"{spread} Fewer than {LEAST_SEEDS} seeds are too few to judge."
    label = words.metric(comparison.headline or "").label
    few = too_few(comparison)
    note = (
        f" Fewer than {LEAST_RARER} test patients of the rarer class at {words.listing(few, 4)}: too few to judge, "
        "though included in the means."
        if few
        else ""
    )
    if single := tested_singly(comparison):
        note += f" A mean that includes {words.listing(single, 4)} is not judged: {words.SINGLE}."
    every = len(comparison.sites)
    for metric in (m for m in comparison.metrics if not words.metric(m).detail):
        if 0 < (count := len(measured_at(comparison, metric))) < every:
            note += f" {words.capital(words.metric(metric).label)}: mean of {count} of {every} sites."
    return (
        f"{spread} Words are judged by {label} only, in pairs over test patients and seeds, and corrected for "
        f"{words.count(words_stated(comparison), 'word')}.{note}"
    )


def _table() -> Table:
    return Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold", show_edge=False, padding=(0, 1))


def _label(alone: SiteResult[Measured], together: SiteResult[Measured], index: int, wide: bool) -> Text:
    """The name, and where there is no room for columns the records and the bytes beneath it."""
    if index == 0:
        return Text.assemble((alone.name, "bold"), _named(alone)[len(alone.name) :])
    if wide:
        return Text("")
    facts = _facts(alone, together)
    return Text(facts[index - 1] if index <= len(facts) else "", style="dim")


def _facts(alone: SiteResult[Measured], together: SiteResult[Measured]) -> list[str]:
    """Facts about a site under its name, where there is no room for columns."""
    facts = [] if alone.records is None else [f"{_records(alone)} records"]
    return [*facts, *_tested(alone), f"{words.size(together.bytes_sent)} sent"]


def _tested(site: SiteResult[Measured]) -> list[str]:
    """How many patients a site was tested on, and how many of them are of class 1, or outside the most frequent class."""
    counts = site.tested
    if counts is None:
        return []
    patients = f"{words.plain_number(counts.patients)} patient{'' if counts.patients == 1 else 's'}"
    if counts.positive is not None:
        few = counts.rarer < LEAST_RARER and counts.rarer_class != counts.positive_class
        rest = [f"{words.plain_number(counts.rarer)} {counts.rarer_class}"] if few else []
        ill = f"{words.plain_number(counts.positive)} {counts.positive_class}"
        return [f"{patients},", f"{ill}," if rest else ill, *rest]
    if counts.rarer < counts.patients:
        return [f"{patients},", f"{words.plain_number(counts.rarer)} {counts.rarer_class or 'rarer'}"]
    return [patients]


def _measure(name: str) -> str:
    return words.metric(name).short or words.metric(name).label


def _records(site: SiteResult[object]) -> str:
    return "–" if site.records is None else f"{site.records:,}".replace(",", "\u2009")


def _gain(name: str, gain: Gain | None) -> str:
    if gain is None:
        return "–"
    return f"{words.signed(name, gain.mean)} {words.spread(name, gain.std)}".rstrip()


def _word(gain: Gain | None) -> Text:
    return Text("–") if gain is None else Text(gain.word, style=STYLES[gain.word])


def studies_table(comparisons: Mapping[str, ComparisonResult]) -> RenderableType:
    """A line for each study and metric: alone, together, the gain with its interval, and the gap to pooling."""
    table = _table()
    for name in ("Study", "Metric"):
        table.add_column(name, overflow="fold")
    for name in (
        "Alone",
        "Together",
        "Pooled",
        "Gain (95 % interval; corrected beside a word)",
        "Gap closed",
    ):
        table.add_column(name, justify="right")
    table.add_column("In a word")
    verdicts = []
    for name, comparison in comparisons.items():
        for row in _rows(name, comparison):
            table.add_row(*row)
        table.add_section()
        if verdict := not_worth_it(comparison):
            verdicts.append(f"{name}: {verdict}")
        together = comparison.together
        if together is not None:
            verdicts.append(f"{name}: privacy spent at most {words.privacy(together.privacy)}")
    return Group(table, Text(""), *(Text(v) for v in verdicts))


def _rows(study: str, comparison: ComparisonResult) -> list[list[RenderableType]]:
    alone, together, pooled = comparison.alone, comparison.together, comparison.pooled
    if alone is None or together is None:
        return [[study, "no way of learning together", *["–"] * 6]]
    rows: list[list[RenderableType]] = []
    sites = words.count(len(comparison.sites), "site")
    for name in [m for m in comparison.metrics if not words.metric(m).detail]:
        gained, closed = mean_gain(comparison, name), gap_closed(comparison, name)
        share = "–" if closed is None else words.share_closed(closed)
        means = [words.measured(name, s.mean.get(name)) if s else "–" for s in (alone, together, pooled)]
        rows.append(
            [study if not rows else sites if len(rows) == 1 else "", words.metric(name).label, *means]
        )
        judged = name == comparison.headline
        rows[-1] += [_gained(name, gained), share if judged else "", _word(gained) if judged else ""]
    if together.common is not None and alone.common is not None:
        for name in [m for m in in_order(together.common.gains) if not words.metric(m).detail]:
            gained = stated_gain(together.common.gains[name])
            groups = (alone.common, together.common, pooled.common if pooled else None)
            means = [words.measured(name, g.mean.get(name)) if g else "–" for g in groups]
            rows.append(
                [
                    "", f"{words.metric(name).label}, common", *means, _gained(name, gained), "",
                    _word(gained) if name == comparison.headline else "",
                ]
            )  # fmt: skip
    return rows


def _gained(name: str, gained: Gain | None) -> str:
    return (
        "–" if gained is None else words.gained(name, gained).replace(f"{words.interval_label(gained)} ", "")
    )
