"""The events with which a run, a site's part of it, and a round start: the same in every runtime."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from confrere.core.events import Event
from confrere.data.records import Federation, SiteData
from confrere.data.tasks import Task
from confrere.site.participant import Participant
from confrere.site.schedule import ScheduledRound
from confrere.study import Study
from confrere.version import versions


def run_started(
    study: Study, federation: Federation, sites: Mapping[str, Participant], hardware: Mapping[str, Any]
) -> Event:
    """The first event of a run with all its sites."""
    data = {
        **_common_facts(study, federation.task, next((s.unproven for s in sites.values()), None)),
        "sites": {name: _site_facts(study, name, records) for name, records in federation.sites.items()},
        "versions": versions(),
        "hardware": hardware,
    }
    return Event("run-started", data=data)


def site_started(site: Participant, members: Sequence[str], *, agreed: str = "", rehearsal: bool) -> Event:
    """The first event in a site's own journal; `agreed` is the study's hash where a site's own part differs."""
    data = {
        **_common_facts(site.study, site.task, site.unproven, agreed),
        "sites": {site.name: _site_facts(site.study, site.name, site.data)},
        "members": list(members),
        "rehearsal": rehearsal,
        "versions": versions(),
    }
    return Event("run-started", site.name, data=data)


def round_started(
    number: int, scheduled: ScheduledRound, present: Collection[str], site: str | None = None
) -> Event:
    """The start of a round: at one site, or in the whole run. `present` are the sites that can be reached."""
    members = scheduled.participants
    here = [name for name in members if name in present]
    data = {"members": list(members), "present": here, "epoch": scheduled.epoch}
    return Event("round-started", site, number, data=data)


def _common_facts(study: Study, task: Task, unproven: str | None, agreed: str = "") -> dict[str, Any]:
    privacy, guarantee = study.privacy, None
    if privacy is not None:
        guarantee = {k: getattr(privacy, k) for k in ("epsilon", "delta", "unit", "accountant")}
        guarantee["proven"] = unproven is None
    return {
        "name": study.name,
        "title": study.title or study.name,
        "question": study.question,
        "study": agreed or study.hash(),
        "seed": study.seed,
        "strategy": study.strategy_name,
        "label": study.strategy_label,
        "options": study.as_dict().get("strategy"),
        "rounds": study.rounds,
        "topology": type(study.graph()).__name__.lower(),
        "task": {"kind": task.kind, "classes": list(task.classes)},
        "privacy": guarantee,
        "unproven": unproven,
    }


def _site_facts(study: Study, site: str, records: SiteData) -> dict[str, Any]:
    return {
        "records": records.size,
        "declared": records.declared,
        "computed": records.computed,
        "private": str(study.models.of(site, "private")),
        "proxy": str(study.models.proxy),
    }
