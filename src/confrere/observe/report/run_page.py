"""The report of a single run: what each site reached, without an alone to compare it with."""

from __future__ import annotations

from confrere.observe import words
from confrere.observe.report import answer, course, exchange, missing, provenance, weights
from confrere.observe.report.markup import Child, Markup, section, table, tag
from confrere.observe.results import Run, SiteResult, in_order, is_collaboration


def run_page(run: Run) -> tuple[str, list[Child]]:
    """Title and body."""
    started = run.history.started
    title = str(started.get("title") or run.facts.get("name") or started.get("name") or "A run")
    sites = list(run.sites) or list(run.history.sites)
    sites.sort(key=lambda s: (-(_records(run, s) or 0), s))
    seed = run.facts.get("seed", started.get("seed"))
    what = f"seed {seed}" if seed is not None else "this run"
    histories = {"together" if is_collaboration(run.strategy) else "alone": [run.history]}
    metrics = in_order(m for s in run.sites.values() for m in s.metrics)
    metric = next((m for m in ("auc", "accuracy", "rmse", *metrics) if m in metrics), None)
    legend = [(kind, words.strategy(run.strategy) or "this run") for kind in histories]
    rounds = len(run.history.rounds)
    planned = started.get("rounds")
    done = f"{rounds} of {planned} rounds" if planned and planned != rounds else words.count(rounds, "round")
    body: list[Child] = [
        tag(
            "header",
            tag(
                "p",
                tag("b", "Confrère"),
                f" · {words.strategy(run.strategy)} · {words.count(len(sites), 'site')} · {done} · {what}",
                class_="kicker",
            ),
            tag("h1", title),
            tag("p", _summary(run), class_="answer"),
            tag(
                "p",
                "One run has no spread, and nothing here says whether learning together is better than "
                "learning alone: for that, compare it with alone over several seeds (confrere compare).",
            ),
            tag(
                "div",
                answer.left_card(_rows(run, sites), run.history),
                answer.privacy_card(_rows(run, sites)),
                class_="cards",
            )
            if run.finished
            else None,
        ),
        _results(run, sites),
        missing.missing_in_run(run, sites),
        course.learning_curves(histories, sites, metric, legend),
        weights.who_counted(run.history, sites, what),
        exchange.who_sent_what(run.history, sites, what),
        course.privacy_over_rounds(run.history, sites, what),
        exchange.who_was_missing(run.history, sites, what),
        provenance.notes((), [run.history]),
        provenance.reproduce([{**started, **run.facts}], [seed] if seed is not None else []),
        provenance.how_to_read(metrics, 1),
    ]
    return title, body


def _summary(run: Run) -> Markup:
    if not run.finished:
        return tag(
            "span",
            tag("strong", "Not finished."),
            " This run has no result yet; below is what its journal tells so far.",
        )
    means = [
        f"{words.metric(m).label} {words.figure(m, v.mean)}" for m in in_order(run.mean) if (v := run.mean[m])
    ]
    return tag(
        "span", f"Mean over {words.count(len(run.sites), 'site')}: ", tag("strong", ", ".join(means)), "."
    )


def _results(run: Run, sites: list[str]) -> Markup | None:
    rows = _rows(run, sites)
    if not rows:
        return None
    metrics = in_order(m for r in rows for m in r.metrics)
    head: list[Child] = [
        "Site",
        "Privacy spent",
        "Records",
        *(words.capital(words.metric(m).label) for m in metrics),
        "Sent",
    ]
    made: list[list[Child]] = [
        [
            r.name,
            words.privacy(r.privacy) if r.privacy or r.bytes_sent else "nothing left the site",
            "–" if r.records is None else f"{r.records:,}".replace(",", "\u2009"),
            *(words.measured(m, r.metrics.get(m)) for m in metrics),
            words.size(r.bytes_sent),
        ]
        for r in rows
    ]
    return section(
        "Site by site",
        table(head, made, text=2),
        lead="On each site's own test records; one seed, so no spread.",
    )


def _rows(run: Run, sites: list[str]) -> list[SiteResult]:
    return [run.sites[s] for s in sites if s in run.sites]


def _records(run: Run, site: str) -> int | None:
    if site in run.sites:
        return run.sites[site].records
    described = (run.history.started.get("sites") or {}).get(site) or {}
    records = described.get("records")
    return int(records) if records is not None else None
