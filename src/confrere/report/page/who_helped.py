"""Report section and answer: which peers helped, as far as the run measured it.

A comparison measures help in four ways. It judges whether the peers as a whole helped. ProxyFL's sites choose by
cross-validation how much of their own model builds on the shared proxy. Strategies that weigh peers record the weights. The
model that each peer trained alone is tried on a site's test patients (`trials`). One peer's part in a mixed model is measured
by `confrere partners`; its results, if they lie in the folder of the comparison as `partners-*.json`, are quoted.
"""

from __future__ import annotations

import json
import shlex
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from confrere.core.results import ComparisonResult, Measured, Tested
from confrere.report import words
from confrere.report.gains import tested_at
from confrere.report.history import History
from confrere.report.page.answers import Answer, sentences
from confrere.report.page.markup import Child, Markup, section, table, tag
from confrere.report.page.sections import of_comparison
from confrere.statistics.verdict import EARLIER, WORDS, Gain

QUESTION = "Who helped?"
NAMED = 3
"""More sites that gained are counted."""
WIDEST = 8
"""With more sites, the table of trials is left out."""
LISTED = 4
"""Peers that are named in one list."""
SHOWN = 6
"""Sites that are listed one by one; of more, the least and the most are stated."""


def who_helped(
    judged: Mapping[str, Gain],
    histories: Sequence[History],
    found: Mapping[str, str] | None = None,
    question: str = QUESTION,
    tried: Tried | None = None,
) -> Answer:
    """For these sites. `judged` are their gains, and `found` what partner searches found, both by site.

    `tried` is what trials of single peers' models found; without them, the rest is the answer.
    """
    sites = list(judged) or list(dict.fromkeys(s for h in histories for s in h.used))
    weighed = _weights(histories, sites)
    used = {s: u for s in sites if (u := _used(histories, s)) is not None}
    measured = [f"«{site}»: {reason}" for site, reason in (found or {}).items() if site in sites]
    parts = [_in_words(weighed) if weighed else _of_the_model(used) if used else None, *measured]
    commands: tuple[tuple[str, str], ...] = ()
    if not weighed and len(measured) < len(sites):
        which = "For the other sites, the part" if measured else "The part"
        mixed = f"{which} of one peer in learning together was not measured: all models are mixed."
        parts.append(words.HIDDEN_BY_MASKS if any(h.masked for h in histories) else mixed)
        site = sites[0] if len(sites) == 1 else "SITE"
        commands = (
            ("What each peer brings to a site", f"confrere partners STUDY.toml --site {shlex.quote(site)}"),
        )
    short, stated = _short(judged, used, bool(weighed)), sentences(*parts)
    if tried is None or not (tried.rest or tried.more):
        return Answer(question, short, (stated,), commands=commands)
    return Answer(question, tried.short or short, tried.rest, (*tried.more, stated), commands)


@dataclass(frozen=True)
class Tried:
    """What the trials of single peers' models say: the answer in a few words, what it rests on, and the figures."""

    short: str | None = None
    rest: tuple[Child, ...] = ()
    more: tuple[Child, ...] = ()


def tried_models(comparison: ComparisonResult, judged: Mapping[str, Gain], whose: str | None = None) -> Tried:
    """Whose models, trained alone, fit the patients of the sites that gain, largest gain first; or in how many pairs one does.

    `whose` is how the page addresses its one site: «your».
    """
    name, trials = comparison.headline or "", comparison.trials
    if not trials:
        return Tried()
    gained = [s for s in judged if s in trials and (whose or judged[s].word == "better")]
    gained = sorted(gained, key=lambda s: -judged[s].mean)[:NAMED]
    pairs = [gain for peers in trials.values() for gain in peers.values()]
    link = tag("a", "All pairs", href="#trials") if whose is None and len(trials) <= WIDEST else None
    if not gained:
        return Tried(None, (_in_pairs(pairs), link))
    fits = {s: _fitting(trials[s], f"{whose or f'«{s}»’s'} patients") for s in gained}
    first = gained[0]
    clear = judged[first].word == "better"
    label = words.metric(name).label
    method = (
        f"Fits: predicts them better than the site's own model does, both trained alone; by {label}, on "
        f"{words.tested(tested_at(comparison, [first])) or 'its test patients'}."
    )
    others = (f"{text}." for site, text in fits.items() if text and (site != first or not clear))
    figures = [
        part for site in gained for part in _figures(name, site, trials[site], tested_at(comparison, [site]))
    ]
    stated = method if any(fits.values()) else None
    return Tried(fits[first] if clear else None, (*map(_line, others), stated, " ", link), tuple(figures))


def _fitting(trials: Mapping[str, Measured], whose: str) -> str | None:
    """«Models of «B» and «C» fit «A»’s patients; that of «D» does not clearly»; None where nothing was judged."""
    ranked = sorted(trials, key=lambda p: -trials[p].mean)
    by = {w: [f"«{p}»" for p in ranked if trials[p].word == w] for w in WORDS}
    fit, unclear, worse = by["better"], by["no clear difference"], by["worse"]
    if not (fit or unclear or worse):
        return f"Too few patients to judge whose model fits {whose}" if by["too few to judge"] else None
    if not fit:
        return f"No single peer's model clearly fits {whose}"
    stated = [
        f"{'The model' if len(fit) == 1 else 'Models'} of {words.listing(fit, LISTED)} fit{'s' if len(fit) == 1 else ''} {whose}"
    ]
    for rest, how in ((unclear, " clearly"), (worse, "")):
        if rest:
            which = "that" if len(rest) == 1 else "those"
            stated.append(
                f"{which} of {words.listing(rest, LISTED)} {'does' if len(rest) == 1 else 'do'} not{how}"
            )
    return "; ".join(stated)


