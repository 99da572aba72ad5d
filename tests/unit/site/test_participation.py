"""Sites that are drawn for a round take part; the others are not asked, and learn of it when their turn comes."""

from __future__ import annotations

import pytest
import torch

from confrere.core.errors import StudyError
from confrere.core.params import Params
from confrere.simulation.backends import simulate
from confrere.simulation.finished_run import Run
from confrere.study import Models, Privacy, Study, Training
from confrere.study.churn import Churn
from tests.conftest import arrays

NAMES = [f"site{k}" for k in range(8)]


def drawn(run: Run) -> dict[int, list[str]]:
    return {
        e.round: e.data["present"] for e in run.events if e.kind == "round-started" and e.round is not None
    }


def study(topology: object, **more: object) -> Study:
    base = Study(
        rounds=5,
        strategy="fedavg",
        topology=topology,
        models=Models("linear", "linear"),
        training=Training(tune=False, learning_rate=0.1),
        churn=Churn(participation=3),
    )
    return base.with_(**more)


def test_the_lot_is_the_same_for_whoever_asks_and_fair() -> None:
    churn = Churn(participation=3)
    assert churn.drawn(4, NAMES) == churn.drawn(4, list(NAMES))
    seen = [name for r in range(800) for name in churn.drawn(r, NAMES)]
    assert len(seen) == 2400
    assert all(240 < seen.count(name) < 360 for name in NAMES)
    assert churn.drawn(0, NAMES[:2]) == tuple(NAMES[:2])


@pytest.mark.parametrize("topology", ["star", "complete"])
@pytest.mark.parametrize("trainer", ["cohort", "one"])
def test_only_those_who_are_drawn_train_and_send(topology: str, trainer: str) -> None:
    run = simulate(study(topology), arrays(8, 60), trainer=trainer)
    for number, names in drawn(run).items():
        assert len(names) == 3
        assert {e.site for e in run.events if e.kind == "trained" and e.round == number} == set(names)
        senders = {
            e.site for e in run.events if e.kind == "sent" and e.round == number and e.data["phase"] < 2
        }
        assert senders <= set(names)


@pytest.mark.parametrize("topology", ["star", "complete"])
def test_whoever_is_drawn_starts_from_what_was_agreed_in_the_round_before(
    topology: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from confrere.learning.local_training.one_site import Job, OneAtATime, Trained

    starts: list[Params] = []
    through = OneAtATime.run

    async def tapped(self: OneAtATime, job: Job) -> Trained:
        starts.append(job.weights["model"])
        return await through(self, job)

    monkeypatch.setattr(OneAtATime, "run", tapped)
    simulate(study(topology), arrays(8, 60), trainer="one")
    assert len(starts) == 15
    for number in range(5):
        one, *others = starts[3 * number : 3 * number + 3]
        assert all(torch.allclose(one.flatten(), other.flatten(), atol=1e-6) for other in others)
    assert not torch.allclose(starts[0].flatten(), starts[3].flatten())


def test_a_named_centre_is_always_there() -> None:
    run = simulate(study({"name": "star", "leader": "site5"}), arrays(8, 60))
    assert all("site5" in names for names in drawn(run).values())


def test_private_sites_pay_only_for_the_rounds_that_they_took_part_in() -> None:
    privacy = Privacy(noise_multiplier=2.0, delta=1e-4)
    run = simulate(study("star", privacy=privacy), arrays(8, 60))
    turns = [n for names in drawn(run).values() for n in names]
    charged = [e.site for e in run.events if e.kind == "charged"]
    assert sorted(charged) == sorted(turns)


@pytest.mark.parametrize("number", [1, 9, -2])
def test_a_number_that_cannot_be_drawn_is_refused(number: int) -> None:
    with pytest.raises(StudyError, match="participation"):
        simulate(study("star", churn=Churn(participation=number)), arrays(8, 60))


def test_leaving_when_the_budget_is_spent_does_not_go_with_a_lot() -> None:
    privacy = Privacy(epsilon=1.0, delta=1e-4, when_spent="leave")
    with pytest.raises(StudyError, match="relay"):
        simulate(study("star", privacy=privacy), arrays(8, 60))
