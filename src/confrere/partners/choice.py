"""Choose partners from the rankings, and reconcile methods that disagree.

Likeness proposes, trial decides. A site that follows the opposite rule can have records that look the same, so no
likeness can see it; a *trial* measures what a peer does to predictions for the user's own held-out patients. The trials
are, from the one nearest to what would be done: influence (training with the peer; simulation only), then transfer loss
and the running influence of its gradients. A peer that the deciding trial finds clearly harmful is not chosen, whatever
proposed it. If the choice is by a method that works in the field, only trials that work there can decide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from confrere.core.errors import StudyError
from confrere.core.registry import nearest
from confrere.partners import METHODS, Method
from confrere.partners.ranking import Finding, Ranking
from confrere.report import words

INFLUENCE: tuple[Method, ...] = ("add-one-in", "leave-one-out")
TRIALS: tuple[Method, ...] = (*INFLUENCE, "transfer", "running")
"""Methods that try a peer on the user's own held-out patients; the others compare records or gradients."""

CLEAR = ("yes", "no")


@dataclass(frozen=True)
class SelectionRule:
    """How partners are chosen from the rankings."""

    by: Method = "influence"
    top: int | None = None

    def __post_init__(self) -> None:
        if self.by not in METHODS:
            raise StudyError(f'--by "{self.by}"{nearest(self.by, METHODS)}: there are {", ".join(METHODS)}')


@dataclass(frozen=True)
class Choice:
    """The chosen peers, best first, and why."""

    chosen: tuple[str, ...]
    reason: str
    """In a sentence or two."""
    refused: tuple[str, ...] = ()
    """Those that the method proposed and a trial found harmful."""
    unconfirmed: tuple[str, ...] = ()
    """Those that were chosen by likeness, and that no trial clearly confirms."""


def choose(
    rankings: Sequence[Ranking], rule: SelectionRule, site: str, patients: int | None = None
) -> Choice:
    """Choose peers by the rule's method, unless a trial finds them harmful.

    `patients` is the number of the user's training patients, on which influence is cross-validated; the reason states it.
    """
    known = {r.method: r for r in rankings}
    proposed, title = _proposed(known, rule)
    tried = trials(rankings, rule.by)
    harmful = tuple(p for p in proposed if tried.get(p) == "no")
    if rule.top is not None:
        doubt = f" A trial finds {words.listing(harmful, 20)} harmful." if harmful else ""
        return Choice(proposed, f"The first {rule.top} by {title}, whatever their value.{doubt}")
    chosen = tuple(p for p in proposed if p not in harmful)
    against = _against(harmful, site)
    if not chosen:
        return Choice((), f"{_none(known, rule, site, title)}{against}", harmful)
    likeness = rule.by not in (*TRIALS, "influence")
    unconfirmed = tuple(p for p in chosen if tried.get(p) != "yes") if likeness else ()
    return Choice(
        chosen,
        f"{_some(known, rule, title, _held_out(site, patients), len(chosen))}{_doubt(unconfirmed)}{against}",
        harmful,
        unconfirmed,
    )


def trials(rankings: Sequence[Ranking], by: Method) -> dict[str, Finding]:
    """What trials find about each peer: the first clear finding decides. Only trials that are possible where `by` is."""
    known = {r.method: r for r in rankings}
    in_field = by in known and not known[by].simulation_only
    usable = {m: known[m].findings for m in TRIALS if not (in_field and known[m].simulation_only)}
    ordered = [usable[m] for m in ("transfer", "running") if m in usable]
    if INFLUENCE[0] in usable:
        added, left_out = (usable[m] for m in INFLUENCE)
        ordered.insert(0, {p: _both(added[p], left_out[p]) for p in added})
    found: dict[str, Finding] = {}
    for findings in ordered:
        for peer, finding in findings.items():
            if peer not in found or (finding in CLEAR and found[peer] not in CLEAR):
                found[peer] = finding
    return found


def _both(added: Finding, left_out: Finding) -> Finding:
    """Clear harm in either form outweighs help in the other.

    Leaving one out is not enough: partners that can replace one another are not missed.
    """
    if "no" in (added, left_out):
        return "no"
    return "yes" if "yes" in (added, left_out) else added


def _proposed(known: Mapping[Method, Ranking], rule: SelectionRule) -> tuple[tuple[str, ...], str]:
    """Whom the method proposes, best first, and its name."""
    if rule.by != "influence":
        return tuple(known[rule.by].chosen), known[rule.by].title.lower()
    added, left_out = (known[m] for m in INFLUENCE)
    if rule.top is not None:
        return tuple(added.chosen), "influence"
    helps = {*added.chosen, *left_out.chosen}
    return tuple(s.peer for s in added.scores if s.peer in helps), "influence"


def _held_out(site: str, patients: int | None) -> str:
    """The patients that influence is measured on, who are not the test patients."""
    counted = "" if patients is None else f"{words.plain_number(patients)} "
    return f"in cross-validation on {counted}training patients of {site}"


def _some(known: Mapping[Method, Ranking], rule: SelectionRule, title: str, held_out: str, count: int) -> str:
    if rule.by == "influence":
        which = "each of them" if count > 1 else "it"
        return f"Chosen by influence: {held_out}, {which} clearly improves predictions."
    return f"Chosen by {title}: {known[rule.by].measures}."


def _none(known: Mapping[Method, Ranking], rule: SelectionRule, site: str, title: str) -> str:
    if rule.by != "influence":
        scores = known[rule.by].scores
        return f"No partner is chosen by {title}: {scores[0].sentence if scores else 'nothing was measured.'}"
    best = known["add-one-in"].scores[0]
    between = f" ({best.interval[0]:+.4f} to {best.interval[1]:+.4f})" if best.interval else ""
    return (
        f"No partner is clearly worth learning from: the best, {best.peer}, lowers the held-out loss of {site} by"
        f" {best.value:+.4f}{between}. Train alone, or ask again with more records."
    )


def _against(harmful: Sequence[str], site: str) -> str:
    if not harmful:
        return ""
    return (
        f" Left out, although proposed: {words.listing(harmful, 20)}, because a trial on patients of {site} finds clear"
        " harm."
    )


def _doubt(unconfirmed: Sequence[str]) -> str:
    if not unconfirmed:
        return ""
    return f" No trial clearly confirms {words.listing(unconfirmed, 20)}: likeness only proposes."
