"""`confrere compare`: every way beside training alone, on the same records and seeds."""

from __future__ import annotations

import statistics

import pytest

from tests.unit.cli.command import PRIVATE, Desk

BODY = 'rounds = 2\nstrategy = "fedavg"\n[training]\ntune = false\n' + PRIVATE


def test_json_has_the_keys_that_machines_rely_on_and_gains_add_up(desk: Desk) -> None:
    answer = desk.confrere(
        "compare", desk.study(BODY), "--strategies", "fedavg,pooled", "--seeds", 2, "--json", "--out", "c"
    )
    found = answer.json
    assert set(found) >= {"strategies", "seeds"}
    assert found["seeds"] == [0, 1]
    assert set(found["strategies"]) == {"local", "fedavg", "pooled"}
    for name, entry in found["strategies"].items():
        assert set(entry) >= {"mean", "gain_over_alone", "sites", "privacy", "seconds"}
        assert set(entry["mean"]) == {"accuracy", "macro_accuracy", "log_loss", "auc"}
        assert set(entry["mean"]["auc"]) >= {"mean", "std"}
        assert set(entry["gain_over_alone"]["auc"]) >= {"mean", "std", "worst_site"}
        assert (entry["privacy"] is not None) == (name == "fedavg")
    fedavg, alone = found["strategies"]["fedavg"], found["strategies"]["local"]
    for metric, sign in (("auc", 1), ("log_loss", -1)):
        gains = [
            sign
            * (fedavg["sites"][s]["metrics"][metric]["mean"] - alone["sites"][s]["metrics"][metric]["mean"])
            for s in fedavg["sites"]
        ]
        assert fedavg["gain_over_alone"][metric]["mean"] == pytest.approx(statistics.fmean(gains))
        assert fedavg["gain_over_alone"][metric]["worst_site"] == pytest.approx(min(gains))
        assert alone["gain_over_alone"][metric]["mean"] == 0
    assert (desk.folder / "c" / "report.html").exists()


def test_alone_takes_part_without_noise_even_if_nobody_asked(desk: Desk) -> None:
    found = desk.confrere("compare", desk.study(BODY), "--seeds", 1, "--json").json
    assert set(found["strategies"]) == {"local", "fedavg"}
    assert found["strategies"]["local"]["privacy"] is None


def test_people_get_a_table_and_a_report(desk: Desk) -> None:
    answer = desk.confrere("compare", desk.study(BODY), "--seeds", 1, "--out", "c")
    assert answer.code == 0
    assert "site0" in answer.out
    assert "c/report.html" in answer.out


def test_variants_are_named_changes(desk: Desk) -> None:
    body = BODY + '[variants.strong]\nprivacy = { epsilon = 1.0 }\n[variants.fedavg]\ntopology = "star"\n'
    found = desk.confrere(
        "compare", desk.study(body), "--strategies", "strong,fedavg", "--seeds", 1, "--json"
    )
    entries = found.json["strategies"]
    assert set(entries) == {"local", "strong", "fedavg"}
    assert entries["strong"]["privacy"]["epsilon"] <= 1.0 < entries["fedavg"]["privacy"]["epsilon"]
    sent = {n: sum(s["bytes_sent"] for s in e["sites"].values()) for n, e in entries.items()}
    assert sent["fedavg"] < sent["strong"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--strategies", "fedavgg"], 'unknown strategy "fedavgg" (did you mean "fedavg"?)'),
        (["--seeds", "0"], "--seeds is 0"),
        (
            ["--set", "variants.x.rouds=3", "--strategies", "x"],
            'variants.x: unknown key "rouds" (did you mean',
        ),
    ],
)
def test_what_cannot_be_compared_is_refused(desk: Desk, words: list[str], said: str) -> None:
    assert said in desk.refused("compare", desk.study(BODY), *words)
