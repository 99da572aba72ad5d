"""What an audit reports, to people and to machines, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from confrere.cli import add_commands, app
from confrere.core.custody import Custody
from confrere.core.errors import StudyError
from confrere.evaluate.audit import Audit, AuditEffort, audit
from confrere.evaluate.audit.audit_statistics import Detected, Membership
from confrere.evaluate.audit.canaries import (
    CanaryResult,
    ReleaseReader,
    canary_federation,
    canary_study,
    make_canary_records,
)
from confrere.evaluate.audit.membership_inference import MembershipResult
from confrere.evaluate.audit.observed_simulation import ObservedSimulation, largest, most_exposed
from confrere.evaluate.audit.reconstruction import ReconstructionResult
from confrere.privacy.charges import Guarantee
from confrere.privacy.mechanism import Mechanism
from confrere.simulation.backends import simulate
from confrere.simulation.simulation import Simulation
from confrere.site.open_sites import open_sites
from confrere.study import Models, Privacy, Stop, Study, Training
from tests.conftest import arrays, write_study

TINY = AuditEffort(runs=20, canaries=100, shadows=8, attempts=2)
TRAINING = Training(batch_size=200, tune=False, protected={"optimiser": "sgd", "learning_rate": 0.5})


def study(**changes: Any) -> Study:
    base = Study(
        name="audited",
        rounds=2,
        strategy={"name": "proxyfl", "private": "distil", "alpha": 0.5},
        training=TRAINING,
        privacy=Privacy(epsilon=2.0, delta=1e-4, steps=1),
    )
    return base.with_(**changes)


def report(detected: float, claimed: float | None, proven: bool = True) -> Audit:
    """An audit that detected this much."""
    claim = None if claimed is None else Guarantee(claimed, 1e-5, proven=proven)
    return Audit(
        study(), "a", CanaryResult(Detected(detected, 1e-5, 0.95, "all canaries"), claim, 300, 2000, 2, 4),
        {"released": MembershipResult(Membership(0.5, 0.1, 0.01, 0.0, 0.0), 0.02, 70, 16)},
        {"released": ReconstructionResult(0.1, 0.1, 0.0, 0.0, 70, 10)},
        seconds=61.2,
    )  # fmt: skip


def test_a_broken_guarantee_is_reported_in_plain_words() -> None:
    verdict = report(2.2, 0.6).verdict
    assert verdict.startswith("at least ε = 2.2 was detected")
    assert verdict.endswith("claimed 0.6: the guarantee is broken")
    assert report(0.7, 0.6).broken


def test_finding_nothing_is_said_to_prove_nothing() -> None:
    found = report(0.4, 0.6)
    assert not found.broken
    assert found.verdict == (
        "at least ε = 0.4 was detected (95 % confidence); claimed 0.6: no contradiction; a low value proves nothing"
    )
    assert "as published, not proven" in report(0.4, 0.6, proven=False).verdict


def test_where_nothing_is_claimed_nothing_is_broken() -> None:
    found = report(3.0, None)
    assert not found.broken
    assert "the study claims no guarantee" in found.verdict


def test_the_report_states_trials_time_and_what_the_attacker_knew() -> None:
    text = " ".join(report(0.4, 0.6).sentences())
    assert "600,000 trials in 61 s: 2,000 runs of 2 rounds" in text
    assert "The attacker knew all other records" in text
    assert "not the coins, the samples and the noise" in text


def test_the_document_has_its_keys() -> None:
    document = json.loads(json.dumps(report(2.2, 0.6).as_json()))
    assert set(document) == {
        "study", "strategy", "seed", "site", "claimed", "detected", "broken", "verdict", "trials", "runs", "rounds",
        "canaries", "releases", "known", "membership", "reconstruction", "seconds",
    }  # fmt: skip
    assert document["detected"]["epsilon"] == 2.2
    assert document["trials"] == 600_000
    assert {"area", "error", "caught", "false_alarms"} <= set(document["membership"]["released"])
    assert {"similarity", "error", "unrelated"} <= set(document["reconstruction"]["released"])


@pytest.mark.parametrize(("claimed", "code"), [(0.6, 4), (3.0, 0)], ids=["broken", "no contradiction"])
def test_a_broken_guarantee_has_an_exit_code_of_its_own(
    claimed: float, code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    add_commands()
    monkeypatch.setattr("confrere.evaluate.audit.audit", lambda *given, **options: report(2.2, claimed))
    path = write_study(tmp_path, "rounds = 2")
    for flags in ([], ["--json"]):
        answer = CliRunner().invoke(app, ["audit", str(path), *flags])
        assert answer.exit_code == code
        assert "2.2" in answer.stdout  # the result is printed either way


def test_a_whole_audit_of_a_sound_study(tmp_path: Path) -> None:
    add_commands()
    path = write_study(
        tmp_path,
        'rounds = 2\nstrategy = { name = "proxyfl", private = "distil", alpha = 0.5 }\n'
        "[training]\nbatch_size = 200\ntune = false\n[privacy]\nepsilon = 2.0\ndelta = 1e-4\nsteps = 1\n",
        records=60,
    )
    out = CliRunner().invoke(app, ["audit", str(path), "--runs", "20", "--canaries", "200", "--json"])
    assert out.exit_code == 0, out.output
    document = json.loads(out.stdout)
    assert document["broken"] is False
    assert document["claimed"]["proven"] is True
    assert 0 < document["claimed"]["epsilon"] <= 2.0
    assert 0 < document["detected"]["epsilon"] < 2.0
    assert document["trials"] == 4000
    assert document["membership"].keys() == {"released", "private"}
    assert document["reconstruction"].keys() == {"released", "released_without_noise", "private"}


def test_a_quick_audit_looks_for_the_bound_alone(tmp_path: Path) -> None:
    add_commands()
    path = write_study(tmp_path, 'rounds = 1\nstrategy = "fedavg"\n[privacy]\nepsilon = 2.0\n', records=60)
    out = CliRunner().invoke(app, ["audit", str(path), "--quick", "--seconds", "0.5"])
    assert out.exit_code == 0, out.output
    assert "claimed 2: no contradiction; a low value proves nothing" in out.stdout
    assert "trials in" in out.stdout
    assert "Membership" not in out.stdout


def test_an_audit_of_a_study_without_privacy_finds_what_everybody_knows() -> None:
    found = audit(study(privacy=None, strategy="fedavg"), arrays(2, 60), effort=TINY)
    assert found.claimed is None
    assert found.detected.epsilon > 0
    assert "claims no guarantee" in found.sentences()[0]


def tasks() -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Changes to the study, and records, of every kind of task."""
    plain = arrays(2, 60)
    by_patient = Privacy(epsilon=2.0, delta=1e-4, sampling="poisson", batch_size=20, unit="patient")
    return {
        "three classes": ({}, arrays(2, 60, classes=3)),
        "regression": ({}, {n: (x, 2 * x[:, 0]) for n, (x, _) in plain.items()}),
        "patients": (
            {"privacy": by_patient},
            {n: (x, y, np.arange(len(y)) // 2) for n, (x, y) in plain.items()},
        ),
    }


@pytest.mark.parametrize("task", tasks())
def test_every_kind_of_task_can_be_audited(task: str) -> None:
    changes, sites = tasks()[task]
    found = audit(study(**changes), sites, effort=TINY)
    assert not found.broken
    assert found.membership.keys() == {"released", "private"}
    assert found.reconstruction.keys() == {"released", "released without noise", "private"}


def test_only_what_passed_the_gate_is_attacked() -> None:
    plan = study()
    observed = ObservedSimulation(plan, open_sites(plan, arrays(2, 60)), "site0")
    seen = observed.run_once(0)
    assert len(seen.released) == plan.rounds
    assert all(m.custody == Custody.PROTECTED for m in seen.released)
    assert seen.private_models.keys() == {"private"}
    assert all(seen.start(at) is not None for at in range(plan.rounds))


def test_runs_differ_in_chance_and_in_nothing_else() -> None:
    plan = study()
    observed = ObservedSimulation(plan, open_sites(plan, arrays(2, 60)), "site0")
    one, two, again = observed.run_once(0), observed.run_once(1), observed.run_once(0)
    first = one.start(0), two.start(0)
    assert first[0] is not None
    assert first[1] is not None
    assert first[0].equals(first[1])
    assert not one.released[0].params.equals(two.released[0].params)
    assert all(a.params.equals(b.params) for a, b in zip(one.released, again.released, strict=True))
    assert one.claimed == two.claimed


@pytest.mark.parametrize(
    "changes",
    [
        {"stop": Stop(change=0.9)},
        {"compression": "int8"},
        {"training": replace(TRAINING, balanced=True), "models": Models(proxy="centred-linear")},
    ],
    ids=["stop", "int8", "balanced"],
)
def test_every_run_starts_from_the_beginning(changes: dict[str, Any]) -> None:
    plan = study(rounds=4, **changes)
    sites = open_sites(plan, arrays(2, 60))
    pool = sites.sites["site0"].train
    observed = ObservedSimulation(plan, sites, "site0")
    ill = pool.select((pool.targets == 1).nonzero()[:, 0])
    one, _, two = observed.run_once(1, pool), observed.run_once(2, ill), observed.run_once(1, pool)
    assert one.claimed is not None
    assert one.claimed == two.claimed
    assert one.trained
    for before, after in zip(one.trained, two.trained, strict=True):
        assert before.end.equals(after.end)
    assert all(a.params.equals(b.params) for a, b in zip(one.released, two.released, strict=True))


def test_an_audited_site_stops_and_records_its_rounds_as_in_any_run() -> None:
    plan = study(rounds=5, stop=Stop(change=0.9))
    sites = arrays(2, 60)
    observed = ObservedSimulation(plan, open_sites(plan, sites), "site0")
    observed.run_once(0)
    found, expected = observed.sites["site0"].journal.events, simulate(plan, sites).events
    kinds = ("round-started", "trained", "sent", "notice")
    for kind in kinds:
        rounds = [
            e.round for e in expected if e.kind == kind and e.site in (None, "site0") and e.round is not None
        ]
        assert [e.round for e in found if e.kind == kind and e.site in (None, "site0")] == rounds != []


def test_the_gate_of_an_audited_site_has_all_rules() -> None:
    plan = study()
    observed = ObservedSimulation(plan, open_sites(plan, arrays(2, 60)), "site0")
    real = Simulation(plan, open_sites(plan, arrays(2, 60)))
    real.prepare()
    gate, expected = observed.peers["site0"].gate, real.peers["site0"].gate
    assert type(gate) is type(expected)
    assert set(gate.architectures or ()) == set(expected.architectures or ()) != set()
    assert (gate.names, gate.accept_unproven, gate.limits) == (
        expected.names,
        expected.accept_unproven,
        expected.limits,
    )
    assert gate.on_event is not None


def canary_run(plan: Study, count: int = 40) -> tuple[ObservedSimulation, Any]:
    """A site that holds canaries."""
    federation = open_sites(plan, arrays(3, 60))
    ready = canary_study(plan, federation, "site0", count)
    return ObservedSimulation(
        ready, canary_federation(federation, count), "site0", peers_train=False
    ), make_canary_records(ready, count)


def test_the_claim_and_the_mechanism_do_not_depend_on_which_canaries_are_in() -> None:
    plan = study()
    observed, canary_records = canary_run(plan)
    none, every = (observed.run_once(0, canary_records.records(torch.full((40,), x))) for x in (False, True))
    assert none.claimed == every.claimed
    size = open_sites(plan, arrays(3, 60)).sites["site0"].size
    assert observed.sites["site0"].size == size
    assert observed.sites["site0"].mechanism.expected_batch == size  # type: ignore[union-attr]


def test_canaries_have_orthogonal_gradients_of_the_full_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without noise each canary that is in moves its own weight by the clipping norm, and no other."""
    honest = Mechanism.release
    monkeypatch.setattr(
        Mechanism, "release", lambda self, *rest: honest(replace(self, noise_multiplier=0.0), *rest)
    )
    observed, canary_records = canary_run(study(strategy="fedavg", rounds=1))
    included = torch.arange(40) % 3 == 0
    seen = observed.run_once(0, canary_records.records(included))
    moved = (
        ReleaseReader.of(seen).moved(seen, canary_records)[0] / 1e-6
    )  # how far a unit of gradient moves a weight
    assert moved == pytest.approx(included.double().numpy(), abs=0.01)


@pytest.mark.parametrize("name", ["proxyfl", "weight_erosion", "swarm"])
def test_a_release_is_traced_to_the_training_that_it_shows(name: str) -> None:
    observed, canary_records = canary_run(study(strategy=name))
    seen = observed.run_once(0, canary_records.records(torch.ones(40, dtype=torch.bool)))
    reader = ReleaseReader.of(seen)
    moved = reader.moved(seen, canary_records)
    releases = 2 * (2 if name == "weight_erosion" else 1)
    assert len(reader.origins) >= releases
    for origin, row in zip(reader.origins, moved, strict=True):
        training = seen.trained[origin.training]
        weight = next(k for k, v in training.end.items() if v.numel() == 40)
        truth = (training.start[weight] - training.end[weight]).reshape(-1) * canary_records.sign
        assert row == pytest.approx(truth.double().numpy(), rel=1e-3, abs=1e-8)


def test_only_the_audited_site_trains_beside_its_canaries() -> None:
    observed, canary_records = canary_run(study(strategy="fedavg", rounds=1))
    fresh = observed.sites["site1"].build("proxy").params
    sent = []
    peers = observed.peers["site1"]
    admit = peers.gate.admit
    peers.gate = replace(peers.gate)
    object.__setattr__(
        peers.gate, "admit", lambda model, *a, **k: (sent.append(model), admit(model, *a, **k))[1]
    )
    observed.run_once(0, canary_records.records(torch.ones(40, dtype=torch.bool)))
    assert [m.params.equals(fresh) for m in sent] == [True]


def test_a_canary_is_a_patient_of_its_own_with_two_records() -> None:
    by_patient = Privacy(epsilon=2.0, delta=1e-4, unit="patient")
    canary_records = make_canary_records(study(privacy=by_patient), 40)
    records = canary_records.records(torch.arange(40) < 3)
    assert records.units is not None
    assert records.units.tolist()[:6] == [0, 0, 1, 1, 2, 2]
    assert len(torch.unique(records.units[6:])) == len(records) - 6


def test_the_smallest_site_is_the_most_exposed() -> None:
    federation = open_sites(study(), arrays(3, 60))
    assert (most_exposed(federation), largest(federation)) == ("site0", "site2")


@pytest.mark.parametrize(
    "effort",
    [
        {"runs": 3},
        {"canaries": 2},
        {"seconds": 0.0},
        {"seconds": float("nan")},
        {"seconds": 1e9},
        {"runs": 10**9},
    ],
)
def test_too_little_or_endless_effort_is_refused(effort: dict[str, Any]) -> None:
    with pytest.raises(StudyError, match=r"at least|more than 0"):
        AuditEffort(**effort)


@pytest.mark.parametrize(("name", "why"), [("pooled", "no gate"), ("local", "sends nothing")])
def test_what_sends_nothing_cannot_be_audited(name: str, why: str) -> None:
    with pytest.raises(StudyError, match=why):
        audit(study(strategy=name), arrays(2, 60), effort=TINY)


def test_an_audit_with_the_fewest_canaries_has_none_with_echoes() -> None:
    least = AuditEffort(runs=8, canaries=10, shadows=0, attempts=0)
    assert not audit(study(strategy="fedavg"), arrays(2, 60), effort=least).broken
