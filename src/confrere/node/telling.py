"""What a node puts into its journal when it starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confrere.core.custody import Custody
from confrere.core.events import Event
from confrere.runtime.assemble import unprotected_patients
from confrere.runtime.run import versions

if TYPE_CHECKING:
    from confrere.node.daemon import Node


def tell_start(node: Node) -> None:
    """Which run this is, or that it goes on."""
    setting, study, journal = node.setting, node.study, node.journal
    if any(e.kind == "run-started" for e in journal.events):
        left, going_on = node.store.leaving().get(node.me), {"round": node.done}
        if left is not None and left <= node.done + 1:
            said = f"has left for good before round {left + 1}: it only delivers what it owes"
            journal.add(Event("resumed", node.me, data={**going_on, "text": said}))
        else:
            journal.add(Event("resumed", node.me, data=going_on))
        return
    privacy, guarantee = study.privacy, None
    if privacy is not None:
        guarantee = {k: getattr(privacy, k) for k in ("epsilon", "delta", "unit", "accountant")}
        guarantee["proven"] = node.site.unproven is None and not setting.rehearsal
    own = {
        "records": node.site.size,
        "private": str(study.models.of(node.me, "private")),
        "proxy": str(study.models.proxy),
    }
    data = {
        "name": study.name, "title": study.title or study.name, "question": study.question,
        "study": setting.agreed, "seed": study.seed, "strategy": study.strategy_name,
        "options": study.as_dict().get("strategy"), "rounds": study.rounds,
        "topology": type(study.graph()).__name__.lower(),
        "task": {"kind": setting.task.kind, "classes": list(setting.task.classes)},
        "sites": {node.me: own}, "members": node.everybody, "privacy": guarantee,
        "unproven": node.site.unproven, "rehearsal": setting.rehearsal, "versions": versions(),
    }  # fmt: skip
    journal.add(Event("run-started", node.me, data=data))
    if setting.rehearsal:
        text = "a rehearsal with seeded noise: not private"
        journal.add(Event("notice", node.me, data={"text": text}))
    warning = unprotected_patients(study, setting.data)
    for note in (*setting.data.notes, *([warning] if warning else [])):
        journal.add(Event("notice", node.me, custody=Custody.PRIVATE, data={"text": note}))
