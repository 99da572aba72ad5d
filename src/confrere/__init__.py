"""Confrère: institutions that may not share records learn together."""

from confrere.version import __version__

__all__ = ["__version__"]
