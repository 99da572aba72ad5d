"""A node that is killed at any step that makes something durable ends as if nothing had happened."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

import confrere.node
import confrere.site
from confrere.core.events import Journal
from confrere.node.failpoints import MASKED_POINTS, POINTS, armed
from confrere.simulation.backends import simulate
from confrere.simulation.rehearsal import RehearsalNodes
from confrere.site.masked_leader import DOWN_POINTS
from confrere.site.masked_member import UP_POINTS
from confrere.site.open_sites import open_sites
from confrere.site.site_folder import site_folder_of
from confrere.study import Study, load
from tests.conftest import write_study
from tests.system.invariants import check_nodes

BODY = """
rounds = 3
strategy = "proxyfl"
patience = 600.0
[models]
proxy = { name = "mlp", hidden = [4000] }   # so large that parcels and states lie in files
[training]
tune = false
[privacy]
epsilon = 8.0
delta = 1e-4
steps = 2
"""


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Study, Any]:
    """The study, and what comes of it when nothing happens."""
    folder = tmp_path_factory.mktemp("failpoints")
    study = load(write_study(folder, BODY, sites=2, records=60))
    return folder, study, simulate(study)


def killed(folder: Path, study: Study, point: str) -> RehearsalNodes:
    """A rehearsal in which both nodes are killed at this instant, and started again."""
    folder.mkdir()
    (folder / "study.toml").write_text(study.to_toml())
    rehearsed = RehearsalNodes(
        folder, sorted(study.sites), Journal(None), {"CONFRERE_FAILPOINT": point}, revive=True
    )
    rehearsed.enroll(study, {n: d.declared for n, d in open_sites(study).sites.items()})
    asyncio.run(rehearsed.run())
    return rehearsed


def check(point: str, expected: tuple[Path, Study, Any]) -> None:
    place, study, whole = expected
    folder = place / re.sub(r"\W", "-", point)
    rehearsed = killed(folder, study, point)
    assert all(node.starts == 2 for node in rehearsed.nodes.values()), "nobody was killed there"
    for name, state in rehearsed.states(study).items():
        for role, model in whole.models[name].items():
            assert getattr(state, role).params.distance(model.params) < 1e-5
    assert set(rehearsed.states(study)) == set(study.sites)
    books = check_nodes(study, open_sites(study), {n: site_folder_of(folder, n) for n in study.sites})
    assert books.problems == []
    assert books.charges == 2 * study.rounds  # seeded noise again is the same release, not a second one


def test_every_failpoint_is_in_the_code_and_every_one_in_the_code_is_listed() -> None:
    sources = [p.read_text() for p in Path(confrere.node.__path__[0]).glob("*.py")]
    found = set(re.findall(r'\breach\("([a-z-]+)"\)', "\n".join(sources)))
    sums = [p.read_text() for p in Path(confrere.site.__path__[0]).glob("masked_*.py")]
    of_sums = set(re.findall(r'\.passing\("([a-z-]+)"\)', "\n".join(sums))) | {*UP_POINTS, *DOWN_POINTS}
    assert found | of_sums == {*POINTS, *MASKED_POINTS}
    assert not set(POINTS) & set(MASKED_POINTS)


def test_nothing_happens_without_the_variable() -> None:
    reach = armed("")
    for point in POINTS:
        reach(point)


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_a_node_that_is_killed_there_ends_as_if_nothing_had_happened(
    point: str, expected: tuple[Path, Study, Any]
) -> None:
    once = "result-written" in point
    check(point if once else f"{point}@2", expected)
