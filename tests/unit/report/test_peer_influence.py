"""Who counted how much: weights of Weight Erosion in the journal and on the page."""

from __future__ import annotations

from confrere.core.custody import Custody
from confrere.core.events import Event
from confrere.report.history import history
from confrere.report.page.peer_influence import who_counted


def told(note: str = "") -> list[Event]:
    out = []
    for turn in range(4):
        weights = {"B": 1 - 0.1 * turn, "C<": 1 - 0.3 * turn}
        out.append(Event("weighed", "A", turn, Custody.PROTECTED, {"weights": weights, "note": note}))
        scores = {"test": {"model": {"accuracy": 0.6 + 0.05 * turn}}, "majority": {"test": 0.55}}
        out.append(Event("evaluated", "A", turn, Custody.PRIVATE, scores))
    return out


def page(events: list[Event]) -> str:
    found = who_counted(history(events), ["A", "B", "C<"], "seed 0")
    assert found is not None
    return str(found).replace("\u00a0", " ")


def test_a_weighing_told_twice_counts_once() -> None:
    assert history([*told(), *told()]) == history(told())
    assert [w.shares["B"] for w in history(told()).weighings] == [1.0, 0.9, 0.8, 0.7]
    assert history(told()).majority == {("A", "test"): 0.55}


def test_accuracy_is_solid_weights_are_dotted_and_the_majority_is_dashed() -> None:
    text = page(told())
    assert text.count('class="line weight w') == 2
    assert text.count('class="line together"') == 1
    assert text.count('class="limit"') == 1
    assert "most frequent class 55.0 %" in text
    assert "On average: B 0.85, C&lt; 0.55" in text


def test_what_kept_the_weights_from_moving_is_said() -> None:
    assert "In 4 of 4 rounds noise hid the gradient of A" in page(told("hidden by noise"))
    assert "went on alone" in page(told("alone"))
    assert "stopped early" in page(told("stopped"))
    assert "noise" not in page(told())


def test_a_run_without_weights_has_no_such_section() -> None:
    assert who_counted(history([e for e in told() if e.kind != "weighed"]), ["A"], "seed 0") is None
