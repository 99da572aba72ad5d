"""Run Python's garbage collector rarely during the rounds of a simulation."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

RARELY = 100_000
"""So many new objects go by between two searches. What a round leaves behind is freed without them."""


@contextmanager
def rare_collections() -> Iterator[None]:
    """While this is open, cycles are looked for rarely, and not among what was there before.

    A simulation of a thousand sites keeps some hundred thousand objects that never die; to look through them
    over and over took up to a third of its time.
    """
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    gc.freeze()
    if before[0]:  # somebody may have switched it off
        gc.set_threshold(max(RARELY, before[0]), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        if not frozen:  # what somebody else has frozen stays so
            gc.unfreeze()
