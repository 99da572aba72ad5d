"""Masked sums in a study: combiner = "masked-sum", the table [masked], and the settings they exclude.

combiner = "masked-sum"
masked = { colluding = 1, dropouts = 1 }
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from pydantic import with_config

from confrere.core.errors import StudyError
from confrere.core.protocols import Strategy
from confrere.core.registry import strategies
from confrere.core.strategy_traits import traits
from confrere.core.strict_reader import STRICT, Named, named
from confrere.core.sum_terms import check_collusion, collusion_condition, threshold
from confrere.exchange.attacks import attacks
from confrere.exchange.secure.mask_graph import COMPLETE
from confrere.exchange.sums import MASKED_SUM
from confrere.study.churn import Churn
from confrere.study.settings import Privacy


@with_config(STRICT)
@dataclass(frozen=True)
class Masked:
    """Who may collude and who may be missing in the masked sums of a study; see docs/masked-sums.md."""

    colluding: int = 1
    """How many sites may pool what they see or depart from the protocol without breaking the guarantee; at least 1."""
    dropouts: int = 1
    """How many sites may be missing in a round; with more the round is given up."""
    simulate: Literal["sums", "masks"] = "sums"
    """In a simulation: "sums" adds up the shares without masks, "masks" runs the whole protocol. The results are equal to
    the bit."""

    def check(self) -> None:
        for name, value, least in (("colluding", self.colluding, 1), ("dropouts", self.dropouts, 0)):
            if value < least:
                reason = (
                    ": every site sees the sum and knows its own noise, so 0 protects nothing"
                    if least
                    else ""
                )
                raise StudyError(f"masked.{name} is {value}; it must be at least {least}{reason}")


class MaskableStudy(Protocol):
    """The parts of a study that masked sums depend on."""

    @property
    def strategy_name(self) -> str: ...
    @property
    def combiner(self) -> Named | None: ...
    @property
    def masked(self) -> Masked | None: ...
    @property
    def compression(self) -> Named | None: ...
    @property
    def attack(self) -> Named | None: ...
    @property
    def privacy(self) -> Privacy | None: ...
    @property
    def churn(self) -> Churn: ...
    @property
    def topology(self) -> Named | None: ...
    def build_strategy(self) -> Strategy: ...


def masked_of(study: MaskableStudy) -> Masked | None:
    """The settings of masked sums; None if the study has none."""
    if study.combiner is None or named(study.combiner, "combiner")[0] != MASKED_SUM:
        return None
    return study.masked or Masked()


def check_masked(study: MaskableStudy) -> None:
    """Refuse what does not go with masked sums and can be seen without knowing the sites."""
    settings, combiner = masked_of(study), study.combiner
    if settings is None:
        if study.masked is not None:
            wanted = "none" if combiner is None else f'"{named(combiner, "combiner")[0]}"'
            raise StudyError(
                f'[masked] goes with combiner = "{MASKED_SUM}", and the combiner is {wanted}: any other combiner reads'
                " single models, which masks hide. A study chooses between masks and robustness"
            )
        return
    _check_strategy(study)
    _check_privacy(study.privacy)
    topology = study.topology or traits(study.build_strategy()).topology or "none"
    if named(topology, "topology")[0] not in ("complete", "star"):
        raise StudyError(
            f'combiner = "{MASKED_SUM}" adds up the vectors of all sites; set topology = "complete" or "star"'
        )
    if study.compression is not None:
        raise StudyError(
            f'compression does not go with combiner = "{MASKED_SUM}": masks cannot be compressed'
        )
    if (name := _colluding_attack(study)) is not None:
        raise StudyError(
            f'attack "{name}" does not go with combiner = "{MASKED_SUM}": it needs to see the models of the honest sites,'
            ' and masks hide them; use "signflip", "scaled", "noise", "nan" or "labelflip"'
        )
    if study.churn.participation:
        raise StudyError(
            f'churn.participation does not go with combiner = "{MASKED_SUM}": the noise is divided between all members,'
            " so all of them take part in every round"
        )


def check_members(study: MaskableStudy, members: Sequence[str], round: int = 0) -> None:
    """Refuse numbers of members, colluding members and dropouts for which masks do not protect."""
    settings = masked_of(study)
    if settings is None:
        return
    try:
        check_collusion(len(members), settings.colluding, settings.dropouts)
    except StudyError as error:
        when = f" from round {round + 1} on" if round else ""
        raise StudyError(f"masked sums{when}: {error}") from None


def check_nodes(study: MaskableStudy, members: int) -> None:
    """Refuse masked sums between more nodes than can all mask with one another."""
    if masked_of(study) is not None and members > COMPLETE:
        raise StudyError(
            f"masked sums of {members} nodes: above {COMPLETE} the seed of a sparse mask graph has to be agreed on, which"
            " nodes cannot do yet; use `confrere simulate`, or fewer sites"
        )


def _colluding_attack(study: MaskableStudy) -> str | None:
    """The name of the study's attack if it needs to know what honest sites send."""
    if study.attack is None:
        return None
    name = named(study.attack, "attack")[0]
    return name if attacks[name].colludes else None


def sum_sentence(study: MaskableStudy, members: int) -> str | None:
    """What the study's masked sums assume, in words; None if it has none."""
    settings = masked_of(study)
    if settings is None:
        return None
    return (
        f"masked sums of {members} sites (n), of which {settings.colluding} may collude (t) and {settings.dropouts} may be"
        f" missing in a round (d); a round needs {quorum(study, members)} of them. ε holds"
        f" {collusion_condition(members, settings.colluding)}"
    )


def quorum(study: MaskableStudy, members: int) -> int:
    """How many members a round needs: fewer would leave too little noise in the sum."""
    settings = masked_of(study)
    return 1 if settings is None else max(threshold(members, settings.colluding), members - settings.dropouts)


def _check_strategy(study: MaskableStudy) -> None:
    if not traits(study.build_strategy()).gradient_sums:
        raise StudyError(
            f'combiner = "{MASKED_SUM}": strategy "{study.strategy_name}" has no masked form; these have one:'
            f" {', '.join(strategies_with_sums())}"
        )


def strategies_with_sums() -> list[str]:
    """The strategies that can exchange sums of gradients, which masks can hide."""
    return [name for name in strategies.names() if hasattr(strategies[name], "gradient_sums")]


def _check_privacy(privacy: Privacy | None) -> None:
    if privacy is None:
        raise StudyError(
            f'combiner = "{MASKED_SUM}" divides the noise of one release between the sites, and the study has no noise;'
            " add [privacy]"
        )
    if privacy.sampling != "full":
        raise StudyError(
            f'privacy.sampling = "{privacy.sampling}" does not go with combiner = "{MASKED_SUM}": no bound is proven for'
            ' samples in masked sums; use sampling = "full"'
        )
    if privacy.steps not in (None, 1):
        raise StudyError(
            f'privacy.steps is {privacy.steps}; with combiner = "{MASKED_SUM}" a round is one step: a second one would read'
            " a sum that has only a part of its noise"
        )
    if not privacy.clipper().fixed_noise:
        clipping = named(privacy.clipping, "privacy.clipping")[0]
        raise StudyError(
            f'privacy.clipping = "{clipping}" does not go with combiner = "{MASKED_SUM}": it changes with what a site has'
            ' released, and here no site releases anything by itself; use clipping = "flat"'
        )
