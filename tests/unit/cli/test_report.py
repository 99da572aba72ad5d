"""`confrere report`: one HTML file from the folder of a run or a comparison."""

from __future__ import annotations

from tests.unit.cli.command import Desk


def test_a_run_becomes_one_page(desk: Desk) -> None:
    desk.confrere("simulate", desk.study(), "--out", "run")
    assert desk.confrere("report", "run").out.split()[-1] == "run/report.html"
    page = (desk.folder / "run" / "report.html").read_text(encoding="utf-8")
    assert "<html" in page
    assert "site1" in page
    assert desk.confrere("report", "run", "--out", "mine.html", "--json").json == {"report": "mine.html"}
    assert (desk.folder / "mine.html").read_text(encoding="utf-8") == page


def test_a_folder_without_a_run_is_refused(desk: Desk) -> None:
    assert "no journal.jsonl here" in desk.refused("report", "nowhere")
    assert "no journal.jsonl here" in desk.refused("report", ".")


def test_an_edited_journal_makes_no_report(desk: Desk) -> None:
    desk.confrere("simulate", desk.study(), "--out", "run")
    journal = desk.folder / "run" / "journal.jsonl"
    journal.write_text(journal.read_text().replace('"accuracy": 0', '"accuracy": 1'), encoding="utf-8")
    assert "does not fit the hash chain" in desk.refused("report", "run")
