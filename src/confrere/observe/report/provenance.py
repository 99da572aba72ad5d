"""What was left out, how to do it again, and how to read the page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from confrere.core.events import Json
from confrere.observe import words
from confrere.observe.journal import History
from confrere.observe.report.markup import Child, Markup, section, tag


def notes(stated: Sequence[str], histories: Sequence[History]) -> Markup | None:
    """What the comparison says about itself, and what the journals noticed, each once."""
    said = dict.fromkeys(n.strip() for n in stated if n.strip())
    known = {n.rstrip(".") for n in said}
    for history in histories:
        for remark in history.remarks:
            text = remark.text.strip()
            if remark.kind != "notice" or not text or text.rstrip(".") in known:
                continue
            known.add(text.rstrip("."))
            where = remark.site if remark.site and remark.site not in text else None
            when = f"round {remark.round + 1}" if remark.round is not None else None
            place = ", ".join(w for w in (where, when) if w)
            said[f"{place}: {text}" if place else text] = None
    if not said:
        return None
    items = list(said)
    more = f"and {len(items) - 40} more in the journals" if len(items) > 40 else None
    return section(
        "Notes",
        tag("ul", *(tag("li", n) for n in items[:40]), tag("li", more) if more else None, class_="note-list"),
    )


def reproduce(runs: Sequence[Mapping[str, Json]], seeds: Sequence[int], command: str | None = None) -> Markup:
    """Command, study, seeds, versions and hardware, as they were written down."""
    first = {key: r[key] for r in reversed(runs) for key in r if r[key]}
    command = command or first.get("command")
    studies = dict.fromkeys(str(r["study"]) for r in runs if r.get("study"))
    facts: list[tuple[str, Child]] = [
        ("Study", _codes(list(studies)) if studies else None),
        ("Seeds" if len(seeds) != 1 else "Seed", ", ".join(map(str, seeds)) or None),
        (
            "Strategies",
            ", ".join(dict.fromkeys(str(r["strategy"]) for r in runs if r.get("strategy"))) or None,
        ),
        ("Versions", _pairs(first.get("versions"))),
        ("Hardware", _pairs(first.get("hardware"))),
        ("Started", str(first["started"]) if first.get("started") else None),
    ]
    rows = [tag("tr", tag("th", k, scope="row"), tag("td", v)) for k, v in facts if v]
    lead = "The study and the seeds fix every number here; the time it takes depends on the hardware."
    if not rows and not command:
        lead = "Nothing was written down about how these results were made."
    return section(
        "How to do it again",
        tag("pre", tag("code", str(command))) if command else None,
        tag("div", tag("table", tag("tbody", *rows)), class_="scroll") if rows else None,
        lead=lead,
    )


def how_to_read(metrics: Sequence[str], seeds: int) -> Markup:
    """The terms, in plain words."""
    terms = [(words.metric(m).label, words.metric(m).plain) for m in metrics if words.metric(m).plain]
    terms += [
        (
            "alone",
            "each site trains on its own records only, without noise: what it can do without anybody's help",
        ),
        (
            "seed",
            "one repetition with fresh random choices; the spread says how much results differ between seeds",
        ),
        (
            "better, worse",
            "the 95 % interval of the paired differences over seeds (Student's t) lies wholly on one side of "
            "zero; otherwise «no clear difference». It tells a gain from luck in training and splitting, and "
            "does not promise the same for other patients",
        ),
        (
            "ε and δ",
            "the privacy spent: one record (or patient, as stated) changes the probability of anything that "
            "could leave the site by at most a factor of e to the power ε, but for a small allowance δ; "
            "the accountant is the method that adds it up",
        ),
    ]
    if seeds < 2:
        terms = [t for t in terms if t[0] != "better, worse"]
    return section(
        "How to read this",
        tag("ul", *(tag("li", tag("b", name), f": {plain}.") for name, plain in terms), class_="plain"),
    )


def _pairs(value: Json) -> Child:
    if not value:
        return None
    if isinstance(value, Mapping):
        return ", ".join(
            f"{k} {v if isinstance(v, str | int | float) else json.dumps(v)}" for k, v in value.items()
        )
    return str(value)


def _codes(values: Sequence[str]) -> Markup:
    shown = [tag("code", v) for v in values[:4]]
    return tag("span", *(part for code in shown for part in (code, tag("br"))))
