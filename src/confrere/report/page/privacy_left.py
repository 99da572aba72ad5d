"""Answers «How much privacy is left?» on the first screen, with its meaning in a sentence."""

from __future__ import annotations

import math
from collections.abc import Iterable

from confrere.core.results import PrivacySpent, SiteResult
from confrere.report import words
from confrere.report.history import History
from confrere.report.page.answers import Answer, sentences

QUESTION = "How much privacy is left?"


def privacy_left(sites: Iterable[SiteResult[object]], history: History | None) -> Answer:
    """Of the site that spent most: what is left, what was spent with all that gives it meaning, and what that means."""
    rows = list(sites)
    spent: list[PrivacySpent] = [s.privacy for s in rows if s.privacy is not None]
    if not spent:
        if any(s.bytes_sent for s in rows):
            return Answer(QUESTION, "No guarantee", (f"{words.capital(words.NO_NOISE)}.",))
        return Answer(QUESTION, "All of it", (f"Nothing left a site. {words.capital(words.NO_NOISE)}.",))
    worst = max(spent, key=lambda p: p.epsilon)
    proven = all(p.proven for p in spent)
    missing = len(rows) - len(spent)
    return Answer(
        QUESTION,
        _short(worst),
        (
            sentences(
                f"This run protects nothing: its noise is drawn from a seed. {_on_nodes(worst, proven)}: "
                f"{words.privacy(worst)}; {'proven; ' if proven else ''}{_where(spent, rows)}.",
                _means(worst, history, proven),
                f"{words.count(missing, 'site has', 'sites have')} {words.NO_NOISE}." if missing else None,
            ),
        ),
    )


def _short(spent: PrivacySpent) -> str:
    """What is left of the budget, rounded down."""
    if spent.budget is None:
        return f"It would spend ε = {words.epsilon(spent.epsilon)}"
    left = _left(spent)
    return "None of the agreed budget" if not left else f"ε = {left:.2f} would be left"


def _left(spent: PrivacySpent) -> float:
    """What is left of the budget, rounded down; 0 where that is less than 0.01 or there is no budget."""
    left = 0.0 if spent.budget is None else math.floor(round(100 * (spent.budget - spent.epsilon), 6)) / 100
    return left if left >= 0.01 else 0.0


def _on_nodes(spent: PrivacySpent, proven: bool) -> str:
    """«On real nodes this study would use up its whole budget»."""
    if spent.budget is None or _left(spent):
        return f"On real nodes this study would spend{'' if proven else ', as claimed, not proven'}"
    return f"On real nodes this study would use up its whole budget{'' if proven else ', as claimed, not proven'}"


def _where(spent: list[PrivacySpent], rows: list[SiteResult[object]]) -> str:
    if len(rows) == 1:
        return f"at {rows[0].name}"
    alike = len({p.epsilon for p in spent}) == 1 and len(spent) == len(rows)
    return "at every site" if alike else "at most, at any site"


def _means(spent: PrivacySpent, history: History | None, proven: bool) -> str | None:
    """The sentence of the run, if it is about this ε; else what ε means by definition."""
    found = ((history.finished or {}).get("result") or {}).get("privacy") if history else None
    stated = (found or {}).get("readings", {}).get(spent.unit.removeprefix("per "))
    if found and found.get("sentence") and stated is not None and abs(stated - spent.epsilon) < 0.005:
        meaning = str(found["sentence"])
    elif math.isfinite(spent.epsilon):
        factor = math.exp(spent.epsilon)
        times = f"{factor:.1f}" if factor < 10 else f"{factor:,.0f}".replace(",", "\u202f")
        times = "more than a million" if factor > 1e6 else times
        unit = spent.unit.removeprefix("per ")
        meaning = f"Whatever left is at most {times} times as likely because one {unit} is in the data, but for a chance of δ."
    else:
        return "There is no bound: this protects nobody."
    return meaning if proven else f"If the claim held: {meaning[:1].lower()}{meaning[1:]}"
