"""What peers and files say reaches terminals and logs without anything that could control them."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from rich.table import Table

import confrere
from confrere.cli import main
from confrere.cli import node as node_command
from confrere.cli.output import print_json
from confrere.core.errors import PeerRefused
from confrere.core.events import Event, Journal, verified
from confrere.core.terminal import UNSAFE, harmless, json_text, printable
from confrere.node.node_journal import Log, NodeJournal
from confrere.report.console import Console
from confrere.transport.grpc.greeting import Greeting, refuse

HOSTILE = "Nord\x1b[2J\x1b]0;root\x07\x9b31m\u202etxt\u2066\r\nconfrere: all is well\x7f"


def test_a_greeting_cannot_put_escapes_or_lines_into_a_refusal() -> None:
    key = Ed25519PrivateKey.generate().public_key()
    own = Greeting("run", "study", "roster", 0, "me", "you")
    theirs = replace(own, sender="you", receiver="me")
    for changed in ({"sender": HOSTILE}, {"receiver": HOSTILE}, {"run": HOSTILE}, {"study": HOSTILE}):
        with pytest.raises(PeerRefused) as refusal:
            refuse(own, replace(theirs, **changed), key)
        assert not UNSAFE.search(str(refusal.value))
        assert "\n" not in str(refusal.value)


def test_the_console_prints_no_escapes_of_the_text_that_it_is_given() -> None:
    out = io.StringIO()
    console = Console(file=out, width=200)
    table = Table("site", title=HOSTILE)
    table.add_row(HOSTILE)
    for shown in (HOSTILE, table):
        console.print(shown, markup=False)
    assert "Nord" in out.getvalue()
    assert not UNSAFE.search(out.getvalue())


def test_a_terminal_still_gets_colours() -> None:
    out = io.StringIO()
    Console(file=out, force_terminal=True, color_system="standard").print("[red]x[/]")
    assert "\x1b[31m" in out.getvalue()


def test_a_node_prints_one_line_for_an_event(capsys: pytest.CaptureFixture[str]) -> None:
    node_command._print_event(Event("notice", "a", 0, data={"text": HOSTILE}))
    said = capsys.readouterr().out
    assert not UNSAFE.search(said)
    assert said.count("\n") == 1


def test_an_error_is_shown_without_escapes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["confrere", "report", "no\x1b[2Jsuch\u202efolder"])
    with pytest.raises(SystemExit):
        main()
    assert not UNSAFE.search(capsys.readouterr().err)


@pytest.mark.parametrize("kind", [Journal, NodeJournal])
def test_journal_and_log_hold_escapes_as_text_and_still_verify(kind: type[Journal], tmp_path: Path) -> None:
    log = Log(tmp_path / "log.jsonl")
    journal = kind(tmp_path / "journal.jsonl", listeners=(log,))
    journal.add(Event("notice", HOSTILE, data={"text": HOSTILE}))
    journal.close()
    log.close()
    for name in ("journal.jsonl", "log.jsonl"):
        text = (tmp_path / name).read_text(encoding="utf-8")
        assert not UNSAFE.search(text)
        assert json.loads(text)["text" if name == "log.jsonl" else "data"] in (HOSTILE, {"text": HOSTILE})
    assert [event.data["text"] for event, _ in verified(tmp_path / "journal.jsonl")] == [HOSTILE]


def test_json_on_standard_output_is_escaped_and_means_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"site": HOSTILE})
    said = capsys.readouterr().out
    assert not UNSAFE.search(said)
    assert json.loads(said) == {"site": HOSTILE}


def test_ordinary_text_stays_as_it_is() -> None:
    for text in ("Hôpital Zürich – «Nord»", "北京", "مستشفى", "a\tb\n"):
        assert harmless(text) == text
        assert json_text(text) == json.dumps(text, ensure_ascii=False)
    assert printable("  two\nlines ") == "two lines"


def test_all_output_for_people_goes_through_the_one_console() -> None:
    root = Path(confrere.__file__).parent
    made = re.compile(r"rich\.console import[^\n]*\bConsole\b|rich import print|(?<!\.)\bprint\(")
    places = [p for p in root.rglob("*.py") if made.search(p.read_text(encoding="utf-8"))]
    allowed = {
        "report/result_tables.py",
        "evaluate/audit/audit_statistics.py",
        "core/terminal.py",
    }
    assert {str(p.relative_to(root)) for p in places} <= allowed  # a type, and doctests
