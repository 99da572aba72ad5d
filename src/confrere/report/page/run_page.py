"""The report of a single run: what each site reached, without a comparison with training alone."""

from __future__ import annotations

from collections.abc import Sequence

from confrere.core.metrics import in_order
from confrere.core.results import SiteResult, is_collaboration
from confrere.report import words
from confrere.report.gains import tested_together
from confrere.report.page.answers import Answer, for_the_researcher, laid_out, sentences
from confrere.report.page.markup import Child, Markup, section, table, tag
from confrere.report.page.odd_records import of_a_run
from confrere.report.page.privacy_left import privacy_left
from confrere.report.page.sections import Page, body, report_section
from confrere.report.page.what_left import what_left
from confrere.report.page.who_helped import who_helped
from confrere.report.results_folder import RunRecord
from confrere.statistics.verdict import LEAST_RARER


def run_page(run: RunRecord) -> tuple[str, list[Child]]:
    """Title and body."""
    started = run.history.started
    title = str(started.get("title") or run.facts.get("name") or started.get("name") or "A run")
    sites = list(run.sites) or list(run.history.sites)
    sites.sort(key=lambda s: (-(_records(run, s) or 0), s))
    seed = run.facts.get("seed", started.get("seed"))
    what = f"seed {seed}" if seed is not None else "this run"
    histories = {"together" if is_collaboration(run.strategy) else "alone": [run.history]}
    metrics = words.primary_first(in_order(m for s in run.sites.values() for m in s.metrics), run.primary)
    legend = [(kind, run.label or "this run") for kind in histories]
    page = Page(
        run=run,
        comparison=None,
        sites=sites,
        history=run.history,
        shown=what,
        histories=histories,
        legend=legend,
        metrics=metrics,
        headline=run.primary,
        notes=(),
        facts=[{**started, **run.facts}],
        seeds=[seed] if seed is not None else [],
    )
    return title, [_header(run, title, sites, what), *body(page)]


def _header(run: RunRecord, title: str, sites: Sequence[str], what: str) -> Markup:
    """The first screen: what ran, what it reached, what left the buildings and what it cost."""
    rounds, planned = len(run.history.rounds), run.history.started.get("rounds")
    done = f"{rounds} of {planned} rounds" if planned and planned != rounds else words.count(rounds, "round")
    kicker = f" · {run.label} · {words.count(len(sites), 'site')} · {done} · {what}"
    rows = _rows(run, sites)
    return tag(
        "header",
        tag("p", tag("b", "Confrère"), kicker, class_="kicker"),
        tag("h1", title),
        tag("p", _summary(run), class_="answer"),
        laid_out(_answers(run, rows)) if run.finished else None,
    )


def _answers(run: RunRecord, rows: Sequence[SiteResult[float]]) -> list[Answer]:
    """The seven questions; a single run cannot answer all of them."""
    alone = (
        "One run has no spread, and nothing here says whether learning together is better than "
        "learning alone: for that, compare it with alone over several seeds."
    )
    if run.history.verdicts:
        alone += " The verdicts below are about the models of this run only."
    first = run.primary
    reached = f"{words.metric(first).label} {words.figure(first, run.result.mean[first])}" if first else "–"
    return [
        Answer("Is it better than learning alone?", "A single run cannot tell", (alone,)),
        Answer(
            "By how much?",
            words.capital(f"{reached} is reached"),
            (
                sentences(
                    f"On average over the sites{_on(rows)}; without a run alone there is no difference to state.",
                    _too_few(rows),
                ),
            ),
        ),
        what_left(rows, run.history),
        privacy_left(rows, run.history),
        who_helped({}, [run.history]),
        of_a_run(rows, run.history),
        Answer(
            "What next?",
            "Compare with alone",
            ("Because only that can show a gain.",),
            commands=(("Together against alone, over five seeds", "confrere compare STUDY.toml"),),
        ),
    ]


