"""The report: one file that says in plain words who gains, what left and what it cost."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from federation import THYROID, over_seeds, stated, write_comparison, write_run

from confrere.core.errors import StudyError
from confrere.core.events import Event
from confrere.core.results import ComparisonResult
from confrere.report.history import history
from confrere.report.page import write_report
from confrere.report.page.by_how_much import largest, smallest
from confrere.report.page.first_screen import verdict
from confrere.report.page.in_patients import sentence
from confrere.report.page.learning_curves import _band, learning_curves
from confrere.report.page.provenance import notes
from confrere.report.results_folder import read_comparison, read_run
from confrere.statistics.verdict import Gain, Word

HOSTILE = {"<script>alert(1)</script>": 500, '"><img src=x onerror=alert(2)>': 300, "St. Mary's & Co": 900}


def words_of(path: Path) -> str:
    """What a reader sees: the text without tags, style and script."""
    page = path.read_text(encoding="utf-8")
    page = re.sub(r"<(style|script)>.*?</\1>", " ", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


def report_of(folder: Path, **options: Any) -> str:
    write_comparison(folder, rounds=options.pop("rounds", 6), **options)
    return words_of(write_report(folder))


def judged(**words: list[float]) -> Mapping[str, Gain]:
    return {name: over_seeds(values) for name, values in words.items()}


UP, DOWN, FLAT = [0.02, 0.021, 0.019], [-0.02, -0.021, -0.019], [0.01, -0.01, 0.0]


@pytest.mark.parametrize(
    ("sites", "answer"),
    [
        ({"A": UP, "B": UP}, "Yes. Together is better than alone at all 2 sites."),
        ({"A": UP}, "Yes. Together is better than alone at the one site."),
        (
            {"A": UP, "B": FLAT},
            "Together is better than alone at 1 of 2 sites («A»); at «B» there is no clear difference.",
        ),
        (
            {"A": UP, "B": DOWN},
            "Together is better than alone at 1 of 2 sites («A»); at «B» it is worse: alone serves it better.",
        ),
        (
            {"A": DOWN, "B": FLAT},
            "No. Together is nowhere better than alone; at «B» there is no clear difference; "
            "at «A» it is worse: alone serves it better.",
        ),
        (
            {"A": FLAT, "B": FLAT},
            "No clear benefit. At neither of the 2 sites is together clearly better than alone, "
            "and at neither worse.",
        ),
        (
            {"A": [0.1], "B": [-0.1]},
            "Too few to judge: 1 seed, and at least 3 are needed. "
            "Together is ahead at 1 of 2 sites, which may be chance.",
        ),
    ],
)
def test_the_answer_is_a_plain_sentence(sites: dict[str, list[float]], answer: str) -> None:
    assert "".join(text for _, text in verdict(dict(judged(**sites)))) == answer


@pytest.fixture(scope="module")
def thyroid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page") / "thyroid"
    write_comparison(folder, absent={5: ["SVHD"], 6: ["SVHD", "STMW"]})
    return write_report(folder)


def test_a_site_that_is_worse_off_is_named_in_the_first_sentence(thyroid: Path) -> None:
    said = words_of(thyroid)
    assert (
        "Together is better than alone at 4 of 5 sites ; at «other» it is worse : alone serves it better."
        in said
    )


@pytest.mark.parametrize(
    "sentence",
    [
        "Do the referral centres recognise abnormal thyroid function better together than alone?",
        "made differentially private before they left. No record is among them.",
        "On real nodes this study would spend: 3.0 of 3.0 (ε, δ = 1e-5, per record, accountant pld); proven; at every site.",
        "Compared with pooling all records",
        "«SVHD» gains most",
        "«other» loses most: worse by 0.010 (corrected 95",
        "5 different graphs in 24 rounds",
        "Parcels that did not arrive in time",
        "these were missed: SVHD: 2 rounds and STMW: 1 round",
        "WEST has 3 records and was left out.",
        "confrere simulate study.toml --set seed=0",
        "9f2c" * 16,
        "confrere 0.1.0, torch 2.9.0, python 3.11.9",
        "Nothing leaves the site; trained without noise",
        "All records in one place, which is what the sites may not do",
    ],
)
def test_the_report_says(thyroid: Path, sentence: str) -> None:
    assert sentence in words_of(thyroid)


def test_a_notice_of_every_run_is_told_once(thyroid: Path) -> None:
    assert words_of(thyroid).count("WEST has 3 records and was left out") == 1


def test_the_notices_of_a_site_stand_together(tmp_path: Path) -> None:
    notices = [
        Event("notice", "A", data={"text": t}) for t in ("TSH: 5 missing", "T3: 7 missing", "T3: 7 missing")
    ]
    said = re.sub(r"<[^>]+>", "", notes(["WEST was left out"], [history(notices)]) or "")
    assert said == "NotesWEST was left outA TSH: 5 missing; T3: 7 missing"


def test_the_page_says_that_single_results_are_private(thyroid: Path) -> None:
    assert "pass this page on only with their consent" in words_of(thyroid)


def test_the_file_needs_no_network(thyroid: Path) -> None:
    page = thyroid.read_text(encoding="utf-8")
    assert not re.search(r"https?://|<link|@import|url\(|<img|<iframe| src=| style=", page)


def test_only_its_own_style_and_script_may_act(thyroid: Path) -> None:
    page = thyroid.read_text(encoding="utf-8")
    policy = html.unescape(re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1])  # type: ignore[index]
    for kind in ("style", "script"):
        (inside,) = re.findall(rf"<{kind}>(.*?)</{kind}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")


def test_names_are_text_wherever_they_appear(tmp_path: Path) -> None:
    write_comparison(
        tmp_path,
        sites=HOSTILE,
        rounds=4,
        title="<b>T</b>",
        question="<i>Q</i>",
        absent={1: list(HOSTILE)[:1]},
    )
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert page.count("<script>") == 1
    assert "<img" not in page
    assert "<b>T" not in page
    assert "<i>Q" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_every_epsilon_has_its_delta(thyroid: Path) -> None:
    said = words_of(thyroid)
    for found in re.finditer(r"\d of 3\.0", said):
        assert re.match(r".{0,6}ε, δ = 1e-5, per record, accountant pld", said[found.end() :])


def test_an_unproven_guarantee_is_called_so(tmp_path: Path) -> None:
    said = report_of(tmp_path, proven=False)
    assert "would spend, as claimed, not proven: 3.0 of 3.0" in said
    assert "as published, not proven" in said
    assert "made differentially private" not in said


def test_without_noise_there_is_no_epsilon(tmp_path: Path) -> None:
    document = write_comparison(tmp_path, rounds=3, journals=False)
    for strategy in document["strategies"].values():
        strategy["privacy"] = None
        for site in strategy["sites"].values():
            site["privacy"] = None
    (tmp_path / "comparison.json").write_text(json.dumps(document))
    said = words_of(write_report(tmp_path))
    assert "No privacy guarantee: trained without noise." in said
    assert not re.search(r"ε, δ =", said)


def test_without_pooled_no_gap_is_claimed(tmp_path: Path) -> None:
    said = report_of(tmp_path, strategies=("local", "proxyfl"))
    assert "gap was closed" not in said
    assert "pooling" not in said.lower()


def test_one_seed_has_no_spread_and_no_verdict(tmp_path: Path) -> None:
    said = report_of(tmp_path, seeds=1)
    assert "Too few to judge: 1 seed, and at least 3 are needed." in said
    assert "one seed, so no spread" in said
    assert "±" not in said
    assert "95 % interval" not in said


@pytest.mark.parametrize("count", [1, 2, 16, 17, 64])
def test_any_number_of_sites(tmp_path: Path, count: int) -> None:
    sites = {f"Hospital {i}": 60 + 40 * i for i in range(count)}
    said = report_of(tmp_path, sites=sites, seeds=3)
    assert all(name in said for name in sites)
    assert ("The four sites with the largest figures" in said) == (count > 16)


def test_regression_is_told_in_its_own_measures(tmp_path: Path) -> None:
    said = report_of(tmp_path, metrics=("rmse", "r2"))
    assert "Judged by RMSE: the typical size of an error" in said
    assert "(lower is better)" in said
    assert re.search(r"RMSE averaged over the sites: [^:]+ together \(ProxyFL\): (better|worse) by", said)
    assert "AUC" not in said


def test_nobody_who_trained_alone_means_no_answer(tmp_path: Path) -> None:
    document = write_comparison(tmp_path, rounds=2)
    del document["strategies"]["local"]
    (tmp_path / "comparison.json").write_text(json.dumps(document))
    assert "There is no answer: training alone was not run" in words_of(write_report(tmp_path))


def test_without_journals_the_rest_is_still_told(tmp_path: Path) -> None:
    said = report_of(tmp_path, journals=False)
    assert "Together is better than alone" in said
    assert "accountant not recorded" in said
    assert "Who sent what to whom" not in said
    assert "How they learned" not in said


def test_a_single_run_does_not_claim_to_compare(tmp_path: Path) -> None:
    write_run(tmp_path, "proxyfl", 0, THYROID, 4, {s: {"auc": 0.9, "accuracy": 0.8} for s in THYROID})
    said = words_of(write_report(tmp_path))
    assert "Mean over 5 sites: AUC 0.900, accuracy 80.0 %" in said
    assert "nothing here says whether learning together is better than learning alone" in said
    assert "3.0 of 3.0 (ε, δ = 1e-5, per record, accountant pld)" in said


def test_an_unfinished_run_says_so(tmp_path: Path) -> None:
    write_run(tmp_path, "proxyfl", 0, THYROID, 4, {s: {"auc": 0.9} for s in THYROID}, finish=False)
    said = words_of(write_report(tmp_path))
    assert "Not finished." in said
    assert "How they learned" in said


def test_a_run_alone_sends_nothing(tmp_path: Path) -> None:
    write_run(tmp_path, "local", 0, THYROID, 4, {s: {"auc": 0.9} for s in THYROID})
    said = words_of(write_report(tmp_path))
    assert "No site sent anything" in said
    assert "nothing left the site" in said


def test_the_report_goes_where_it_is_asked_to(tmp_path: Path) -> None:
    write_comparison(tmp_path / "runs", rounds=2, seeds=2)
    out = tmp_path / "new" / "page.html"
    assert write_report(tmp_path / "runs", out) == out
    assert [p.name for p in out.parent.iterdir()] == ["page.html"]


@pytest.mark.parametrize(
    ("sites", "least", "most"),
    [
        ({"A": UP, "B": [0.03, 0.031, 0.029]}, ("A", "gains least"), ("B", "gains most")),
        ({"A": DOWN, "B": UP}, ("A", "loses most"), ("B", "gains most")),
        (
            {"A": FLAT, "B": [0.02, -0.01, 0.01]},
            ("A", "has the smallest figure"),
            ("B", "has the largest figure"),
        ),
        ({"A": [-0.9], "B": UP}, ("B", "gains least"), ("B", "gains most")),
        ({"A": [-0.5, 0.5, 0.1], "B": DOWN}, ("B", "loses most"), ("A", "has the largest figure")),
    ],
)
def test_a_site_gains_or_loses_most_only_where_that_is_clear(
    sites: dict[str, list[float]], least: tuple[str, str], most: tuple[str, str]
) -> None:
    gains = judged(**sites)
    assert smallest(gains) == least
    assert largest(gains) == most


@pytest.mark.parametrize("word", ["better", "worse"])
def test_where_only_the_mean_is_clear_the_answer_says_so(word: Word) -> None:
    few, mean = Gain(0.3, 0.1, None, None, 5, "too few to judge"), Gain(0.1, 0.1, 0.1, 0.2, 5, word)
    flat = dict(judged(A=FLAT, B=FLAT))
    on_average = f"averaged over the sites, together is {word} than alone."
    found = verdict({**flat, "C": few}, mean)
    assert (
        "".join(t for _, t in found) == f"No single site is clearly better or worse by itself; {on_average}"
    )
    assert found[-1][0] == word
    alone = "".join(t for _, t in verdict({"A": few, "B": few}, mean))
    assert alone == f"No single site can be judged by itself; {on_average}"
    clear = dict(judged(A=UP, B=FLAT))
    assert verdict(clear, mean) == verdict(clear)
    unclear = Gain(0.1, 0.1, -0.1, 0.2, 5, "no clear difference")
    assert verdict(flat, unclear) == verdict(flat)


def test_a_site_with_too_few_patients_is_named_beside_the_answer() -> None:
    few = Gain(0.3, 0.1, None, None, 5, "too few to judge")
    answer = "".join(text for _, text in verdict({**judged(A=UP, B=FLAT), "C": few}))
    assert answer.startswith(
        "Together is better than alone at 1 of 2 sites («A»); at «B» there is no clear difference."
    )
    assert answer.endswith(" «C» has too few test patients to judge.")


def test_a_clear_loss_is_called_a_loss(tmp_path: Path) -> None:
    document = write_comparison(tmp_path, rounds=3, journals=False, primary="log_loss")
    for row in document["strategies"]["proxyfl"]["sites"].values():
        alone = [0.3, 0.31, 0.29, 0.3, 0.32]
        row["metrics"]["log_loss"] |= {"values": [v + 0.1 for v in alone], "mean": 0.4}
        row["gain"]["log_loss"] = stated([-0.1, -0.1, -0.1, -0.1, -0.099])
    document["strategies"]["proxyfl"]["gain_over_alone"]["log_loss"] |= stated(
        [-0.1, -0.1, -0.1, -0.1, -0.099]
    )
    for row in document["strategies"]["local"]["sites"].values():
        row["metrics"]["log_loss"] |= {"values": [0.3, 0.31, 0.29, 0.3, 0.321], "mean": 0.304}
    (tmp_path / "comparison.json").write_text(json.dumps(document))
    said = words_of(write_report(tmp_path))
    assert "Collaboration does harm here: it is clearly worse than alone" in said


def test_no_band_passes_the_bounds_of_its_measure() -> None:
    assert _band([0.9, 1.0, 1.0], "auc")[1] == 1.0
    assert _band([0.01, 0.2, 0.01], "log_loss")[0] == 0.0
    low, high = _band([0.5, 0.6], "auc")
    assert (low, high) == (pytest.approx(0.479, abs=1e-3), pytest.approx(0.621, abs=1e-3))


def meaning(missed: float, alarms: float) -> dict[str, Any]:
    return {
        "threshold": 0.25, "ill": 0.25, "missed": missed, "false_alarms": alarms, "slope": 0.9, "intercept": -0.1,
        "calibration": [[0.1, 0.1], [0.8, 0.7]], "net_benefit": [[0.05, 0.2], [0.5, 0.1]],
    }  # fmt: skip


def with_patients(folder: Path) -> Path:
    document = write_comparison(folder, rounds=3, journals=False)
    for name, (missed, alarms) in {"local": (0.12, 0.04), "proxyfl": (0.07, 0.04)}.items():
        for site, row in document["strategies"][name]["sites"].items():
            row["in_patients"] = meaning(missed, alarms)
            row["tested"] = {"patients": 60, "rarer": 9 if site == "SVHD" else 14, "rarer_class": "abnormal"}
    (folder / "comparison.json").write_text(json.dumps(document))
    return folder


def test_the_gain_is_stated_in_patients_with_their_number(tmp_path: Path) -> None:
    comparison = read_comparison(with_patients(tmp_path))
    assert sentence(comparison, "SVI") == (
        "Of 100 patients like those of SVI, 25 have the condition: missed 12 → 7, false alarms 4 → 4; based on 60 patients, "
        "14 of them «abnormal»."
    )
    assert sentence(comparison, "SVHD", "yours").endswith("9 of them «abnormal». Too few to judge.")
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert (
        "SVI, together: 18 has it, and found; 7 has it, and missed; 4 does not have it: false alarm; 71"
        in page
    )
    assert "0.90 → 0.90" in page


@pytest.mark.parametrize(
    ("rarer", "shown"), [(9, "too few"), (14, "0.90 → 0.90, uncertain"), (20, "0.90 → 0.90")]
)
def test_a_calibration_slope_on_few_patients_is_called_uncertain(
    tmp_path: Path, rarer: int, shown: str
) -> None:
    document = json.loads((with_patients(tmp_path) / "comparison.json").read_text())
    for row in document["strategies"]["local"]["sites"].values():
        row["tested"]["rarer"] = rarer
    (tmp_path / "comparison.json").write_text(json.dumps(document))
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert len(re.findall(rf">{shown}<", page)) >= len(THYROID)
    assert "Slope and intercept of the calibration are one fit to the test records of all seeds" in page
    drawn = 0 if rarer < 10 else len(THYROID)
    assert page.count(": calibration curve, alone and together") == drawn
    assert page.count(": net benefit by threshold, alone and together") == drawn
    assert page.count("Too few to judge: fewer than 10 patients of the rarer class.") == 2 * (
        len(THYROID) - drawn
    )


def test_a_physician_reads_two_sentences_and_unfolds_the_rest(tmp_path: Path) -> None:
    page = write_report(with_patients(tmp_path)).read_text(encoding="utf-8")
    lead = re.search(r'<h2>In patients</h2><p class="lead">(.*?)</p>', page)
    assert lead is not None
    assert lead[1].count(". ") + lead[1].endswith(".") == 2
    assert "<details><summary>How this is computed</summary>" in page
    assert "evaluation.threshold" not in page


@pytest.mark.parametrize("site", [None, "SVI"])
def test_later_patients_are_named_with_the_day(tmp_path: Path, site: str | None) -> None:
    with_patients(tmp_path)
    assert "first seen on" not in words_of(write_report(tmp_path, None, site))
    path = tmp_path / "runs" / "local-0" / "result.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "split": {"by_date": "2025-01-01"}}))
    said = words_of(write_report(tmp_path, None, site))
    assert "60 patients, 14 of them «abnormal», first seen on 2025-01-01 or later" in said
    assert "random splits" not in said
    if site is None:
        assert "other validation patients, on the same test patients" in said


def test_a_comparison_without_its_runs_names_the_day(tmp_path: Path) -> None:
    document = json.loads((with_patients(tmp_path) / "comparison.json").read_text())
    shutil.rmtree(tmp_path / "runs")
    document |= {"split": {"method": "by_date", "by_date": "2025-01-01"}}
    (tmp_path / "comparison.json").write_text(
        json.dumps(ComparisonResult.from_json(document).as_json() | {"featured": "proxyfl"})
    )
    assert "first seen on 2025-01-01 or later" in words_of(write_report(tmp_path))


def test_a_run_on_later_patients_states_the_day(tmp_path: Path) -> None:
    result = write_run(tmp_path, "proxyfl", 0, THYROID, 2, {s: {"auc": 0.9} for s in THYROID})
    (tmp_path / "result.json").write_text(json.dumps({**result, "split": {"by_date": "2025-01-01"}}))
    assert "test records, of patients first seen on 2025-01-01 or later; one seed" in words_of(
        write_report(tmp_path)
    )


def test_a_run_leads_with_the_primary_metric_and_counts_sites_with_too_few_patients(tmp_path: Path) -> None:
    finals = {s: {"auc": 0.9, "accuracy": 0.8, "log_loss": 0.3} for s in THYROID}
    result = write_run(tmp_path, "proxyfl", 0, THYROID, 2, finals)
    result["sites"]["SVHD"]["tested"] = {"patients": 19, "rarer": 5, "rarer_class": "abnormal"}
    (tmp_path / "result.json").write_text(json.dumps(result))
    said = words_of(write_report(tmp_path))
    few = (
        "1 of 5 sites has too few test patients to judge, fewer than 10 of the rarer class, but counts in the mean: "
        "SVHD (19 patients, 5 of them «abnormal»)."
    )
    assert f"Mean over 5 sites: log loss 0.300, AUC 0.900, accuracy 80.0 % . {few}" in said
    assert "Log loss 0.300 is reached" in said
    assert re.search(r"Records\s+Log loss\s+AUC\s+Accuracy", said)
    assert said.count(few) == 2
    for row in result["sites"].values():
        row["tested"] = {"patients": 19, "rarer": 12, "rarer_class": "abnormal"}
    (tmp_path / "result.json").write_text(json.dumps(result))
    assert words_of(write_report(tmp_path)).count(", on 95 patients, 60 of them «abnormal»") == 2
    (tmp_path / "study.toml").write_text('[evaluation]\nprimary = "accuracy"\n')
    assert "Mean over 5 sites: accuracy 80.0 %, AUC 0.900, log loss 0.300" in words_of(write_report(tmp_path))


def test_a_change_in_patients_has_its_interval(tmp_path: Path) -> None:
    document = json.loads((with_patients(tmp_path) / "comparison.json").read_text())
    for row in document["strategies"]["proxyfl"]["sites"].values():
        row["in_patients"] |= {"missed_change": [-0.081, -0.012], "false_alarms_change": [-0.003, 0.002]}
    (tmp_path / "comparison.json").write_text(json.dumps(document))
    comparison = read_comparison(tmp_path)
    told = "95 % intervals of the change: missed −8 to −1, false alarms −0.3 to +0.2. The verdict goes by AUC, not by these."
    assert told in (sentence(comparison, "SVI") or "")
    assert "missed 12 → 7 (−8 to −1)" in words_of(write_report(tmp_path))


def test_the_patients_are_counted_beside_the_figures_of_every_chart(tmp_path: Path) -> None:
    said = words_of(write_report(with_patients(tmp_path)))
    by_site = said.partition("Site by site")[2].partition("Every way that was tried")[0]
    shown = by_site.count("SVI 60 patients, 14 of them «abnormal»")
    assert shown == len(read_comparison(tmp_path).metrics)
    every, over_all = said.partition("Every way that was tried")[2], "on 300 patients, 65 of them «abnormal»"
    assert f"Means over sites, {over_all};" in every
    for section in ("Who gains", "How much of the gap was closed"):
        assert ", on " in every.partition(section)[2][:900], section


def test_the_patients_behind_a_learning_curve_are_counted(tmp_path: Path) -> None:
    counts = {"patients": 11, "rarer": 3, "rarer_class": "ill", "positive": 3, "positive_class": "ill"}
    for seed in range(2):
        found = {"patients": {"validation": {**counts, "patients": 11 + seed}, "test": counts}}
        write_run(
            tmp_path / "runs" / f"proxyfl-{seed}", "proxyfl", seed, THYROID, 3,
            {s: {"auc": 0.9} for s in THYROID}, evaluated=found,
        )  # fmt: skip
    one = words_of(write_report(tmp_path / "runs" / "proxyfl-0"))
    assert one.partition("How they learned")[2].count("11 patients, 3 of them «ill»; too few to judge") == 5
    histories = [read_run(tmp_path / "runs" / f"proxyfl-{n}").history for n in range(2)]
    drawn = learning_curves({"together": histories}, list(THYROID), "auc", [])
    assert "11 to 12 patients, 3 of them «ill», in each seed; too few to judge" in str(drawn)


def test_no_command_is_on_the_first_screen(tmp_path: Path) -> None:
    said = words_of(write_report(with_patients(tmp_path)))
    first, _, rest = said.partition("How to read this")[0].partition("For the person who runs the study")
    assert "confrere " not in first
    assert "confrere partners STUDY.toml --site SITE" in rest
    alone = words_of(write_report(tmp_path, None, "SVI"))
    assert "confrere " not in alone.partition("For the person who runs the study")[0]


def test_without_two_classes_nothing_is_said_of_patients(tmp_path: Path) -> None:
    assert "In patients" not in report_of(tmp_path)


def test_a_report_for_one_site_answers_seven_questions_and_shows_no_other_site(tmp_path: Path) -> None:
    path = write_report(with_patients(tmp_path), None, "SVI")
    assert path.name == "report-SVI.html"
    said = words_of(path)
    for question in (
        "Is it better for us?", "By how much, in patients?", "What left our building?", "How much privacy is left?",
        "Who helped us?", "Is our data odd?", "What should we do next?",
    ):  # fmt: skip
        assert question in said
    assert "Of 100 patients like yours, 25 have the condition: missed 12 → 7" in said
    assert "On real nodes this study would spend: 3.0 (ε, δ = 1e-5, per record" in said
    assert "100 patients like yours" in said
    assert not any(other in said for other in ("SVHC", "STMW", "SVHD"))


def test_a_report_for_an_unknown_site_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match='"SVX" is not a site of this comparison'):
        write_report(with_patients(tmp_path), None, "SVX")
