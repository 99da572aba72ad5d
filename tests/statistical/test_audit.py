"""The audit notices planted flaws, and does not flag an honest study."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from confrere.core.custody import Custody
from confrere.core.sum_terms import SumTerms
from confrere.data.records import Federation
from confrere.evaluate.audit import AuditEffort, audit, canaries, membership_inference, reconstruction
from confrere.evaluate.audit.canaries import CanaryResult
from confrere.privacy.charged_steps import Draw, PrivateSteps
from confrere.privacy.clipping import BatchGradients, ClipState, Flat, S
from confrere.privacy.mechanism import Mechanism
from confrere.privacy.noise import Randomness
from confrere.privacy.sampling import Patients, Poisson
from confrere.site.open_sites import open_sites
from confrere.site.participant import Participant
from confrere.site.training import TrainingCall
from confrere.strategies import discover, strategies
from confrere.strategies.proxyfl import ProxyFL
from confrere.study import Models, Privacy, Study, Training
from confrere.study.masked_settings import Masked
from tests.conftest import arrays

Plant = Callable[[pytest.MonkeyPatch], None]


def study(strategy: Any = "fedavg", epsilon: float | None = 1.0, rounds: int = 1, **privacy: Any) -> Study:
    asked = Privacy(epsilon=epsilon, delta=1e-5, **privacy)
    return Study(name="audited", rounds=rounds, strategy=strategy, privacy=asked)


def sites(found: Study, count: int = 2, records: int = 400, columns: int = 3) -> Federation:
    """Sites with labels that are half chance, so that a model has something to learn by heart."""
    rng = np.random.default_rng(0)
    made = {}
    for name in "abcdefghijklmnop"[:count]:
        x = rng.normal(size=(records, columns)).astype(np.float32)
        made[name] = (x, (x[:, 0] + rng.normal(size=records) > 0).astype(int))
    return open_sites(found, made)


def attacked(found: Study, *, runs: int, canary_count: int = 300, count: int = 2) -> CanaryResult:
    return canaries.attack(found, sites(found, count), "a", AuditEffort(runs=runs, canaries=canary_count))


def broken(found: CanaryResult) -> bool:
    """Whether more was detected than was claimed, and the claim was one of a proven guarantee."""
    assert found.claimed is not None
    assert found.claimed.proven
    return found.detected.breaks(found.claimed.epsilon)


# Flaws


def half_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Mechanism.release

    def careless(self: Mechanism, *arguments: Any) -> Any:
        return honest(replace(self, noise_multiplier=self.noise_multiplier / 2), *arguments)

    monkeypatch.setattr(Mechanism, "release", careless)


@dataclass(frozen=True)
class Unclipped(Flat):
    """Says that it clips, and does not."""

    def sum(self, gradients: BatchGradients[S], state: ClipState) -> S:
        return Flat(1e9).sum(gradients, state)


def no_clipping_of_one_role(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Participant.mechanism_of

    def careless(self: Participant, role: str) -> Mechanism:
        found = honest(self, role)
        return replace(found, clipping=Unclipped(1.0)) if role == "for b" else found

    monkeypatch.setattr(Participant, "mechanism_of", careless)


def releases_of_one_sample_charged_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """K models trained on one sample, and charged for K samples."""

    def one_for_all(self: PrivateSteps, units: int | Patients, randomness: Randomness) -> Iterator[Draw]:
        for _ in range(self.count):
            rows = next(iter(self.mechanisms.values())).sampling.draw(units, randomness)
            yield Draw(self.mechanisms, dict.fromkeys(self.mechanisms, rows), randomness)

    monkeypatch.setattr(PrivateSteps, "draw", one_for_all)


def private_teacher_labelled_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProxyFL, "unproven", None)
    honest = TrainingCall._custody

    def careless(self: TrainingCall, role: str, noisy: Any, *arguments: Any) -> Custody:
        return Custody.PROTECTED if role in noisy else honest(self, role, noisy, *arguments)

    monkeypatch.setattr(TrainingCall, "_custody", careless)


def one_record_in_every_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Poisson.draw

    def careless(self: Poisson, units: int | Patients, randomness: Randomness) -> torch.Tensor:
        return torch.unique(torch.cat([torch.zeros(1, dtype=torch.long), honest(self, units, randomness)]))

    monkeypatch.setattr(Poisson, "draw", careless)


EROSION = study("weight_erosion", None, sampling="poisson", batch_size=8, steps=1, noise_multiplier=0.8)
TAUGHT = {"name": "proxyfl", "private": "distil", "alpha": 0.5, "beta": 0.5, "teacher": "private"}
SAMPLED = study(sampling="poisson", batch_size=2, steps=1)

MASKS = "masked-sum"


def masked_study(strategy: Any, epsilon: float, colluding: int, dropouts: int, rounds: int = 1) -> Study:
    base = study(strategy, epsilon, rounds)
    return base.with_(topology="complete", combiner=MASKS, masked=Masked(colluding, dropouts))


def noise_divided_by_all_members(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if nobody colluded or was missing: n sites share the noise, and h of them are certainly in the sum."""
    among_all = property(lambda self: self.noise_std / math.sqrt(self.members) / self.grid)
    monkeypatch.setattr(SumTerms, "share_scale", among_all)


