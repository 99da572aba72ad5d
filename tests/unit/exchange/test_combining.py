"""Averaging, replacing and push-sum, by hand."""

from __future__ import annotations

import pytest
import torch

from confrere.core.custody import Custody, Scalar, private, public
from confrere.core.errors import BadParcel
from confrere.core.model import Model
from confrere.core.params import Params
from confrere.core.parcel import Parcel
from confrere.exchange.combine import combiners, mean, push_sum, replace


def model(*numbers: float, custody: Custody = Custody.PROTECTED, architecture: str = "tiny") -> Model:
    return Model(Params({"w": torch.tensor(numbers)}), architecture, custody)


def parcel(
    held: Model | None, sender: str = "b", round: int = 0, sequence: int = 0, **scalars: float | Scalar
) -> Parcel:
    tagged = {k: v if isinstance(v, Scalar) else public(v) for k, v in scalars.items()}
    return Parcel("run", 0, round, 0, sender, "a", sequence, held, tagged)


def numbers(m: Model) -> list[float]:
    return m.params["w"].tolist()


def test_the_mean_is_weighted_by_what_sites_declare() -> None:
    inbox = [parcel(model(4.0), weight=3.0), parcel(model(8.0), "c")]
    assert numbers(mean(model(0.0), public(1.0), inbox)) == [pytest.approx((0 + 12 + 8) / 5)]


def test_the_mean_of_an_empty_inbox_is_ones_own_model() -> None:
    own = model(1.0, 2.0)
    assert mean(own, public(5.0), []) is own
    assert mean(own, public(5.0), [parcel(None)]) is own
    assert mean(own, public(0.0), [parcel(model(9.0, 9.0), weight=0.0)]) is own


def test_arrival_order_leaves_no_trace() -> None:
    inbox = [parcel(model(0.1 * i, -0.3 * i), f"s{i}", weight=0.1 + i) for i in range(9)]
    assert mean(model(1.0, 1.0), public(0.7), inbox).params.equals(
        mean(model(1.0, 1.0), public(0.7), inbox[::-1]).params
    )


def test_the_newest_model_replaces_ones_own() -> None:
    inbox = [parcel(model(2.0), round=3, sequence=3), parcel(model(1.0), round=2, sequence=2)]
    assert numbers(replace(model(0.0), public(1.0), inbox)) == [2.0]
    own = model(0.0)
    assert replace(own, public(1.0), [parcel(None)]) is own


def test_push_sum_weighs_by_mass_and_adds_it_up() -> None:
    theta, mass = push_sum(model(1.0), public(1.0), 0.5, [parcel(model(4.0), mass=0.25)])
    assert mass == public(0.75)
    assert numbers(theta) == [pytest.approx((0.5 * 1 + 0.25 * 4) / 0.75)]


def test_a_permutation_hands_models_on_unchanged() -> None:
    arrived = model(4.0)
    assert push_sum(model(1.0), public(1.0), 0.0, [parcel(arrived, mass=1.0)]) == (arrived, public(1.0))


def test_nothing_kept_and_nothing_arrived_leaves_the_model_and_no_mass() -> None:
    own = model(1.0)
    assert push_sum(own, public(1.0), 0.0, []) == (own, public(0.0))
    assert push_sum(own, public(0.0), 0.5, []) == (own, public(0.0))


def test_a_site_without_mass_takes_what_arrives() -> None:
    theta, mass = push_sum(model(1.0), public(0.0), 0.5, [parcel(model(4.0), mass=0.5)])
    assert (numbers(theta), mass) == ([4.0], public(0.5))


def test_late_parcels_are_credited() -> None:
    inbox = [parcel(model(4.0), round=1, mass=0.5), parcel(model(6.0), round=7, sequence=1, mass=0.5)]
    assert push_sum(model(1.0), public(0.0), 0.0, inbox)[1] == public(1.0)


def test_a_parcel_without_mass_does_not_count() -> None:
    own = model(1.0)
    assert push_sum(own, public(1.0), 1.0, [parcel(model(100.0)), parcel(None, mass=1.0)]) == (
        own,
        public(1.0),
    )


def test_a_tiny_mass_does_not_harm_the_model() -> None:
    theta, mass = push_sum(model(1.5), public(1e-300), 0.5, [])
    assert (numbers(theta), mass) == ([1.5], public(5e-301))


def test_custody_never_falls() -> None:
    own = model(1.0, custody=Custody.PUBLIC)
    inbox = [parcel(model(2.0, custody=Custody.UNPROVEN), mass=1.0)]
    assert mean(own, public(1.0), inbox).custody == Custody.UNPROVEN
    assert push_sum(own, public(1.0), 0.5, inbox)[0].custody == Custody.UNPROVEN
    assert replace(own, public(1.0), inbox).custody == Custody.UNPROVEN


def test_a_weight_has_custody_too() -> None:
    weighted = parcel(model(2.0, custody=Custody.PUBLIC), weight=Scalar(2.0, Custody.UNPROVEN))
    assert mean(model(1.0, custody=Custody.PUBLIC), public(1.0), [weighted]).custody == Custody.UNPROVEN


@pytest.mark.parametrize("weight", [0.0, 2.0])
def test_a_private_weight_makes_the_mean_private_even_where_it_is_nothing(weight: float) -> None:
    own, others = model(1.0), [parcel(model(2.0), weight=1.0, mass=1.0)]
    assert mean(own, private(weight), others).custody == Custody.PRIVATE
    mixed, mass = push_sum(own, private(weight), 0.5, others)
    assert (mixed.custody, mass.custody) == (Custody.PRIVATE, Custody.PRIVATE)


def test_models_that_do_not_fit_are_a_bad_parcel() -> None:
    with pytest.raises(BadParcel, match="different shape"):
        mean(model(1.0), public(1.0), [parcel(model(1.0, 2.0))])
    with pytest.raises(BadParcel, match="different architectures"):
        push_sum(model(1.0), public(1.0), 0.5, [parcel(model(1.0, architecture="other"), mass=1.0)])


def test_a_study_finds_them_by_name() -> None:
    assert {"mean", "replace"} <= set(combiners.names())
    assert numbers(combiners["mean"]()(model(0.0), public(1.0), [parcel(model(2.0))])) == [1.0]
