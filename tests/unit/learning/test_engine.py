"""Local steps, number by number, beside a version written out by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from confrere.core.custody import public
from confrere.core.errors import TrainingError, UnsafeModule
from confrere.core.model import Architecture
from confrere.core.params import Params
from confrere.core.seeds import derive
from confrere.data.records import Records
from confrere.learning.local_training.one_site import Job, train_site
from confrere.learning.networks.network import Network
from confrere.learning.objectives import Distilled, Near, Supervised
from confrere.learning.optimisers import SGD
from confrere.privacy.charged_steps import PrivateSteps
from confrere.privacy.clipping import ROUNDING, Flat
from confrere.privacy.mechanism import Mechanism
from confrere.privacy.noise import Seeded
from confrere.privacy.sampling import FullBatch, Poisson

NORM, NOISE, RATE = 0.7, 1.3, 0.5
START = Params({"bias": torch.tensor([0.1]), "weight": torch.tensor([[0.5, -0.3]])})
INPUTS = torch.tensor([[1.0, 2.0], [0.1, -0.1], [-3.0, 1.0], [0.0, 0.2]])
TARGETS = torch.tensor([1, 0, 1, 0])


def job(mechanism: Mechanism | None = None, steps: int = 1, **changes: Any) -> Job:
    network = Network(Architecture("line", lambda: nn.Linear(2, 1)))
    network.load(START)
    made = Job(
        site="a",
        records=Records(INPUTS, TARGETS),
        objective={"model": Supervised()},
        networks={"model": network},
        anchors={},
        private=PrivateSteps({} if mechanism is None else {"model": mechanism}, steps),
        optimisers={"model": SGD(RATE)},
        memory={},
        batch_size=4,
        epochs=1,
        seed=5,
    )
    return replace(made, **changes)


def gradients(x: Tensor = INPUTS, y: Tensor = TARGETS, at: Params = START) -> Tensor:
    """Per-record gradients of logistic loss by the formula, as rows (bias, weights)."""
    error = torch.sigmoid(x @ at["weight"][0] + at["bias"]) - y
    return torch.cat([error[:, None], error[:, None] * x], 1)


def flat(params: Params) -> Tensor:
    return params.flatten()


def clipped(rows: Tensor) -> Tensor:
    norm = NORM * (1 - ROUNDING)
    return torch.mul(rows, (norm / torch.linalg.vector_norm(rows, dim=1).clamp_min(norm))[:, None])


def test_a_private_step_is_clip_sum_noise_divide_move() -> None:
    done = train_site(job(Mechanism(FullBatch(), Flat(NORM), NOISE, 4.0)))
    noise = torch.randn(3, generator=torch.Generator().manual_seed(derive(5, "noise"))) * NOISE * NORM
    released = (clipped(gradients()).sum(0) + noise) / 4.0
    torch.testing.assert_close(
        flat(done.params["model"]), flat(START) - RATE * released, rtol=1e-5, atol=1e-6
    )
    assert gradients().norm(dim=1).max() > NORM > gradients().norm(dim=1).min()  # both kinds were tried


def test_the_declared_batch_divides_whatever_was_drawn() -> None:
    one = train_site(job(Mechanism(FullBatch(), Flat(NORM), 1e-9, 4.0)))
    two = train_site(job(Mechanism(FullBatch(), Flat(NORM), 1e-9, 8.0)))
    moved = [flat(d.params["model"]) - flat(START) for d in (one, two)]
    torch.testing.assert_close(moved[0], 2 * moved[1], rtol=1e-4, atol=1e-6)


def test_an_empty_batch_still_adds_its_noise() -> None:
    rare = Mechanism(Poisson(Fraction(1, 10**9)), Flat(NORM), NOISE, 1.0)
    done = train_site(job(rare))
    source = Seeded(derive(5, "noise"))
    assert not source.bernoulli(4, Fraction(1, 10**9)).any()
    noise = source.normal(3, NOISE * NORM)
    torch.testing.assert_close(flat(done.params["model"]), flat(START) - RATE * noise, rtol=1e-5, atol=1e-6)


def test_patients_are_clipped_as_one() -> None:
    records = Records(INPUTS, TARGETS, torch.tensor([7, 7, 9, 9]))
    by_patient = Mechanism(FullBatch(unit="patient"), Flat(NORM), 1e-9, 4.0, unit="patient")
    done = train_site(job(by_patient, records=records))
    rows = gradients()
    together = torch.stack([rows[:2].sum(0), rows[2:].sum(0)])
    expected = flat(START) - RATE * clipped(together).sum(0) / 4.0
    torch.testing.assert_close(flat(done.params["model"]), expected, rtol=1e-4, atol=1e-5)


def test_a_plain_step_is_the_mean_gradient() -> None:
    done = train_site(job())
    expected = flat(START) - RATE * gradients().mean(0)
    torch.testing.assert_close(flat(done.params["model"]), expected, rtol=1e-5, atol=1e-6)


ANCHOR = Params({"bias": torch.tensor([1.0]), "weight": torch.tensor([[2.0, 2.0]])})


@pytest.mark.parametrize("private", [False, True])
def test_the_pull_of_fedprox_is_towards_the_anchor_and_needs_no_noise(private: bool) -> None:
    mechanism = Mechanism(FullBatch(), Flat(NORM), NOISE, 4.0) if private else None
    anchor = Network(Architecture("line", lambda: nn.Linear(2, 1)))
    anchor.load(ANCHOR)
    without = train_site(job(mechanism))
    base = job(mechanism)
    pulled = replace(
        base,
        objective={"model": Near("start", 0.2)},
        networks={**base.networks, "start": anchor},
        anchors={"start": ANCHOR},
    )
    difference = flat(train_site(pulled).params["model"]) - flat(without.params["model"])
    torch.testing.assert_close(difference, -RATE * 0.2 * (flat(START) - flat(ANCHOR)), rtol=1e-4, atol=1e-6)


def test_every_record_is_seen_once_in_an_epoch() -> None:
    seen: list[Tensor] = []

    class Spy(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(x.detach())
            return super().forward(x)

    network = Network(Architecture("spy", lambda: Spy(2, 1)))
    train_site(job(networks={"model": network}, batch_size=3, epochs=2))
    assert [len(x) for x in seen] == [3, 1, 3, 1]
    for epoch in (seen[:2], seen[2:]):
        assert sorted(map(tuple, torch.cat(epoch).tolist())) == sorted(map(tuple, INPUTS.tolist()))


def test_the_same_seed_draws_the_same_and_another_does_not() -> None:
    mechanism = Mechanism(FullBatch(), Flat(NORM), NOISE, 4.0)
    one, two, other = (train_site(job(mechanism, seed=s)).params["model"] for s in (5, 5, 6))
    assert one.equals(two)
    assert not one.equals(other)


def test_training_leaves_the_memory_it_was_given_alone() -> None:
    momentum = {"model": SGD(RATE, momentum=0.9)}
    first = train_site(job(optimisers=momentum))
    velocity = first.memory["model"]["optimiser"]["velocity"].clone()
    assert velocity.abs().max() > 0
    second = train_site(job(optimisers=momentum, memory=first.memory))
    assert torch.equal(first.memory["model"]["optimiser"]["velocity"], velocity)
    assert not torch.equal(second.memory["model"]["optimiser"]["velocity"], velocity)


def test_training_does_not_touch_the_global_source_of_chance() -> None:
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    train_site(job(Mechanism(FullBatch(), Flat(NORM), NOISE, 4.0)))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_record_whose_gradient_is_no_number_is_left_out_of_a_private_step_and_counted() -> None:
    wild = INPUTS.clone()
    wild[2] = float("inf")
    done = train_site(job(Mechanism(FullBatch(), Flat(NORM), 1e-9, 4.0), records=Records(wild, TARGETS)))
    assert done.dropped == 1
    keep = [0, 1, 3]
    expected = flat(START) - RATE * clipped(gradients(INPUTS[keep], TARGETS[keep])).sum(0) / 4.0
    torch.testing.assert_close(flat(done.params["model"]), expected, rtol=1e-4, atol=1e-5)
    assert any("1 gradients of single records were not finite" in n for n in done.notices)


def test_a_plain_loss_that_is_no_number_stops_the_training() -> None:
    wild = INPUTS.clone()
    wild[0] = float("nan")
    with pytest.raises(TrainingError, match='site "a": the loss of "model" is not a finite number'):
        train_site(job(records=Records(wild, TARGETS)))


@pytest.mark.parametrize("sampling", [FullBatch(), Poisson(Fraction(1, 2))])
def test_an_expendable_model_that_fails_stays_where_it_was_and_the_protected_one_goes_on(
    sampling: Any,
) -> None:
    def network() -> Network:
        made = Network(Architecture("line", lambda: nn.Linear(2, 1)))
        made.load(START)
        return made

    broken = INPUTS.clone()
    broken[1] = float("nan")
    both = job(
        None,
        records=Records(broken, TARGETS),
        objective={"private": Supervised(), "proxy": Supervised()},
        networks={"private": network(), "proxy": network()},
        private=PrivateSteps({"proxy": Mechanism(sampling, Flat(NORM), NOISE, 4.0)}, 8),
        optimisers={"private": SGD(RATE), "proxy": SGD(RATE)},
        weights={"private": START, "proxy": START},
    )
    with pytest.raises(TrainingError):
        train_site(both)
    done = train_site(replace(both, expendable=frozenset(["private"])))
    assert done.params["private"].distance(START) == 0
    assert "private" not in done.memory
    alone = replace(both, objective={"proxy": Supervised()}, optimisers={"proxy": SGD(RATE)})
    assert done.params["proxy"].distance(train_site(alone).params["proxy"]) == 0


def test_without_records_a_private_step_is_noise_alone() -> None:
    nothing = Records(INPUTS[:0], TARGETS[:0])
    done = train_site(job(Mechanism(FullBatch(), Flat(NORM), NOISE, 4.0), records=nothing))
    noise = torch.randn(3, generator=torch.Generator().manual_seed(derive(5, "noise"))) * NOISE * NORM
    torch.testing.assert_close(
        flat(done.params["model"]), flat(START) - RATE * noise / 4.0, rtol=1e-5, atol=1e-6
    )


def normalising() -> nn.Module:
    return nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1))


def test_a_model_that_normalises_batches_is_refused_protection_even_if_it_was_evaluated_before() -> None:
    network = Network(Architecture("normalising", normalising))
    network.module.eval()
    with pytest.raises(UnsafeModule, match="mixes the records"):
        train_site(job(Mechanism(FullBatch(), Flat(NORM), NOISE, 4.0), networks={"model": network}))


def beside_a_proxy(private: Callable[[], nn.Module], sampling: Any, **changes: Any) -> Job:
    """A plain model beside a protected proxy, on samples of about one record."""
    made = {"private": Network(Architecture("own", private)), "proxy": job().networks["model"]}
    mechanism = Mechanism(sampling, Flat(NORM), NOISE, 4.0)
    return job(
        objective={"private": Supervised(), "proxy": Supervised()},
        networks=made,
        private=PrivateSteps({"proxy": mechanism}, 30),
        optimisers={"private": SGD(RATE), "proxy": SGD(RATE)},
        weights={"private": made["private"].params(), "proxy": START},
        **changes,
    )


def test_a_sample_of_one_record_does_not_stop_a_model_that_normalises_batches() -> None:
    done = train_site(beside_a_proxy(normalising, Poisson(Fraction(1, 4))))
    assert done.params["private"].is_finite()
    assert "private" in done.memory


def test_what_reads_a_normalising_model_goes_on_with_a_sample_of_one_record() -> None:
    both = beside_a_proxy(normalising, Poisson(Fraction(1, 4)))
    reading = {"private": Supervised(), "proxy": Distilled("private", public(0.5))}
    assert train_site(replace(both, objective=reading)).params["proxy"].is_finite()


class Refusing(nn.Linear):
    """Stands in for any network that cannot compute some records."""

    def __init__(self) -> None:
        super().__init__(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("not with these records")


@pytest.mark.parametrize("sampling", [FullBatch(), Poisson(Fraction(1, 2))])
def test_an_error_in_an_expendable_model_does_not_stop_the_protected_one(sampling: Any) -> None:
    both = beside_a_proxy(Refusing, sampling)
    with pytest.raises(TrainingError, match=r'"private" failed: ValueError: not with these'):
        train_site(both)
    done = train_site(replace(both, expendable=frozenset(["private"])))
    assert any("not with these records" in notice for notice in done.notices)
    assert done.params["private"].distance(both.weights["private"]) == 0
    alone = replace(both, objective={"proxy": Supervised()}, optimisers={"proxy": SGD(RATE)})
    assert done.params["proxy"].distance(train_site(alone).params["proxy"]) == 0
