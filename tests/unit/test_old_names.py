"""Names of 0.1 that authors of strategies and users of the Python API may still use, each with a warning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from confrere.core.errors import Retired
from confrere.core.protocols import Peers
from confrere.core.registry import strategy
from confrere.simulation.backends import simulate
from confrere.strategies.local import Local, State
from confrere.study import Models, Study, Training
from tests.conftest import arrays


@pytest.fixture
def of_0_1() -> str:
    @strategy("of-0-1")
    @dataclass(frozen=True)
    class Old(Local):
        def look_at(self, members: Sequence[str], rehearsal: bool) -> Sequence[str]:
            return [f"{len(members)} members"]

        async def round(self, state: State, site: Any, peers: Peers) -> State:
            site.tell("a notice")
            return await Local.round(self, state, site, peers)

    return "of-0-1"


def test_a_strategy_of_0_1_runs_with_warnings(of_0_1: str) -> None:
    with pytest.warns(Retired, match="look_at is now check_members"):
        study = Study(
            rounds=1, strategy=of_0_1, models=Models("linear", "linear"), training=Training(tune=False)
        )
    with pytest.warns(Retired, match=r"site\.tell is now site\.notify"):
        run = simulate(study, arrays())
    with pytest.warns(Retired, match=r"run.said is now run.predictions"):
        assert run.said is run.predictions
    notices = [e.data["text"] for e in run.events if e.kind == "notice"]
    assert "a notice" in notices
    assert "3 members" in notices
