"""The demonstration: five real referral centres, together and alone, within a proven ε of 3."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

from confrere.core.errors import StudyError
from confrere.core.events import Event
from confrere.evaluate.compare import Comparison, compare
from confrere.study import Study, load

STRATEGIES = ("local", "proxyfl", "fedavg", "pooled")


def demo_study() -> Study:
    """Thyroid patients by referral source, the task «abnormal thyroid»."""
    return load(str(files("confrere.evaluate") / "demo.toml"))


def demo(
    seeds: int = 30,
    *,
    out: str | Path,
    rounds: int | None = None,
    listeners: tuple[Callable[[Event], None], ...] = (),
    command: str = "",
) -> Comparison:
    """Train five real referral centres together and alone; what `confrere demo` does.

    The result's `report()` writes the page. `rounds` shortens it.

    >>> found = confrere.demo(seeds=1, rounds=1, out=place / "demo")
    >>> sorted(found.result.strategies)
    ['fedavg', 'local', 'pooled', 'proxyfl']
    """
    if seeds < 1:
        raise StudyError(f"--seeds is {seeds}; the demo needs at least one")
    study = demo_study() if rounds is None else demo_study().with_(rounds=rounds)
    return compare(study, STRATEGIES, range(seeds), out=out, listeners=listeners, command=command)
