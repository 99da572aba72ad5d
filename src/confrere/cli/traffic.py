"""`confrere traffic`: what a study would send, and how long that takes over the sites' links."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from confrere.cli.output import console, print_json
from confrere.exchange.communication import Link
from confrere.observe.growth import draw_growth
from confrere.observe.words import size as amount
from confrere.runtime.records import open_sites
from confrere.runtime.traffic import methods, read_counts
from confrere.runtime.traffic import traffic as traffic_of
from confrere.study import load

COUNTS = "8,16,32,64,128,256,512,1024"


def traffic(
    study: Annotated[Path, typer.Argument(metavar="STUDY.toml", help="The study to look at.")],
    bandwidth: Annotated[
        float, typer.Option(help="Megabit per second of a site's link, either way.")
    ] = 100.0,
    latency: Annotated[float, typer.Option(help="Milliseconds from one site to another.")] = 20.0,
    sites: Annotated[str, typer.Option(help="Numbers of sites to look ahead to.")] = COUNTS,
    rounds: Annotated[int | None, typer.Option(help="Rounds to go through.", show_default="all")] = None,
    figure: Annotated[
        Path | None, typer.Option(help="Draw time against sites for all methods (.png, .svg, .pdf).")
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="a.b=value", help="Change a key of the study; may be repeated."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Say what each site would send and receive, and how long a round's exchange takes; nothing is trained.

    Example: `confrere traffic studies/quickstart.toml --bandwidth 10 --latency 40 --figure traffic.png`
    """
    link, counts, found = Link(bandwidth, latency), read_counts(sites), load(study, change or [])
    federation = open_sites(found)
    facts = traffic_of(found, federation, link, counts, rounds)
    if figure is not None:
        grown = methods(found, federation, link, counts)
        title = f"One round over links of {bandwidth:g} Mbit/s and {latency:g} ms"
        draw_growth({n: [(g.sites, g.seconds) for g in gs] for n, gs in grown.items()}, title, figure)
        facts["methods"] = {n: [vars(g) for g in gs] for n, gs in grown.items()}
        facts["figure"] = str(figure)
    if as_json:
        print_json(facts)
        return
    _show(facts)


def _show(facts: dict[str, Any]) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("site", "parcels", "sent a round", "received a round", "time a round", "sent in all"):
        table.add_column(column, justify="left" if column == "site" else "right")
    for name, site in facts["sites"].items():
        table.add_row(
            name, f"{site['parcels']:.3g}", amount(site["bytes_sent"]), amount(site["bytes_received"]),
            f"{site['seconds']:.3g} s", amount(site["bytes_sent_in_all"]),
        )  # fmt: skip
    console.print(table)
    console.print(
        f"A round's exchange takes about {facts['seconds_per_round']:.3g} s over links of"
        f" {facts['bandwidth_mbit']:g} Mbit/s and {facts['latency_ms']:g} ms ({facts['strategy']}, {facts['topology']})."
    )
    if facts["growth"]:
        table = Table(title="With more sites", title_justify="left", box=None, padding=(0, 2, 0, 0))
        for column in ("sites", "a site sends", "the busiest sends", "all send", "time a round"):
            table.add_column(column, justify="right")
        for row in facts["growth"]:
            table.add_row(
                f"{row['sites']:,}", amount(row["bytes_median"]), amount(row["bytes_busiest"]),
                amount(row["bytes_all"]), f"{row['seconds']:.3g} s",
            )  # fmt: skip
        console.print(table)
    console.print(
        "Times are estimated: each link carries all of a phase at once, and nothing else limits it."
    )
    if "figure" in facts:
        console.print(f"Figure: {facts['figure']}", markup=False)
