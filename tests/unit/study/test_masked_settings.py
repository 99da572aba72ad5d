"""What does not go with masked sums is refused in clear words, before anything is computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from confrere.core.errors import StudyError
from confrere.study import Privacy, Study
from confrere.study.churn import Churn
from confrere.study.masked_settings import Masked, check_members, check_nodes, masked_of, quorum
from tests.unit.cli.command import Desk


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Desk:
    return Desk(tmp_path, monkeypatch, capsys)


PRIVACY = Privacy(epsilon=3.0)
GOOD: dict[str, Any] = {"strategy": "fedavg", "combiner": "masked-sum", "privacy": PRIVACY}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "several steps": ({"privacy": Privacy(epsilon=3.0, steps=2)}, "a round is one step"),
    "samples": ({"privacy": Privacy(epsilon=3.0, sampling="poisson")}, "no bound is proven"),
    "no noise": ({"privacy": None}, "the study has no noise"),
    "own bounds": ({"privacy": Privacy(epsilon=3.0, clipping="adaclip")}, 'use clipping = "flat"'),
    "no colluding": ({"masked": {"colluding": 0}}, "it must be at least 1: every site sees the sum"),
    "fewer dropouts than none": ({"masked": {"dropouts": -1}}, "must be at least 0"),
    "robust": ({"combiner": "krum", "masked": {}}, "chooses between masks and robustness"),
    "no combiner": ({"combiner": None, "masked": {}}, 'goes with combiner = "masked-sum"'),
    "fedprox": (
        {"strategy": "fedprox"},
        '"fedprox" has no masked form; these have one: afl, fedavg, fml, proxyfl, swarm',
    ),
    "another strategy": ({"strategy": "coln"}, "has no masked form"),
    "ring": ({"topology": "ring"}, 'set topology = "complete" or "star"'),
    "compression": ({"compression": "int8"}, "masks cannot be compressed"),
    "attack": ({"attack": "innerproduct"}, "masks hide them"),
    "drawn sites": ({"churn": Churn(participation=2)}, "all of them take part in every round"),
}


def study(**changes: Any) -> Study:
    masked = changes.pop("masked", None)
    return Study(**{**GOOD, **changes, "masked": None if masked is None else Masked(**masked)})


@pytest.mark.parametrize("case", REFUSED)
def test_it_is_refused_with_the_reason(case: str) -> None:
    changes, reason = REFUSED[case]
    with pytest.raises(StudyError, match=reason):
        study(**changes)


def test_the_threshold_rule() -> None:
    for n, t, d in ((3, 1, 0), (4, 1, 1), (5, 2, 1), (8, 2, 2)):
        check_members(study(masked={"colluding": t, "dropouts": d}), ["x"] * n)
    for n, t, d, reason in (
        (2, 1, 0, "at least 3 members"),
        (3, 1, 1, "at most 0 may drop out"),
        (4, 2, 1, "at most 0 may drop out"),
        (3, 2, 0, "fewer than 2 honest"),
    ):
        with pytest.raises(StudyError, match=reason):
            check_members(study(masked={"colluding": t, "dropouts": d}), ["x"] * n)


def test_the_quorum_is_at_least_all_but_the_dropouts() -> None:
    for n, d, needed in ((4, 1, 3), (8, 0, 8), (8, 2, 6)):
        assert quorum(study(masked={"dropouts": d}), n) == needed


def test_the_defaults_are_one_colluding_site_and_one_that_is_missing() -> None:
    assert masked_of(study()) == Masked(1, 1)
    assert masked_of(Study()) is None


def test_how_a_simulation_adds_up_is_no_part_of_what_sites_agree_on() -> None:
    assert study(masked={}).hash() == study(masked={"simulate": "masks"}).hash()
    assert study(masked={}).hash() != study(masked={"dropouts": 0}).hash()


TABLE = """
rounds = 2
strategy = "fedavg"
combiner = "masked-sum"
masked = {{ colluding = 1, dropouts = {dropouts} }}
[privacy]
epsilon = 3.0
delta = 1e-4
{more}
"""


@pytest.mark.parametrize("command", ["simulate", "check"])
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (TABLE.format(dropouts=1, more=""), "at most 0 may drop out, not 1"),
        (TABLE.format(dropouts=0, more="steps = 3"), "a round is one step"),
        (TABLE.format(dropouts=0, more="noise_multiplier = 0.001"), "too coarse for the noise"),
    ],
)
def test_commands_refuse_it_with_exit_code_2(desk: Desk, command: str, text: str, reason: str) -> None:
    answer = desk.confrere(command, desk.study(text))
    assert answer.code == 2
    assert reason in answer.said
    assert not desk.left()


def test_nodes_refuse_numbers_of_sites_for_which_masks_do_not_protect(desk: Desk) -> None:
    answer = desk.confrere("rehearse", desk.study(TABLE.format(dropouts=1, more="")))
    assert answer.code == 2
    assert "at most 0 may drop out, not 1" in answer.said
    assert not desk.left()


def test_more_nodes_than_can_mask_with_one_another_are_refused() -> None:
    with pytest.raises(StudyError, match="masked sums of 65 nodes"):
        check_nodes(Study(**GOOD), 65)
