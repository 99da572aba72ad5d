"""A site deploys its own model where the collaborative one is worse on its own held-out records."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from scipy import stats

from confrere.cli.output import deployed_note
from confrere.core.custody import Custody, public
from confrere.core.errors import TrainingError
from confrere.core.events import Journal
from confrere.core.model import Model
from confrere.data.records import Records
from confrere.learning.local_training.one_site import Job
from confrere.report import words
from confrere.simulation.backends import simulate
from confrere.simulation.finished_run import Run
from confrere.simulation.simulation import Simulation
from confrere.site import deployment
from confrere.site.deployment import Deployment
from confrere.site.open_sites import open_sites
from confrere.site.site_folder import site_folder_of
from confrere.study import Models, SiteConfig, Study
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
def test_a_fold_neither_learns_nor_chooses_its_regularisation_from_the_records_that_judge_it(
    network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = replace(TRAINING, tune_priors=(1.0, 10.0), tune_lengths=(10,))
    run = site_run(study=quick("fedavg", privacy=None, training=training, models=Models(private=network)))
    fitted: list[Records] = []
    judged: list[Records] = []

    def watched_fit(job: Job, *given: Any, fit: Any = deployment.fit) -> Any:
        fitted.append(job.records)
        return fit(job, *given)

    def watched_losses(site: Any, model: Any, records: Records, losses: Any = deployment._losses) -> Any:
        judged.append(records)
        return losses(site, model, records)

    monkeypatch.setattr(deployment, "fit", watched_fit)
    monkeypatch.setattr(deployment, "_losses", watched_losses)
    deployment._held_out_losses(run.site, ((public(1.0), run.site.build("private")),))
    folds = judged[: deployment.FOLDS]
    assert sum(map(len, folds)) == len(run.site.own_records())
    tested = patients(run.site.data.test)
    for used, left_out in zip(fitted, folds, strict=True):
        assert not patients(used) & (patients(left_out) | tested)


def patients(records: Records) -> set[tuple[float, ...]]:
    return {tuple(row) for row in records.inputs.tolist()}


def test_validation_records_of_one_class_are_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    run = site_run(400)
    data = run.site.data
    one = data.validation.select((data.validation.targets == 0).nonzero()[:, 0])
    assert one.patients >= deployment.FEW
    run.site.data = replace(data, validation=one)
    monkeypatch.setattr(deployment, "FOLDS", 2)
    together, _ = deployment._held_out_losses(run.site, ((public(1.0), run.site.build("private")),))
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


# -- the verdict on the model of this run --------------------------------------------------------------


def judged(run: Any, sign: float) -> Deployment:
    """The verdict on the site's own model with its weights multiplied by `sign`."""
    own = deployment.train_alone(run.site, run.site.own_records())
    model = Model(own.params * sign, own.architecture, Custody.PUBLIC)
    found: Deployment = deployment.choose_deployment(run, "site0", ((public(1.0), model),))
    return found


def test_a_model_is_judged_against_training_alone_on_the_test_patients() -> None:
    run = site_run(400)
    worse, same = judged(run, -1.0).verdict, judged(run, 1.0).verdict
    assert worse is not None
    assert same is not None
    assert (worse.metric, worse.word, same.word) == ("log_loss", "worse", "no clear difference")
    assert worse.tested.patients == run.site.data.test.patients
    assert worse.interval is not None
    assert worse.interval[0] < worse.gain < worse.interval[1] < 0
    assert same.interval == (0.0, 0.0)


def test_the_gain_is_the_difference_of_the_losses_and_its_interval_that_of_its_mean() -> None:
    run = site_run(400)
    found, test = judged(run, -1.0).verdict, run.site.data.test
    own = deployment.train_alone(run.site, run.site.own_records())
    terms = [((public(1.0), Model(own.params * s, own.architecture, Custody.PUBLIC)),) for s in (1.0, -1.0)]
    before, after = (deployment._losses(run.site, t, test) for t in terms)
    difference = before - after
    assert found is not None
    assert found.interval is not None
    assert found.gain == pytest.approx(float(difference.mean()), rel=1e-4)
    error = float(difference.std()) / len(test) ** 0.5
    width = float(stats.t.ppf(0.975, found.tested.rarer - 1)) * error
    assert found.interval[1] - found.gain == pytest.approx(width, rel=1e-2)
    assert float((difference - difference.mean()).pow(3).mean()) < 0  # a few large losses: the longer side
    assert width < found.gain - found.interval[0] < 1.2 * width


