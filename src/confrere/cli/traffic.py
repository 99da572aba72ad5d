"""`confrere traffic`: what a study would send, and how long that takes over the sites' links."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from confrere.cli.options import AsJson, Changes, StudyFile
from confrere.cli.output import console, print_json

if TYPE_CHECKING:
    from confrere.evaluate.traffic import Traffic
    from confrere.study import Study


def traffic(
    study: StudyFile,
    bandwidth: Annotated[float, typer.Option(help="Link speed of a site in Mbit/s, each way.")] = 100.0,
    latency: Annotated[float, typer.Option(help="Milliseconds from one site to another.")] = 20.0,
    sites: Annotated[
        str, typer.Option(help="Site counts to extrapolate to.")
    ] = "8,16,32,64,128,256,512,1024",
    rounds: Annotated[int | None, typer.Option(help="Rounds to count.", show_default="all")] = None,
    figure: Annotated[
        Path | None, typer.Option(help="Draw time against sites for all methods (.png, .svg, .pdf).")
    ] = None,
    change: Changes = None,
    as_json: AsJson = False,
) -> None:
    """Compute what each site would send and receive, and how long a round's exchange takes; nothing is trained.

    Example: `confrere traffic studies/quickstart.toml --bandwidth 10 --latency 40 --figure traffic.png`
    """
    from confrere.evaluate.traffic import read_counts
    from confrere.evaluate.traffic import traffic as traffic_of
    from confrere.study import load

    counts, found = read_counts(sites), load(study, change or [])
    result = traffic_of(found, bandwidth=bandwidth, latency=latency, counts=counts, rounds=rounds)
    more = _draw(found, result, counts, figure) if figure is not None else {}
    if as_json:
        print_json({**result.as_json(), **more})
        return
    _show(result)
    if figure is not None:
        console.print(f"Figure: {figure}")


def _draw(study: Study, found: Traffic, counts: list[int], figure: Path) -> dict[str, Any]:
    """Draw how every method grows with the sites, and return what was drawn."""
    from confrere.evaluate.traffic import methods
    from confrere.exchange.round_cost import LinkSpeed
    from confrere.report.growth_chart import draw_growth
    from confrere.site.open_sites import open_sites

    grown = methods(study, open_sites(study), LinkSpeed(found.bandwidth_mbit, found.latency_ms), counts)
    title = f"One round over links of {found.bandwidth_mbit:g} Mbit/s and {found.latency_ms:g} ms"
    draw_growth({n: [(g.sites, g.seconds) for g in gs] for n, gs in grown.items()}, title, figure)
    return {"methods": {n: [vars(g) for g in gs] for n, gs in grown.items()}, "figure": str(figure)}


def _show(found: Traffic) -> None:
    from confrere.report.words import size as amount

    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("site", "parcels", "sent a round", "received a round", "time a round", "sent in all"):
        table.add_column(column, justify="left" if column == "site" else "right")
    for name, site in found.sites.items():
        table.add_row(
            name, f"{site.parcels:.3g}", amount(site.bytes_sent), amount(site.bytes_received),
            f"{site.seconds:.3g} s", amount(site.bytes_sent_in_all),
        )  # fmt: skip
    console.print(table)
    console.print(
        f"A round's exchange takes about {found.seconds_per_round:.3g} s over links of"
        f" {found.bandwidth_mbit:g} Mbit/s and {found.latency_ms:g} ms ({found.strategy}, {found.topology})."
    )
    if found.growth:
        table = Table(title="With more sites", title_justify="left", box=None, padding=(0, 2, 0, 0))
        for column in ("sites", "a site sends", "the busiest sends", "all send", "time a round"):
            table.add_column(column, justify="right")
        for row in found.growth:
            table.add_row(
                f"{row.sites:,}", amount(row.bytes_median), amount(row.bytes_busiest),
                amount(row.bytes_all), f"{row.seconds:.3g} s",
            )  # fmt: skip
        console.print(table)
    console.print(
        "Times are estimated: each link carries all of a phase at once, and nothing else limits it."
    )
