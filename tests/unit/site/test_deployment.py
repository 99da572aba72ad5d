"""A site deploys its own model where the collaborative one is worse on its own held-out records."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from confrere.cli.output import deployed_note
from confrere.core.custody import Custody, public
from confrere.core.events import Journal
from confrere.core.model import Model
from confrere.data.records import Records
from confrere.learning.engine.one_site import Job
from confrere.learning.fit.tuning import Choice
from confrere.simulation.simulation import Simulation, simulate
from confrere.site import deployment
from confrere.site.deployment import Deployment
from confrere.site.open_sites import open_sites
from confrere.site.run_folder import Run
from confrere.site.site_folder import site_folder_of
from confrere.study import Models, Study
from tests.conftest import arrays
from tests.unit.quick import TRAINING, quick

ATTACK = {"name": "signflip", "attackers": ["site3"], "strength": 4.0}
HONEST = ("site0", "site1", "site2")


def attacked(strategy: Any, folder: Path, **changes: Any) -> Run:
    study = quick(strategy, rounds=8, attack=ATTACK, **{"privacy": None, **changes})
    return simulate(study, arrays(4, 200), out=folder)


def card(run: Run, site: str) -> dict[str, Any]:
    assert run.folder is not None
    text = (site_folder_of(run.folder, site) / "model" / "card.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def deployed_auc(run: Run, site: str) -> float:
    return float(card(run, site)["metrics_private"]["auc"])


@pytest.fixture(scope="module")
def alone() -> Run:
    return simulate(quick("local", training=replace(TRAINING, tune=True), privacy=None), arrays(4, 200))


@pytest.mark.parametrize(
    "strategy",
    [
        "fedavg",
        "avgpush",
        "personal",
        "proxyfl",
        {"name": "proxyfl", "private": "distil", "alpha": 0.9},
        "fml",
        "swarm",
    ],
    ids=str,
)
def test_a_dishonest_peer_cannot_make_a_site_deploy_a_model_worse_than_its_own(
    strategy: Any, tmp_path: Path, alone: Run
) -> None:
    run = attacked(strategy, tmp_path / "run")
    for site in HONEST:
        assert deployed_auc(run, site) > alone.sites[site].metrics.auc - 0.03


def test_the_attack_harms_where_the_comparison_is_switched_off(
    tmp_path: Path, alone: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deployment, "_needs_comparison", lambda run: False)
    run = attacked("fedavg", tmp_path / "run")
    assert all(deployed_auc(run, s) < alone.sites[s].metrics.auc - 0.3 for s in HONEST)


def test_the_saved_model_is_the_one_that_the_site_gets_alone(tmp_path: Path, alone: Run) -> None:
    run = attacked("fedavg", tmp_path / "run")
    for site in HONEST:
        folder = site_folder_of(tmp_path / "run", site) / "model"
        saved, expected = load_file(folder / "model.safetensors"), alone.models[site]["model"].params
        for name, tensor in saved.items():
            torch.testing.assert_close(tensor, expected[name.removeprefix("0/")])
        assert card(run, site)["deployed"]["model"] == "own"
        assert deployed_auc(run, site) == alone.sites[site].metrics.auc
        assert "deploys its own model" in (folder / "card.md").read_text(encoding="utf-8").lower()


def test_the_choice_is_private_and_shown_to_whoever_rehearses(tmp_path: Path) -> None:
    run = attacked("fedavg", tmp_path / "run")
    chosen = [e for e in run.events if e.kind == "deployed"]
    assert {e.site for e in chosen} == {*HONEST, "site3"}
    assert {e.custody for e in chosen} == {Custody.PRIVATE}
    (note,) = deployed_note(run.events)
    assert "site0, site1, site2" in note


def test_a_site_that_gains_from_its_peers_deploys_the_collaborative_model(tmp_path: Path) -> None:
    study = quick("fedavg", rounds=30, privacy=None, training=replace(TRAINING, learning_rate=0.2))
    run = simulate(study, arrays(10, 24), out=tmp_path / "run")
    chosen = [e.data["model"] for e in run.events if e.kind == "deployed"]
    assert chosen.count("collaborative") >= 8


@pytest.mark.parametrize("strategy", ["local", "pooled"])
def test_nothing_is_compared_where_no_peer_has_a_part_in_the_model(strategy: str, tmp_path: Path) -> None:
    run = simulate(quick(strategy, privacy=None), arrays(2, 60), out=tmp_path / "run")
    assert "deployed" not in {e.kind for e in run.events}


def test_nothing_is_compared_twice(tmp_path: Path) -> None:
    """ProxyFL's final fit compares with training alone by cross-validation; with `distil` there is no such fit."""
    training = replace(TRAINING, tune=True, tune_priors=(1.0,))
    stacked = quick("proxyfl", training=training)
    distilled = quick({"name": "proxyfl", "private": "distil"}, training=training)
    for study, compared in ((stacked, False), (distilled, True)):
        run = simulate(study, arrays(2, 60), out=tmp_path / str(compared))
        assert ("deployed" in {e.kind for e in run.events}) is compared


