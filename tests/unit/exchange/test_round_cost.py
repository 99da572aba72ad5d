"""What a round of exchange costs: the same to the byte as what a simulation sends, and how it grows."""

from __future__ import annotations

from pathlib import Path

import pytest

from confrere.core.errors import StudyError
from confrere.evaluate.traffic import methods, planned_parcels, traffic
from confrere.exchange.round_cost import LinkSpeed, Load, growth, phases, round_seconds, seconds
from confrere.exchange.topology import Complete, Exponential, Star
from confrere.report.growth_chart import draw_growth
from confrere.simulation.backends import simulate
from confrere.site.open_sites import open_sites
from confrere.study.churn import Churn
from tests.conformance.table import ROWS, Row
from tests.conformance.test_strategies import study
from tests.conftest import arrays

SENDING = [r for r in ROWS if r.sends]
TRAINED_NUMBERS, DIGITS = ("afl", "weight_erosion"), 20
"""These send a number that training finds; nobody knows beforehand with how many digits it is written."""
LINK = LinkSpeed(bandwidth=8.0, latency=50.0)  # a megabyte takes a second


@pytest.mark.parametrize("row", SENDING, ids=lambda r: r.id)
def test_the_bytes_foretold_are_the_bytes_sent(row: Row) -> None:
    found = study(row, rounds=4, churn=Churn(absent={"site0": [1]}))
    told = planned_parcels(found, open_sites(found, arrays(4)))
    sent = [e for e in simulate(found, arrays(4)).events if e.kind == "sent"]
    foretold = sorted((p.round, p.phase, p.sender, p.receiver, p.bytes) for p in told)
    seen = sorted((e.round or 0, e.data["phase"], e.site or "", e.data["to"], e.data["bytes"]) for e in sent)
    assert [p[:4] for p in foretold] == [p[:4] for p in seen]
    spare = DIGITS if row.name in TRAINED_NUMBERS else 0
    assert all(abs(one[4] - other[4]) <= spare for one, other in zip(foretold, seen, strict=True))


@pytest.mark.parametrize("row", SENDING, ids=lambda r: r.id)
def test_the_graph_alone_foretells_who_sends_how_often(row: Row) -> None:
    found = study(row, rounds=3)
    sent = planned_parcels(found, open_sites(found, arrays(5)))
    answers = any(p.phase == 1 for p in sent)
    for number in range(3):
        told = phases(
            found.graph(), number, [f"site{k}" for k in range(5)],
            lambda _s, _r: 1, (lambda _s, _r: 1) if answers else None,
        )  # fmt: skip
        for phase, loads in enumerate(told):
            of_phase = [p for p in sent if (p.round, p.phase) == (number, phase)]
            assert {n: load.sent for n, load in loads.items() if load.sent} == {
                n: sum(p.sender == n for p in of_phase) for n in {p.sender for p in of_phase}
            }


def test_gossip_costs_a_site_the_same_among_any_number_of_sites() -> None:
    counts = [8, 64, 1024]
    gossip = growth(Exponential(), counts, 1_000_000, LINK)
    assert {(g.bytes_busiest, g.seconds) for g in gossip} == {(1_000_000, 1.05)}
    star = growth(Star(), counts, 1_000_000, LINK, answer=1_000_000)
    assert [g.bytes_busiest for g in star] == [n * 1_000_000 - 1_000_000 for n in counts]
    assert [g.seconds for g in star] == pytest.approx([2 * (0.05 + n - 1) for n in counts])
    assert {g.bytes_median for g in star} == {1_000_000}
    complete = growth(Complete(), counts, 1_000_000, LINK)
    assert [g.bytes_median for g in complete] == [(n - 1) * 1_000_000 for n in counts]
    assert [g.parcels for g in complete] == [n * (n - 1) for n in counts]


def test_a_round_ends_with_its_slowest_site() -> None:
    assert seconds(Load(1, 1_000_000, 3_000_000), LINK) == pytest.approx(3.05)
    assert seconds(Load(), LINK) == 0
    phase = {"a": Load(1, 1_000_000, 0), "b": Load(0, 0, 1_000_000)}
    slow = {**phase, "b": Load(0, 0, 10_000_000)}
    assert round_seconds([phase], LINK) == pytest.approx(1.05)
    assert round_seconds([phase, slow, slow], LINK) == pytest.approx(1.05 + 2 * 10.05)


def test_every_site_is_told_its_share(tmp_path: Path) -> None:
    found = study(next(r for r in ROWS if r.id == "proxyfl"), rounds=4)
    run = simulate(found, arrays(4))
    facts = traffic(found, arrays(4), bandwidth=8.0, latency=50.0, counts=[8, 64])
    for name, site in run.sites.items():
        assert facts.sites[name].bytes_sent_in_all == site.bytes_sent
        assert facts.sites[name].bytes_sent * 4 == site.bytes_sent
    assert facts.growth[0].bytes_median == facts.growth[1].bytes_median


def test_where_sites_are_drawn_for_a_round_more_sites_cost_no_more() -> None:
    found = study(next(r for r in ROWS if r.id == "fedavg-star"), rounds=2, churn=Churn(participation=3))
    facts = traffic(found, arrays(4), bandwidth=8.0, latency=50.0, counts=[8, 1024])
    few, many = facts.growth
    assert (few.sites, many.sites) == (8, 1024)
    assert few.seconds == many.seconds


def test_the_figure_of_all_methods_is_drawn(tmp_path: Path) -> None:
    found = study(next(r for r in ROWS if r.id == "proxyfl"), rounds=2)
    grown = methods(found, open_sites(found, arrays(3)), LINK, [8, 64])
    flat = {n for n, (few, many) in grown.items() if many.seconds == few.seconds}
    assert flat == {"proxyfl, exponential", "avgpush, exponential", "cwt, ring"}
    points = {n: [(g.sites, g.seconds) for g in gs] for n, gs in grown.items()}
    for name in ("growth.png", "growth.svg"):
        assert draw_growth(points, "a title", tmp_path / name).stat().st_size > 5_000
    with pytest.raises(StudyError, match=r"\.png"):
        draw_growth(points, "a title", tmp_path / "growth.doc")


@pytest.mark.parametrize("link", [(0, 1), (float("nan"), 1), (1, -1)])
def test_links_that_cannot_be_are_refused(link: tuple[float, float]) -> None:
    with pytest.raises(StudyError):
        LinkSpeed(*link)
