"""Sites that are trained together come out as if each had been trained alone."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from confrere.core.custody import Custody, Tagged, private, public
from confrere.core.errors import TrainingError
from confrere.core.model import Architecture
from confrere.core.params import Params
from confrere.core.protocols import Objective
from confrere.data.records import Records
from confrere.learning.balance import balance
from confrere.learning.local_training.cohort import Cohort, kind_of, why_not_stacked
from confrere.learning.local_training.many_sites import train_together
from confrere.learning.local_training.one_site import Job, Trained, train_site
from confrere.learning.networks.architectures import architecture
from confrere.learning.networks.network import Network
from confrere.learning.objectives import Distilled, Near, Stacked, Supervised
from confrere.learning.optimisers import SGD, Adam, AdamW, Optimiser
from confrere.privacy.charged_steps import PrivateSteps
from confrere.privacy.clipping import AdaCliP, Clipping, Flat, PerLayer, Quantile, ToNorm
from confrere.privacy.mechanism import Mechanism
from confrere.privacy.noise import Secure
from confrere.privacy.sampling import FullBatch, Poisson

MLP = architecture({"name": "mlp", "hidden": [7, 5]}, (6,), 3)
SIZES = (23, 40, 8, 40, 31)


def network(arch: Architecture = MLP) -> Network:
    return Network(arch)


def job(
    site: int,
    objective: Objective,
    *,
    protect: tuple[str, ...] = (),
    clipping: Clipping | None = None,
    rate: Fraction = Fraction(1, 3),
    rule: Optimiser | None = None,
    arch: Architecture = MLP,
    outputs: int = 3,
    size: int | None = None,
    steps: int | None = None,
    **more: Any,
) -> Job:
    draw = torch.Generator().manual_seed(site)
    n = SIZES[site % len(SIZES)] if size is None else size
    x = torch.randn(n, 6, generator=draw)
    y = torch.randint(0, max(outputs, 2), (n,), generator=draw)
    roles = {*objective, *(r for loss in objective.values() for r in loss.reads)}
    weights = {r: Network(arch, seed=100 * site + k).params() for k, r in enumerate(sorted(roles))}
    sampling = FullBatch() if rate == 1 else Poisson(rate)
    mechanism = Mechanism(sampling, clipping or Flat(0.5), 0.7 + 0.1 * site, 10.0 + site)
    settings: dict[str, Any] = {
        "site": f"site{site}",
        "records": Records(x, y),
        "objective": objective,
        "networks": {r: network(arch) for r in roles},
        "anchors": weights,
        "private": PrivateSteps(dict.fromkeys(protect, mechanism), steps or 3 + site % 3),
        "optimisers": {r: rule or SGD(0.3, 0.5, 1e-3) for r in objective},
        "memory": {},
        "batch_size": 9,
        "epochs": 2,
        "seed": 1000 + site,
        "run": "run",
        "weights": weights,
    }
    return Job(**(settings | more))


def same(alone: Trained, together: Trained | TrainingError) -> None:
    assert isinstance(together, Trained)
    assert alone.params.keys() == together.params.keys()
    for role, params in alone.params.items():
        _close(params, together.params[role])
        for part, kept in alone.memory[role].items():
            assert kept.keys() == together.memory[role][part].keys()
            for name, tensor in kept.items():
                other = together.memory[role][part][name]
                assert tensor.shape == other.shape
                torch.testing.assert_close(other, tensor, rtol=2e-4, atol=2e-6)
    assert alone.losses == pytest.approx(together.losses, rel=1e-4)
    assert (alone.dropped, alone.notices) == (together.dropped, together.notices)


def _close(one: Params, two: Params) -> None:
    assert one.shapes == two.shapes
    torch.testing.assert_close(two.flatten(), one.flatten(), rtol=2e-4, atol=2e-6)


def compare(jobs: list[Job]) -> list[Trained]:
    assert [why_not_stacked(j) for j in jobs] == [None] * len(jobs)
    assert len({kind_of(j) for j in jobs}) == 1
    alone = [train_site(replace(j)) for j in jobs]
    for one, found in zip(alone, train_together(jobs), strict=True):
        same(one, found)
    return alone


@pytest.mark.parametrize("rule", [SGD(0.3), SGD(0.3, 0.5, 1e-3), Adam(0.05), AdamW(0.05)], ids=str)
def test_plain_training_at_sites_of_different_sizes(rule: Optimiser) -> None:
    compare([job(k, {"model": Supervised()}, rule=rule) for k in range(5)])


@pytest.mark.parametrize("rule", [SGD(0.3, 0.5), Adam(0.05)], ids=str)
@pytest.mark.parametrize("clipping", [Flat(0.5), PerLayer(0.5), Quantile(0.5), AdaCliP(0.5)], ids=str)
@pytest.mark.parametrize("rate", [Fraction(1, 3), Fraction(1)], ids=["poisson", "full"])
def test_private_training_draws_each_sites_own_noise(rule: Any, clipping: Any, rate: Fraction) -> None:
    jobs = [
        job(k, {"model": Supervised()}, protect=("model",), clipping=clipping, rate=rate, rule=rule)
        for k in range(5)
    ]
    compare(jobs)


@pytest.mark.parametrize("rate", [Fraction(1, 3), Fraction(1)], ids=["poisson", "full"])
@pytest.mark.parametrize("direction", ["teacher-student", "student-teacher"])
def test_two_models_that_teach_each_other(rate: Fraction, direction: Any) -> None:
    def objective(k: int) -> Objective:
        return {
            "private": Distilled("proxy", private(0.1 * k), direction),
            "proxy": Distilled("private", public(0.4), direction),
        }

    compare([job(k, objective(k), protect=("proxy",), rate=rate) for k in range(5)])


def test_a_model_on_top_of_another_and_one_that_is_pulled() -> None:
    compare(
        [job(k, {"private": Stacked("proxy", private(0.3 * k)), "proxy": Supervised()}) for k in range(4)]
    )
    compare([job(k, {"model": Near("start", 0.4)}) for k in range(4)])
    compare([job(k, {"model": Near("start", 0.4)}, protect=("model",)) for k in range(4)])


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("protect", [(), ("model",)])
def test_sites_may_step_at_their_own_pace(momentum: float, protect: tuple[str, ...]) -> None:
    jobs = [
        job(k, {"model": Supervised()}, protect=protect, rule=SGD(0.1 * (k + 1), momentum, 1e-3))
        for k in range(4)
    ]
    compare(jobs)


def test_classes_may_count_alike_by_each_sites_own_shares() -> None:
    def shares(k: int) -> tuple[Any, ...]:
        return tuple(private(s) for s in (0.2 + 0.1 * k, 0.5 - 0.1 * k, 0.3))

    compare([job(k, {"model": balance(Supervised(), shares(k))}) for k in range(4)])
    compare([job(k, {"model": balance(Near("start", 0.3), shares(k))}, protect=("model",)) for k in range(4)])


@pytest.mark.parametrize("outputs", [1, 3])
def test_binary_and_regression_targets(outputs: int) -> None:
    arch = architecture({"name": "mlp", "hidden": [4]}, (6,), outputs)
    compare([job(k, {"model": Supervised()}, arch=arch, outputs=outputs) for k in range(3)])
    draw = torch.Generator().manual_seed(3)
    for shape in [(20,), (20, 1)] if outputs == 1 else [(20, 3)]:
        values = [
            Records(torch.randn(20, 6, generator=draw), torch.rand(shape, generator=draw)) for _ in "abc"
        ]
        small = SGD(0.02)
        compare([job(k, {"model": Supervised()}, arch=arch, records=values[k], rule=small) for k in range(3)])


def test_an_empty_batch_moves_no_plain_model_and_still_adds_noise() -> None:
    objective: Objective = {"private": Distilled("proxy", public(0.3)), "proxy": Supervised()}
    few = [
        job(k, objective, protect=("proxy",), rate=Fraction(1, 9), size=2 + k, rule=Adam(0.05), steps=9)
        for k in range(4)
    ]
    alone = compare(few)
    assert any(int(t.memory["private"]["optimiser"]["steps"]) < 9 for t in alone)  # there was one


def test_what_a_site_keeps_goes_on_where_it_was() -> None:
    objective: Objective = {"model": Supervised()}
    jobs = [job(k, objective, protect=("model",), rule=Adam(0.05), clipping=AdaCliP(0.5)) for k in range(4)]
    first = [train_site(replace(j)) for j in jobs]
    again = [
        replace(j, memory=t.memory if k % 2 else {}, weights={"model": t.params["model"]}, seed=j.seed + 50)
        for k, (j, t) in enumerate(zip(jobs, first, strict=True))
    ]
    compare(again)
    assert (
        first[1].memory["model"]["optimiser"]["steps"] == 4
    )  # the memory that was handed in is not written to


@pytest.mark.parametrize("rate", [Fraction(1, 3), Fraction(1)], ids=["poisson", "full"])
def test_several_protected_models_draw_each_its_own_sample(rate: Fraction) -> None:
    taught = Distilled("one", public(0.5))
    objective: Objective = {
        "plain": Supervised(),
        "one": Supervised(),
        "two": taught,
        "three": Near("one", 0.1),
    }
    jobs = [
        job(k, objective, protect=("three", "one", "two"), rate=rate, rule=SGD(0.3, 0.5)) for k in range(4)
    ]
    mechanisms = [dict(j.private.mechanisms) for j in jobs]
    for own in mechanisms:  # not all of them clip alike
        own["two"] = replace(own["two"], clipping=Quantile(0.5), noise_multiplier=2.0)
    compare(
        [
            replace(j, private=PrivateSteps(own, j.private.count))
            for j, own in zip(jobs, mechanisms, strict=True)
        ]
    )


@dataclass(frozen=True)
class Largest(ToNorm):
    """A clipping from elsewhere: to the norm over the longest layer's share."""

    def sum(self, gradients: Any, state: Any) -> Any:
        longest = torch.stack([gradients.squares(layer=layer) for layer in gradients.layers]).amax(0)
        factors = (self.norm / longest.sqrt().mul(2)).clamp(max=1)
        real = gradients.real
        flat = gradients.weighted_sum(factors if real is None else factors * real)
        return gradients.clipped(flat, None, longest < 1)


