"""Custody never falls: not by mixing, not by combining, not by arithmetic, not by training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from confrere.core.custody import Custody, Scalar, public, strictest
from confrere.core.model import Model, mix
from confrere.core.params import Params
from confrere.core.parcel import Parcel
from confrere.exchange.combine import Mean, Replace, push_sum

custodies = st.sampled_from(list(Custody))
weights = st.floats(0.01, 10.0)


def model(custody: Custody) -> Model:
    return Model(Params({"w": torch.tensor([float(custody)])}), "net", custody)


def parcel(n: int, held: Custody, weighted: Custody, weight: float) -> Parcel:
    scalars = {name: Scalar(weight, weighted) for name in ("mass", "weight")}
    return Parcel("run", 0, 0, 0, f"s{n}", "me", n, model(held), scalars)


@given(st.lists(st.tuples(weights, custodies, custodies), min_size=1, max_size=6))
def test_a_mixture_is_held_as_closely_as_its_strictest_weight_or_model(
    parts: Sequence[tuple[float, Custody, Custody]],
) -> None:
    terms = [(Scalar(w, weighted), model(held)) for w, weighted, held in parts]
    assert mix(terms).custody == max(max(weighted, held) for _, weighted, held in parts)


@given(custodies, st.lists(st.tuples(custodies, custodies, weights), max_size=5))
def test_combining_never_loosens_custody(
    own: Custody, arrived: Sequence[tuple[Custody, Custody, float]]
) -> None:
    inbox = [parcel(n, *a) for n, a in enumerate(arrived)]
    everything = [own, *(c for held, weighted, _ in arrived for c in (held, weighted))]
    mixed, _ = push_sum(model(own), public(1.0), 0.5, inbox)
    assert mixed.custody == strictest(everything)
    assert Mean()(model(own), public(1.0), inbox).custody == strictest(everything)
    taken = Replace()(model(own), public(1.0), inbox)
    assert taken.custody in {own, *(held for held, _, _ in arrived)}


operations = st.sampled_from(["+", "-", "*", "/", "r+", "r-", "r*", "r/"])


@given(custodies, st.lists(st.tuples(operations, st.one_of(st.floats(1, 5), custodies)), max_size=6))
def test_arithmetic_never_loosens_custody(start: Custody, steps: Sequence[tuple[str, Any]]) -> None:
    value, held = Scalar(2.0, start), start
    for operation, with_ in steps:
        other = Scalar(1.5, with_) if isinstance(with_, Custody) else with_
        held = max(held, with_) if isinstance(with_, Custody) else held
        left, right = (other, value) if operation[0] == "r" else (value, other)
        value = {
            "+": lambda a, b: a + b, "-": lambda a, b: a - b,
            "*": lambda a, b: a * b, "/": lambda a, b: a / b if _number(b) else a + b,
        }[operation[-1]](left, right)  # fmt: skip
        assert value.custody == held


def _number(x: Any) -> float:
    return x.value if isinstance(x, Scalar) else float(x)


@given(custodies, custodies)
def test_holding_more_closely_is_never_undone(first: Custody, second: Custody) -> None:
    assert model(first).held(second).custody == max(first, second)
