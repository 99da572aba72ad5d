"""A private model that cannot be trained, fitted or evaluated stays as it was and stops nothing, whatever it raises."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from torch import Tensor, nn

from confrere.core.custody import Custody
from confrere.core.errors import TrainingError
from confrere.learning.networks.architectures import network, networks
from confrere.simulation.backends import simulate
from confrere.study import load
from tests.system import test_node_presence as presence
from tests.system.test_node_faults import events

BAD = ["2.95,0.1,-0.2,0.4,yes" if i % 2 else f"2.95,0.{i},-0.2,0.4,no" for i in range(12)]


class Touchy(nn.Module):
    """Does not take a value that some records have."""

    error: type[Exception] = RuntimeError
    in_training = True

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        if self.training == Touchy.in_training and bool((x[:, 0] > 0.97).any()):
            raise Touchy.error("not this value")
        out: Tensor = self.layer(x)
        return out


@pytest.fixture(autouse=True)
def touchy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    network("touchy")(lambda shape, outputs: Touchy(shape[0], outputs))
    plan = ('{ name = "proxyfl", private = "distil" }', '[models]\nprivate = "touchy"')
    monkeypatch.setitem(presence.STUDIES, "touchy", plan)
    yield
    networks.remove("touchy")


@pytest.mark.parametrize(
    ("error", "in_training"),
    [
        (AssertionError, True),
        (KeyError, True),
        (TypeError, True),
        (RuntimeError, False),
        (AssertionError, False),
    ],
)
def test_a_private_network_that_fails_on_a_record_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception], in_training: bool
) -> None:
    monkeypatch.setattr(Touchy, "error", error)
    monkeypatch.setattr(Touchy, "in_training", in_training)
    places = presence.hospitals(tmp_path, "touchy", lambda lines: [*lines, *BAD])
    [(nodes, _)] = presence.played(places)
    assert {node.done for node in nodes.values()} == {3}
    told = [e for e in events(places["site0"], "notice") if "not this value" in e.data["text"]]
    assert told
    assert {e.custody for e in told} == {Custody.PRIVATE}
    assert all(error.__name__ in e.data["text"] for e in told)


@pytest.mark.parametrize("in_training", [True, False])
def test_a_rehearsal_names_what_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_training: bool
) -> None:
    monkeypatch.setattr(Touchy, "error", KeyError)
    monkeypatch.setattr(Touchy, "in_training", in_training)
    presence.hospitals(tmp_path, "touchy", lambda lines: [*lines, *BAD])
    with pytest.raises(TrainingError, match=r'site ".*KeyError: .not this value'):
        simulate(load(tmp_path / "study.toml"))
