"""Whatever numbers one member sends with its models, the other sites go on."""

from __future__ import annotations

from typing import Any

import pytest

from confrere.core.custody import Scalar
from confrere.core.events import Event
from confrere.core.model import Model
from confrere.simulation.backends import simulate
from confrere.site import peers, training
from tests.conformance.table import ROWS, Row
from tests.conformance.test_strategies import study
from tests.conftest import arrays
from tests.unit.quick import PRIVACY

VALUES: list[float | None] = [0.0, -1.0, 0.5, 1.0, 2.0, 1e12, -1e12, 1e-300, None]
"""None leaves all numbers out. Larger ones, and what is not finite, no transport takes."""


@pytest.mark.parametrize("row", [r for r in ROWS if not r.memory_only], ids=lambda r: r.id)
def test_hostile_numbers_of_one_member_stop_no_other(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = peers.PeersRound._send
    value: float | None = None

    async def send(self: Any, to: Any, phase: int, model: Model | None, scalars: Any) -> Any:
        if self.me == "site0" and value is None:
            scalars = {}
        elif self.me == "site0":
            scalars = {name: Scalar(value, number.custody) for name, number in scalars.items()}
        return await honest(self, to, phase, model, scalars)

    monkeypatch.setattr(peers.PeersRound, "_send", send)
    monkeypatch.setattr(training, "check_safe", lambda *_: None)  # the same network in all nine runs
    for value in VALUES:
        events: list[Event] = []
        simulate(study(row, rounds=2, privacy=PRIVACY), arrays(4), listeners=(events.append,))
        done = {e.site for e in events if e.kind == "trained" and e.round == 1}
        # In CoLN a member may end the collaboration for all: see docs/threat-model.md, «Not protected»
        assert row.name == "coln" or {"site1", "site2", "site3"} <= done, value
