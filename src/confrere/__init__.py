"""Confrère: institutions that may not share records learn together.

>>> import confrere
>>> study = confrere.Study(name="mine", strategy="fedavg", rounds=5)
>>> # run = confrere.simulate(study, {"a": (inputs_a, labels_a), "b": (inputs_b, labels_b)}, out="runs/mine")
>>> # run.mean, run.sites["a"], run.report()

The names are those of `confrere.api`. They are loaded on first use, so that `confrere --version` does not wait for PyTorch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from confrere.api import *  # noqa: F403


def __getattr__(name: str) -> Any:
    api = import_module("confrere.api")
    try:
        return getattr(api, name)
    except AttributeError:
        raise AttributeError(f"module 'confrere' has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return sorted(import_module("confrere.api").__all__)
