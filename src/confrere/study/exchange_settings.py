"""The combiner, compression and rehearsed attack that a study names, as objects, and the checks of these settings.

combiner = "krum"                                     # or { name = "trimmed-mean", attackers = 2 }
compression = "int8"                                  # or { name = "top-k", share = 0.1 }
attack = { name = "signflip", attackers = 2 }         # the last two sites in order, or attackers = ["a", "b"]
"""

from __future__ import annotations

import typing
from collections.abc import Sequence
from typing import Protocol

from confrere.core.errors import StudyError
from confrere.core.protocols import Combiner, GossipCombiner, Strategy
from confrere.core.registry import nearest
from confrere.core.strategy_traits import traits
from confrere.core.strict_reader import Named, build, build_named, named
from confrere.exchange.attacks import Attack, attacks
from confrere.exchange.combine import combiners
from confrere.exchange.compression import Compression, compressions
from confrere.exchange.sums import MASKED_SUM


class ExchangeSettings(Protocol):
    """The part of a study that these settings are."""

    @property
    def strategy_name(self) -> str: ...
    @property
    def topology(self) -> Named | None: ...
    @property
    def combiner(self) -> Named | None: ...
    @property
    def compression(self) -> Named | None: ...
    @property
    def attack(self) -> Named | None: ...
    def build_strategy(self) -> Strategy: ...


def combiner_of(study: ExchangeSettings) -> Combiner | None:
    """How models are combined; None leaves it to the strategy."""
    if study.combiner is None:
        return None
    return typing.cast("Combiner", build_named(combiners, study.combiner, "combiner"))


def compression_of(study: ExchangeSettings) -> Compression | None:
    """How models are compressed on their way; None sends them as they are."""
    if study.compression is None:
        return None
    return typing.cast("Compression", build_named(compressions, study.compression, "compression"))


def attack_of(study: ExchangeSettings) -> Attack | None:
    """What dishonest sites do; None where all are honest."""
    if study.attack is None:
        return None
    name, options = named(study.attack, "attack")
    options.pop("attackers", None)
    return typing.cast("Attack", build(attacks[name], options, f'attack "{name}"'))


def attackers_of(study: ExchangeSettings, sites: Sequence[str]) -> tuple[str, ...]:
    """Who the dishonest sites are: those that the study names, or the last ones in the order of their names."""
    if study.attack is None:
        return ()
    wanted, known = _attackers(study), sorted(sites)
    if isinstance(wanted, int):
        chosen = tuple(known[-wanted:])
    else:
        chosen = tuple(sorted(wanted))
        for name in chosen:
            if name not in known:
                raise StudyError(
                    f'attack.attackers names "{name}", which is not a site of this study{nearest(name, known)}'
                )
    if len(chosen) >= len(known) or (isinstance(wanted, int) and wanted >= len(known)):
        raise StudyError(
            f"attack.attackers: {wanted if isinstance(wanted, int) else len(chosen)} of {len(known)} sites would be"
            " dishonest, and no site would be left to evaluate; at least one site is honest"
        )
    return chosen


def combines(study: ExchangeSettings) -> str | None:
    """«models», «by gossip», or None where the strategy combines nothing, or in a way that is the method itself."""
    return traits(study.build_strategy()).combines


def common_role(study: ExchangeSettings) -> str | None:
    """The role whose model is the same at all sites after a round; None where the strategy promises no such model."""
    return traits(study.build_strategy()).common


def sends(study: ExchangeSettings) -> bool:
    """Whether the study's strategy sends anything."""
    return study.topology is not None or traits(study.build_strategy()).topology is not None


def check_exchange(study: ExchangeSettings) -> None:
    """What can be said without knowing the sites."""
    combiner, strategy = combiner_of(study), study.strategy_name
    name = "" if study.combiner is None else named(study.combiner, "combiner")[0]
    if combiner is not None and name != MASKED_SUM and (how := combines(study)) != "models":
        if how is None:
            raise StudyError(
                f'combiner = "{name}": strategy "{strategy}" '
                + (
                    "combines in a way that is the method itself"
                    if sends(study)
                    else "combines nothing: it sends no models"
                )
                + "; leave combiner out, or use fedavg, fedprox, fml, swarm, personal, avgpush or proxyfl"
            )
        if not isinstance(combiner, GossipCombiner):
            raise StudyError(
                f'combiner = "{name}": strategy "{strategy}" mixes by gossip, often with one peer at a time;'
                ' use combiner = "self-centred-clip"'
            )
    compression = compression_of(study)
    for key, found in (("compression", compression), ("attack", attack_of(study))):
        if found is not None and not sends(study):
            raise StudyError(f'{key}: strategy "{strategy}" sends nothing')
    if compression is not None and compression.sparse and common_role(study) is not None:
        raise StudyError(
            f'compression = "{named(study.compression or "", "compression")[0]}" leaves weights out, and strategy'
            f' "{strategy}" promises one model for all sites, which would drift apart; use compression = "int8" or'
            ' "float16", or a strategy that mixes by gossip (proxyfl or avgpush)'
        )
    if study.attack is not None:
        _attackers(study)


def _attackers(study: ExchangeSettings) -> int | list[str]:
    assert study.attack is not None
    found = named(study.attack, "attack")[1].get("attackers", 1)
    if type(found) is int and found >= 1:
        return found
    if isinstance(found, list) and found and all(isinstance(n, str) for n in found):
        return sorted(set(found))
    raise StudyError(
        f"attack.attackers is a number of sites of at least 1, or a list of their names, not {found!r}"
    )
