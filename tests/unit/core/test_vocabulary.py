"""Params, models, custody, seeds and names: the words that everything else is said in."""

from __future__ import annotations

import math

import pytest
import torch

from confrere.core.custody import Custody, Scalar, private, public, strictest
from confrere.core.errors import BadParcel, CustodyError, StudyError
from confrere.core.model import Model, mix
from confrere.core.params import Params, combine
from confrere.core.parcel import Inbox, Parcel
from confrere.core.registry import Registry
from confrere.core.seeds import derive, generator


def params(*values: float) -> Params:
    return Params({"b": torch.tensor(values), "a": torch.tensor([values[0]])})


def test_params_are_a_vector_space_with_names_in_sorted_order() -> None:
    one, two = params(1.0, 2.0), params(3.0, -1.0)
    assert list(one) == ["a", "b"]
    assert (2 * one + two - one).equals(params(4.0, 1.0))
    assert one.norm() == pytest.approx(math.sqrt(1 + 1 + 4))
    assert one.distance(two) == pytest.approx(math.sqrt(4 + 4 + 9))
    assert one.unflatten(one.flatten()).equals(one)
    assert one.count == 3


def test_params_cannot_be_altered_through_what_they_were_made_of() -> None:
    weight = torch.ones(2, requires_grad=True)
    held = Params({"w": weight})
    assert not held["w"].requires_grad
    with pytest.raises(TypeError):
        held["w"] = torch.zeros(2)  # type: ignore[index]


def test_params_of_different_shape_do_not_mix() -> None:
    with pytest.raises(BadParcel, match="different shape"):
        params(1.0, 2.0) + params(1.0, 2.0, 3.0)
    with pytest.raises(ValueError, match="do not fill"):
        params(1.0).unflatten(torch.zeros(7))


def test_counters_are_not_averaged() -> None:
    one, two = (Params({"steps": torch.tensor(n), "w": torch.tensor(float(n))}) for n in (3, 5))
    found = combine([(0.5, one), (0.5, two)])
    assert (int(found["steps"]), float(found["w"])) == (3, 4.0)


def test_sums_are_made_in_double_precision() -> None:
    tiny, big = Params({"w": torch.tensor([1.0])}), Params({"w": torch.tensor([1e8])})
    assert combine([(1.0, big), (1.0, tiny), (-1.0, big)]).equals(tiny)


def test_not_a_number_is_noticed() -> None:
    assert params(1.0, 2.0).is_finite()
    assert not params(1.0, math.nan).is_finite()
    assert not params(1.0, math.inf).is_finite()


def test_mixing_keeps_the_strictest_custody() -> None:
    models = [Model(params(1.0), "net", c) for c in (Custody.PUBLIC, Custody.PRIVATE, Custody.PROTECTED)]
    assert mix([(public(0.5), models[0]), (public(0.5), models[2])]).custody == Custody.PROTECTED
    assert mix([(public(0.5), m) for m in models]).custody == Custody.PRIVATE
    assert models[0].held(Custody.UNPROVEN).custody == Custody.UNPROVEN
    assert models[1].held(Custody.PUBLIC).custody == Custody.PRIVATE
    assert strictest([]) == Custody.PUBLIC


def test_a_private_weight_makes_a_private_mixture() -> None:
    released = [Model(params(n), "net", Custody.PROTECTED) for n in (1.0, 2.0)]
    assert mix([(private(0.3), released[0]), (public(0.7), released[1])]).custody == Custody.PRIVATE


def test_mixing_refuses_a_weight_without_custody_and_names_the_remedy() -> None:
    with pytest.raises(CustodyError, match=r"public\(0\.3\) if no record shaped it"):
        mix([(0.3, Model(params(1.0), "net", Custody.PROTECTED))])  # type: ignore[list-item]


def test_models_of_different_architectures_do_not_mix() -> None:
    with pytest.raises(BadParcel, match="different architectures cannot be mixed: cnn, mlp"):
        mix(
            [
                (public(0.5), Model(params(1.0), "mlp", Custody.PUBLIC)),
                (public(0.5), Model(params(1.0), "cnn", Custody.PUBLIC)),
            ]
        )
    with pytest.raises(ValueError, match="nothing to mix"):
        mix([])


@pytest.mark.parametrize("secret", [private(2.0), Scalar(2.0, Custody.PRIVATE)])
def test_a_number_from_records_stays_private_however_it_is_dressed_up(secret: Scalar) -> None:
    for made in (secret + 1, 1 + secret, secret * 0, 0 * secret, secret - secret, 3 - secret, 1 / secret,
                 secret / 2, public(1.0) + secret, public(1.0) / secret):  # fmt: skip
        assert made.custody == Custody.PRIVATE
    assert (public(1.0) + public(2.0)) == public(3.0)
    assert (6 / private(3.0)).value == 2.0


def test_chance_is_derived_from_who_draws_when_and_what_for() -> None:
    assert derive(0, "a", 1) == derive(0, "a", 1)
    different = {
        derive(0, "a", 1),
        derive(1, "a", 1),
        derive(0, "a", "1"),
        derive(0, "a1"),
        derive(0, "a", 2),
    }
    assert len(different) == 5
    assert all(0 <= d < 2**63 for d in different)
    one, two = (torch.rand(3, generator=generator(0, "x")) for _ in range(2))
    assert torch.equal(one, two)


def test_an_inbox_tells_late_parcels_from_those_of_the_round() -> None:
    old, new = (Parcel("run", 0, r, 0, "a", "b", r, None, {"mass": public(float(r))}) for r in (1, 2))
    inbox = Inbox((old, new), ("c",), round=2)
    assert (inbox.current, inbox.late, len(inbox)) == ((new,), (old,), 2)
    assert new.scalar("mass") == public(2.0)
    assert new.scalar("weight", 1.0) == public(1.0)
    with pytest.raises(KeyError):
        new.scalar("weight")


def test_two_things_of_one_name_are_refused_and_a_reloaded_one_is_not() -> None:
    table: Registry[type] = Registry("thing")

    class First:
        pass

    class Second:
        pass

    table.register("x")(First)
    table.register("x")(First)
    with pytest.raises(StudyError, match='two thing definitions are called "x"'):
        table.register("x")(Second)
    with pytest.raises(StudyError, match='unknown thing "y"; known: x'):
        table["y"]