def _figures(name: str, site: str, trials: Mapping[str, Measured], counts: Tested | None) -> list[Child]:
    """The gain of each peer's model over the site's own, with its interval."""
    on = f" ({words.tested(counts)})" if counts else ""
    peers = sorted(trials, key=lambda p: -trials[p].mean)
    lines = [_line(tag("b", f"«{peer}»"), f" {_gain(name, trials[peer])}") for peer in peers[:SHOWN]]
    lead = (
        f"Gain in {words.metric(name).label} over the own model of «{site}», on its test patients{on}, with "
        f"{_interval(trials.values())}s; + is better."
    )
    return [tag("span", lead, *lines)]


def _in_pairs(pairs: Sequence[Measured]) -> str:
    """In how many pairs of sites a peer's model fits, where no site clearly gains."""
    judged = [gain.word for gain in pairs if gain.word in ("better", "worse", "no clear difference")]
    if not judged:
        few = any(gain.word for gain in pairs)
        return f"Models of single peers were tried on every site's test patients: {'too few to judge' if few else EARLIER}."
    better, worse = judged.count("better"), judged.count("worse")
    return (
        "The model that a peer trained alone, tried on the test patients of a site, is clearly better than the site's own in "
        f"{better or 'none'} of {words.count(len(judged), 'pair')} of sites, and clearly worse in {worse or 'none'} "
        f"(corrected for {words.count(len(judged), 'pair')}). "
    )


def _interval(gains: Iterable[Measured]) -> str:
    """Which intervals these are: corrected where they have words."""
    return words.PLAIN_INTERVAL if all(gain.word is None for gain in gains) else words.CORRECTED_INTERVAL


def _line(*children: Child) -> Markup:
    return tag("span", *children, class_="line-of")


def _gain(name: str, gain: Measured) -> str:
    """«+0.32 (+0.10 to +0.54)»."""
    if gain.interval is None:
        return f"{words.signed(name, gain.mean)} (too few for an interval)"
    return (
        f"{words.signed(name, gain.mean)} ({' to '.join(words.signed(name, end) for end in gain.interval)})"
    )


def whose_model_fits(comparison: ComparisonResult) -> Markup | None:
    """A row for each site, a column for each peer: what the peer's model gains over the site's own."""
    trials, name = comparison.trials, comparison.headline
    sites = [s for s in comparison.sites if s in trials]
    if name is None or len(sites) < 2 or len(sites) > WIDEST:
        return None
    rows: list[list[Child]] = []
    for site in sites:
        counts = words.tested(tested_at(comparison, [site]))
        cells = (_cell(name, trials[site].get(peer)) for peer in sites)
        rows.append([tag("span", site, tag("small", counts) if counts else None), *cells])
    metric = words.metric(name)
    unit = " in points" if metric.percent else ""
    pairs = [gain for peers in trials.values() for gain in peers.values()]
    count = sum(gain.word not in (None, "too few to judge") for gain in pairs)
    marks = f"▲ better and ▼ worse, by the rule of this page, corrected for {words.count(count, 'pair')} of sites. "
    lead = (
        f"Each peer's model, trained alone and without noise, tried on the test patients of a site: gain in {metric.label}{unit} "
        f"over the site's own model (+ is better), with its {_interval(pairs)}. {marks if count else ''}"
        "This shows whose records fit whose patients, not how much of that passes through "
        "the noise of learning together."
    )
    head: list[Child] = ["Patients of", *(f"Model of {peer}" for peer in sites)]
    return section("Whose model fits whose patients", table(head, rows, kind="heat"), lead=lead, id_="trials")


def _cell(name: str, gain: Measured | None) -> Markup:
    if gain is None:
        return tag("span", "own", class_="cell plain")
    sign, kind = {"better": ("▲ ", "above"), "worse": ("▼ ", "below")}.get(gain.word or "", ("", "plain"))
    ends = " to ".join(words.signed(name, end) for end in gain.interval) if gain.interval else "too few"
    return tag(
        "span", f"{sign}{words.signed(name, gain.mean)}", tag("small", ends), class_=f"cell trial {kind}"
    )


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
            who = (
                words.listing([f"«{s}»" for s in better])
                if named
                else f"{len(better)} of {len(judged)} sites"
            )
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
        share = f"{100 * next(iter(used.values())):.0f} %"
        return (
            f"{share} of the site's model builds on the shared model, by cross-validation on its own records."
        )
    elif len(used) <= SHOWN:
        each = words.listing([f"«{s}» {100 * u:.0f} %" for s, u in used.items()], SHOWN)
    else:
        low, high = min(used, key=lambda s: used[s]), max(used, key=lambda s: used[s])
        each = f"from {100 * used[low]:.0f} % («{low}») to {100 * used[high]:.0f} % («{high}»)"
    return f"Share of a site's model that builds on the shared model, by cross-validation on its own records: {each}."


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
    stated = []
    for user, peers in list(weighed.items())[:SHOWN]:
        ranked = sorted(peers, key=lambda p: -peers[p])
        stated.append(f"for {user}, {words.listing([f'{p} {peers[p]:.2f}' for p in ranked], SHOWN)}")
    more = f"; and {len(weighed) - SHOWN} more users" if len(weighed) > SHOWN else ""
    return f"Mean weight of each peer over all rounds, measured on gradients: {'; '.join(stated)}{more}."


of_comparison("whose model fits", order=45)(whose_model_fits)
