"""Report sections: each is a function of what the page is about, with its place on the page.

A file in this folder is found without being listed anywhere; installed packages use the entry-point group
`confrere.report_sections`, which names a `Section`. A section that has nothing to show returns None.

    @report_section("who took part", order=40)
    def who_took_part(page: Page) -> Markup | None:
        return section("Who took part", tag("p", ", ".join(page.sites)))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps

from confrere.core.events import Json
from confrere.core.registry import Registry
from confrere.core.results import ComparisonResult
from confrere.report.history import History
from confrere.report.page.markup import Child, Markup
from confrere.report.results_folder import RunRecord


@dataclass(frozen=True)
class Page:
    """What a report is about: a single run, or a comparison of several strategies."""

    run: RunRecord | None
    comparison: ComparisonResult | None
    sites: Sequence[str]
    """Largest first."""
    history: History | None
    """Of the run that is shown round by round; of a comparison, its first with collaboration."""
    shown: str
    """Which run that is, in words."""
    histories: Mapping[str, Sequence[History]]
    """Of all runs, by what they show: alone, together, pooled."""
    legend: Sequence[tuple[str, str]]
    """The label of each of these."""
    metrics: Sequence[str]
    headline: str | None
    notes: Sequence[str]
    facts: Sequence[Mapping[str, Json]]
    """What was written down about the runs: study, versions, hardware."""
    seeds: Sequence[int]
    partners: Mapping[str, str] = field(default_factory=dict)
    """By site, what a partner search found, where its result lies in the folder."""


@dataclass(frozen=True)
class Section:
    """A part of the page. Sections stand in ascending `order`."""

    name: str
    order: int
    make: Callable[[Page], Markup | None]


report_sections: Registry[Section] = Registry(
    "report section", "confrere.report_sections", package="confrere.report.page"
)

Make = Callable[[Page], Markup | None]


def report_section(name: str, *, order: int) -> Callable[[Make], Make]:
    """Decorator: add a section to the pages of runs and comparisons."""

    def add(make: Make) -> Make:
        report_sections.register(name, source=make)(Section(name, order, make))
        return make

    return add


def of_comparison(name: str, *, order: int) -> Callable[[Callable[[ComparisonResult], Markup | None]], None]:
    """The same for a section that looks at a comparison only."""

    def add(make: Callable[[ComparisonResult], Markup | None]) -> None:
        @wraps(make)
        def of_page(page: Page) -> Markup | None:
            return None if page.comparison is None else make(page.comparison)

        report_section(name, order=order)(of_page)

    return add


def body(page: Page) -> list[Child]:
    """All sections, in their order."""
    ordered = sorted(report_sections.values(), key=lambda s: (s.order, s.name))
    return [section.make(page) for section in ordered]
