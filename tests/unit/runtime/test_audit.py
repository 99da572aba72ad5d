"""What an audit says, to people and to machines, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from confrere.cli import app, wire
from confrere.core.custody import Custody
from confrere.core.errors import StudyError
from confrere.data.records import Records
from confrere.privacy.accounting import Guarantee
from confrere.privacy.detect import Detected, Membership
from confrere.runtime.audit import Audit, Effort, audit
from confrere.runtime.audit.canaries import Canaries, made_up
from confrere.runtime.audit.membership import Guessed
from confrere.runtime.audit.outlier import Outlier, trap
from confrere.runtime.audit.reconstruction import Rebuilt
from confrere.runtime.audit.watch import Watched, added, most_exposed
from confrere.runtime.records import open_sites
from confrere.study import Privacy, Study, Training
from tests.conftest import arrays, write_study

TINY = Effort(runs=20, canaries=20, shadows=8, attempts=2)
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


def told(many: float, one: float, claimed: float | None, proven: bool = True) -> Audit:
    """An audit that detected so much."""
    claim = None if claimed is None else Guarantee(claimed, 1e-5, proven=proven)
    return Audit(
        study(), "a", claim,
        Canaries(Detected(one, 1e-5, 0.975, "one run"), claim, 100, 48),
        Outlier(Detected(many, 1e-5, 0.975, "many runs"), claim, 100, 5, 100.0),
        {"released": Guessed(Membership(0.5, 0.1, 0.01, 0.0, 0.0), 0.02, 70, 16)},
        {"released": Rebuilt(0.1, 0.1, 0.0, 0.0, 70, 10)},
    )  # fmt: skip


def test_a_broken_guarantee_is_said_in_plain_words() -> None:
    verdict = told(2.2, 0.0, 0.6).verdict
    assert verdict.startswith("at least ε = 2.2 was detected")
    assert verdict.endswith("claimed 0.6: the guarantee is broken")
    assert told(0.0, 0.7, 0.6).broken


def test_finding_nothing_is_said_to_prove_nothing() -> None:
    found = told(0.4, 0.0, 0.6)
    assert not found.broken
    assert found.verdict.startswith("nothing beyond the claimed ε = 0.6 was detected")
    assert "a low value proves nothing" in found.verdict
    assert "as published, not proven" in told(0.4, 0.0, 0.6, proven=False).verdict


def test_where_nothing_is_claimed_nothing_is_broken() -> None:
    found = told(3.0, 0.0, None)
    assert not found.broken
    assert "the study claims no guarantee" in found.verdict


def test_the_document_has_its_keys() -> None:
    document = json.loads(json.dumps(told(2.2, 0.1, 0.6).result))
    assert set(document) == {
        "study", "strategy", "seed", "site", "claimed", "detected", "broken", "verdict", "attacks", "seconds",
    }  # fmt: skip
    assert document["detected"]["epsilon"] == 2.2
    assert set(document["attacks"]) == {"one_run", "many_runs", "membership", "reconstruction"}
    assert {"area", "error", "caught", "false_alarms"} <= set(document["attacks"]["membership"]["released"])
    assert {"similarity", "error", "unrelated"} <= set(document["attacks"]["reconstruction"]["released"])


def test_a_whole_audit_of_a_sound_study(tmp_path: Path) -> None:
    wire()
    path = write_study(
        tmp_path,
        'rounds = 2\nstrategy = { name = "proxyfl", private = "distil", alpha = 0.5 }\n'
        "[training]\nbatch_size = 200\ntune = false\n[privacy]\nepsilon = 2.0\ndelta = 1e-4\nsteps = 1\n",
        records=60,
    )
    out = CliRunner().invoke(
        app, ["audit", str(path), "--quick", "--runs", "20", "--canaries", "20", "--json"]
    )
    assert out.exit_code == 0, out.output
    document = json.loads(out.stdout)
    assert document["broken"] is False
    assert document["claimed"]["proven"] is True
    assert 0 < document["claimed"]["epsilon"] <= 2.0
    assert document["attacks"]["membership"].keys() == {"released", "private"}
    assert document["attacks"]["reconstruction"].keys() == {"released", "released_without_noise", "private"}


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
    watched = Watched(plan, open_sites(plan, arrays(2, 60)), "site0")
    seen = watched.play(0)
    assert len(seen.left) == plan.rounds
    assert all(m.custody == Custody.PROTECTED for m in seen.left)
    assert seen.inside.keys() == {"private"}
    assert all(start is not None for start in seen.start)


def test_runs_differ_in_chance_and_in_nothing_else() -> None:
    plan = study()
    watched = Watched(plan, open_sites(plan, arrays(2, 60)), "site0")
    one, two, again = watched.play(0), watched.play(1), watched.play(0)
    assert one.start[0] is not None
    assert two.start[0] is not None
    assert one.start[0].equals(two.start[0])
    assert not one.left[0].params.equals(two.left[0].params)
    assert all(a.params.equals(b.params) for a, b in zip(one.left, again.left, strict=True))
    assert one.claimed == two.claimed


def test_the_claim_and_the_mechanism_do_not_change_with_the_added_record() -> None:
    plan = study()
    federation = open_sites(plan, arrays(2, 60))
    watched = Watched(plan, federation, "site0")
    own = federation.sites["site0"].train
    before = watched.play(0).claimed
    after = watched.play(0, added(own, own.inputs[:1], own.targets[:1])).claimed
    assert before == after
    assert watched.sites["site0"].size == federation.sites["site0"].declared


def test_the_worst_case_differs_by_one_record() -> None:
    plan = study()
    found = trap(open_sites(plan, arrays(2, 60)), "site0", norm=1.0, far=100.0)
    assert len(found.with_) == len(found.without) + 1
    assert float(found.record.norm()) == pytest.approx(100 * float(found.without.inputs[0].norm()))
    assert found.label.tolist() == [0]
    assert len(found.federation.sites) == 2


def test_canaries_and_outliers_are_patients_of_their_own() -> None:
    records = Records(torch.randn(6, 4), torch.arange(6) % 2, torch.tensor([0, 0, 1, 1, 2, 2]))
    birds = made_up(records, 5)
    more = added(records, birds.inputs, birds.targets)
    assert more.units is not None
    assert more.units.tolist()[6:] == [3, 4, 5, 6, 7]


def test_the_smallest_site_is_the_most_exposed() -> None:
    assert most_exposed(open_sites(study(), arrays(3, 60))) == "site0"


@pytest.mark.parametrize("effort", [{"runs": 3}, {"canaries": 2}])
def test_too_little_effort_is_refused(effort: dict[str, int]) -> None:
    with pytest.raises(StudyError, match="at least"):
        Effort(**effort)


@pytest.mark.parametrize(("name", "why"), [("pooled", "no gate"), ("local", "sends nothing")])
def test_what_sends_nothing_cannot_be_audited(name: str, why: str) -> None:
    with pytest.raises(StudyError, match=why):
        audit(study(strategy=name), arrays(2, 60), effort=TINY)
