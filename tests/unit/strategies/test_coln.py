"""CoLN as a strategy: as printed it diverges without harm, and it can begin and end as its authors say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from confrere.core.custody import Custody
from confrere.core.errors import StudyError
from confrere.core.events import Journal
from confrere.privacy.gate import Gate
from confrere.simulation.backends import simulate
from confrere.simulation.finished_run import Run
from confrere.simulation.simulation import Simulation
from confrere.site.open_sites import open_sites
from confrere.strategies.coln import State
from confrere.study import Models, Privacy, Study, Training
from confrere.study.churn import Churn
from tests.conftest import arrays


def study(rounds: int = 4, topology: Any = None, privacy: Privacy | None = None, **options: Any) -> Study:
    training = Training(tune=False, learning_rate=0.1, batch_size=32)
    return Study(
        name="coln", rounds=rounds, strategy={"name": "coln", **options}, topology=topology, training=training,
        privacy=privacy, models=Models("linear", {"name": "mlp", "hidden": [4]}),
    )  # fmt: skip


def notices(run: Run) -> list[str]:
    return [e.data["text"] for e in run.events if e.kind == "notice" and e.data.get("told")]


def trained_in(run: Run) -> dict[int, set[str]]:
    found: dict[int, set[str]] = {}
    for e in run.events:
        if e.kind == "trained":
            assert e.round is not None
            found.setdefault(e.round, set()).add(str(e.site))
    return found


@pytest.mark.parametrize("topology", [None, "star", {"name": "star", "leader": "site2"}])
def test_as_printed_it_diverges_with_a_clear_message_and_everybody_keeps_the_last_good_model(
    topology: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_out: list[float] = []
    through = Gate.admit

    def tapped(self: Gate, model: Any, scalars: Any = None, **more: Any) -> Any:
        found = through(self, model, scalars, **more)
        if found[0] is not None:
            let_out.append(max(float(t.abs().max()) for t in found[0].params.values()))
        return found

    monkeypatch.setattr(Gate, "admit", tapped)
    run = simulate(study(12, topology, normalise=False, largest=200.0), arrays())
    said = notices(run)
    assert said[0].startswith("CoLN as printed: the models are added up")
    assert any("diverged in round" in text and "last good model" in text for text in said)
    models = [run.models[s]["model"].params for s in run.models]
    assert all(m.equals(models[0]) and m.is_finite() for m in models)
    assert all(float(t.abs().max()) <= 200.0 for t in models[0].values())
    assert max(let_out) < 1000  # what was trained once more from the last good model; never the sum
    last = max(trained_in(run))
    assert last < 11  # nobody trains on after that
    assert run.mean["accuracy"] > 0.7


@pytest.mark.parametrize("compression", ["float16", "int8"])
@pytest.mark.parametrize("topology", [None, "star", {"name": "star", "leader": "site2"}])
def test_an_end_by_divergence_is_noticed_however_parcels_are_compressed(
    compression: str, topology: Any
) -> None:
    asked = study(12, topology, normalise=False, largest=200.0).with_(compression=compression)
    run = simulate(asked, arrays())
    assert any("diverged in round" in text and "last good model" in text for text in notices(run))
    assert max(trained_in(run)) < 11  # nobody trains on after that
    models = [run.models[s]["model"].params for s in run.models]
    assert all(float(t.abs().max()) <= 200.0 for m in models for t in m.values())
    assert run.mean["accuracy"] > 0.7


def test_a_site_that_was_away_takes_the_last_model_from_the_answer() -> None:
    away = Churn(absent={"site1": [2, 3]})
    run = simulate(
        study(12, {"name": "star", "leader": "site2"}, normalise=False, largest=200.0).with_(churn=away),
        arrays(),
    )
    models = [run.models[s]["model"].params for s in run.models]
    assert all(m.equals(models[0]) for m in models)
    assert max(trained_in(run)) < 11


@pytest.mark.parametrize("largest", [3.0, 30.0, 100.0])
@pytest.mark.parametrize("away", [("site3", 2), ("site1", 1), ("site2", 2), ("site4", 3)])
def test_all_end_with_one_model_also_where_the_centre_of_the_last_round_was_away_before_it(
    largest: float, away: tuple[str, int]
) -> None:
    found = study(7, "star", normalise=False, largest=largest).with_(
        churn=Churn(absent={away[0]: [away[1]]}), training=Training(tune=False, learning_rate=0.05),
        models=Models("linear", "linear"),
    )  # fmt: skip
    run = simulate(found, arrays(5, 40))
    assert any("diverged in round" in text for text in notices(run))
    models = [run.models[s]["model"].params for s in run.models]
    assert all(m.equals(models[0]) for m in models)


def test_the_default_does_not_diverge() -> None:
    run = simulate(study(12), arrays())
    assert notices(run) == []
    assert max(float(t.abs().max()) for t in run.models["site0"]["model"].params.values()) < 50
    assert run.mean["accuracy"] > 0.8


def test_the_rate_changes_its_sign_from_round_to_round() -> None:
    swung = simulate(study(2, rate=1.0, alternate=True, normalise=False), arrays())
    grown = simulate(study(2, rate=1.0, normalise=False), arrays())
    norm = {n: r.models["site0"]["model"].params.norm() for n, r in (("swung", swung), ("grown", grown))}
    assert norm["swung"] < 0.8 * norm["grown"]


@pytest.mark.parametrize("topology", [None, {"name": "star", "leader": "site2"}])
def test_the_others_can_begin_with_a_model_that_one_site_has_trained(topology: Any) -> None:
    run = simulate(study(1, topology, start="site1"), arrays())
    assert trained_in(run) == {0: {"site1"}}
    models = [run.models[s]["model"].params for s in run.models]
    assert all(m.equals(models[0]) for m in models)
    later = trained_in(simulate(study(2, topology, start="site1"), arrays()))
    assert later[1] == {"site0", "site1", "site2"}


def test_a_start_that_is_nobody_is_refused() -> None:
    with pytest.raises(StudyError, match=r'start names "site7".*did you mean'):
        simulate(study(1, start="site7"), arrays())


def test_hosts_may_train_for_different_numbers_of_epochs() -> None:
    base = study(2)
    longer = base.with_(
        training=Training(tune=False, learning_rate=0.1, batch_size=32, site_epochs={"site0": 5})
    )
    one, two = simulate(base, arrays()), simulate(longer, arrays())
    assert not one.models["site0"]["model"].params.equals(two.models["site0"]["model"].params)
    with pytest.raises(StudyError, match="site_epochs"):
        simulate(base.with_(training=Training(site_epochs={"nobody": 2})), arrays())
    with pytest.raises(StudyError, match="site0 must be a number from 1"):
        base.with_(training=Training(site_epochs={"site0": 0}))


@pytest.mark.parametrize("by", ["weights", "accuracy"])
@pytest.mark.parametrize("topology", [None, "star"])
def test_it_halts_when_the_gain_stays_within_a_bound(by: str, topology: Any) -> None:
    run = simulate(study(10, topology, halt=1e9, halt_by=by), arrays())
    assert max(trained_in(run)) < 9  # a bound that everything stays within: three calm rounds, and the vote
    assert min(len(sites) for sites in trained_in(run).values()) == 3  # all at once
    models = [run.models[s]["model"].params for s in run.models]
    assert all(m.equals(models[0]) for m in models)
    on = simulate(study(10, topology, halt=1e-9, halt_by=by), arrays())
    assert by == "accuracy" or max(trained_in(on)) == 9


def test_halting_by_releases_keeps_the_guarantee_and_halting_by_records_does_not() -> None:
    privacy = Privacy(epsilon=8.0, delta=1e-4)
    for by, proven in (("weights", True), ("accuracy", False)):
        run = simulate(study(6, privacy=privacy, halt=1e9, halt_by=by), arrays())
        assert run.sites["site0"].privacy.proven is proven
        for event in run.events:
            if event.kind == "sent":
                assert (Custody[event.data["custody"]] <= Custody.PROTECTED) is proven


class _Planted(Simulation):
    """A simulation in which the last sites claim from the start that they have ended, with a model of their own."""

    liars = ("site3",)

    def prepare(self, journal: Journal | None = None) -> None:
        super().prepare(journal)
        for name in self.liars:
            model = self.sites[name].build("proxy")
            self.runs[name].state = State(replace(model, params=model.params * 9.0), halted=True)


@pytest.mark.parametrize("topology", [None, {"name": "star", "leader": "site0"}])
@pytest.mark.parametrize("liars", [("site3",), ("site2", "site3")])
def test_members_that_claim_to_have_ended_do_not_end_it_for_the_others(
    topology: Any, liars: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = study(6, topology)
    monkeypatch.setattr(_Planted, "liars", liars)
    run = _Planted(found, open_sites(found, arrays(4))).run()
    honest = {f"site{n}" for n in range(4)} - set(liars)
    assert trained_in(run) == dict.fromkeys(range(6), honest)
    assert all(run.sites[site].metrics.accuracy > 0.8 for site in honest)


def test_a_majority_that_has_ended_ends_it_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    found = study(6)
    monkeypatch.setattr(_Planted, "liars", ("site1", "site2", "site3"))
    run = _Planted(found, open_sites(found, arrays(4))).run()
    assert trained_in(run) == {0: {"site0"}}
    models = [run.models[s]["model"].params for s in run.models]
    assert all(m.equals(models[0]) for m in models)


def test_with_two_members_neither_ends_it_for_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    found = study(4)
    monkeypatch.setattr(_Planted, "liars", ("site1",))
    run = _Planted(found, open_sites(found, arrays(2))).run()
    assert trained_in(run) == {number: {"site0"} for number in range(4)}


def test_a_site_whose_budget_is_spent_does_not_end_it_for_the_others() -> None:
    privacy = Privacy(epsilon=1.0, noise_multiplier=2.0, delta=1e-4)
    run = simulate(study(12, "star", privacy), arrays())
    assert any(e.kind == "budget-spent" for e in run.events)
    assert not any("diverged" in text for text in notices(run))
