"""The version of Confrère, and the versions of the packages that results depend on."""

from functools import cache

__version__ = "0.2.0.dev0"

PACKAGES = ("torch", "numpy", "pandas", "dp-accounting", "safetensors")


@cache
def versions() -> dict[str, str]:
    """The versions to write down with a result."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    found = {"confrere": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
