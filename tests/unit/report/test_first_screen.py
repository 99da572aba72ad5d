"""The first screen answers seven questions from what was measured, and says so where that cannot tell."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from federation import THYROID, write_comparison, write_run
from test_page import with_patients, words_of

from confrere.core.custody import Custody
from confrere.core.events import Event
from confrere.core.results import ComparisonResult, PrivacySpent, SiteRecords, SiteResult
from confrere.report import words
from confrere.report.history import History, Weighing, history
from confrere.report.page import write_report
from confrere.report.page.answers import Answer
from confrere.report.page.by_how_much import by_how_much
from confrere.report.page.next_step import REFUSE, REHEARSE, next_step
from confrere.report.page.odd_records import odd_records, own_records
from confrere.report.page.privacy_left import privacy_left
from confrere.report.page.what_left import what_left
from confrere.report.page.who_helped import tried_models, who_helped
from confrere.report.results_folder import read_comparison
from confrere.statistics.verdict import Gain

SEVEN = (
    "Is it better than learning alone?", "By how much?", "What left each site?", "How much privacy is left?",
    "Who helped?", "Is any site's data odd?", "What next?",
)  # fmt: skip

BETTER = Gain(0.02, 0.01, 0.01, 0.03, 5, "better")
WORSE = Gain(-0.02, 0.01, -0.03, -0.01, 5, "worse")
UNCLEAR = Gain(0.0, 0.01, -0.03, 0.03, 5, "no clear difference")
FEW = Gain(0.1, 0.01, None, None, 5, "too few to judge")


def text(answer: Answer) -> str:
    parts = [part for part in (*answer.rest, *answer.more) if part]
    rest = (re.sub(r"<[^>]+>", "", str(part)).replace("\u00a0", " ") for part in parts)
    return " ".join([answer.short, *rest])


def test_a_comparison_answers_all_seven(tmp_path: Path) -> None:
    said = words_of(write_report(with_patients(tmp_path)))
    first = said.partition("Site by site")[0]
    assert [q for q in SEVEN if q not in first] == []
    assert "Missed 12 → 7, false alarms 4 → 4" in first
    assert "Left the site" in first
    assert re.search(r"\d KB per site", first)


def test_a_single_run_answers_what_it_can(tmp_path: Path) -> None:
    write_run(tmp_path, "proxyfl", 0, THYROID, 4, {s: {"auc": 0.9} for s in THYROID})
    said = words_of(write_report(tmp_path))
    assert [q for q in SEVEN if q not in said] == []
    assert "A single run cannot tell" in said
    assert "confrere compare STUDY.toml" in said


def fitted(site: str, shares: list[float]) -> Event:
    return Event("fitted", site, 5, Custody.PRIVATE, {"role": "private", "shares": shares})


def test_help_is_measured_by_how_much_of_a_model_builds_on_the_proxy() -> None:
    runs = [history([fitted("A", [0.5, 0.5]), fitted("B", [1.0])]), history([fitted("A", [0.1, 0.9])])]
    answer = who_helped({"A": BETTER, "B": UNCLEAR}, runs)
    said = text(answer)
    assert said.startswith("«A» gained from the other sites")
    assert "«A» 70 % and «B» 0 %" in said
    assert "The part of one peer in learning together was not measured" in said
    assert [command for _, command in answer.commands] == ["confrere partners STUDY.toml --site SITE"]


def test_a_model_of_a_site_alone_says_nothing_about_peers() -> None:
    assert history([Event("fitted", "A", 5, Custody.PRIVATE, {"role": "model", "shares": [1.0]})]).used == {}


def test_weights_answer_for_each_peer() -> None:
    run = History(weighings=(Weighing("A", 0, {"B": 1.0, "C": 0.5}), Weighing("A", 1, {"B": 0.8, "C": 0.1})))
    said = text(who_helped({"A": UNCLEAR}, [run]))
    assert "for A, B 0.90 and C 0.30" in said
    assert "confrere partners" not in said


def test_who_sent_is_no_answer() -> None:
    assert "Not measured" in text(who_helped({}, [History()]))


def test_a_partner_search_in_the_folder_is_quoted_if_it_is_of_this_study(tmp_path: Path) -> None:
    document = write_comparison(tmp_path, rounds=2)
    (tmp_path / "comparison.json").write_text(json.dumps({**document, "study": "abc"}))
    found = {"site": "SVI", "study": "abc", "chosen": ["SVHC"], "reason": "Chosen by influence."}
    (tmp_path / "partners-SVI.json").write_text(json.dumps(found))
    other = {"site": "SVHD", "study": "another", "chosen": [], "reason": "None of this study."}
    (tmp_path / "partners-SVHD.json").write_text(json.dumps(other))
    (tmp_path / "partners-broken.json").write_text("{")
    said = words_of(write_report(tmp_path))
    assert "«SVI»: SVHC. Chosen by influence." in said
    assert "None of this study" not in said


def records(**more: Any) -> dict[str, SiteRecords]:
    plain = SiteRecords(400, {"well": 0.75, "ill": 0.25}, {"tsh": 0.02}, {"tsh": 0.05, "age": -0.02})
    return {"A": plain, "B": plain, "C": replace(plain, **more)}


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        (
            {"apart": {"tsh": 0.9, "age": 0.6}},
            "mean of «tsh» 0.9 standard deviations above that of all records",
        ),
        ({"apart": {"tsh": -0.9}}, "0.9 standard deviations below"),
        (
            {"apart": {"pregnant": 0.9}, "shares": {"pregnant": (0.241, 0.012)}},
            "«pregnant» in 24 % of the records (other sites: 1 %)",
        ),
        ({"labels": {"well": 0.3, "ill": 0.7}}, "70 % of the records «ill» (median site: 25 %)"),
        ({"missing": {"tsh": 0.6}}, "60 % of values missing in columns with gaps (median site: 2 %)"),
    ],
)
def test_a_site_that_differs_is_named_with_what_differs(odd: dict[str, Any], said: str) -> None:
    answer = odd_records(records(**odd))
    assert answer.short == "«C» stands out"
    assert said in text(answer)


def test_sites_that_are_alike_do_not_stand_out() -> None:
    assert odd_records(records()).short == "No site stands out"


def test_a_small_site_is_not_odd_by_chance() -> None:
    assert odd_records(records(records=9, apart={"tsh": 0.9})).short == "No site stands out"


def test_the_furthest_of_many_columns_is_not_odd_by_chance() -> None:
    odd = {"records": 30, "apart": {"tsh": 0.7}}
    assert odd_records(records(**odd)).short == "«C» stands out"
    assert odd_records(records(**odd, columns=2000)).short == "No site stands out"


def test_gaps_of_a_small_site_are_not_odd_by_chance() -> None:
    assert odd_records(records(records=4, missing={"tsh": 0.2})).short == "No site stands out"


def test_without_a_profile_the_answer_is_which_command_makes_one() -> None:
    assert "confrere compare" in odd_records({}).commands[0][1]


def test_the_page_for_one_site_holds_no_distance_from_the_others(tmp_path: Path) -> None:
    document = json.loads((with_patients(tmp_path) / "comparison.json").read_text())
    document["records"] = {
        s: SiteRecords(
            400,
            {"well": 0.75, "ill": 0.25},
            {"tsh": 0.31},
            {"secret_column": 0.87, "secretflag": 0.6},
            shares={"secretflag": (0.5, 0.1)},
        ).as_json()
        for s in THYROID
    }
    (tmp_path / "comparison.json").write_text(json.dumps(document))
    everyone = words_of(write_report(tmp_path))
    assert "«secret_column» 0.9 standard deviations above" in everyone
    assert "secretflag" in everyone
    page = write_report(tmp_path, None, "SVI").read_text(encoding="utf-8")
    assert "secret" not in page
    assert "tsh (31" in page


def with_trials(folder: Path, public: bool) -> Path:
    document = json.loads((with_patients(folder) / "comparison.json").read_text())
    document["records"] = {
        s: SiteRecords(
            400, {"well": 0.75, "ill": 0.25}, {"tsh": 0.31}, {"age": 0.87, "sick": 0.6}, shares={"sick": (0.5, 0.1)}
        ).as_json()
        for s in THYROID
    }  # fmt: skip
    document["trials"] = {
        s: {
            p: {"mean": 0.2 if p == "SVI" else -0.1, "std": 0.1, "values": [], "interval": [-0.3, 0.4]}
            for p in THYROID
            if p != s
        }
        for s in THYROID
    }
    for peers in document["trials"].values():
        for gain in peers.values():
            gain["word"] = "no clear difference"
    document["trials"]["SVHC"]["SVI"] |= {"interval": [0.1, 0.3], "word": "better"}
    document["trials"]["SVHC"]["STMW"] |= {"interval": [-0.2, -0.1], "word": "worse"}
    (folder / "comparison.json").write_text(json.dumps({**document, "public": public}))
    return folder


def test_who_helped_is_measured_by_trying_the_models_of_peers(tmp_path: Path) -> None:
    comparison = read_comparison(with_trials(tmp_path, public=True))
    judged = {"SVHC": BETTER, "SVI": UNCLEAR}
    answer = who_helped(judged, [], tried=tried_models(comparison, judged))
    fits = "The model of «SVI» fits «SVHC»’s patients; those of «other» and «SVHD» do not clearly; that of «STMW» does not"
    assert answer.short == fits
    said = text(answer)
    assert "by AUC, on 60 patients, 14 of them «abnormal»." in said
    assert (
        "«SVHC», on its test patients (60 patients, 14 of them «abnormal»), with corrected 95 % intervals"
        in said
    )
    assert "«SVI» +0.200 (+0.100 to +0.300)" in said
    assert "«SVI»’s patients" not in said
    unclear = {"SVHC": UNCLEAR, "SVI": UNCLEAR}
    answer = who_helped(unclear, [], tried=tried_models(comparison, unclear))
    assert answer.short == "No site clearly gained from the others"
    assert "in 1 of 20 pairs of sites, and clearly worse in 1 (corrected for 20 pairs)" in text(answer)
    page = words_of(write_report(tmp_path))
    assert "Whose model fits whose patients" in page
    assert page.count("▲ +0.200") == 1
    assert "by the rule of this page, corrected for 20 pairs of sites" in page


def test_no_peer_is_named_as_a_help_by_an_interval_without_a_word(tmp_path: Path) -> None:
    """Trials of an earlier version were not corrected: they are shown, without words."""
    document = json.loads((with_trials(tmp_path, public=True) / "comparison.json").read_text())
    for peers in document["trials"].values():
        for gain in peers.values():
            del gain["word"]
    (tmp_path / "comparison.json").write_text(json.dumps(document))
    comparison = read_comparison(tmp_path)
    answer = who_helped({"SVHC": BETTER}, [], tried=tried_models(comparison, {"SVHC": BETTER}))
    assert "fit" not in text(answer)
    assert "with 95 % intervals" in text(answer)
    page = words_of(write_report(tmp_path)).partition("Whose model fits whose patients")[2]
    assert not {"▲ +0.200", "▼ −0.100"} & set(page.split("  "))
    assert "+0.200 +0.100 to +0.300" in re.sub(r"\s+", " ", page)


def test_a_gain_that_no_single_peer_explains_is_called_so(tmp_path: Path) -> None:
    comparison = read_comparison(with_trials(tmp_path, public=True))
    answer = who_helped({"SVI": BETTER}, [], tried=tried_models(comparison, {"SVI": BETTER}))
    assert answer.short == "No single peer's model clearly fits «SVI»’s patients"


@pytest.mark.parametrize("public", [True, False])
def test_a_page_for_one_site_shows_what_is_of_others_only_if_the_data_set_is_public(
    tmp_path: Path, public: bool
) -> None:
    said = words_of(write_report(with_trials(tmp_path, public), None, "SVHC"))
    assert ("«SVI» +0.200" in said) is public
    assert ("other sites: 10 %" in said) is public
    assert ("The data set is public" in said) is public
    assert ("private to them, so this page does not try them" in said) is not public
    assert "Whose model fits whose patients" not in said


def test_a_page_for_one_site_has_a_picture_of_its_records(tmp_path: Path) -> None:
    page = write_report(with_trials(tmp_path, public=False), None, "SVHC").read_text(encoding="utf-8")
    shown = page.partition('id="records"')[2].partition("</section>")[0]
    assert "400 records" in shown
    assert "«ill»: 25 % of the records" in shown.replace("\u00a0", " ")
    assert "tsh: 31 % missing" in shown.replace("\u00a0", " ")
    assert shown.count('<svg class="strip"') == 2
    assert 'href="#records"' in page


def test_own_records_say_why_they_are_not_compared() -> None:
    answer = own_records(SiteResult("A"), {}, "Is our data odd?")
    assert answer.short == "Not known"
    assert "private to them" in text(answer)


def spent(epsilon: float, budget: float | None = 3.0, proven: bool = True) -> SiteResult[float]:
    return SiteResult("A", privacy=PrivacySpent(epsilon, 1e-5, "record", proven, "pld", budget), bytes_sent=9)


@pytest.mark.parametrize(
    ("epsilon", "short"),
    [
        (3.0, "None of the agreed budget"),
        (2.999, "None of the agreed budget"),
        (1.126, "ε = 1.87 would be left"),
    ],
)
def test_what_is_left_is_never_rounded_up(epsilon: float, short: str) -> None:
    assert privacy_left([spent(epsilon)], None).short == short


def test_a_simulation_does_not_claim_that_it_protects() -> None:
    said = text(privacy_left([spent(3.0)], None))
    assert "This run protects nothing: its noise is drawn from a seed." in said
    assert (
        "On real nodes this study would use up its whole budget: 3.0 of 3.0 (ε, δ = 1e-5, per record" in said
    )


def test_privacy_is_explained_in_a_sentence() -> None:
    assert "at most 20 times as likely because one record is in the data" in text(
        privacy_left([spent(3.0)], None)
    )
    assert "If the claim held: whatever left" in text(privacy_left([spent(3.0, proven=False)], None))


def test_without_noise_nothing_is_guaranteed() -> None:
    assert privacy_left([SiteResult("A", bytes_sent=5)], None).short == "No guarantee"
    assert privacy_left([SiteResult("A", bytes_sent=0)], None).short == "All of it"


def test_bytes_of_all_sites_have_one_unit() -> None:
    assert words.in_one_unit([900, 12_000]) == ["0.9 KB", "12.0 KB"]
    assert words.in_one_unit([50_000, 2_500_000]) == ["0.1 MB", "2.5 MB"]
    assert words.in_one_unit([3, 900]) == ["3 B", "900 B"]
    sites = [SiteResult("A", bytes_sent=900), SiteResult("B", bytes_sent=12_000)]
    assert what_left(sites, None).short == "0.9 to 12.0 KB per site"


def test_a_guarantee_that_is_not_proven_is_not_claimed_for_what_left(tmp_path: Path) -> None:
    write_comparison(tmp_path, rounds=2)
    comparison = read_comparison(tmp_path)
    assert comparison.together is not None
    sites = list(comparison.together.sites.values())
    run = history([Event("sent", "SVI", 0, data={"to": "other", "bytes": 9, "custody": "PROTECTED"})])
    assert "made differentially private" in text(what_left(sites, run))
    assert "not proven" in text(what_left([spent(3.0, proven=False)], run))


def as_stated(gain: Gain) -> dict[str, Any]:
    interval = {} if gain.low is None else {"interval": [gain.low, gain.high]}
    return {"mean": gain.mean, "values": [gain.mean] * 5, "word": gain.word, **interval}


def compared(pooled: Gain | None = None, pooled_at_a: Gain | None = None) -> ComparisonResult:
    site: dict[str, Any] = {"A": {"metrics": {"auc": {"mean": 0.7, "values": [0.7] * 5}}, "privacy": None}}
    strategies: dict[str, Any] = {"local": {"sites": site}, "proxyfl": {"sites": site}}
    if pooled is not None:
        strategies["pooled"] = {"sites": site, "gain_over_alone": {"auc": as_stated(pooled)}}
    if pooled_at_a is not None:
        own = {"A": {**site["A"], "gain": {"auc": as_stated(pooled_at_a)}}}
        strategies["pooled"] = {**strategies.get("pooled", {}), "sites": own}
    return ComparisonResult.from_json({"strategies": strategies, "seeds": [0, 1, 2, 3, 4], "primary": "auc"})


@pytest.mark.parametrize(
    ("judged", "pooled", "short"),
    [
        ({"A": BETTER, "B": UNCLEAR}, None, "Rehearse it with your IT department"),
        ({"A": BETTER, "B": WORSE}, None, "Go on without the sites that lose"),
        ({"A": WORSE, "B": UNCLEAR}, None, "Do not take part with these settings"),
        ({"A": UNCLEAR}, BETTER, "Look for better settings"),
        ({"A": UNCLEAR}, UNCLEAR, "Wait, or collect more patients"),
        ({"A": UNCLEAR}, WORSE, "Stay alone"),
        ({"A": UNCLEAR}, FEW, "Repeat with more seeds or patients"),
        ({"A": UNCLEAR}, None, "Repeat with more seeds or patients"),
        ({"A": FEW}, None, "Test on more patients"),
        ({"A": replace(FEW, pairs=1)}, None, "Run more seeds"),
    ],
)
def test_the_next_step_follows_the_verdict_and_has_a_reason(
    judged: dict[str, Gain], pooled: Gain | None, short: str
) -> None:
    answer = next_step(compared(pooled), "auc", judged, None)
    assert answer.short == short
    assert "Because" in text(answer)


@pytest.mark.parametrize(
    ("own", "short", "said"),
    [
        (WORSE, "Stay alone", "Pooling at this site, by AUC: worse by 0.020"),
        (UNCLEAR, "Wait, or collect more patients", "Pooling at this site, by AUC: 0, not clear"),
        (FEW, "Repeat with more seeds or patients", "the interval includes both a gain and a loss"),
    ],
)
def test_the_advice_to_a_site_goes_by_what_pooling_gains_there(own: Gain, short: str, said: str) -> None:
    answer = next_step(compared(BETTER, own), "auc", {"A": UNCLEAR}, None, site="A")
    assert answer.short == short
    assert said in text(answer)
    assert "averaged over the sites" not in text(answer)


def test_over_all_sites_the_patients_of_all_are_counted(tmp_path: Path) -> None:
    comparison = read_comparison(with_patients(tmp_path))
    answer = by_how_much(comparison, "log_loss", dict.fromkeys(comparison.sites, UNCLEAR))
    counted = "based on 300 patients, 65 of them «abnormal». Each site counts by its test patients."
    assert f"the sites, 25 with the condition; {counted}" in text(answer)


def test_without_classes_the_patients_of_all_sites_are_counted(tmp_path: Path) -> None:
    comparison = read_comparison(with_patients(tmp_path))
    strategies = {
        n: replace(s, sites={k: replace(v, in_patients=None) for k, v in s.sites.items()})
        for n, s in comparison.strategies.items()
    }
    answer = by_how_much(replace(comparison, strategies=strategies), "auc", {})
    assert ", on 300 patients, 65 of them «abnormal»." in text(answer)


def test_a_column_that_a_site_lacks_does_not_make_it_odd() -> None:
    odd = records(apart={"vitamin_d": 1.4, "age": 0.7}, missing={"vitamin_d": 1.0, "tsh": 0.02})
    said = text(odd_records(odd))
    assert "«vitamin_d»" not in said
    assert "mean of «age» 0.7 standard deviations above" in said


def test_sites_that_stand_out_and_are_not_listed_are_counted() -> None:
    plain = records()["A"]
    far = {f"S{n}": replace(plain, apart={"tsh": 0.9}) for n in range(5)}
    answer = odd_records({**{f"P{n}": plain for n in range(6)}, **far})
    assert answer.short == "5 of 11 sites stand out"
    assert text(answer).count("standard deviations above") == 3
    assert "And 2 more." in text(answer)


def test_where_some_sites_gain_their_patients_come_first(tmp_path: Path) -> None:
    comparison = read_comparison(with_patients(tmp_path))
    sites = {**comparison.together.sites} if comparison.together else {}
    sites["SVHD"] = replace(sites["SVHD"], in_patients=replace(sites["SVHD"].in_patients, missed=0.02))
    found = replace(
        comparison, strategies={**comparison.strategies, "proxyfl": replace(comparison.together, sites=sites)}
    )
    judged = {s: BETTER if s == "SVHD" else UNCLEAR for s in found.sites}
    answer = by_how_much(found, "log_loss", judged)
    assert answer.short == "Missed 12 → 2, false alarms 4 → 4"
    based = "based on 60 patients, 9 of them «abnormal»"
    assert f"Of 100 patients like those of «SVHD», 25 with the condition; {based}." in text(answer)
    weighted = (
        "Over all sites, where each site counts by its test patients: missed 12 → 6, false alarms 4 → 4"
    )
    assert f"{weighted}, on 300 patients, 65 of them «abnormal»." in text(answer)
    page = words_of(write_report(with_patients(tmp_path)))
    assert "100 patients like those of «" in page
    assert ", the site with the largest gain" in page


@pytest.mark.parametrize(("mean", "short"), [(BETTER, REHEARSE), (WORSE, REFUSE)])
def test_the_advice_follows_a_mean_that_is_clear_where_no_site_is(mean: Gain, short: str) -> None:
    found = compared(UNCLEAR)
    together = found.strategies["proxyfl"]
    gains = (
        ComparisonResult.from_json(
            {
                "strategies": {"proxyfl": {"sites": {}, "gain_over_alone": {"auc": as_stated(mean)}}},
                "seeds": [0],
            }
        )
        .strategies["proxyfl"]
        .gains
    )
    found = replace(found, strategies={**found.strategies, "proxyfl": replace(together, gains=gains)})
    for judged in ({"A": UNCLEAR, "B": UNCLEAR}, {"A": FEW, "B": FEW}):
        answer = next_step(found, "auc", judged, None)
        assert answer.short == short
        assert "averaged over the sites, though at no single site" in text(answer)
    assert next_step(found, "auc", {"A": UNCLEAR}, None, site="A").short != short