def _summary(run: RunRecord) -> Markup:
    if not run.finished:
        return tag(
            "span",
            tag("strong", "Not finished."),
            " This run has no result yet; below is what its journal holds so far.",
        )
    means = [
        f"{words.metric(m).label} {words.figure(m, run.result.mean[m])}"
        for m in words.primary_first(in_order(run.result.mean), run.primary)
    ]
    few = _too_few(list(run.sites.values()))
    return tag(
        "span",
        f"Mean over {words.count(len(run.sites), 'site')}: ",
        tag("strong", ", ".join(means)),
        f"{_on(list(run.sites.values()))}. {few}".rstrip(),
    )


def _on(sites: Sequence[SiteResult[float]]) -> str:
    """«, on 259 patients, 80 of them «yes»»: what a mean over the sites rests on."""
    counts = words.tested(tested_together([s.tested for s in sites]))
    return f", on {counts}" if counts else ""


def _too_few(sites: Sequence[SiteResult[float]]) -> str:
    """«1 of 5 sites has too few test patients to judge, fewer than 10 of the rarer class: SVHD (19 patients, 5 of them …).»"""
    few = [s for s in sites if s.tested is not None and s.tested.rarer < LEAST_RARER]
    if not few:
        return ""
    counts = words.listing([f"{s.name} ({words.tested(s.tested)})" for s in few], 4)
    has, but = ("has", ", but counts") if len(few) == 1 else ("have", ", but count")
    return (
        f"{len(few)} of {words.count(len(sites), 'site')} {has} too few test patients to "
        f"judge, fewer than {LEAST_RARER} of the rarer class{but} in the mean: {counts}."
    )


@report_section("commands of a run", order=145)
def _commands(page: Page) -> Markup | None:
    if page.run is None or not page.run.finished:
        return None
    return for_the_researcher(_answers(page.run, _rows(page.run, page.sites)))


@report_section("results", order=20)
def _results(page: Page) -> Markup | None:
    rows = _rows(page.run, page.sites) if page.run is not None else []
    if not rows:
        return None
    metrics = page.metrics
    counted = any(r.tested for r in rows)
    day = page.run.result.split.get("by_date") if page.run is not None else None
    later = f", of patients first seen on {day} or later" if day else ""
    head: list[Child] = [
        "Site",
        *(["Tested on"] if counted else []),
        "Privacy spent",
        "Records",
        *(words.capital(words.metric(m).label) for m in metrics),
        "Sent",
    ]
    made: list[list[Child]] = [
        [
            r.name,
            *([words.tested(r.tested) or "–"] if counted else []),
            words.privacy(r.privacy) if r.privacy or r.bytes_sent else "nothing left the site",
            "–" if r.records is None else f"{r.records:,}".replace(",", "\u2009"),
            *(words.measured(m, r.metrics.get(m)) for m in metrics),
            words.size(r.bytes_sent),
        ]
        for r in rows
    ]
    return section(
        "Site by site",
        table(head, made, text=3 if counted else 2),
        lead=f"On each site's own test records{later}; one seed, so no spread.",
    )


@report_section("verdict", order=25)
def _verdicts(page: Page) -> Markup | None:
    if page.run is None or not page.run.history.verdicts:
        return None
    found = sorted(page.run.history.verdicts.items())
    return section(
        "Against training alone",
        *(tag("p", tag("b", f"{site}: "), f"{text}.") for site, text in found),
        lead="The model of this run at each site, and a model that the site trained alone, on the same test patients.",
    )


def _rows(run: RunRecord, sites: Sequence[str]) -> list[SiteResult[float]]:
    return [run.sites[s] for s in sites if s in run.sites]


def _records(run: RunRecord, site: str) -> int | None:
    if site in run.sites:
        return run.sites[site].records
    described = (run.history.started.get("sites") or {}).get(site) or {}
    records = described.get("records")
    return int(records) if records is not None else None
