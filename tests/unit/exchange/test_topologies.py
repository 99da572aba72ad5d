"""The graphs: who sends to whom, and what a study may not ask for."""

from __future__ import annotations

import pytest
import torch

from confrere.core.errors import StudyError
from confrere.exchange.topology import (
    Complete,
    Exponential,
    Matrix,
    NoExchange,
    RandomRegular,
    Ring,
    Star,
    distances,
    senders,
    topologies,
)
from tests.mixing_matrix import matrix_of

EVERY_SIZE = range(2, 65)


def names(count: int) -> list[str]:
    return [f"site-{i:02}" for i in range(count)]


def visited(graph: Exponential, count: int, rounds: int) -> set[str]:
    """Where a proxy has been that starts at the first site and is never kept."""
    members = names(count)
    at, seen = members[0], {members[0]}
    for round in range(rounds):
        [(at, share)] = graph.column(round, members, at).items()
        assert share == 1
        seen.add(at)
    return seen


@pytest.mark.parametrize("count", EVERY_SIZE)
def test_our_rota_brings_a_travelling_proxy_to_every_site(count: int) -> None:
    rounds = count * len(distances(count))
    assert visited(Exponential(keep=0), count, rounds) == set(names(count))


@pytest.mark.parametrize("count", [3, 7])
def test_the_published_rota_never_brings_it_to_some(count: int) -> None:
    assert len(visited(Exponential(keep=0, rota="published"), count, 1000)) < count


@pytest.mark.parametrize("count", EVERY_SIZE)
def test_our_rota_reaches_everybody_in_one_pass_and_converges_to_the_mean(count: int) -> None:
    for keep in (0.2, 0.5, 0.8):
        product = torch.eye(count, dtype=torch.float64)
        for round in range(len(distances(count))):
            product = matrix_of(Exponential(keep), round, names(count)) @ product
        assert (product > 0).all()
        assert torch.allclose(
            torch.linalg.matrix_power(product, 10_000), torch.full_like(product, 1 / count), atol=1e-9
        )


@pytest.mark.parametrize("count", [2, 4, 8, 16, 32, 64])
def test_for_powers_of_two_ours_is_the_published_rota_and_one_pass_is_the_mean(count: int) -> None:
    assert distances(count) == distances(count, "published")
    product = torch.eye(count, dtype=torch.float64)
    for round in range(len(distances(count))):
        product = matrix_of(Exponential(0.5), round, names(count)) @ product
    assert torch.allclose(product, torch.full_like(product, 1 / count))


def test_the_published_rota_sends_everything_two_to_the_t_steps_ahead() -> None:
    graph, members = Exponential(keep=0, rota="published"), names(8)
    for round, ahead in enumerate([1, 2, 4, 1, 2, 4]):
        for i, sender in enumerate(members):
            assert graph.column(round, members, sender) == {members[(i + ahead) % 8]: 1.0}


def test_our_rota_has_as_many_distances_as_the_published_one_and_they_sum_to_one_less_than_the_sites() -> (
    None
):
    for count in EVERY_SIZE:
        assert len(distances(count)) == len(distances(count, "published")) == (count - 1).bit_length()
        assert sum(distances(count)) == count - 1


def test_keep_stays_at_home() -> None:
    assert Exponential(keep=0.25).column(0, ["a", "b"], "a") == {"a": 0.25, "b": 0.75}
    assert Exponential(keep=1).column(0, ["a", "b"], "a") == {"a": 1.0}


def test_a_ring_sends_to_the_next_in_sorted_order() -> None:
    members = ["c", "a", "b"]
    assert [dict(Ring().column(5, members, m)) for m in "abc"] == [{"b": 1.0}, {"c": 1.0}, {"a": 1.0}]
    assert senders(Ring(), 5, members, "a") == ("c",)


def test_complete_sends_equal_shares_to_all() -> None:
    assert torch.equal(matrix_of(Complete(), 0, names(4)), torch.full((4, 4), 0.25, dtype=torch.float64))
    assert senders(Complete(), 0, ["a", "b", "c"], "b") == ("a", "c")


def test_a_star_sends_to_its_centre_only() -> None:
    graph = Star(leader="b")
    assert graph.centre(3, ["a", "b", "c"]) == "b"
    assert senders(graph, 3, ["a", "b", "c"], "b") == ("a", "c")
    assert senders(graph, 3, ["a", "b", "c"], "a") == ()


def test_an_elected_centre_takes_turns_whatever_the_order_of_the_members() -> None:
    assert [Star().centre(r, ["c", "a", "b"]) for r in range(4)] == ["a", "b", "c", "a"]


def test_a_star_whose_centre_is_no_member_says_so() -> None:
    with pytest.raises(StudyError, match='"x", is not a member'):
        Star(leader="x").centre(0, ["a", "b"])


