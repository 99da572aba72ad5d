"""The bundled data sets: `federation(name, seed=…)` opens one, `catalogue()` lists them."""

from __future__ import annotations

from confrere.data.bundled.catalogue import catalogue, federation

__all__ = ["catalogue", "federation"]