def test_the_study_states_the_measure_that_carries_the_verdict() -> None:
    study = quick("fedavg", privacy=None, evaluation=replace(quick().evaluation, primary="auc"))
    found = judged(site_run(400, study), -1.0).verdict
    assert found is not None
    assert (found.metric, found.word) == ("auc", "worse")


def test_ten_patients_of_the_rarer_class_are_needed_for_a_verdict() -> None:
    run = site_run(400)
    test = run.site.data.test
    rows = torch.cat([(test.targets == 0).nonzero()[:30, 0], (test.targets == 1).nonzero()[:9, 0]])
    run.site.data = replace(run.site.data, test=test.select(rows))
    found = judged(run, -1.0).verdict
    assert found is not None
    assert (found.word, found.interval, found.tested.rarer) == ("too few to judge", None, 9)


def test_the_records_of_a_patient_count_once_in_a_verdict() -> None:
    run = site_run(400)
    test = run.site.data.test
    run.site.data = replace(run.site.data, test=replace(test, units=torch.arange(len(test)) // 4))
    found, single = judged(run, -1.0).verdict, judged(site_run(400), -1.0).verdict
    assert found is not None
    assert single is not None
    assert found.tested.patients == -(-len(test) // 4)
    assert found.gain == pytest.approx(single.gain)
    assert found.interval != single.interval


@pytest.mark.parametrize("strategy", ["local", "pooled"])
def test_there_is_no_verdict_where_no_peer_has_a_part_in_the_model(strategy: str, tmp_path: Path) -> None:
    run = simulate(quick(strategy, privacy=None), arrays(2, 60), out=tmp_path / "run")
    assert "judged" not in {e.kind for e in run.events}
    assert "verdict_private" not in card(run, "site0")


def test_the_verdict_is_private_and_made_once_after_the_last_round(tmp_path: Path) -> None:
    run = attacked("fedavg", tmp_path / "run")
    found = [e for e in run.events if e.kind == "judged"]
    assert sorted(str(e.site) for e in found) == [*HONEST, "site3"]
    assert {(e.custody, e.round) for e in found} == {(Custody.PRIVATE, run.study.rounds)}
    facts, text = (
        card(run, "site0")["verdict_private"],
        (site_folder_of(tmp_path / "run", "site0") / "model" / "card.md").read_text(encoding="utf-8"),
    )
    assert facts["word"] == "worse"
    assert "the collaborative model, which is not deployed: worse than training alone" in text
    assert "Of 100 patients, alone → together, missed" in text
    assert "worse than training alone" in run.report().read_text(encoding="utf-8")


def test_a_site_chooses_the_threshold_of_its_own_warnings() -> None:
    study = quick("fedavg", privacy=None, evaluation=replace(quick().evaluation, threshold=0.3))
    plain, stated = (judged(site_run(400, s), -1.0).verdict for s in (quick("fedavg", privacy=None), study))
    own = judged(site_run(400, replace(study, sites={"site0": SiteConfig(threshold=0.8)})), -1.0).verdict
    found = [v.at_threshold.threshold for v in (plain, stated, own) if v is not None and v.at_threshold]
    data = site_run(400).site.data
    share, wrong = (float((part.targets == 1).double().mean()) for part in (data.train, data.test))
    assert share != wrong
    assert found == [pytest.approx(share), 0.3, 0.8]


def test_errors_of_100_patients_have_an_interval_and_the_patients_behind_it() -> None:
    found = judged(site_run(400), -1.0).verdict
    assert found is not None
    assert found.at_threshold is not None
    for pair, ends in (
        (found.at_threshold.missed, found.at_threshold.missed_change),
        (found.at_threshold.false_alarms, found.at_threshold.false_alarms_change),
    ):
        assert ends is not None
        assert ends[0] <= pair[1] - pair[0] <= ends[1]
    text = words.errors_of_100(found)
    assert "95 % interval of the change" in text
    assert words.tested(found.tested) in text


def test_too_few_patients_have_errors_without_an_interval() -> None:
    found = judged(site_run(30), -1.0).verdict
    assert found is not None
    assert found.tested.rarer < 10
    assert found.at_threshold is not None
    assert found.at_threshold.missed_change is None
    assert "too few to judge" in words.errors_of_100(found)


def test_in_the_field_a_verdict_that_cannot_be_reached_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("no memory")

    run = site_run(400)
    monkeypatch.setattr(deployment, "model_verdict", fail)
    with pytest.raises(TrainingError, match="not judged against training alone"):
        judged(run, 1.0)
    run.site.joined = True
    assert judged(run, 1.0).verdict is None
    assert run.site.journal.events[-1].custody is Custody.PRIVATE
