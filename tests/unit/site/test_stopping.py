"""Training stops after time, budget or convergence, at all sites in the same round, and in every runtime alike."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from confrere.cli.output import notes_of
from confrere.core.custody import Custody
from confrere.core.errors import StudyError
from confrere.core.model import Model
from confrere.core.params import Params
from confrere.core.parcel import Inbox, Parcel
from confrere.exchange.topology import Complete, Exponential, Ring, Star
from confrere.simulation.backends import resume, simulate
from confrere.site.schedule import Schedule
from confrere.site.stopping import STOPPED_ROUNDS, Stopping
from confrere.study import Data, Privacy, Stop, Study, Training, parse
from confrere.study.churn import Churn
from tests.nodes import nodes_in_process
from tests.unit.quick import TRAINING, quick

STOP = Stop(change=0.05, in_a_row=2)


def model(*values: float, custody: Custody = Custody.PROTECTED) -> Model:
    return Model(Params({"w": torch.tensor(values)}), "net", custody)


def parcel(sender: str, receiver: str, number: int, phase: int, state: Stopping) -> Parcel:
    return Parcel("run", 0, number, phase, sender, receiver, 1, None, {STOPPED_ROUNDS: state.count()})


@pytest.mark.parametrize("graph", [Complete(), Exponential(), Ring(), Star()], ids=lambda g: type(g).__name__)
@pytest.mark.parametrize("sites", [2, 3, 7, 12])
def test_all_sites_know_in_the_same_round_that_all_rest_and_never_before(graph: Any, sites: int) -> None:
    names = [f"s{n:02d}" for n in range(sites)]
    schedule = Schedule(Churn(), names, graph)
    when = {n: random.Random(f"{n}{sites}").randrange(1, 9) for n in names}
    states = {n: Stopping(Stop(change=0.1)) for n in names}
    for number in range(40):
        for name in names:
            if number == when[name]:
                states[name].reason = "it is enough"
            states[name].begin()
        centre = schedule.round(number).centre
        told = {
            n: [parcel(s, n, number, 0, states[s]) for s in schedule.round(number).senders.get(n, ())]
            for n in names
        }
        for name in names:
            states[name].receive(Inbox(tuple(told[name]), (), number, 0), True)
        if centre is not None:
            for name in names:
                if name != centre:
                    states[name].receive(
                        Inbox((parcel(centre, name, number, 1, states[centre]),), (), number, 1), True
                    )
        for name in names:
            states[name].end_round({}, schedule.round(number).rounds_to_reach_all)
        over = {n for n in names if states[n].over}
        assert not over or over == set(names)
        if over:
            assert number >= max(when.values())
            assert number <= max(when.values()) + sites
            return
    raise AssertionError("nobody noticed that all rest")


def test_a_missing_parcel_and_a_peer_that_says_nothing_stop_the_count() -> None:
    mute = Parcel("run", 0, 0, 0, "b", "a", 1, None, {})
    for inbox, there in (
        (Inbox((), ("b",), 0, 0), True),
        (Inbox((mute,), (), 0, 0), True),
        (Inbox((), (), 0, 0), False),
    ):
        state = Stopping(STOP, reason="enough")
        for _ in range(4):
            state.begin()
            state.receive(inbox, there)
            state.end_round({}, 1)
        assert not state.over


def test_what_is_judged_is_the_model_that_is_shared_and_never_a_private_one_beside_it() -> None:
    state = Stopping(STOP)
    for n in range(4):
        state.begin()
        state.end_round({"private": model(10.0**n, custody=Custody.PRIVATE), "proxy": model(1.0)}, 0)
    assert state.stopped
    assert state.count().custody == Custody.PROTECTED
    moving = Stopping(STOP)
    for n in range(4):
        moving.begin()
        moving.end_round({"private": model(1.0, custody=Custody.PRIVATE), "proxy": model(2.0**n)}, 0)
    assert not moving.stopped


def test_a_private_model_is_judged_only_where_nobody_is_told() -> None:
    told, alone = Stopping(STOP), Stopping(STOP)
    for _ in range(4):
        for state, hearing in ((told, 1), (alone, 0)):
            state.begin()
            state.end_round({"model": model(1.0, custody=Custody.PRIVATE)}, hearing)
    assert not told.stopped
    assert told.count().custody == Custody.PUBLIC
    assert alone.over


def test_the_model_must_lie_still_for_so_many_rounds_in_a_row() -> None:
    state = Stopping(STOP)
    seen = []
    for value in (1.0, 1.01, 2.0, 2.01, 2.02, 2.02):
        state.begin()
        state.end_round({"model": model(value)}, 0)
        seen.append(state.stopped)
    assert seen == [False, False, False, False, True, True]


def hospital(seed: int, records: int = 90) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(records, 4)).astype(np.float32)
    return inputs, (inputs[:, 0] + 0.5 * rng.normal(size=records) > 0).astype(int)


SITES = {n: hospital(k) for k, n in enumerate("abc")}


def stopped(run: Any) -> int:
    return int(run.result.stopped.rounds)


@pytest.mark.parametrize("strategy", ["fedavg", "avgpush", "proxyfl", "cwt", "local", "pooled"])
def test_training_stops_when_the_shared_model_lies_still(strategy: str) -> None:
    slow = Training(learning_rate=1e-4, optimiser="sgd", tune=False)
    study = quick(strategy, rounds=30, privacy=None, training=slow, stop=Stop(change=0.05, in_a_row=2))
    run = simulate(study, SITES)
    assert stopped(run) < 20
    assert "moved by at most 0.05 of its length for 2 rounds" in run.result.stopped.why
    trained = [e.round for e in run.events if e.kind == "trained"]
    assert max(trained) < stopped(run)
    assert max(e.round for e in run.events if e.kind == "evaluated") == stopped(run) - 1


def test_who_rests_spends_nothing_more() -> None:
    study = quick("fedavg", rounds=12, stop=Stop(change=0.9, in_a_row=1))
    whole, early = simulate(study.with_(stop=None), SITES), simulate(study, SITES)
    assert stopped(early) < 12
    charged = [e for e in early.events if e.kind == "charged"]
    assert len({e.round for e in charged}) < stopped(early)
    for site in "abc":
        assert early.sites[site].privacy.epsilon < whole.sites[site].privacy.epsilon


def test_training_stops_when_every_budget_is_spent() -> None:
    privacy = Privacy(epsilon=3.0, delta=1e-4, noise_multiplier=2.0, steps=1)
    study = quick("proxyfl", rounds=40, privacy=privacy, stop=Stop(budget=True))
    run = simulate(study, SITES)
    assert stopped(run) < 12
    assert "budget is spent" in run.result.stopped.why


def test_training_stops_when_the_time_is_up_and_a_round_that_has_begun_is_finished() -> None:
    run = simulate(quick("fedavg", rounds=50, stop=Stop(hours=1e-9)), SITES)
    assert stopped(run) == 1
    assert "1e-09 hours are over" in run.result.stopped.why


def test_where_few_rounds_are_tested_the_last_one_is_all_the_same() -> None:
    study = quick("fedavg", rounds=50, stop=Stop(hours=1e-9))
    study = study.with_(evaluation=study.evaluation.__class__(every=7))
    run = simulate(study, SITES)
    assert [e.round for e in run.events if e.kind == "evaluated"] == [0, 0, 0]


def test_all_rounds_are_done_where_nothing_comes_to_rest() -> None:
    run = simulate(quick("fedavg", rounds=4, stop=Stop(change=0.0)), SITES)
    assert run.result.stopped is None
    assert max(e.round for e in run.events if e.kind == "trained") == 3


def same(one: Any, other: Any) -> None:
    assert one.result.stopped.rounds == other.result.stopped.rounds
    for site in one.models:
        for role, held in one.models[site].items():
            assert held.params.distance(other.models[site][role].params) < 1e-5


BUNDLED = quick(
    "avgpush",
    rounds=30,
    privacy=None,
    training=TRAINING.__class__(learning_rate=1e-3, optimiser="sgd", tune=False),
    stop=Stop(change=0.02, in_a_row=2),
    data=Data(bundled="digits", options={"sites": 3, "records": 60}),
)


def test_workers_and_nodes_stop_where_memory_does(tmp_path: Path) -> None:
    memory = simulate(BUNDLED)
    assert 3 < stopped(memory) < 30
    same(memory, simulate(BUNDLED, workers=2))
    same(memory, nodes_in_process(BUNDLED, tmp_path / "run"))


def test_an_interrupted_run_stops_where_it_would_have(tmp_path: Path) -> None:
    whole = simulate(BUNDLED)

    class Enough(Exception):
        pass

    def interrupt(event: Any) -> None:
        if event.kind == "round-started" and event.round == stopped(whole) - 2:
            raise Enough

    with pytest.raises(Enough):
        simulate(BUNDLED, out=tmp_path / "run", listeners=(interrupt,))
    same(whole, resume(tmp_path / "run"))


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({}, "[stop] is empty"),
        ({"hours": -1}, "stop.hours must be a number from 0"),
        ({"hours": "two"}, "stop.hours must be a number"),
        ({"change": 1.5}, "stop.change is 1.5"),
        ({"change": 0.1, "in_a_row": 0}, "stop.in_a_row is 0"),
        ({"budget": True}, "the study has none: privacy.epsilon"),
        ({"minutes": 3}, 'unknown key "stop.minutes"'),
    ],
)
def test_a_stop_that_means_nothing_is_refused(table: dict[str, Any], says: str) -> None:
    with pytest.raises(StudyError) as caught:
        parse({"stop": table})
    assert says in str(caught.value)


def test_who_is_not_drawn_cannot_say_that_it_rests() -> None:
    with pytest.raises(StudyError, match=r"churn.participation"):
        Study(churn=Churn(participation=2), stop=STOP)


def apart(runtime: str, study: Study, folder: Path) -> Any:
    return simulate(study, workers=2) if runtime == "workers" else nodes_in_process(study, folder / "run")


APART = pytest.mark.parametrize("runtime", ["workers", "nodes"])


@APART
def test_apart_from_each_other_sites_stop_when_the_time_is_up_and_say_so_once(
    runtime: str, tmp_path: Path
) -> None:
    run = apart(runtime, BUNDLED.with_(rounds=12, stop=Stop(hours=1e-9)), tmp_path)
    assert stopped(run) < 12
    assert {e.site for e in run.events if e.kind == "trained"} == set(run.sites)  # at least one round
    assert [text for text in notes_of(run.events) if "stopped after" in text] == [run.result.stopped.why]
    assert "1e-09 hours are over" in run.result.stopped.why


@APART
def test_apart_from_each_other_sites_stop_when_every_budget_is_spent_as_in_memory(
    runtime: str, tmp_path: Path
) -> None:
    privacy = Privacy(epsilon=3.0, delta=1e-4, noise_multiplier=2.0, steps=1)
    study = BUNDLED.with_(rounds=40, privacy=privacy, stop=Stop(budget=True))
    memory, run = simulate(study), apart(runtime, study, tmp_path)
    assert stopped(run) < 20
    same(memory, run)
    assert any("budget is spent" in text for text in notes_of(run.events))
    assert all(run.sites[s].privacy.epsilon <= 3.0 for s in run.sites)
