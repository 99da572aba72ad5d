"""Ways to collaborate, one file each. A file in this folder is found without being listed anywhere."""

from __future__ import annotations

import importlib
import pkgutil

from confrere.core.registry import strategies, strategy

__all__ = ["discover", "strategies", "strategy"]


def discover() -> list[str]:
    """Import every file of this folder; returns the names of all strategies, installed ones included."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return strategies.names()
