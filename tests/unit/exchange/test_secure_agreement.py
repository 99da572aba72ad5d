"""What must hold before anything is masked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from confrere.core.errors import PrivacyError, StudyError
from confrere.core.sum_terms import SumTerms, check_collusion, grid_for, threshold
from confrere.exchange.secure.agreement import Agreement
from confrere.exchange.secure.in_process import simulated_members


def agreement(
    n: int = 8, declared: int = 3000, epoch: int = 0, seed: bytes = b"", **changed: Any
) -> Agreement:
    members, _ = simulated_members({f"site-{k:03}": declared for k in range(n)})
    terms: dict[str, Any] = {"colluding": 1, "dropouts": 1, "noise_std": 1.5, "clip": 1.0, "size": 1000}
    return Agreement(members, SumTerms(n, **{**terms, **changed}), epoch, seed)


@pytest.mark.parametrize(("n", "t", "d"), [(3, 1, 0), (4, 1, 1), (5, 2, 1), (8, 2, 2)])
def test_the_smallest_possible_federations_are_accepted(n: int, t: int, d: int) -> None:
    check_collusion(n, t, d)
    found = agreement(n, colluding=t, dropouts=d)
    assert found.terms.threshold == (n + t) // 2 + 1
    assert found.terms.honest == n - t - d
    with pytest.raises(StudyError):
        check_collusion(n, t, d + 1)


@pytest.mark.parametrize(
    ("n", "t", "d", "words"),
    [
        (2, 1, 0, "at least 3 members"),
        (8, 0, 1, "colluding = 0 is unsound"),
        (8, 2, 3, "at most 2 may drop out"),
        (3, 2, 0, "fewer than 2 honest"),
        (8, -1, 0, "whole number"),
        (8, 1, True, "whole number"),
    ],
)
def test_numbers_for_which_masks_do_not_protect_are_refused(n: int, t: int, d: int, words: str) -> None:
    with pytest.raises(StudyError, match=words):
        check_collusion(n, t, d)


def test_two_groups_that_can_sign_have_an_honest_member_in_common() -> None:
    for n in range(3, 65):
        for t in range(1, n):
            assert 2 * threshold(n, t) - n > t


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"grid": 0.01}, "too coarse: rounding"),
        ({"noise_std": 1e-5, "size": 4}, "too coarse for the noise"),
        ({"bits": 32, "size": 100_000}, "wrap around modulo 2\\^32"),
        ({"bits": 36, "size": 10_000, "vectors": 10_000}, "wrap around modulo 2\\^36"),
        ({"noise_std": 1e6, "size": 10**7}, "too fine for the noise"),
        ({"noise_std": float("nan")}, "noise_std"),
        ({"clip": 0.0, "grid": 0.1}, "clip"),
    ],
)
def test_a_grid_that_does_not_fit_is_refused(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(PrivacyError, match=words):
        agreement(**changed)


def test_the_default_grid_is_fine_enough_and_no_finer_than_needed() -> None:
    for size in (1, 10, 1000, 10**6):
        grid = grid_for(0.7, size)
        assert grid * size**0.5 <= 0.7 / 1000 < 2 * grid * size**0.5 * 1.0000001


def test_a_site_outside_the_agreement_is_refused() -> None:
    with pytest.raises(StudyError, match='"elsewhere" is not part'):
        agreement().member("elsewhere")


def test_every_term_and_every_member_is_part_of_the_digest() -> None:
    first = agreement()
    terms = [
        {"colluding": 2}, {"dropouts": 0}, {"noise_std": 1.6}, {"clip": 1.1}, {"size": 999}, {"grid": first.terms.grid / 2},
        {"bits": 60}, {"vectors": 2},
    ]  # fmt: skip
    others = [replace(first, terms=replace(first.terms, **change)) for change in terms]  # type: ignore[arg-type]
    head, *rest = first.members
    for members in ([replace(head, declared=2999), *rest], [replace(head, key=bytes(32)), *rest]):
        others.append(replace(first, members=tuple(members)))
    others.append(replace(first, members=tuple(rest), terms=replace(first.terms, members=7)))
    others.append(replace(first, epoch=1))
    assert len({first.digest, *(other.digest for other in others)}) == len(others) + 1


def test_whole_numbers_and_floats_are_one_agreement() -> None:
    first = agreement()
    assert replace(first, terms=replace(first.terms, clip=1)).digest == first.digest


def test_a_new_epoch_has_its_own_noise() -> None:
    before, after = agreement(8, dropouts=2), agreement(6, dropouts=1, epoch=1)
    assert before.terms.share_scale == pytest.approx(1.5 / before.terms.grid / 5**0.5)
    assert after.terms.share_scale == pytest.approx(1.5 / after.terms.grid / 4**0.5)


def test_the_summing_site_changes_by_rota_and_every_other_member_succeeds_it() -> None:
    found = agreement(5, dropouts=1)
    assert [found.rota(turn)[0] for turn in range(6)] == [*found.names, found.names[0]]
    assert sorted(found.rota(3)) == list(found.names)


def test_more_than_64_members_need_a_common_seed() -> None:
    with pytest.raises(StudyError, match="common seed"):
        agreement(65)
    assert len(agreement(65, seed=bytes(32)).graph.neighbours("site-000")) < 64


def test_terms_for_another_number_of_members_are_refused() -> None:
    found = agreement()
    with pytest.raises(StudyError, match="for 8 members, and 7 take part"):
        replace(found, members=found.members[1:])