FLAWS: dict[str, tuple[Plant, Study, dict[str, int]]] = {
    "half the noise": (half_the_noise, study(), {"runs": 700, "canary_count": 500}),
    "no clipping of one role": (
        no_clipping_of_one_role,
        study("weight_erosion"),
        {"runs": 20, "canary_count": 100, "count": 3},
    ),
    "releases of one sample charged apart": (
        releases_of_one_sample_charged_apart,
        EROSION,
        {"runs": 150, "canary_count": 500, "count": 8},
    ),
    "noise divided by all members": (
        noise_divided_by_all_members,
        masked_study("fedavg", 3.0, colluding=14, dropouts=0),
        {"runs": 60, "count": 16},
    ),
    "private teacher": (private_teacher_labelled_proven, study(TAUGHT, rounds=2), {"runs": 120}),
    "one record in every sample": (
        one_record_in_every_sample,
        SAMPLED,
        {"runs": 1000, "canary_count": 20},
    ),
}


def slow(names: Iterable[str], *which: str) -> list[Any]:
    """The cases, of which some take long."""
    return [pytest.param(n, marks=pytest.mark.slow) if n in which else n for n in names]


# the last of these is noticed without an audit too: tests/property/test_drawn_and_charged.py
LONG = (
    "half the noise",
    "noise divided by all members",
    "one record in every sample",
    "releases of one sample charged apart",
)


