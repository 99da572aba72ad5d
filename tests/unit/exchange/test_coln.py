"""CoLN's combination, against its formulas written out term by term."""

from __future__ import annotations

import asyncio
import math

import pytest
import torch

from confrere.core.custody import Custody, Scalar, public
from confrere.core.errors import BadParcel, StudyError
from confrere.core.model import Model
from confrere.core.params import Params
from confrere.core.parcel import Inbox, Parcel
from confrere.exchange.averaging import agree
from confrere.exchange.coln import CombinedLearning, Diverged, layers
from confrere.exchange.combine import combiners

SIZES = [30.0, 60.0, 10.0]


def weights(seed: int) -> Params:
    g = torch.Generator().manual_seed(seed)
    made = {"0.weight": (3, 2), "0.bias": (3,), "2.weight": (1, 3)}
    return Params({n: torch.randn(s, generator=g, dtype=torch.float64) for n, s in made.items()})


def parcel(sender: str, params: Params, size: float, custody: Custody = Custody.PROTECTED) -> Parcel:
    return Parcel("r", 0, 0, 0, sender, "me", 1, Model(params, "net", custody), {"weight": public(size)})


def combined(rule: CombinedLearning, models: list[Params], sizes: list[float] = SIZES) -> Params:
    inbox = [parcel(f"p{k}", m, n) for k, (m, n) in enumerate(zip(models[1:], sizes[1:], strict=True))]
    return rule(Model(models[0], "net", Custody.PROTECTED), public(sizes[0]), inbox).params


def by_hand(models: list[Params], rate: float) -> dict[str, torch.Tensor]:
    """Equations (2) to (6), weight by weight."""
    r = [n / sum(SIZES) for n in SIZES]
    alpha = [math.exp(rate * share) for share in r]
    out = {n: t.clone() for n, t in models[0].items()}
    for layer in (["0.weight", "0.bias"], ["2.weight"]):
        places = [(n, i) for n in layer for i in range(models[0][n].numel())]
        w = {(h, n, i): float(models[h][n].reshape(-1)[i]) for h in range(3) for n, i in places}
        pairs = [(j, k) for j in range(3) for k in range(j + 1, 3)]
        total = sum((w[j, n, i] - w[k, n, i]) ** 2 for n, i in places for j, k in pairs)
        layer_distance = math.sqrt(total) / len(places)
        for n, i in places:
            wd = math.sqrt(sum((w[j, n, i] * r[j] - w[k, n, i] * r[k]) ** 2 for j, k in pairs))
            beta = wd if wd < layer_distance else 0.0
            out[n].reshape(-1)[i] = sum(alpha[h] * w[h, n, i] for h in range(3)) + beta
    return out


@pytest.mark.parametrize("rate", [1e-3, 1.0, -1.0])
def test_as_printed_it_is_the_published_formula(rate: float) -> None:
    models = [weights(k) for k in range(3)]
    found = combined(CombinedLearning(rate, normalise=False), models)
    for name, expected in by_hand(models, rate).items():
        torch.testing.assert_close(found[name], expected, rtol=1e-10, atol=1e-10)


def test_some_weights_are_shifted_and_some_are_not() -> None:
    models = [weights(k) for k in range(3)]
    rule = CombinedLearning(normalise=False)
    alphas = rule.coefficients([n / 100 for n in SIZES])
    plain = sum(a * m["0.weight"] for a, m in zip(alphas, models, strict=True))
    moved = (combined(rule, models)["0.weight"] - plain).abs() > 1e-12
    assert 0 < int(moved.sum()) < moved.numel()


def test_normalised_coefficients_sum_to_one_and_follow_the_sizes() -> None:
    for form in ("exponential", "linear"):
        alphas = CombinedLearning(1.0, form).coefficients([0.3, 0.6, 0.1])
        assert sum(alphas) == pytest.approx(1)
        assert alphas[1] > alphas[0] > alphas[2]
    assert CombinedLearning(normalise=False, form="linear").coefficients([0.25, 0.75]) == [1.25, 1.75]


def test_equal_models_stay_what_they_are_when_normalised_and_grow_as_printed() -> None:
    same = [weights(0)] * 3
    torch.testing.assert_close(
        combined(CombinedLearning(), same, [10.0] * 3)["0.weight"], same[0]["0.weight"]
    )
    grown = combined(CombinedLearning(normalise=False), same, [10.0] * 3)
    torch.testing.assert_close(grown["0.weight"], same[0]["0.weight"] * 3 * math.exp(1e-3 / 3))


def test_what_is_too_large_or_no_number_is_refused_as_diverged() -> None:
    large = Params({"w": torch.full((2,), 6e5)})
    with pytest.raises(Diverged, match=r"beyond 1e\+06; with normalise = true"):
        combined(CombinedLearning(normalise=False), [large] * 2, [1.0, 1.0])
    assert combined(CombinedLearning(normalise=True), [large] * 2, [1.0, 1.0])["w"].max() < 1e6
    top = Params({"w": torch.full((2,), 3e38)})
    with pytest.raises(Diverged, match="not numbers"):
        combined(CombinedLearning(normalise=False, largest=1e300), [top] * 2, [1.0, 1.0])


def test_the_result_is_held_as_closely_as_the_strictest_of_the_models() -> None:
    inbox = [parcel("a", weights(1), 5.0, Custody.UNPROVEN)]
    found = CombinedLearning()(Model(weights(0), "net", Custody.PROTECTED), public(5.0), inbox)
    assert found.custody == Custody.UNPROVEN


def test_a_weight_belongs_to_a_layer_with_its_bias() -> None:
    assert layers(weights(0)) == [["0.bias", "0.weight"], ["2.weight"]]


def test_other_architectures_and_other_options_are_refused() -> None:
    other = Parcel("r", 0, 0, 0, "a", "me", 1, Model(weights(1), "other", Custody.PUBLIC), {})
    with pytest.raises(BadParcel, match="different architectures"):
        CombinedLearning()(Model(weights(0), "net", Custody.PUBLIC), public(1.0), [other])
    with pytest.raises(StudyError, match="largest"):
        CombinedLearning(largest=0)
    with pytest.raises(StudyError, match="rate"):
        CombinedLearning(rate=math.nan)
    assert combiners["coln"] is CombinedLearning


@pytest.mark.parametrize("centre", [None, "a"])
def test_no_combination_is_beyond_the_largest_weight_that_peers_accept(centre: str | None) -> None:
    """One lie within the bound moves the mean and the shift; the sum of both was beyond it, and peers refused the model."""
    largest = 10.0
    own, lie = (Model(Params({"l.weight": torch.tensor([w])}), "net", Custody.PUBLIC) for w in (0.0, largest))
    rule = CombinedLearning()

    class Peers:
        me, combiner = "a", None

        def __init__(self) -> None:
            self.centre, self.largest = centre, largest

        async def exchange(self, model: Model, **scalars: Scalar) -> Inbox:
            honest = [parcel(n, own.params, 1.0) for n in "bc"]
            return Inbox((*honest, parcel("d", lie.params, 30.0)))

        async def answer(self, models: object, **scalars: Scalar) -> Inbox:
            return Inbox(())

        async def send_common(self, *models: Model) -> None: ...

    inbox = asyncio.run(Peers().exchange(own))
    assert rule(own, public(1.0), inbox.current).params.largest() > largest
    agreed = asyncio.run(agree(Peers(), own, public(1.0), rule))  # type: ignore[arg-type]
    assert agreed.params.largest() == largest
