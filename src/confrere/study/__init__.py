"""A study: what all sites agree on, read strictly from TOML.

A wrong key is an error that names the nearest right one; a wrong value says what it must be. Nothing is
guessed. The hash of a study is part of every run and every handshake; the seed is not part of it.
"""

from confrere.core.strict_reader import MOST_ROUNDS, Named, build, check_types, named
from confrere.study.comparison_settings import FULL, ComparisonSettings
from confrere.study.data_settings import Data, Split
from confrere.study.definition import Study, check
from confrere.study.reading import load, load_site, merged, parse, scaled
from confrere.study.settings import (
    Caps,
    Evaluation,
    Models,
    NetworkSpec,
    Privacy,
    SiteConfig,
    Stop,
    Training,
)

__all__ = [
    "FULL",
    "MOST_ROUNDS",
    "Caps",
    "ComparisonSettings",
    "Data",
    "Evaluation",
    "Models",
    "Named",
    "NetworkSpec",
    "Privacy",
    "SiteConfig",
    "Split",
    "Stop",
    "Study",
    "Training",
    "build",
    "check",
    "check_types",
    "load",
    "load_site",
    "merged",
    "named",
    "parse",
    "scaled",
]