def test_random_regular_gives_everybody_as_many_to_send_to_as_to_hear_from() -> None:
    graph, members = RandomRegular(degree=3, seed=1), names(10)
    for round in range(20):
        m = matrix_of(graph, round, members)
        assert ((m > 0).sum(0) == 4).all()
        assert ((m > 0).sum(1) == 4).all()
    assert not torch.equal(matrix_of(graph, 0, members), matrix_of(graph, 1, members))
    other = RandomRegular(degree=3, seed=2)
    assert not torch.equal(matrix_of(graph, 0, members), matrix_of(other, 0, members))


def test_random_regular_depends_on_seed_round_and_members_only() -> None:
    members = names(6)
    again = RandomRegular(degree=2, seed=1).column(4, list(reversed(members)), "site-03")
    assert RandomRegular(degree=2, seed=1).column(4, members, "site-03") == again


def test_a_degree_beyond_the_members_means_all_of_them() -> None:
    assert len(RandomRegular(degree=9).column(0, names(3), "site-00")) == 3


def test_ones_own_matrices_take_turns() -> None:
    swap, stay = [[0, 1], [1, 0]], [[1, 0], [0, 1]]
    graph = Matrix(matrix=[swap, stay])
    assert [dict(graph.column(r, ["b", "a"], "a")) for r in range(3)] == [{"b": 1.0}, {"a": 1.0}, {"b": 1.0}]


def test_an_entry_of_the_matrix_says_what_the_row_receives_from_the_column() -> None:
    rows = [[0.5, 0.0, 0.2], [0.5, 1.0, 0.3], [0.0, 0.0, 0.5]]
    graph = Matrix(matrix=rows)
    assert graph.column(0, ["a", "b", "c"], "c") == {"a": 0.2, "b": 0.3, "c": 0.5}
    assert senders(graph, 0, ["a", "b", "c"], "b") == ("a", "c")


def test_a_member_that_left_leaves_its_share_with_the_sender() -> None:
    graph = Matrix(matrix=[[0, 0, 1], [0.5, 0, 0], [0.5, 1, 0]], sites=("z", "y", "x"))
    assert graph.column(0, ["x", "y", "z"], "z") == {"y": 0.5, "x": 0.5}
    assert graph.column(0, ["x", "z"], "z") == {"x": 0.5, "z": 0.5}


@pytest.mark.parametrize(
    ("matrix", "said"),
    [
        ([[0.5, 0.5], [0.4, 0.5]], "column 1 of the matrix sums to 0.9, not 1: mass would be lost"),
        ([[1, 0.7], [0, 0.5]], "column 2 of the matrix sums to 1.2, not 1: mass would be made"),
        ([[[1, 0], [0, 1]], [[1, 0], [0, 0.5]]], "column 2 of matrix 2 of 2 sums to 0.5"),
        ([[1.5, 0], [-0.5, 1]], "has -0.5 in row 2, column 1"),
        ([[float("nan"), 0], [0, 1]], "has nan in row 1"),
        ([[1, 0]], "not square"),
        ([], "the matrix is missing"),
        ([[]], "not square"),
        ([["a", "b"], ["c", "d"]], "must be a list of rows of numbers"),
        (7, "must be a list of rows of numbers"),
        ([[[1]], [[1, 0], [0, 1]]], "matrix 2 of 2 is 2 × 2, the first is 1 × 1"),
    ],
)
def test_a_matrix_that_cannot_be_is_refused_with_the_place(matrix: object, said: str) -> None:
    with pytest.raises(StudyError, match=said):
        Matrix(matrix=matrix)


def test_a_matrix_of_another_size_than_the_members_is_refused() -> None:
    with pytest.raises(StudyError, match="2 × 2 but there are 3 members"):
        Matrix(matrix=[[1, 0], [0, 1]]).column(0, names(3), "site-00")
    with pytest.raises(StudyError, match="names 1 sites"):
        Matrix(matrix=[[1, 0], [0, 1]], sites=("a",))


def test_nobody_keeps_everything() -> None:
    assert NoExchange().column(0, ["a", "b"], "a") == {"a": 1.0}
    assert senders(NoExchange(), 0, ["a", "b"], "a") == ()


def test_options_that_make_no_sense_are_refused() -> None:
    with pytest.raises(StudyError, match="between 0 and 1"):
        Exponential(keep=1.5)
    with pytest.raises(StudyError, match="rota"):
        Exponential(rota="their")  # type: ignore[arg-type]
    with pytest.raises(StudyError, match="degree"):
        RandomRegular(degree=0)
    with pytest.raises(StudyError, match='"x" is not a member'):
        Ring().column(0, ["a", "b"], "x")


def test_a_study_finds_them_by_name() -> None:
    assert set(topologies.names()) >= {
        "exponential", "ring", "complete", "star", "random-regular", "matrix", "none",
    }  # fmt: skip
    with pytest.raises(StudyError, match='did you mean "exponential"'):
        topologies["exponental"]