def test_a_clipping_that_the_package_does_not_know_is_applied_to_many_sites_at_once() -> None:
    compare([job(k, {"model": Supervised()}, protect=("model",), clipping=Largest(0.5)) for k in range(4)])


def test_sites_whose_models_are_clipped_differently_are_trained_apart() -> None:
    one, two = (job(k, {"a": Supervised(), "b": Supervised()}, protect=("a", "b")) for k in range(2))
    own = dict(two.private.mechanisms)
    own["b"] = replace(own["b"], clipping=Flat(9.0))
    assert kind_of(one) == kind_of(two) != kind_of(replace(two, private=PrivateSteps(own, two.private.count)))


def test_secure_randomness_is_taken_from_each_site() -> None:
    jobs = [
        job(k, {"model": Supervised()}, protect=("model",), randomness=Secure(), rate=Fraction(1))
        for k in range(3)
    ]
    found = train_together(jobs)
    again = train_together(jobs)
    for one, two in zip(found, again, strict=True):
        assert isinstance(one, Trained)
        assert isinstance(two, Trained)
        assert not one.params["model"].equals(two.params["model"])


def test_a_record_whose_gradient_is_no_number_is_left_out_and_counted() -> None:
    jobs = [job(k, {"model": Supervised()}, protect=("model",), rate=Fraction(1)) for k in range(3)]
    x = jobs[1].records.inputs.clone()
    x[4] = 1e30
    jobs[1] = replace(jobs[1], records=Records(x, jobs[1].records.targets))
    assert compare(jobs)[1].dropped == jobs[1].private.count


