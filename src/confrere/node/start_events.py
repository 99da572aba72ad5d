"""What a node puts into its journal when it starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confrere.core.custody import Custody
from confrere.core.errors import DataError
from confrere.core.events import Event
from confrere.core.seeds import NOT_PRIVATE
from confrere.node.config import Setting
from confrere.site.assemble import unprotected_patients
from confrere.site.participant import check_records
from confrere.site.site_run import own_start, start_facts

if TYPE_CHECKING:
    from confrere.node.node import Node


FAR = 1.5
"""A declared size that differs from the true one by more than this factor is pointed out to the owner."""


def tell_start(node: Node) -> None:
    """Which run this is, or that it goes on."""
    setting, journal = node.setting, node.journal
    if any(e.kind == "run-started" for e in journal.events):
        left, going_on = node.store.leaving().get(node.me), {"round": node.done}
        if left is not None and left <= node.done + 1:
            said = f"has left for good before round {left + 1}: it only delivers what it owes"
            journal.add(Event("resumed", node.me, data={**going_on, "text": said}))
        else:
            journal.add(Event("resumed", node.me, data=going_on))
        return
    common = start_facts(node.study, setting.task, {node.me: node.site}, setting.agreed)
    data = own_start(common, node.site, node.everybody, setting.rehearsal)
    journal.add(Event("run-started", node.me, data=data))
    if setting.rehearsal:
        journal.add(Event("notice", node.me, data={"text": NOT_PRIVATE, "rehearsal": True}))
    for note in remarks(setting):
        journal.add(Event("notice", node.me, custody=Custody.PRIVATE, data={"text": note}))


def remarks(setting: Setting) -> list[str]:
    """What the owner should know about the site's records: PRIVATE. Nothing of it changes what the node does outside."""
    study, data = setting.study, setting.data
    found = [*data.notes]
    if warning := unprotected_patients(study, data):
        found.append(warning)
    try:
        check_records(data, setting.task, study.data.one_class == "allow")
    except DataError as error:
        found.append(f"{error}. The node takes part all the same, and what it sends is mostly noise")
    by_patient = study.privacy is not None and study.privacy.unit == "patient"
    parts = (data.train, data.validation, data.test)
    count = sum(part.patients if by_patient else len(part) for part in parts)
    if not data.declared / FAR <= count <= data.declared * FAR:
        found.append(
            f"its file holds {count:,} {'patients' if by_patient else 'records'} that can be used, and it declares"
            f" {data.declared:,}: rates and weights follow what is declared. To declare another number:"
            " `confrere enroll --renew KEYS --declared N`"
        )
    return found
