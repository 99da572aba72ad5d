"""A profile says where the time went, and leaves nothing behind."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from confrere.learning.local_training import cohort
from confrere.simulation import profiling
from confrere.simulation.backends import simulate
from confrere.simulation.profiling import PARTS, REST, profiled
from confrere.study import Models, Privacy, Study, Training, load
from tests.conftest import arrays


def test_the_parts_add_up_to_the_whole_and_each_kind_of_work_is_seen() -> None:
    study = Study(
        rounds=3, strategy="avgpush", models=Models("linear", "linear"), training=Training(tune=False),
        privacy=Privacy(noise_multiplier=2.0, delta=1e-4),
    )  # fmt: skip
    before = cohort.train_group
    with profiled() as profile:
        simulate(study, arrays(3, 60))
    assert cohort.train_group is before
    told = profile.as_json()
    assert {"training", "accounting", "exchange: gate", "evaluation", "journal", "preparation", REST} <= set(
        told["parts"]
    )
    assert abs(sum(p["cpu_seconds"] for p in told["parts"].values()) - told["cpu_seconds"]) < 0.01
    assert told["parts"]["training"]["calls"] >= 3
    assert told["parts"]["accounting"]["calls"] >= 9


def test_most_of_the_time_of_the_quickstart_has_a_name(tmp_path: Path) -> None:
    """The unnamed rest was a third to a half before privacy checks, folders and training alone were named; it is now
    about a twentieth. A share of CPU time depends little on the machine, and a quarter leaves room for a busy one."""
    study = load(Path(__file__).parents[3] / "studies" / "quickstart.toml", ["rounds=5"])
    with profiled() as profile:
        simulate(study, out=tmp_path / "run")
    parts = profile.as_json()["parts"]
    assert parts[REST]["share"] < 0.25, parts
    assert {"models and folders of sites", "training alone, to compare"} <= set(parts)
    assert parts["privacy checks of networks and losses"]["calls"] >= 25


def test_what_runs_inside_of_another_part_is_counted_once() -> None:
    with profiled() as profile:
        inner = profile.timed("inner", lambda: sum(range(200_000)))
        profile.timed("outer", lambda: [inner() for _ in range(5)])()
    assert profile.seconds["inner"] > 10 * profile.seconds["outer"]


def test_every_timed_function_is_called_by_some_simulation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that callers no longer go through would be timed without ever being called."""
    each = tuple((f"{owner.__name__}.{name}", owner, name) for _, owner, name in PARTS)
    monkeypatch.setattr(profiling, "PARTS", each)
    linear, noise = Models("linear", "linear"), Privacy(noise_multiplier=2.0, delta=1e-4)
    one_at_a_time = Study(rounds=1, strategy="fedavg", models=linear, training=Training(tune=False))
    tuned_and_private = Study(rounds=2, strategy="proxyfl", models=linear, privacy=noise)
    losses_released = Study(
        rounds=1, strategy="afl", models=linear, privacy=noise, training=Training(tune=False)
    )
    called: set[str] = set()
    for study, trainer in (
        (one_at_a_time, "one"),
        (tuned_and_private, "cohort"),
        (losses_released, "cohort"),
    ):
        with profiled() as profile:
            name = f"{study.strategy_name}-{trainer}"
            simulate(study, arrays(3, 60), out=tmp_path / name, trainer=trainer)
        called |= set(profile.calls)
    assert {part for part, _, _ in each} - called == set()


def test_no_timed_function_is_a_coroutine_function() -> None:
    assert not [name for _, owner, name in PARTS if inspect.iscoroutinefunction(getattr(owner, name))]
