"""Sites spread over worker processes: the same run, faster."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from confrere.core.custody import Custody, private, public
from confrere.core.errors import CustodyError, StudyError, TrainingError, WorkerLost
from confrere.core.events import Event
from confrere.core.model import Model
from confrere.core.params import Params
from confrere.core.parcel import Parcel
from confrere.simulation.backends import resume, simulate
from confrere.simulation.finished_run import Run
from confrere.simulation.shard import divide
from confrere.study import Models, Training
from confrere.study.churn import Churn
from confrere.transport import batch
from tests.conformance.table import ROWS, Row
from tests.conformance.test_strategies import same_models, study
from tests.conftest import arrays

PROXYFL = next(r for r in ROWS if r.name == "proxyfl")
CHURN = Churn(absent={"site0": [1, 2]}, leave={"site1": 3})


def told(run: Run) -> list[tuple[Any, ...]]:
    """What a journal says, without the times and without the order between sites."""
    rows = [(e.kind, e.site or "", e.round or 0, e.custody, {**e.data, "seconds": 0}) for e in run.events]
    return sorted(rows, key=str)


def heard(run: Run) -> dict[str, Any]:
    """What the models said about the test records."""
    assert run.predictions
    return {n: {p: s.outputs.tolist() for p, s in kept.parts.items()} for n, kept in run.predictions.items()}


@pytest.mark.parametrize("row", [r for r in ROWS if not r.memory_only], ids=lambda r: r.id)
def test_spreading_the_sites_over_processes_changes_nothing(row: Row) -> None:
    found = study(row, rounds=3, churn=Churn(absent={"site0": [1]}, leave={"site1": 2}))
    one, two = (simulate(found, arrays(4), workers=n, trainer="one") for n in (None, 2))
    assert one.result == two.result
    same_models(one, two)
    assert told(one) == told(two)
    assert heard(one) == heard(two)


def test_sites_that_are_trained_together_differ_by_rounding_at_most() -> None:
    found = study(PROXYFL, rounds=4, churn=CHURN)
    one, two = (simulate(found, arrays(5), workers=n) for n in (None, 2))
    same_models(one, two, 1e-5)
    assert two.mean == pytest.approx(one.mean, abs=1e-5)
    assert [s.privacy for s in one.sites.values()] == [s.privacy for s in two.sites.values()]


def test_more_workers_than_sites_and_own_modules_are_fine() -> None:
    found = study(PROXYFL, rounds=2, models=Models(lambda: torch.nn.Linear(4, 1), "linear"))
    one, many = (simulate(found, arrays(3), workers=n, trainer="one") for n in (1, 8))
    same_models(one, many)


def test_an_interrupted_run_goes_on_with_another_number_of_workers(tmp_path: Path) -> None:
    found = study(PROXYFL, churn=CHURN)
    whole = simulate(found, arrays(4), trainer="one")

    def stop(event: Event) -> None:
        if event.kind == "trained" and event.round == 4:
            raise RuntimeError("the plug was pulled")

    for before, after in ((2, 1), (1, 3), (3, 2)):
        folder = tmp_path / f"{before}-{after}"
        with pytest.raises(RuntimeError, match="plug"):
            simulate(found, arrays(4), out=folder, listeners=(stop,), workers=before, trainer="one")
        again = resume(folder, arrays(4), workers=after, trainer="one")
        same_models(whole, again)
        assert again.sites == whole.sites
        assert heard(again) == heard(whole)


def test_a_worker_that_dies_is_named_and_the_run_can_go_on(tmp_path: Path) -> None:
    found = study(PROXYFL)
    whole = simulate(found, arrays(4), trainer="one")
    killed = []

    def kill(event: Event) -> None:
        if event.kind == "round-started" and event.round == 2 and not killed:
            import multiprocessing

            killed.append(multiprocessing.active_children()[-1])
            os.kill(killed[0].pid or 0, signal.SIGKILL)

    with pytest.raises(
        WorkerLost, match=r"worker \d \(2 sites: site\d, site\d\) was ended by SIGKILL.*--resume"
    ):
        simulate(found, arrays(4), out=tmp_path / "run", listeners=(kill,), workers=2, trainer="one")
    same_models(whole, resume(tmp_path / "run", arrays(4), workers=2, trainer="one"))


def test_an_error_at_a_site_is_told_as_in_one_process() -> None:
    found = study(PROXYFL, privacy=None, training=Training(tune=False, learning_rate=1e30, epochs=3))
    with pytest.raises(TrainingError) as one:
        simulate(found, arrays(3))
    with pytest.raises(TrainingError) as two:
        simulate(found, arrays(3), workers=2)
    assert str(one.value).split("site", 1)[0] == str(two.value).split("site", 1)[0]


def test_what_cannot_be_spread_is_said() -> None:
    with pytest.raises(StudyError, match="between 1 and 10,000"):
        simulate(study(PROXYFL), arrays(3), workers=0)
    with pytest.raises(StudyError, match='no engine "spark"'):
        simulate(study(PROXYFL), arrays(3), engine="spark")


def test_the_work_is_divided_evenly_and_neighbours_stay_together() -> None:
    assert list(divide(dict.fromkeys("abcdef", 1.0), 2).values()) == [0, 0, 0, 1, 1, 1]
    uneven = {"a": 1.0, "b": 9.0, "c": 1.0, "d": 1.0, "e": 9.0, "f": 1.0, "g": 20.0}
    plan = divide(uneven, 2)
    loads = [sum(uneven[n] for n in uneven if plan[n] == s) for s in (0, 1)]
    assert max(loads) <= 22
    with pytest.raises(StudyError, match="1 to 3"):
        divide(dict.fromkeys("abc", 1.0), 4)


def parcel(model: Model | None, **more: Any) -> Parcel:
    route = {"run": "r", "epoch": 1, "round": 2, "phase": 0, "sender": "a", "receiver": "b", "sequence": 3}
    return Parcel(**{**route, **more}, model=model)


def test_a_batch_of_parcels_comes_out_as_it_went_in() -> None:
    one = Model(Params({"w": torch.randn(3, 2), "b": torch.randn(2)}), "net", Custody.PROTECTED)
    other = Model(Params({"steps": torch.tensor(4), "w": torch.randn(0)}), "odd", Custody.PUBLIC)
    sent = [
        parcel(one, scalars={"mass": public(1 / 3)}), parcel(one, receiver="c", signature=b"\x01"),
        parcel(None), parcel(other, sequence=9),
    ]  # fmt: skip
    found = batch.decode(batch.encode(sent))
    assert found[0].model is found[1].model  # sent once
    for before, after in zip(sent, found, strict=True):
        assert replace(before, model=None) == replace(after, model=None)
        if before.model is not None:
            assert after.model is not None
            assert after.model.params.equals(before.model.params)
            assert (after.model.architecture, after.model.custody) == (
                before.model.architecture,
                before.model.custody,
            )


def test_nothing_private_goes_into_a_batch() -> None:
    model = Model(Params({"w": torch.ones(1)}), "net", Custody.PRIVATE)
    with pytest.raises(CustodyError):
        batch.encode([parcel(model)])
    with pytest.raises(CustodyError):
        batch.encode([parcel(None, scalars={"loss": private(1.0)})])
