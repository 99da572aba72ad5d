"""Run Python's garbage collector rarely during the rounds of a simulation."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

RARELY = 100_000
"""How many new objects there may be between two collections. What a round leaves behind is freed by its reference counts."""


@contextmanager
def rare_collections() -> Iterator[None]:
    """Collect garbage rarely, and ignore the objects that already exist.

    A simulation of a thousand sites keeps some hundred thousand objects that are never freed; examining them
    repeatedly took up to a third of its time.
    """
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    gc.freeze()
    if before[0]:  # 0 is switched off
        gc.set_threshold(max(RARELY, before[0]), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        if not frozen:  # objects that the caller has frozen stay frozen
            gc.unfreeze()
