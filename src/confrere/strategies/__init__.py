"""Strategies: ways to collaborate, one file each; files in this folder are discovered."""

from __future__ import annotations

from confrere.core.registry import strategies, strategy

__all__ = ["discover", "strategies", "strategy"]


def discover() -> list[str]:
    """The names of all strategies: the files of this folder and those of installed packages."""
    return strategies.names()
