"""Report sections: notes, how to reproduce the run, and how to read the page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from confrere.core.events import Json
from confrere.report import words
from confrere.report.history import History
from confrere.report.page.markup import Child, Markup, section, tag
from confrere.report.page.sections import Page, report_section


def notes(stated: Sequence[str], histories: Sequence[History]) -> Markup | None:
    """What the comparison says about itself, and what the journals noticed: each once, site by site."""
    notes_by_site: dict[str, dict[str, None]] = {"": {n.strip(): None for n in stated if n.strip()}}
    for history in histories:
        for remark in history.remarks:
            text = remark.text.strip()
            if (
                remark.kind == "notice"
                and text
                and text.rstrip(".") not in {n.rstrip(".") for n in notes_by_site[""]}
            ):
                when = f"round {remark.round + 1}: " if remark.round is not None else ""
                notes_by_site.setdefault(remark.site or "", {})[when + text] = None
    general = [tag("li", n) for n in notes_by_site.pop("")]
    by_site = [tag("li", tag("b", site), " ", _few(list(texts))) for site, texts in notes_by_site.items()]
    if not general and not by_site:
        return None
    return section("Notes", tag("ul", *general, *by_site, class_="note-list"))


def _few(texts: Sequence[str], most: int = 6) -> str:
    more = f"; and {len(texts) - most} more in the journals" if len(texts) > most else ""
    return "; ".join(texts[:most]) + more


def reproduce(runs: Sequence[Mapping[str, Json]], seeds: Sequence[int]) -> Markup:
    """Command, study, seeds, versions and hardware, as they were written down."""
    first = {key: r[key] for r in reversed(runs) for key in r if r[key]}
    command = first.get("command")
    studies = dict.fromkeys(str(r["study"]) for r in runs if r.get("study"))
    facts: list[tuple[str, Child]] = [
        ("Study", _study(list(studies)) if studies else None),
        ("Scale", str(first["scale"]) if first.get("scale") else None),
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
    terms = [(words.metric(m).label, words.metric(m).meaning) for m in metrics if words.metric(m).meaning]
    terms += [
        (
            "alone",
            "each site trains on its own records only, without noise: what it can do without its peers",
        ),
        (
            "seed",
            "one repetition with fresh random choices; the spread says how much results differ between seeds",
        ),
        (
            "better, worse",
            "the interval of the paired differences lies wholly on one side of zero; otherwise «no clear difference». The "
            "interval allows for the luck of a run and for the chance of which patients were tested, and is corrected for the "
            "number of words on the page («corrected 95 % interval»), so that a page on which nothing differs contains a wrong "
            "word in about 1 of 20 cases. Trials of peers' models are corrected apart from them, for the number of pairs. "
            "Only the study's primary metric has words; the intervals of other figures are plain. "
            "«Too few to judge»: fewer than 3 seeds, or fewer than 10 "
            "distinct test patients of the rarer class",
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


def _study(hashes: Sequence[str]) -> Markup:
    others = (
        f" and {words.count(len(hashes) - 1, 'variant')} of it (strategies and seeds)"
        if len(hashes) > 1
        else None
    )
    return tag("span", tag("code", hashes[0]), others)


@report_section("notes", order=140)
def _notes(page: Page) -> Markup | None:
    return notes(page.notes, [h for found in page.histories.values() for h in found])


@report_section("reproduce", order=150)
def _reproduce(page: Page) -> Markup | None:
    return reproduce(page.facts, page.seeds)


@report_section("how to read", order=160)
def _how_to_read(page: Page) -> Markup | None:
    return how_to_read(page.metrics, max(1, len(page.seeds)))