@pytest.mark.parametrize("flaw", slow(FLAWS, *LONG))
def test_a_planted_flaw_is_noticed(flaw: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, plan, effort = FLAWS[flaw]
    plant(monkeypatch)
    assert broken(attacked(plan, **effort))


HONEST = {
    "full batch": (study(), {"runs": 700, "canary_count": 500}),
    "two roles": (study("weight_erosion"), {"runs": 20, "canary_count": 100, "count": 3}),
    "several roles of one sample": (EROSION, {"runs": 150, "canary_count": 500, "count": 8}),
    "masked, most collude": (
        masked_study("fedavg", 3.0, colluding=14, dropouts=0),
        {"runs": 60, "count": 16},
    ),
    "masked, some missing": (masked_study("proxyfl", 3.0, 2, 1, rounds=2), {"runs": 60, "count": 5}),
    "masked and weighted": (masked_study("afl", 3.0, 1, 1, rounds=2), {"runs": 60, "count": 4}),
    "taught by peers": (study({**TAUGHT, "teacher": "peers"}, rounds=2), {"runs": 120}),
    "sampled": (SAMPLED, {"runs": 1000, "canary_count": 20}),
    "adaptive clipping": (study(clipping="adaclip", rounds=2), {"runs": 100}),
    "quantile clipping": (study(clipping="quantile", rounds=2), {"runs": 100}),
}


@pytest.mark.parametrize(
    "name", slow(HONEST, "full batch", "masked, most collude", "sampled", "several roles of one sample")
)
def test_an_honest_study_is_not_flagged(name: str) -> None:
    plan, effort = HONEST[name]
    assert not broken(attacked(plan, **effort))


@pytest.mark.slow
def test_the_bound_is_a_useful_part_of_what_is_claimed() -> None:
    found = attacked(study("proxyfl", 3.0), runs=300, canary_count=500)
    assert found.claimed is not None
    assert found.claimed.epsilon <= 3.0
    assert found.claimed.epsilon / 2 < found.detected.epsilon <= found.claimed.epsilon
    assert found.trials == 150_000


def test_a_proxy_that_learns_from_the_private_model_is_found_as_published() -> None:
    found = attacked(study(TAUGHT, rounds=2), runs=120)
    assert found.claimed is not None
    assert not found.claimed.proven
    assert found.detected.breaks(found.claimed.epsilon)


def claiming() -> list[str]:
    """Every strategy whose releases are said to be private."""
    found = [n for n in discover() if n not in ("pooled", "local")]
    return [n for n in found if getattr(strategies[n](), "unproven", None) is None]


MODES = {"local": {"name": "local", "noise": True}, "user": {"name": "weight_erosion", "user": "b"}}


@pytest.mark.parametrize("sampling", slow(["full", "poisson"], "poisson"))
@pytest.mark.parametrize("name", [*claiming(), *MODES])
def test_every_strategy_that_claims_a_proof_is_audited(name: str, sampling: str) -> None:
    plan = study(MODES.get(name, name), 2.0, 2, sampling=sampling, batch_size=60, steps=1)
    found = attacked(plan, runs=60, count=4)  # 20 runs detect nothing for one seed in ten
    assert not broken(found)
    assert found.releases >= 2  # one in every round, at least
    assert sampling == "poisson" or found.detected.epsilon > 0.1


# What leaves beside what stays, on the study's own records


def open_study(**changes: Any) -> Study:
    base = Study(
        name="audited",
        rounds=2,
        strategy={**TAUGHT, "teacher": "none"},
        models=Models("linear", "linear"),
        training=Training(
            optimiser="sgd",
            learning_rate=0.5,
            batch_size=500,
            epochs=10,
            weight_decay=0.0,
            protected={"optimiser": "sgd", "learning_rate": 1.0},
        ),
        privacy=Privacy(epsilon=0.5, delta=1e-5, steps=1),
    )
    return base.with_(**changes)


def test_members_are_found_in_the_private_model_and_not_in_what_leaves() -> None:
    training = Training(optimiser="sgd", learning_rate=1.0, batch_size=500, epochs=40, tune=False)
    plan = open_study(training=training)
    found = membership_inference.attack(plan, sites(plan, records=80, columns=80), "a", runs=8)
    leaves, stays = found["released"], found["private"]
    assert stays.attack.area > 0.7
    assert stays.attack.area - 3 * stays.spread > leaves.attack.area
    assert abs(leaves.attack.area - 0.5) < 0.1


def test_a_record_is_rebuilt_from_an_update_without_noise_and_not_from_what_leaves() -> None:
    plan = open_study()
    found = reconstruction.attack(plan, sites(plan, records=120, columns=20), "a", attempts=5)
    assert found["released without noise"].similarity > 0.99
    assert found["released without noise"].found == 1.0
    assert found["private"].similarity > 0.99
    assert found["released"].similarity < 0.7
    assert found["released"].similarity < found["released without noise"].similarity - 0.3


def test_behind_a_hidden_layer_a_record_is_rebuilt_too() -> None:
    small = {"name": "mlp", "hidden": [16]}
    plan = open_study(models=Models(small, small))
    found = reconstruction.attack(plan, sites(plan, records=120, columns=20), "a", attempts=3)
    assert found["released without noise"].similarity > 0.9
    assert found["released"].similarity < found["released without noise"].similarity


def test_the_audit_of_a_masked_study_reads_what_colluding_sites_see() -> None:
    """Opened sums for canaries and reconstruction, the common model for membership; and it says so."""
    plan = masked_study("fedavg", 3.0, colluding=1, dropouts=1).with_(models=Models("linear", "linear"))
    effort = AuditEffort(runs=8, canaries=20, shadows=8, attempts=2)
    found = audit(plan, arrays(4, 40), effort=effort)
    assert not found.broken
    assert found.claimed is not None
    assert found.claimed.condition
    assert set(found.membership) == {"released"}
    assert set(found.reconstruction) == {"released"}
    assert "the vectors and the noise of 1 colluding site; 1 more was missing" in found.known
    assert found.as_json()["known"] == found.known