# -- few held-out records ------------------------------------------------------------------------------


def site_run(records: int = 60, study: Study | None = None, **parts: Any) -> Any:
    """A site whose collaborative model is the opposite of a good one; `parts` replace parts of its records."""
    study = study or quick("fedavg", privacy=None)
    simulation = Simulation(study, open_sites(study, arrays(2, records)))
    simulation.prepare(Journal(None))
    run = simulation.runs["site0"]
    run.begin(0)
    run.site.data = replace(run.site.data, **parts)
    return run


def opposite(run: Any) -> Deployment:
    own = deployment.train_alone(run.site, run.site.own_records())
    bad = Model(own.params * -1.0, own.architecture, Custody.PUBLIC)
    found: Deployment = deployment.choose_deployment(run, "site0", ((public(1.0), bad),))
    return found


def none_of(records: Records) -> Records:
    return records.select([])


def test_without_validation_records_a_site_cross_validates_its_own_model() -> None:
    run = site_run()
    run.site.data = replace(run.site.data, validation=none_of(run.site.data.validation))
    assert opposite(run).own
    own = deployment.train_alone(run.site, run.site.own_records())
    assert not deployment.choose_deployment(run, "site0", ((public(1.0), own),)).own


@pytest.mark.parametrize("network", ["linear", "mlp"])
def test_each_fold_is_judged_on_records_left_out_with_the_regularisation_chosen_once(
    network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = replace(TRAINING, tune_priors=(1.0, 10.0), tune_lengths=(10,))
    run = site_run(study=quick("fedavg", privacy=None, training=training, models=Models(private=network)))
    fitted: list[tuple[Records, Choice | None]] = []
    judged: list[Records] = []

    def watched_fit(job: Job, *given: Any, chosen: Choice | None, fit: Any = deployment.fit) -> Any:
        fitted.append((job.records, chosen))
        return fit(job, *given, chosen=chosen)

    def watched_losses(site: Any, model: Any, records: Records, losses: Any = deployment._losses) -> Any:
        judged.append(records)
        return losses(site, model, records)

    monkeypatch.setattr(deployment, "fit", watched_fit)
    monkeypatch.setattr(deployment, "_losses", watched_losses)
    deployment._held_out_losses(run.site, ((public(1.0), run.site.build("private")),))
    assert [chosen is None for _, chosen in fitted] == [True, *[False] * deployment.FOLDS]
    folds = judged[: deployment.FOLDS]
    assert sum(map(len, folds)) == len(run.site.own_records())
    tested = patients(run.site.data.test)
    for (used, _), left_out in zip(fitted[1:], folds, strict=True):
        assert not patients(used) & (patients(left_out) | tested)
    assert not patients(fitted[0][0]) & tested


def patients(records: Records) -> set[tuple[float, ...]]:
    return {tuple(row) for row in records.inputs.tolist()}


def test_validation_records_of_one_class_are_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    run = site_run(400)
    data = run.site.data
    one = data.validation.select((data.validation.targets == 0).nonzero()[:, 0])
    assert one.patients >= deployment.FEW
    run.site.data = replace(data, validation=one)
    monkeypatch.setattr(deployment, "FOLDS", 2)
    together, *_ = deployment._held_out_losses(run.site, ((public(1.0), run.site.build("private")),))
    assert len(together) == len(run.site.own_records())
    assert opposite(run).own


def test_a_site_without_records_deploys_what_its_peers_sent() -> None:
    run = site_run()
    nothing = none_of(run.site.data.train)
    run.site.data = replace(run.site.data, train=nothing, validation=nothing, test=nothing)
    model = run.site.build("private")
    found = deployment.choose_deployment(run, "site0", ((public(1.0), model),))
    assert not found.own
    assert "too few records" in found.text


def test_a_model_that_predicts_no_number_is_not_deployed() -> None:
    run = site_run(400)
    start = run.site.build("private")
    broken = Model(start.params * float("nan"), start.architecture, Custody.PUBLIC)
    assert deployment.choose_deployment(run, "site0", ((public(1.0), broken),)).own


def test_records_of_one_patient_count_as_one() -> None:
    run = site_run(400)
    validation = run.site.data.validation
    units = torch.arange(len(validation)) // 4
    run.site.data = replace(run.site.data, validation=replace(validation, units=units))
    assert run.site.data.validation.patients < deployment.FEW
    losses = torch.arange(8.0, dtype=torch.float64)
    eight = replace(validation.select(range(8)), units=torch.tensor([5, 5, 5, 5, 9, 9, 9, 9]))
    assert deployment._per_patient(losses, eight).tolist() == [1.5, 5.5]
