"""Confrère: institutions that may not share records learn together.

>>> import confrere
>>> study = confrere.Study(name="mine", strategy="fedavg", rounds=5)
>>> # run = confrere.simulate(study, {"a": (inputs_a, labels_a), "b": (inputs_b, labels_b)}, out="runs/mine")
>>> # run.mean, run.sites["a"], run.report()
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from confrere.version import __version__

if TYPE_CHECKING:
    from confrere.core.custody import Custody, Scalar, private, public
    from confrere.core.errors import ConfrereError
    from confrere.core.model import Model
    from confrere.core.protocols import Peers, Site
    from confrere.core.registry import strategy
    from confrere.data.arrays import padded
    from confrere.data.records import Records, SiteData
    from confrere.learning.nets import Adapted, network
    from confrere.learning.objectives import Supervised
    from confrere.runtime.churn import Churn
    from confrere.runtime.compare import Comparison, compare
    from confrere.runtime.run import Run
    from confrere.runtime.simulate import resume, simulate
    from confrere.study import (
        Caps,
        Data,
        Evaluation,
        Models,
        Privacy,
        SiteConfig,
        Split,
        Stop,
        Study,
        Training,
        load,
    )

_ROOMS = {
    "core.custody": ("Custody", "Scalar", "private", "public"),
    "core.errors": ("ConfrereError",),
    "core.model": ("Model",),
    "core.protocols": ("Peers", "Site"),
    "core.registry": ("strategy",),
    "data.arrays": ("padded",),
    "data.records": ("Records", "SiteData"),
    "learning.nets": ("Adapted", "network"),
    "learning.objectives": ("Supervised",),
    "runtime.churn": ("Churn",),
    "runtime.compare": ("Comparison", "compare"),
    "runtime.run": ("Run",),
    "runtime.simulate": ("resume", "simulate"),
    "study": (
        "Caps",
        "Data",
        "Evaluation",
        "Models",
        "Privacy",
        "SiteConfig",
        "Split",
        "Stop",
        "Study",
        "Training",
        "load",
    ),
}
_PLACE = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = [
    "Adapted",
    "Caps",
    "Churn",
    "Comparison",
    "ConfrereError",
    "Custody",
    "Data",
    "Evaluation",
    "Model",
    "Models",
    "Peers",
    "Privacy",
    "Records",
    "Run",
    "Scalar",
    "Site",
    "SiteConfig",
    "SiteData",
    "Split",
    "Stop",
    "Study",
    "Supervised",
    "Training",
    "__version__",
    "compare",
    "load",
    "network",
    "padded",
    "private",
    "public",
    "resume",
    "simulate",
    "strategy",
]


def __getattr__(name: str) -> Any:
    """Load a name when it is first used, so that `confrere --version` does not wait for PyTorch."""
    if name not in _PLACE:
        raise AttributeError(f"module 'confrere' has no attribute {name!r}")
    return getattr(import_module(f"confrere.{_PLACE[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
