"""Events that are kept compressed come back as they were."""

import sys
from pathlib import Path

import numpy as np
import pytest

from confrere.core.custody import Custody
from confrere.core.events import Event, Journal


def told(number: int, **more: object) -> Event:
    data = {"to": "b", "bytes": 9300, "mass": 1 / (number + 1), "losses": {"proxy": 0.1 * number}, **more}
    return Event("sent", f"site-{number % 7}", number, Custody.PRIVATE, data, 1.5 * number)


def full(count: int, page: int = 16) -> tuple[Journal, list[Event]]:
    journal = Journal(None)
    journal.page = page
    journal.events._page = page
    events = [told(n) for n in range(count)]
    for event in events:
        journal.add(event)
    return journal, events


@pytest.mark.parametrize("count", [0, 1, 16, 63, 64, 65, 300])
def test_a_journal_reads_like_a_list_however_much_of_it_is_compressed(count: int) -> None:
    journal, events = full(count)
    assert list(journal.events) == events
    assert list(reversed(journal.events)) == events[::-1]
    assert len(journal.events) == count
    assert [journal.events[n] for n in range(count)] == events
    assert [journal.events[-n] for n in range(1, count + 1)] == events[::-1]
    for part in (
        slice(3, None),
        slice(None, -2),
        slice(14, 40, 3),
        slice(None, None, -1),
        slice(count, None),
    ):
        assert journal.events[part] == events[part]
    with pytest.raises(IndexError):
        journal.events[count]


def test_numbers_of_other_libraries_come_back_as_numbers() -> None:
    journal, _ = full(0)
    for number in range(80):
        journal.add(told(number, auc=np.float64(0.75)))
    assert [e.data["auc"] for e in journal.events] == [0.75] * 80


def test_numbers_come_back_to_the_bit() -> None:
    odd = {"auc": 0.75, "n": [0.1 + 0.2, float("inf"), -0.0, 2**70, None, True, {"a": [1e-310]}]}
    journal, _ = full(0)
    for number in range(80):
        journal.add(told(number, **odd))
    assert {repr({key: e.data[key] for key in odd}) for e in journal.events} == {repr(odd)}


def test_another_journal_hears_everything_in_order(tmp_path: Path) -> None:
    one, events = full(100)
    one.add(odd := told(100, auc=np.float64(0.5)))
    pages = one.drain()
    assert len(one.events) == 0
    heard: list[Event] = []
    in_memory, on_disk = Journal(None, listeners=(heard.append,)), Journal(tmp_path / "journal.jsonl")
    for journal in (in_memory, on_disk):
        journal.add(told(7))
        for page in pages:
            journal.add_page(page)
        assert list(journal.events)[1:] == [*events, odd]
        assert journal.kinds == {"sent"}
    assert heard[1:] == [*events, odd]
    on_disk.close()
    assert len(Journal(tmp_path / "journal.jsonl").events) == 102


def test_a_compressed_event_takes_a_fraction_of_its_memory() -> None:
    journal, events = full(4096, page=4096)
    loose = sum(
        sys.getsizeof(e) + sys.getsizeof(e.data) + sys.getsizeof(e.data["losses"]) + 72 for e in events
    )
    assert sum(map(len, journal.drain())) < loose / 10
