"""Answers «Who helped?» on the first screen: what the run measured about peers; that a peer sent something is not enough.

A run measures help in three ways. The comparison tells whether the peers as a whole helped. ProxyFL's sites choose by
cross-validation how much of their own model builds on the shared proxy. Strategies that weigh peers record the weights.
One peer's part in a mixed model is measured by `confrere partners`; its results, if they lie in the folder of the
comparison as `partners-*.json`, are quoted.
"""

from __future__ import annotations

import json
import shlex
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from confrere.core.results import ComparisonResult
from confrere.report import words
from confrere.report.history import History
from confrere.report.page.questions import Answer, sentences
from confrere.statistics.verdict import Gain

QUESTION = "Who helped?"
NAMED = 3
"""More sites that gained are counted."""
SHOWN = 6
"""Sites that are listed one by one; of more, the least and the most are stated."""


def who_helped(
    judged: Mapping[str, Gain],
    histories: Sequence[History],
    found: Mapping[str, str] | None = None,
    question: str = QUESTION,
) -> Answer:
    """For these sites. `judged` are their gains, and `found` what partner searches found, both by site."""
    sites = list(judged) or list(dict.fromkeys(s for h in histories for s in h.used))
    weighed = _weights(histories, sites)
    used = {s: u for s in sites if (u := _used(histories, s)) is not None}
    measured = [f"{site}: {reason}" for site, reason in (found or {}).items() if site in sites]
    parts = [_in_words(weighed) if weighed else _of_the_model(used) if used else None, *measured]
    commands: tuple[tuple[str, str], ...] = ()
    if not weighed and len(measured) < len(sites):
        which = "For the other sites, what" if measured else "What"
        parts.append(f"{which} one peer brought was not measured: the models of all peers are mixed.")
        site = sites[0] if len(sites) == 1 else "SITE"
        commands = (
            ("What each peer brings to a site", f"confrere partners STUDY.toml --site {shlex.quote(site)}"),
        )
    return Answer(question, _short(judged, used, bool(weighed)), (sentences(*parts),), commands)


def partner_searches(folder: Path, comparison: ComparisonResult) -> dict[str, str]:
    """By site, the reason that `confrere partners --json` gave, where its output for this study lies in the folder."""
    found = {}
    for path in sorted(folder.glob("partners-*.json")):
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            site, study, reason = document["site"], document["study"], document["reason"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if site in comparison.sites and study == comparison.facts.get("study", study):
            chosen = document.get("chosen") or []
            found[str(site)] = sentences(words.listing(chosen, 8) + "." if chosen else None, str(reason))
    return found


def _short(judged: Mapping[str, Gain], used: Mapping[str, float], weighed: bool) -> str:
    """What the peers as a whole brought, where that was compared with training alone."""
    better = [s for s, g in judged.items() if g.word == "better"]
    if len(judged) == 1:
        word = next(iter(judged.values())).word
        return {
            "better": "The peers, all together",
            "worse": "No one: together is worse",
            "no clear difference": "No clear help",
        }.get(word, "Too few to judge")
    if judged:
        if len(better) == len(judged):
            return "Every site gained from the others"
        if better:
            named = len(better) <= NAMED
            who = words.listing(better) if named else f"{len(better)} of {len(judged)} sites"
            return f"{words.capital(who)} gained from the other sites"
        few = all(g.word == "too few to judge" for g in judged.values())
        return "Too few to judge" if few else "No site clearly gained from the others"
    if weighed:
        return "Peers count by measured weight"
    return "Measured for all peers together" if used else "Not measured"


def _used(histories: Sequence[History], site: str) -> float | None:
    found = [h.used[site] for h in histories if site in h.used]
    return statistics.fmean(found) if found else None


def _of_the_model(used: Mapping[str, float]) -> str:
    if len(used) == 1:
        each = f"{100 * next(iter(used.values())):.0f} %"
        whose = "the site's model"
    elif len(used) <= SHOWN:
        each = words.listing([f"{s} {100 * u:.0f} %" for s, u in used.items()], SHOWN)
        whose = "a site's model"
    else:
        low, high = min(used, key=lambda s: used[s]), max(used, key=lambda s: used[s])
        each = f"from {100 * used[low]:.0f} % ({low}) to {100 * used[high]:.0f} % ({high})"
        whose = "a site's model"
    return f"How much of {whose} builds on the model that all sites train, as far as its own records support it: {each}."


def _weights(histories: Sequence[History], sites: Sequence[str]) -> dict[str, dict[str, float]]:
    """For each user, the mean weight of each peer over rounds and seeds."""
    found: dict[str, dict[str, list[float]]] = {}
    for history in histories:
        for w in history.weighings:
            if w.site in sites or not sites:
                for peer, share in w.shares.items():
                    found.setdefault(w.site, {}).setdefault(peer, []).append(share)
    return {
        user: {peer: statistics.fmean(shares) for peer, shares in peers.items()}
        for user, peers in found.items()
    }


def _in_words(weighed: Mapping[str, Mapping[str, float]]) -> str:
    told = []
    for user, peers in list(weighed.items())[:SHOWN]:
        ranked = sorted(peers, key=lambda p: -peers[p])
        told.append(f"for {user}, {words.listing([f'{p} {peers[p]:.2f}' for p in ranked], SHOWN)}")
    more = f"; and {len(weighed) - SHOWN} more users" if len(weighed) > SHOWN else ""
    return f"Mean weight of each peer over all rounds, measured on gradients: {'; '.join(told)}{more}."
