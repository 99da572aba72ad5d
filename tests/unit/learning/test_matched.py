"""Networks whose units were matched: the same function, whatever the order and width of their units."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from confrere.core.errors import StudyError
from confrere.core.params import Params
from confrere.exchange.matching import Prior
from confrere.learning.networks.architectures import architecture, fresh
from confrere.learning.networks.matched import chain, own_part, places_of, staged
from confrere.learning.networks.merging import Merging

CASES = {
    "mlp": ({"name": "mlp", "hidden": [6, 5]}, (4,)),
    "lenet5": ("lenet5", (1, 12, 12)),
    "cnn1": ("cnn1", (3, 14, 14)),
}


def base(case: str, seed: int = 0) -> nn.Module:
    spec, shape = CASES[case]
    return fresh(architecture(spec, shape, 3), seed)  # type: ignore[arg-type]


def examples(case: str) -> Tensor:
    return torch.randn(5, *CASES[case][1], generator=torch.Generator().manual_seed(1))


def params(module: nn.Module) -> Params:
    return Params({n: t.clone() for n, t in module.state_dict().items()})


def says(module: nn.Module, weights: Params, x: Tensor) -> Tensor:
    module.load_state_dict(dict(weights))
    return module.eval()(x).detach()


def reordered(module: nn.Module, seed: int) -> Params:
    """The weights of the same function with the units of every hidden layer in another order."""
    layers, out = chain(module), {n: t.clone() for n, t in module.state_dict().items()}
    for at, layer in enumerate(layers[:-1]):
        order = torch.randperm(layer.units, generator=torch.Generator().manual_seed(seed + at))
        out[layer.weight] = out[layer.weight][order]
        if layer.bias:
            out[layer.bias] = out[layer.bias][order]
        above = layers[at + 1]
        shape = out[above.weight].shape
        split = out[above.weight].reshape(shape[0], layer.units, above.block)
        out[above.weight] = split[:, order].reshape(shape)
    return Params(out)


def whole_pass(
    case: str, members: list[Params], growth: float, spread: float
) -> tuple[list[Params], Merging]:
    module = base(case)
    merging = Merging(chain(module), growth, Prior(spread, 1e6))
    for stage in range(len(merging.layers)):
        shapes = params(staged(base(case), stage + 1, growth)).shapes
        members = merging.advance(stage, members, [1.0] * len(members), shapes)
    return members, merging


@pytest.mark.parametrize("case", CASES)
def test_networks_that_differ_in_the_order_of_their_units_merge_into_the_same_function(case: str) -> None:
    module, x = base(case), examples(case)
    expected = module.eval()(x).detach()
    for one in (reordered(module, 1), reordered(module, 9)):
        torch.testing.assert_close(says(base(case), one, x), expected)
    found, _ = whole_pass(case, [params(module), reordered(module, 1), reordered(module, 9)], 1.5, 0.01)
    common = staged(base(case), len(chain(module)), 1.5)
    for member in found:
        assert all(t.is_contiguous() for t in member.values())  # as a parcel needs them
        torch.testing.assert_close(says(common, member, x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_every_stage_computes_what_its_member_computed_when_nothing_was_averaged(case: str) -> None:
    """One member alone: widening, placing and freezing change no prediction, at any stage."""
    module, x = base(case), examples(case)
    expected = module.eval()(x).detach()
    merging, members = Merging(chain(module), 1.7, Prior(1.0, 1e6)), [params(module)]
    for stage in range(len(merging.layers)):
        at = staged(base(case), stage + 1, 1.7)
        members = merging.advance(stage, members, [1.0], params(at).shapes)
        torch.testing.assert_close(says(at, members[0], x), expected, rtol=1e-4, atol=1e-5)
    own = own_part(members[0], params(module), merging.layers, 1.7)
    torch.testing.assert_close(says(base(case), own, x), expected, rtol=1e-4, atol=1e-5)


def test_units_that_are_unlike_make_the_common_network_wider_and_each_site_gets_its_own_back() -> None:
    members = [params(base("mlp", seed)) for seed in (0, 1)]
    found, merging = whole_pass("mlp", members, 2.0, 1e-3)
    there = [int((found[0][layer.weight].abs().sum(1) > 0).sum()) for layer in merging.layers]
    assert there == [12, 10, 3]
    for member, before in zip(found, members, strict=True):
        own = own_part(member, before, merging.layers, 2.0)
        torch.testing.assert_close(own["1.weight"], before["1.weight"], rtol=1e-4, atol=1e-5)


def test_what_is_not_there_learns_nothing_and_moves_nothing() -> None:
    module = base("mlp")
    merging = Merging(chain(module), 2.0, Prior(1.0, 1e6))
    at = staged(base("mlp"), 1, 2.0)
    (weights,) = merging.advance(0, [params(module)], [1.0], params(at).shapes)
    at.load_state_dict(dict(weights))
    x = examples("mlp")
    before = at(x)
    at(x).square().sum().backward()
    gradient = dict(at.named_parameters())["3.weight"].grad
    assert gradient is not None
    assert float(gradient[:, 6:].abs().max()) == 0
    assert float(gradient[:, :6].abs().max()) > 0
    with torch.no_grad():
        at.get_submodule("3").weight[:, 6:] += 100.0  # type: ignore[operator,union-attr,index]
    torch.testing.assert_close(at(x), before)  # noise on weights that read nothing
    noisy = params(at)
    shapes = params(staged(base("mlp"), 2, 2.0)).shapes
    with_noise, without = (merging.advance(1, [m], [1.0], shapes)[0] for m in (noisy, weights))
    torch.testing.assert_close(with_noise["3.weight"], without["3.weight"])


def test_common_layers_are_frozen_until_all_are_common() -> None:
    def trainable(stage: int) -> list[bool]:
        named = dict(staged(base("mlp"), stage, 1.5).named_parameters())
        return [named[f"{n}.weight"].requires_grad for n in (1, 3, 5)]

    assert [trainable(s) for s in (1, 2, 3)] == [[False, True, True], [False, False, True], [True] * 3]


def test_at_once_networks_of_another_order_merge_into_the_same_function() -> None:
    module, x = base("mlp"), examples("mlp")
    members = [params(module), reordered(module, 1), reordered(module, 9)]
    merging = Merging(chain(module), 1.5, Prior(0.01, 1e6))
    shapes = params(staged(base("mlp"), 3, 1.5)).shapes
    found = merging.at_once(members, [1.0] * 3, shapes)
    expected = module.eval()(x).detach()
    for member in found:
        torch.testing.assert_close(
            says(staged(base("mlp"), 3, 1.5), member, x), expected, rtol=1e-4, atol=1e-5
        )


def test_plain_averaging_of_these_would_have_been_wrong() -> None:
    module, x = base("mlp"), examples("mlp")
    mean = 0.5 * params(module) + 0.5 * reordered(module, 1)
    assert float((says(base("mlp"), mean, x) - module(x).detach()).abs().max()) > 0.01


def test_places_that_cannot_be_are_noticed() -> None:
    module = base("mlp")
    merging = Merging(chain(module), 1.5, Prior())
    (good,) = merging.advance(0, [params(module)], [1.0], params(staged(base("mlp"), 1, 1.5)).shapes)
    assert places_of(good, merging.layers, 1.5) is not None
    for bad in ([0, 1, 2, 3, 4, 9], [-1, 1, 2, 3, 4, 5], [0, 0, 2, 3, 4, 5]):
        wrong = Params({**good, "places_0": torch.tensor(bad)})
        assert places_of(wrong, merging.layers, 1.5) is None


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(4, 2)), "GroupNorm"),
        (nn.Sequential(nn.Linear(4, 4), nn.Sigmoid(), nn.Linear(4, 2)), "Sigmoid"),
        (nn.LSTM(4, 4), "LSTM"),
        (nn.Sequential(nn.Conv2d(4, 4, 3, groups=2), nn.Flatten(), nn.Linear(4, 2)), "does not take"),
        (nn.Sequential(nn.Flatten()), "no layers"),
    ],
)
def test_other_networks_are_refused_in_words(module: nn.Module, why: str) -> None:
    with pytest.raises(StudyError, match=why):
        chain(copy.deepcopy(module), "mine")
