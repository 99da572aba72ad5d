"""Whatever is written to a journal is read back whole, and no fact counts twice."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confrere.core.events import Event, Journal
from confrere.report.history import History, history, read_history, standing

SITES = st.sampled_from(["A", "B", "Ärzte «Süd»", "<script>"])
ROUNDS = st.integers(0, 5)
ORDINARY = st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp"))
NUMBERS = st.floats(0, 10, allow_nan=False)


def sent() -> st.SearchStrategy[Event]:
    data = st.fixed_dictionaries(
        {"to": SITES, "phase": st.integers(0, 1), "bytes": st.integers(0, 9), "custody": st.just("PROTECTED")}
    )
    return st.builds(Event, st.just("sent"), SITES, ROUNDS, data=data, time=st.just(0.0))


def charged() -> st.SearchStrategy[Event]:
    data = st.fixed_dictionaries({"role": st.just("proxy"), "epsilon": NUMBERS, "delta": st.just(1e-5)})
    return st.builds(Event, st.just("charged"), SITES, ROUNDS, data=data, time=st.just(0.0))


def evaluated() -> st.SearchStrategy[Event]:
    data = st.fixed_dictionaries(
        {"validation": st.fixed_dictionaries({"private": st.fixed_dictionaries({"auc": NUMBERS})})}
    )
    return st.builds(Event, st.just("evaluated"), SITES, ROUNDS, data=data, time=st.just(0.0))


def noticed() -> st.SearchStrategy[Event]:
    data = st.fixed_dictionaries({"text": st.text(ORDINARY, max_size=5)})
    return st.builds(
        Event, st.just("notice"), st.none() | SITES, st.none() | ROUNDS, data=data, time=st.just(0.0)
    )


STREAMS = st.lists(st.one_of(sent(), charged(), evaluated(), noticed()), max_size=30)


def facts(run: History) -> tuple[object, ...]:
    """A history as sets, since a fact is the same in whatever order it is told."""
    curves = {(c.site, c.split, c.role, c.metric): c.points for c in run.curves}
    return curves, set(run.sendings), set(run.spendings), set(run.remarks)


@given(STREAMS)
def test_telling_everything_twice_changes_nothing(events: list[Event]) -> None:
    assert facts(history([*events, *events])) == facts(history(events))


@given(STREAMS, ROUNDS)
def test_after_a_resumption_only_earlier_rounds_stand(events: list[Event], first: int) -> None:
    kept = standing([*events, Event("resumed", data={"round": first})])
    assert [e for e in kept if e.kind != "resumed"] == [
        e for e in events if e.round is None or e.round < first
    ]


@given(STREAMS, ROUNDS)
def test_doing_rounds_again_gives_the_same_history(events: list[Event], first: int) -> None:
    early = [e for e in events if e.round is None or e.round < first]
    late = [e for e in events if e.round is not None and e.round >= first]
    once = [*early, *late]
    assert history([*once, Event("resumed", data={"round": first}), *late]) == history(once)


@given(STREAMS)
def test_bytes_by_edge_and_bytes_by_sender_agree(events: list[Event]) -> None:
    run = history(events)
    assert sum(run.bytes_by_sender().values()) == sum(
        b for edges in run.edges().values() for b in edges.values()
    )


@settings(max_examples=25)
@given(STREAMS)
def test_what_was_written_is_read_back(events: list[Event]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.jsonl"
        journal = Journal(path)
        for event in events:
            journal.add(event)
        journal.close()
        assert read_history(path) == history(events)


@pytest.mark.parametrize("character", ["\u2028", "\u2029", "\x85"])
def test_a_line_separator_in_a_text_does_not_break_the_chain(character: str, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.add(Event("notice", data={"text": f"before{character}after"}))
    journal.close()
    assert read_history(tmp_path / "journal.jsonl").remarks[0].text == f"before{character}after"
