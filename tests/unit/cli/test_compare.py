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
    found = desk.confrere("compare", desk.study(BODY), "--seeds", 1, "--json", "--no-pooled").json
    assert set(found["strategies"]) == {"local", "fedavg"}
    assert found["strategies"]["local"]["privacy"] is None
    assert found["gap"] == {}


def test_how_much_there_is_to_gain_is_always_told_unless_asked_not_to(desk: Desk) -> None:
    found = desk.confrere("compare", desk.study(BODY), "--seeds", 2, "--json").json
    assert set(found["strategies"]) == {"local", "fedavg", "pooled"}
    gap = found["gap"]["log_loss"]
    alone, pooled = (found["strategies"][n]["mean"]["log_loss"]["mean"] for n in ("local", "pooled"))
    assert (gap["alone"], gap["pooled"]) == (alone, pooled)
    assert gap["gap"]["mean"] == pytest.approx(alone - pooled)
    assert set(gap["closed"]) == {"fedavg"}


def test_gains_come_with_an_interval_from_the_test_records_which_stay_in_the_folder_of_the_run(
    desk: Desk,
) -> None:
    found = desk.confrere(
        "compare", desk.study(BODY, records=160), "--seeds", 3, "--json", "--no-pooled", "--out", "c"
    ).json["strategies"]["fedavg"]
    for gain in [found["gain_over_alone"], *(s["gain"] for s in found["sites"].values())]:
        for metric in ("log_loss", "auc", "accuracy"):
            low, high = gain[metric]["interval"]
            assert low <= gain[metric]["mean"] <= high
    assert (desk.folder / "c" / "runs" / "fedavg-0" / "predictions.npz").exists()
    assert "outputs" not in (desk.folder / "c" / "comparison.json").read_text()


def test_several_studies_give_one_table_and_one_list(desk: Desk) -> None:
    one = desk.study(BODY)
    two = desk.folder / "other.toml"
    two.write_text(one.read_text().replace("rounds = 2", "rounds = 1"))
    answer = desk.confrere("compare", one, two, "--seeds", 1, "--no-pooled", "--json")
    assert [s["name"] for s in answer.json["studies"]] == [one.stem, "other"]
    assert all("fedavg" in s["strategies"] for s in answer.json["studies"])
    told = desk.confrere("compare", one, two, "--seeds", 1, "--no-pooled", "--out", "several").out
    assert "other" in told
    assert told.count("report.html") == 2


def test_people_get_a_table_and_a_report(desk: Desk) -> None:
    answer = desk.confrere("compare", desk.study(BODY), "--seeds", 1, "--out", "c", "--no-pooled")
    assert answer.code == 0
    assert "site0" in answer.out
    assert "c/report.html" in answer.out


def test_variants_are_named_changes(desk: Desk) -> None:
    body = BODY + '[variants.strong]\nprivacy = { epsilon = 1.0 }\n[variants.fedavg]\ntopology = "star"\n'
    found = desk.confrere(
        "compare", desk.study(body), "--strategies", "strong,fedavg", "--seeds", 1, "--json", "--no-pooled"
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


def test_words_go_to_the_primary_measure_alone_and_counts_stand_beside_them(desk: Desk) -> None:
    study = desk.study(BODY + '[evaluation]\nprimary = "auc"\n', records=160)
    found = desk.confrere("compare", study, "--seeds", 3, "--json", "--no-pooled", "--out", "c").json
    assert found["primary"] == "auc"
    for site in found["strategies"]["fedavg"]["sites"].values():
        assert "word" in site["gain"]["auc"]
        assert "word" not in site["gain"]["log_loss"]
        assert site["tested"]["patients"] > site["tested"]["rarer"] >= 10


def test_an_unknown_primary_measure_is_refused(desk: Desk) -> None:
    study = desk.study(BODY + '[evaluation]\nprimary = "logloss"\n')
    assert 'did you mean "log_loss"' in desk.refused("compare", study, "--seeds", 3)
