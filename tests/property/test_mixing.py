"""Mixing makes nothing, loses nothing, ends at the mean, and never loosens custody."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from confrere.core.custody import Custody, Scalar, public
from confrere.core.model import Model
from confrere.core.params import Params
from confrere.core.parcel import Parcel
from confrere.core.protocols import Topology
from confrere.exchange.combine import Mean, Replace, push_sum
from confrere.exchange.topology import Complete, Exponential, RandomRegular, Ring, Star

State = dict[str, tuple[Model, Scalar]]


def start(values: list[float]) -> State:
    return {
        f"site-{i:02}": (
            Model(Params({"w": torch.tensor([v, -v], dtype=torch.float64)}), "t", Custody.PROTECTED), public(1.0)
        )
        for i, v in enumerate(values)
    }  # fmt: skip


def first(model: Model | None) -> float:
    assert model is not None
    return float(model.params["w"][0])


def totals(state: State, on_the_way: list[Parcel]) -> tuple[float, float]:
    """Σ mass and Σ mass·θ over the sites and the parcels under way."""
    parcels = [(p.scalar("mass").value, first(p.model)) for p in on_the_way]
    sites = [(mass.value, first(model)) for model, mass in state.values()]
    return sum(m for m, _ in sites + parcels), sum(m * x for m, x in sites + parcels)


def debit(state: State, graph: Topology, round: int, members: list[str]) -> list[Parcel]:
    """What every member sends in a round: a share of its mass, and its model as it is."""
    return [
        Parcel("run", 0, round, 0, sender, to, round, model, {"mass": mass * share})
        for sender, (model, mass) in state.items()
        if sender in members
        for to, share in graph.column(round, members, sender).items()
        if to != sender and (mass * share).value > 0
    ]


def credit(
    state: State, graph: Topology, round: int, members: list[str], boxes: Mapping[str, list[Parcel]]
) -> State:
    return {
        name: push_sum(model, mass, graph.column(round, members, name).get(name, 0.0), boxes.get(name, []))
        for name, (model, mass) in state.items()
    }


def rounds_of(state: State, graph: Topology, rounds: int) -> State:
    members = sorted(state)
    for round in range(rounds):
        boxes: dict[str, list[Parcel]] = {}
        for p in debit(state, graph, round, members):
            boxes.setdefault(p.receiver, []).append(p)
        state = credit(state, graph, round, members, boxes)
    return state


shares = st.floats(0.05, 0.95)
mixing: st.SearchStrategy[Topology] = st.one_of(
    st.builds(Exponential, keep=shares),
    st.builds(Exponential, keep=st.just(0.0), rota=st.sampled_from(["ours", "published"])),
    st.builds(Ring, keep=st.floats(0, 1)),
    st.builds(Complete),
    st.builds(Star, keep=st.floats(0, 1)),
    st.builds(RandomRegular, degree=st.integers(1, 5)),
)
values = st.lists(st.floats(-100, 100), min_size=1, max_size=7)


@settings(max_examples=60, deadline=None)
@given(mixing, values, st.data())
def test_mass_and_weighted_models_are_conserved_however_late_parcels_arrive(
    graph: Topology, values: list[float], data: st.DataObject
) -> None:
    state, on_the_way = start(values), list[Parcel]()
    members = sorted(state)
    before = totals(state, on_the_way)
    for round in range(data.draw(st.integers(1, 6))):
        on_the_way += debit(state, graph, round, members)
        arrives = data.draw(st.lists(st.booleans(), min_size=len(on_the_way), max_size=len(on_the_way)))
        boxes: dict[str, list[Parcel]] = {}
        for p, now in zip(on_the_way, arrives, strict=True):
            if now:
                boxes.setdefault(p.receiver, []).append(p)
        on_the_way = [p for p, now in zip(on_the_way, arrives, strict=True) if not now]
        state = credit(state, graph, round, members, boxes)
        assert totals(state, on_the_way) == pytest.approx(before, rel=1e-9, abs=1e-9)


def test_the_same_test_notices_a_lost_parcel() -> None:
    state = start([1.0, 5.0, 9.0])
    members, graph = sorted(state), Exponential(0.5)
    before = totals(state, [])
    parcels = debit(state, graph, 0, members)
    state = credit(state, graph, 0, members, {p.receiver: [p] for p in parcels[1:]})
    assert totals(state, []) != pytest.approx(before, rel=1e-9)


@settings(max_examples=20, deadline=None)
@given(
    st.one_of(
        st.builds(Exponential, keep=st.floats(0.3, 0.7)),
        st.builds(Ring, keep=st.floats(0.3, 0.7)),
        st.builds(Star, keep=st.floats(0.3, 0.7)),
        st.builds(RandomRegular, degree=st.integers(1, 3)),
        st.builds(Complete),
    ),
    values,
)
def test_every_site_ends_at_the_mean(graph: Topology, values: list[float]) -> None:
    mixed = rounds_of(start(values), graph, 150)
    for model, _ in mixed.values():
        assert first(model) == pytest.approx(sum(values) / len(values), abs=1e-3)


custodies = st.sampled_from([Custody.PUBLIC, Custody.PROTECTED, Custody.UNPROVEN])


@st.composite
def parcels(draw: st.DrawFn, sequence: int) -> Parcel:
    model = Model(Params({"w": torch.tensor([draw(st.floats(-1, 1))])}), "t", draw(custodies))
    scalars = {name: Scalar(draw(st.floats(0, 2)), draw(custodies)) for name in ("mass", "weight")}
    return Parcel("run", 0, 0, 0, f"s{sequence}", "me", sequence, model, scalars)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(list(Custody)), st.floats(0.1, 1), st.data(), st.integers(0, 4))
def test_custody_never_falls_by_mixing(
    custody: Custody, weight: float, data: st.DataObject, count: int
) -> None:
    own = Model(Params({"w": torch.zeros(1)}), "t", custody)
    inbox = [data.draw(parcels(i)) for i in range(count)]

    def at_least(counted: str) -> Custody:
        used = [p.model for p in inbox if p.scalar(counted).value > 0 and p.model is not None]
        return max([custody, *(m.custody for m in used), *(p.scalar(counted).custody for p in inbox)])

    assert Mean()(own, public(weight), inbox).custody == at_least("weight")
    assert push_sum(own, public(weight), 0.5, inbox)[0].custody == at_least("mass")
    assert any(Replace()(own, public(weight), inbox) == m for m in [own, *(p.model for p in inbox)])
