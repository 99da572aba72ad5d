"""Rounds are not held up by the search for cycles, and afterwards everything is as it was."""

from __future__ import annotations

import gc

from confrere.simulation.gc_pause import RARELY, rare_collections


def test_the_collector_is_held_back_and_then_as_before() -> None:
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    with rare_collections():
        assert gc.get_threshold()[0] >= RARELY
        assert gc.get_freeze_count() > frozen
    assert (gc.get_threshold(), gc.get_freeze_count()) == (before, frozen)


def test_it_is_as_before_after_an_error_too() -> None:
    before = gc.get_threshold()
    try:
        with rare_collections():
            raise ValueError
    except ValueError:
        assert gc.get_threshold() == before


def test_a_collector_that_was_switched_off_or_frozen_stays_so() -> None:
    before = gc.get_threshold()
    gc.set_threshold(0, *before[1:])
    gc.freeze()
    try:
        with rare_collections():
            assert gc.get_threshold()[0] == 0
        assert gc.get_threshold()[0] == 0
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
