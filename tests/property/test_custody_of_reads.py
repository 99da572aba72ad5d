"""A trained model is held as closely as anything that reaches it, whatever the roles of a call read of each other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from confrere.core.custody import Custody, may_leave
from confrere.core.model import Model
from confrere.core.params import Params
from confrere.learning.objectives import Supervised
from confrere.privacy.charged_steps import PrivateSteps
from confrere.site.training import TrainingCall

ROLES = ("a", "b", "c", "d", "e")


@st.composite
def calls(draw: st.DrawFn) -> tuple[dict[str, frozenset[str]], frozenset[str], dict[str, Custody]]:
    """What each role reads, which are trained with noise, and how closely each was held before."""
    reads = {role: draw(st.frozensets(st.sampled_from(ROLES), max_size=3)) for role in ROLES}
    noisy = draw(st.frozensets(st.sampled_from(ROLES)))
    return reads, noisy, {role: draw(st.sampled_from(list(Custody))) for role in ROLES}


def reaching(role: str, reads: dict[str, frozenset[str]]) -> set[str]:
    """Every role that shapes this one within a call, itself included."""
    found, new = {role}, {role}
    while new:
        new = {other for r in new for other in reads[r]} - found
        found |= new
    return found


@given(calls())
def test_custody_is_handed_on_along_everything_that_is_read(
    call: tuple[dict[str, frozenset[str]], frozenset[str], dict[str, Custody]],
) -> None:
    reads, noisy, before = call
    site: Any = SimpleNamespace(name="a", size=1, rehearsal=True, released=Custody.PROTECTED, unproven=None)
    models = {r: Model(Params({"w": torch.zeros(1)}), "net", held) for r, held in before.items()}
    objective = {role: Supervised(reads[role]) for role in ROLES}
    protect = sorted(noisy)
    private: Any = PrivateSteps(dict.fromkeys(protect), 1)  # type: ignore[arg-type]
    found = TrainingCall(site, 0, objective, models, protect)._custodies(private, objective)
    for role in ROLES:
        reached = reaching(role, reads)
        plain = bool(reached - noisy)
        expected = Custody.PRIVATE if plain else max(Custody.PROTECTED, *(before[r] for r in reached))
        assert found[role] == expected
        assert may_leave(found[role]) == (expected <= Custody.PROTECTED)
