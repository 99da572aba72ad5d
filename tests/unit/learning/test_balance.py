"""All classes count alike, and only what was released may shape what leaves."""

from __future__ import annotations

import math

import pytest
import torch

from confrere.core.custody import Custody
from confrere.core.loss_inspection import contents_of, read_by
from confrere.core.model import Model
from confrere.core.params import Params
from confrere.core.protocols import Proximal
from confrere.learning.balance import Balanced, balance, counted, log_shares, released
from confrere.learning.networks.tables import Centred
from confrere.learning.objectives import Near, Supervised
from confrere.learning.private_centre import Profiled


def carrying(*shares: float) -> Model:
    return Model(Params({"shares.weight": torch.tensor(shares)[:, None]}), "c", Custody.PROTECTED)


def test_a_models_own_shares_stay_private_and_released_ones_are_protected() -> None:
    own = counted(torch.tensor([0, 0, 1]), 2)
    assert {s.custody for s in own} == {Custody.PRIVATE}
    told = released(carrying(30.0, 10.0))
    assert told is not None
    assert [s.value for s in told] == pytest.approx([0.75, 0.25])
    assert contents_of(Balanced(Supervised(), own)).custody({}) == Custody.PRIVATE
    assert contents_of(Balanced(Supervised(), told)).custody({}) == Custody.PROTECTED


def test_noise_never_makes_a_class_impossible() -> None:
    told = released(carrying(10.0, -3.0, 5.0))
    assert told is not None
    assert min(s.value for s in told) > 0
    assert sum(s.value for s in told) == pytest.approx(1)


def test_before_anything_was_released_there_is_nothing_to_correct_for() -> None:
    assert released(carrying(0.0, 0.0)) is None
    assert released(Model(Params({"w": torch.zeros(1)}), "other", Custody.PUBLIC)) is None


def test_outputs_learned_with_the_correction_hold_for_equal_classes() -> None:
    # 90 % of class 0; the inputs say nothing, so equal outputs are right where classes are equally frequent
    targets = torch.tensor([0] * 90 + [1] * 10)
    loss = balance(Supervised(), counted(targets, 2))
    outputs = torch.zeros(100, 2, requires_grad=True)
    loss(outputs, {}, targets).sum().backward()
    assert outputs.grad is not None
    assert float(outputs.grad.sum(0).abs().max()) < 1.0  # 40 without it
    one = torch.zeros(100, 1, requires_grad=True)
    loss(one, {}, targets).sum().backward()
    assert one.grad is not None
    assert float(one.grad.sum().abs()) < 1.0


def test_a_single_output_is_corrected_by_the_log_odds() -> None:
    shares = released(carrying(0.2, 0.8))
    assert shares is not None
    assert float(log_shares(shares, 1)[0]) == pytest.approx(math.log(4), rel=1e-5)


def test_a_pull_towards_an_anchor_stays_one() -> None:
    loss = balance(Near("common", 0.3), counted(torch.tensor([0, 1]), 2))
    assert isinstance(loss, Proximal)
    assert (loss.anchor, loss.pull) == ("common", 0.3)
    assert read_by(loss) == {"common"}


def test_one_step_of_a_profile_is_the_sum_of_records_and_of_classes() -> None:
    module = Centred(3, 4, unit=True, profiling=True)
    inputs, targets = torch.randn(5, 3), torch.tensor([0, 1, 1, 3, 3])
    Profiled()(module(inputs), {}, targets).sum().backward()
    assert module.mean.weight.grad is not None
    assert module.shares.weight.grad is not None
    assert torch.allclose(-module.mean.weight.grad[0], inputs.sum(0), atol=1e-6)
    assert (-module.shares.weight.grad[:, 0]).tolist() == [1, 2, 0, 2]
    assert module.head.weight.grad is None


def test_scaling_what_was_released_moves_no_centre() -> None:
    module = Centred(3, 2, unit=False, profiling=False)
    with torch.no_grad():
        module.mean.weight.copy_(torch.tensor([[2.0, 4.0, 6.0]]))
        module.shares.weight.copy_(torch.tensor([[1.0], [1.0]]))
        once = module.features(torch.ones(1, 3))
        module.mean.weight.mul_(7)
        module.shares.weight.mul_(7)
    assert torch.allclose(once, module.features(torch.ones(1, 3)))
    assert once[0].tolist() == pytest.approx([0.0, -1.0, -2.0, Centred.STEADY])
