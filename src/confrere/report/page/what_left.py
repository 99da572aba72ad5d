"""Answers «What left the buildings?» on the first screen: bytes of each site in one unit, and what they were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from confrere.core.results import SiteResult
from confrere.report import words
from confrere.report.history import History
from confrere.report.page.answers import Answer

QUESTION = "What left each site?"


def what_left(
    sites: Iterable[SiteResult[object]], history: History | None, question: str = QUESTION
) -> Answer:
    """In one run, as its journal lists it."""
    rows = list(sites)
    sent = [s.bytes_sent for s in rows if s.bytes_sent is not None]
    if not sent and (history is None or not history.sendings):
        return Answer(question, "Not recorded", ("The results do not state what was sent.",))
    if not sent and history is not None:
        sent = list(history.bytes_by_sender().values())
    if not any(sent):
        return Answer(question, "Nothing", ("No site sent a model or a record.",))
    low, high = words.in_one_unit([min(sent), max(sent)])
    each = words.size(max(sent))
    if min(sent) < 0.98 * max(sent):
        each = f"{low.partition(' ')[0]} to {high}"
    if len(rows) > 1:
        each += " per site"
    if history is None or not history.sendings:
        return Answer(question, each, ("In one run. The journal that lists what was sent is not here.",))
    claimed = any(s.privacy is not None and not s.privacy.proven for s in rows)
    return Answer(question, each, (f"{_what(history, claimed, rows)} No record is among them.",))


def _what(history: History, claimed: bool, rows: list[SiteResult[object]]) -> str:
    """What the parcels were, from their custody; a guarantee that is not proven is not called one."""
    names = {row.name for row in rows}
    parcels = [s for s in history.sendings if s.sender in names]
    held = {s.custody for s in parcels}
    each = set(Counter(s.sender for s in parcels).values())
    rounds = words.count(len(history.rounds), "round")
    if len(rows) > 1 and len(each) == 1:
        count = f"Each site sent {words.count(each.pop(), 'model')} over {rounds}"
    else:
        who = "This site" if len(rows) == 1 else "The sites together"
        count = f"{who} sent {words.count(len(parcels), 'model')} over {rounds}"
    if held <= {"PUBLIC", "PROTECTED"}:
        made = "trained with noise, under a guarantee that is not proven" if claimed else None
        return f"{count}, {made or 'made differentially private before they left'}."
    if held <= {"PUBLIC", "PROTECTED", "UNPROVEN"}:
        return f"{count}, shaped by records, without a proven guarantee or above a ceiling on ε."
    marks = ", ".join(sorted(held - {"PUBLIC", "PROTECTED", "UNPROVEN"}))
    return f"{count}, and the journal marks some of them {marks}: this must not happen. Ask who ran this."
