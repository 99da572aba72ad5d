"""`--attack` and `--attackers`: what happens to the honest sites, with and without; a mistake is told in a line."""

from __future__ import annotations

import pytest

from tests.unit.cli.command import PRIVATE, Desk

BODY = 'rounds = 2\nstrategy = "fedavg"\n[training]\ntune = false\n' + PRIVATE


def test_compare_shows_each_way_with_and_without_the_attackers(desk: Desk) -> None:
    study = desk.study(BODY, sites=4)
    words = ("compare", study, "--seeds", 1, "--no-pooled", "--attack", "signflip", "--attackers")
    found = desk.confrere(*words, 2, "--json").json
    assert list(found["strategies"]) == ["local", "fedavg", "fedavg+signflip"]
    assert found["attack"] == {"fedavg+signflip": ["site2", "site3"]}
    assert all(set(s["sites"]) == {"site0", "site1"} for s in found["strategies"].values())
    shown = " ".join(desk.confrere(*words, "site0").out.split())
    assert "FedAvg, under signflip" in shown
    assert "of the honest sites alone" in shown
    assert "Dishonest were fedavg+signflip: site0." in shown


def test_simulate_says_who_was_dishonest_and_counts_the_others(desk: Desk) -> None:
    study = desk.study(BODY)
    found = desk.confrere("simulate", study, "--attack", "nan", "--json").json
    assert found["attack"]["attackers"] == ["site2"]
    assert found["sites"]["site2"]["attacker"] is True
    shown = " ".join(desk.confrere("simulate", study, "--attack", "nan").out.split())
    assert "site2 is dishonest; means are over the honest sites alone" in shown


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--attack", "signflop"), 'did you mean "signflip"'),
        (("--attackers", "2"), "say how as well"),
        (("--attack", "signflip", "--attackers", "3"), "at least one site is honest"),
        (("--attack", "signflip", "--attackers", "0"), "a number of sites of at least 1"),
        (("--attack", "signflip", "--attackers", "nobody"), "not a site of this study"),
        (("--set", 'combiner={name="krum", attackers=1}'), "krum tolerates 0 at most"),
        (("--set", "combiner=kurm"), 'did you mean "krum"'),
        (("--set", "compression=zip"), 'unknown compression "zip"'),
        (("--set", 'compression={name="top-k", share=2.0}'), "above 0 and up to 1"),
        (("--set", 'compression={name="top-k", part=0.1}'), 'has no option "part"'),
        (("--set", "strategy=fedavg", "--set", "compression=top-k"), "promises one model for all sites"),
    ],
)
def test_a_mistake_is_told_in_a_line_and_nothing_is_left(
    desk: Desk, words: tuple[str, ...], complaint: str
) -> None:
    answer = desk.confrere("simulate", desk.study(BODY), *words)
    assert answer.code == 2
    assert complaint in answer.said
    assert "Traceback" not in answer.err
    assert desk.left() == set()


def test_options_of_a_combiner_can_be_set_one_by_one(desk: Desk) -> None:
    study = desk.study('combiner = "trimmed-mean"\n' + BODY)
    answer = desk.confrere("simulate", study, "--set", "combiner.attackers=2")
    assert answer.code == 2
    assert "trimmed-mean cannot tolerate 2 attackers here: of 3 sites on the complete graph" in answer.said
