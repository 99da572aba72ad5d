"""A profile says where the time went, and leaves nothing behind."""

from __future__ import annotations

from confrere.learning import cohort
from confrere.runtime.profile import REST, profiled
from confrere.runtime.simulate import simulate
from confrere.study import Models, Privacy, Study, Training
from tests.conftest import arrays


def test_the_parts_add_up_to_the_whole_and_each_kind_of_work_is_seen() -> None:
    study = Study(
        rounds=3, strategy="avgpush", models=Models("linear", "linear"), training=Training(tune=False),
        privacy=Privacy(noise_multiplier=2.0, delta=1e-4),
    )  # fmt: skip
    before = cohort._results
    with profiled() as profile:
        simulate(study, arrays(3, 60))
    assert cohort._results is before
    told = profile.as_json()
    assert {"training", "accounting", "exchange: gate", "evaluation", "journal", "preparation", REST} <= set(
        told["parts"]
    )
    assert abs(sum(p["cpu_seconds"] for p in told["parts"].values()) - told["cpu_seconds"]) < 0.01
    assert told["parts"]["training"]["calls"] >= 3
    assert told["parts"]["accounting"]["calls"] >= 9


def test_what_runs_inside_of_another_part_is_counted_once() -> None:
    with profiled() as profile:
        inner = profile.timed("inner", lambda: sum(range(200_000)))
        profile.timed("outer", lambda: [inner() for _ in range(5)])()
    assert profile.seconds["inner"] > 10 * profile.seconds["outer"]
