"""A journal becomes tables: what was learned, sent, spent, missed; each fact once."""

from __future__ import annotations

from pathlib import Path

import pytest
from federation import BYTES, THYROID, events, write_run

from confrere.core.errors import CheckpointError
from confrere.core.events import Event, Journal
from confrere.report.history import Point, history, read_history
from confrere.report.results_folder import read_run

FINALS = {site: {"auc": 0.9, "accuracy": 0.8} for site in THYROID}


def told(start: int = 0, rounds: int = 6) -> list[Event]:
    return list(events("proxyfl", 0, THYROID, rounds, FINALS, start=start))


def test_a_learning_curve_has_a_point_for_every_round() -> None:
    curve = history(told()).deployed("SVI", "auc")
    assert curve is not None
    assert curve.role == "private"
    assert [p.round for p in curve.points] == list(range(6))
    assert curve.points[-1].value > curve.points[0].value


def test_a_proxy_has_a_curve_of_its_own() -> None:
    roles = {c.role for c in history(told()).curves if c.site == "SVI"}
    assert roles == {"private", "proxy"}


def test_bytes_are_counted_by_edge_and_by_sender() -> None:
    run = history(told())
    assert run.bytes_by_sender() == dict.fromkeys(run.bytes_by_sender(), 6 * BYTES)
    assert all(len(edges) == len(THYROID) for edges in run.edges().values())
    assert run.edges()[0]["other", "SVI"] == BYTES


def test_a_fact_that_is_told_twice_counts_once() -> None:
    once = told()
    assert history([*once, *once]) == history(once)


def test_a_round_that_was_done_again_replaces_its_first_telling() -> None:
    interrupted = [*told(), Event("resumed", data={"round": 3})]
    assert history(interrupted).rounds == (0, 1, 2)
    again = [Event("evaluated", "SVI", 3, data={"validation": {"private": {"auc": 0.5}}})]
    curve = history([*interrupted, *again]).deployed("SVI", "auc")
    assert curve is not None
    assert curve.points[-1] == Point(3, 0.5)


def test_a_resumed_run_tells_the_same_story_as_one_that_was_never_interrupted() -> None:
    whole = told()
    cut = [e for e in whole if (e.round or 0) < 5]  # the interrupted run had come as far as round 4
    resumed = [*cut, Event("resumed", data={"round": 4}), *(e for e in whole if (e.round or 0) >= 4)]
    assert history(resumed) == history(whole)


def test_privacy_spent_only_grows_and_knows_its_terms() -> None:
    course = history(told()).epsilon("SVHD")
    assert [s.epsilon for s in course] == sorted(s.epsilon for s in course)
    last = course[-1]
    assert (last.budget, last.delta, last.unit, last.accountant) == (3.0, 1e-5, "record", "pld")


def test_who_was_missing_is_known_by_round() -> None:
    run = history(events("proxyfl", 0, THYROID, 4, FINALS, absent={2: ["SVHD", "STMW"]}))
    assert run.absent() == {0: (), 1: (), 2: ("STMW", "SVHD"), 3: ()}
    assert all(m.round == 2 for m in run.missed)
    assert {m.receiver for m in run.missed} <= {"STMW", "SVHD"}


def test_a_parcel_that_was_sent_again_weighs_once() -> None:
    data = {"to": "B", "phase": 0, "bytes": 100, "custody": "PROTECTED"}
    again = [Event("sent", "A", 0, data=data, time=t) for t in (1.0, 2.0)]
    answer = Event("sent", "A", 0, data={**data, "phase": 1, "bytes": 7})
    assert history([*again, answer]).edges() == {0: {("A", "B"): 107}}


def test_figures_that_are_no_numbers_are_left_out() -> None:
    data = {"validation": {"private": {"auc": float("nan"), "accuracy": None, "log_loss": 0.3}}, "test": None}
    run = history([Event("evaluated", "A", 0, data=data)])
    assert [c.metric for c in run.curves] == ["log_loss"]


def test_an_edited_journal_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path, "proxyfl", 0, THYROID, 3, FINALS)
    path = tmp_path / "journal.jsonl"
    path.write_text(path.read_text().replace('"bytes": 34180', '"bytes": 1', 1))
    with pytest.raises(CheckpointError, match="edited or damaged"):
        read_history(path)


def test_a_run_that_did_not_finish_is_read_from_its_journal(tmp_path: Path) -> None:
    write_run(tmp_path, "proxyfl", 0, THYROID, 3, FINALS, finish=False)
    run = read_run(tmp_path)
    assert not run.finished
    assert run.strategy == "proxyfl"
    assert run.history.rounds == (0, 1, 2)


def test_a_folder_without_a_journal_says_what_to_name_instead(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="name the folder of a run"):
        read_run(tmp_path)


def test_the_budget_of_a_site_comes_from_the_journal(tmp_path: Path) -> None:
    write_run(tmp_path, "proxyfl", 0, THYROID, 3, FINALS)
    privacy = read_run(tmp_path).sites["SVI"].privacy
    assert privacy is not None
    assert (privacy.budget, privacy.accountant) == (3.0, "pld")


def test_an_empty_journal_is_an_empty_history(tmp_path: Path) -> None:
    Journal(tmp_path / "journal.jsonl").close()
    run = read_history(tmp_path / "journal.jsonl")
    assert (run.sites, run.rounds, run.sendings) == ((), (), ())