def test_a_site_whose_loss_is_no_number_stops_and_the_others_do_not() -> None:
    jobs = [job(k, {"model": Supervised()}) for k in range(3)]
    broken = {"model": Params({n: t * torch.inf for n, t in jobs[1].weights["model"].items()})}
    jobs[1] = replace(jobs[1], weights=broken)
    with pytest.raises(TrainingError) as alone:
        train_site(replace(jobs[1]))
    found = train_together(jobs)
    assert isinstance(found[1], TrainingError)
    assert str(found[1]) == str(alone.value)
    for k in (0, 2):
        same(train_site(replace(jobs[k])), found[k])


class Own(nn.Module):
    """A network of one's own, whose way forward nobody can see from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.sin(self.first(x)))  # type: ignore[no-any-return]


def trained_by(trainer: Cohort, jobs: list[Job]) -> list[Trained]:
    async def all_of_them() -> list[Trained]:
        return await asyncio.gather(*(trainer.run(j) for j in jobs))

    return asyncio.run(all_of_them())


def test_what_cannot_be_stacked_is_trained_one_at_a_time_and_that_is_said_once() -> None:
    told: list[str] = []
    own = architecture(Own, (6,), 3)
    jobs = [job(k, {"model": Supervised()}, arch=own) for k in range(3)]
    for _ in range(2):
        for found, one in zip(trained_by(Cohort(told.append), jobs), jobs, strict=True):
            same(train_site(replace(one)), found)
        told = told[:1]
    assert len(told) == 1
    assert "Own" in told[0]
    assert "one at a time" in told[0]


def test_different_architectures_are_trained_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    cohorts: list[int] = []
    from confrere.learning.local_training import cohort

    def counted(jobs: list[Job]) -> Any:
        cohorts.append(len(jobs))
        return train_together(jobs)

    monkeypatch.setattr(cohort, "train_together", counted)
    other = architecture("linear", (6,), 3)
    jobs = [job(k, {"model": Supervised()}, arch=other if k % 2 else MLP) for k in range(5)]
    for found, one in zip(trained_by(Cohort(), jobs), jobs, strict=True):
        same(train_site(replace(one)), found)
    assert sorted(cohorts) == [2, 3]


def test_a_job_that_is_given_up_or_comes_late_holds_up_nobody() -> None:
    async def scene() -> tuple[Trained, Trained]:
        trainer = Cohort()
        one, two, late = (job(k, {"model": Supervised()}) for k in range(3))
        given_up = asyncio.ensure_future(trainer.run(two))
        first = asyncio.ensure_future(trainer.run(one))
        await asyncio.sleep(0)
        given_up.cancel()
        found = await first
        return found, await trainer.run(late)

    found, late = asyncio.run(scene())
    same(train_site(job(0, {"model": Supervised()})), found)
    same(train_site(job(2, {"model": Supervised()})), late)


@dataclass(frozen=True)
class Weighted:
    """A loss of somebody's own: a tensor of class weights in it, which cannot be compared with another."""

    weights: Tagged[Tensor]
    reads: frozenset[str] = frozenset()

    def __call__(self, own: Tensor, others: Mapping[str, Tensor], targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(own, targets, weight=self.weights.value, reduction="none")


def handed_in(jobs: Sequence[Job]) -> list[Trained]:
    """What a cohort makes of jobs that sites hand in side by side."""

    async def all_of_them() -> list[Trained]:
        cohort = Cohort()
        return await asyncio.wait_for(asyncio.gather(*(cohort.run(j) for j in jobs)), 20)

    return asyncio.run(all_of_them())


def test_losses_may_hold_tensors() -> None:
    net = network()
    tags = [Tagged(torch.tensor([1.0, 2.0 + k, 1.0]), Custody.PRIVATE) for k in range(3)]
    jobs = [replace(job(k, {"m": Weighted(tags[k])}), networks={"m": net}) for k in range(3)]
    for found, alone in zip(handed_in(jobs), map(train_site, jobs), strict=True):
        assert torch.allclose(found.params["m"].flatten(), alone.params["m"].flatten(), atol=1e-5)


def test_an_error_while_jobs_are_sorted_reaches_all_who_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> str:
        raise RuntimeError("something is wrong with this job")

    monkeypatch.setattr("confrere.learning.local_training.cohort.why_not_stacked", broken)
    with pytest.raises(RuntimeError, match="wrong with this job"):
        handed_in([job(k, {"m": Supervised()}) for k in range(2)])


def test_models_in_another_order_are_another_kind() -> None:
    nets = {"a": network(), "b": network()}
    orders = [("a", "b"), ("b", "a")]
    jobs = [
        replace(job(k, {r: Supervised() for r in order}, protect=order), networks=nets)
        for k, order in enumerate(orders)
    ]
    for found, alone in zip(handed_in(jobs), map(train_site, jobs), strict=True):
        for role in nets:
            assert torch.allclose(found.params[role].flatten(), alone.params[role].flatten(), atol=1e-5)


def test_what_stays_at_a_site_can_be_written_to() -> None:
    """Stacks are worked on without what differentiation needs; nothing of that may stick to what comes out."""
    for clipping in (Flat(1.0), AdaCliP(), Quantile(1.0)):
        jobs = [job(k, {"m": Supervised()}, protect=("m",), clipping=clipping, rule=Adam()) for k in range(3)]
        for found in train_together(jobs):
            assert isinstance(found, Trained)
            kept = [t for part in found.memory["m"].values() for t in part.values()]
            for t in [found.params["m"].flatten(), *kept]:
                assert not t.is_inference()
