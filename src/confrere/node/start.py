"""Start of a node and of its rounds: the events of the start, and the conditions for starting a round."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from confrere.core.custody import Custody
from confrere.core.errors import DataError
from confrere.core.events import Event
from confrere.core.seeds import NOT_PRIVATE
from confrere.node.config import NodeConfig, within
from confrere.node.replay import DurableMailbox
from confrere.node.store import Store
from confrere.privacy.strategy_lint import strategy_findings
from confrere.site.assemble import unprotected_patients
from confrere.site.checks import check_records
from confrere.site.participant import Participant
from confrere.site.start_events import site_started
from confrere.study import Study
from confrere.study.masked_settings import sum_sentence

FAR = 1.5
"""A declared size that differs from the true one by more than this factor is pointed out to the owner."""


def record_start(config: NodeConfig, site: Participant, store: Store, done: int) -> None:
    """Write to the site's journal that a run starts, or that it goes on after `done` rounds."""
    me, journal = config.me, site.journal
    if any(e.kind == "run-started" for e in journal.events):
        left, going_on = store.leaving().get(me), {"round": done}
        if left is not None and left <= done + 1:
            text = f"has left for good before round {left + 1}: it only delivers what it owes"
            journal.add(Event("resumed", me, data={**going_on, "text": text}))
        else:
            journal.add(Event("resumed", me, data=going_on))
        return
    members = sorted(config.members)
    journal.add(site_started(site, members, agreed=config.agreed, rehearsal=config.rehearsal))
    if config.rehearsal:
        journal.add(Event("notice", me, data={"text": NOT_PRIVATE, "rehearsal": True}))
    if (sentence := sum_sentence(config.study, len(config.members))) is not None:
        journal.add(Event("notice", me, data={"text": sentence, "sum_terms": True}))
    for note in remarks(config):
        journal.add(Event("notice", me, custody=Custody.PRIVATE, data={"text": note}))


def remarks(config: NodeConfig) -> list[str]:
    """Remarks about the site's records for its owner: PRIVATE. They change nothing that peers can see."""
    study, data = config.study, config.data
    found = [*data.notes, *strategy_findings(type(study.build_strategy()))]
    if warning := unprotected_patients(study, data):
        found.append(warning)
    try:
        check_records(data, config.task, study.data.one_class == "allow")
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


def time_is_up(study: Study, store: Store) -> bool:
    """Whether the study's hours are over by this site's clock, counted from its first round in any process."""
    if study.stop is None or study.stop.hours is None:
        return False
    began = store.facts().get("began")
    if began is None:
        store.note(began=str(time.time()))
        return False
    return time.time() - float(began) >= study.stop.hours * 3600


class StartConditions:
    """Whether a round may start now: the owner's pause, the allowed hours, and which peers are connected."""

    def __init__(self, config: NodeConfig, connected: Callable[[], frozenset[str]]) -> None:
        self._config, self._connected = config, connected
        self._met = False

    def obstacle(self, peers: Sequence[str], mailbox: DurableMailbox, paused: bool, waited: float) -> str:
        """Why no round may start, in words; empty if one may. `waited` is in seconds since the first call."""
        caps, over = self._config.caps, waited > self._config.study.patience
        if paused:
            return "paused by its owner"
        if not within(caps.hours, time.localtime().tm_hour):
            return f"outside of its hours ({caps.hours})"
        if not peers:
            return ""
        here = self._connected() & set(peers)
        if not here:
            return "no peer can be reached"
        if not self._met and len(here) < len(peers):
            if not over:
                return f"for {', '.join(sorted(set(peers) - here))} to be there for the first time"
        elif here <= mailbox.given_up():
            if not over:
                return "no parcel from any peer yet"
            for peer in here:
                mailbox.back(peer)
        self._met = True
        return ""
