"""Whatever the graph, the members and the round: nothing is made and nothing is lost."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from confrere.core.protocols import Topology
from confrere.exchange.topology import (
    Complete,
    Exponential,
    Matrix,
    NoExchange,
    RandomRegular,
    Ring,
    Star,
    senders,
)
from tests.mixing_matrix import matrix_of

shares = st.floats(0, 1)
graphs: st.SearchStrategy[Topology] = st.one_of(
    st.builds(NoExchange),
    st.builds(Exponential, keep=shares, rota=st.sampled_from(["ours", "published"])),
    st.builds(Ring, keep=shares),
    st.builds(Complete),
    st.builds(Star, keep=shares),
    st.builds(RandomRegular, degree=st.integers(1, 70), seed=st.integers(0, 10)),
)
members = st.sets(st.text(min_size=1, max_size=4), min_size=1, max_size=24).map(sorted)
rounds = st.integers(0, 10_000)


@settings(max_examples=80, deadline=None)
@given(graphs, members, rounds)
def test_every_topology_is_column_stochastic(graph: Topology, members: list[str], round: int) -> None:
    matrix = matrix_of(graph, round, members)
    assert (matrix >= 0).all()
    assert (matrix.sum(0) - 1).abs().max() < 1e-12


@settings(max_examples=40, deadline=None)
@given(graphs, members, rounds)
def test_senders_are_the_off_diagonal_entries_of_the_matrix(
    graph: Topology, members: list[str], round: int
) -> None:
    matrix = matrix_of(graph, round, members)
    for k, receiver in enumerate(members):
        expected = [s for j, s in enumerate(members) if j != k and matrix[k, j] > 0]
        assert list(senders(graph, round, members, receiver)) == expected


@settings(max_examples=40, deadline=None)
@given(graphs, members, rounds, st.randoms())
def test_the_order_in_which_members_are_listed_makes_no_difference(graph, members, round, random) -> None:  # type: ignore[no-untyped-def]
    shuffled = random.sample(members, len(members))
    for sender in members:
        assert graph.column(round, members, sender) == graph.column(round, shuffled, sender)
    assert graph.centre(round, members) == graph.centre(round, shuffled)


@settings(max_examples=20, deadline=None)
@given(graphs, rounds)
def test_one_member_alone_keeps_everything(graph: Topology, round: int) -> None:
    assert graph.column(round, ["alone"], "alone") == {"alone": 1.0}


@settings(max_examples=40, deadline=None)
@given(st.data(), st.integers(1, 6), rounds)
def test_a_matrix_with_columns_that_sum_to_one_is_taken_as_it_is_and_members_may_leave(
    data: st.DataObject, size: int, round: int
) -> None:
    raw = data.draw(
        st.lists(st.lists(st.floats(0.01, 1), min_size=size, max_size=size), min_size=size, max_size=size)
    )
    rows = [[raw[k][j] / sum(r[j] for r in raw) for j in range(size)] for k in range(size)]
    names = [f"s{i}" for i in range(size)]
    present = data.draw(st.sets(st.sampled_from(names), min_size=1))
    matrix = matrix_of(Matrix(rows, sites=tuple(names)), round, sorted(present))
    assert (matrix.sum(0) - 1).abs().max() < 1e-12
