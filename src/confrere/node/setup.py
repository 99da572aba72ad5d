"""Build the parts of a node, and refuse to start if a guarantee could not be kept."""

from __future__ import annotations

import fcntl
import hashlib
import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import torch

from confrere.core.errors import CheckpointError, CustodyError
from confrere.core.events import Journal
from confrere.core.owner_only import append_private, make_private_folder, require_owner_only
from confrere.core.protocols import ChecksMembers, Strategy
from confrere.core.strategy_traits import traits
from confrere.data.records import Records, SiteData
from confrere.node.config import NodeConfig
from confrere.node.delivery import MOST_WAITING
from confrere.node.failpoints import reach
from confrere.node.inspection import ParcelRules
from confrere.node.membership import exchanges
from confrere.node.replay import FailpointTrainer
from confrere.node.rollback_check import RollbackCheck, gone
from confrere.node.store import Store
from confrere.privacy.ledger import Ledger
from confrere.privacy.noise import Secure
from confrere.privacy.patient_hashes import check_of, former_hashes, hashes, secret_beside
from confrere.site import snapshot
from confrere.site.assemble import SiteContext, consents, participant_of
from confrere.site.exchange_limits import bounds_of, exchange_options
from confrere.site.open_sites import records_hash
from confrere.site.participant import Participant
from confrere.study import Caps
from confrere.study.masked_settings import masked_of
from confrere.transport import wire

FEWEST_WAITING = 4
"""Parcels of one peer that are kept however large they are: those of a round, and one ahead."""


MEMBER_BYTES = 2048
"""The most that a message of a masked sum has for each member: its name, keys and signatures."""


def lock_folder(config: NodeConfig) -> IO[str]:
    """Hold the node's folder for this process alone, as long as the file is open."""
    require_owner_only(make_private_folder(config.home), CheckpointError)
    lock = append_private(config.home / "lock")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise CheckpointError(
            f"{config.home}: a node is at work here already; see `confrere status`"
        ) from None
    return lock


def lock_ledger(config: NodeConfig, site: Participant) -> IO[str] | None:
    """Hold the ledger's charges for this run and these records for this process alone; None if another one has them.

    A charge without a release may only be used again when the process that made it is dead. A rehearsal draws the same
    noise again, and uses none.
    """
    if config.rehearsal:
        return None
    what = hashlib.sha256(f"{config.run}/{site.fingerprint}".encode()).hexdigest()
    lock = append_private(config.ledger.with_name(f"{config.ledger.name}.{what[:16]}.lock"))
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        return None
    return lock


def ledger_of(config: NodeConfig, rollback_check: RollbackCheck) -> tuple[Ledger, SiteData]:
    """The institution's ledger, for all studies on these patients, and the site's records without other populations' patients.

    A ledger that is older than what this site has charged is refused.
    """
    path, privacy = config.ledger, config.study.privacy
    held = _held(config.earlier)
    if not path.exists() and path.with_suffix(".key").exists():
        raise gone(path, "its secret is still there")
    if not path.exists() and not held:
        rollback_check.refuse_missing(path)
    ledger = Ledger(path, population=config.population, accountant=privacy.accountant if privacy else "pld")
    try:
        rollback_check.refuse_rollback(path, {**held, **ledger.counters()})
        if config.earlier is not None:
            ledger.adopt(config.earlier)
            config.earlier.rename(config.earlier.with_suffix(".adopted"))
        for mark in rollback_check.rollbacks():
            ledger.refuse_older_than(mark)
        secret, units = secret_beside(path), config.data.all.units
        patients = None if units is None else hashes(secret, set(units.tolist()))
        pairs = () if config.data.former is None else map(tuple, config.data.former.tolist())
        elsewhere = ledger.register(patients, check_of(secret), former_hashes(secret, pairs))
        ledger.noted = rollback_check.note
        for id, counter in ledger.counters().items():
            rollback_check.note(id, counter)
    except BaseException:
        ledger.close()
        raise
    return ledger, _without(config.data, elsewhere, secret)


def _without(data: SiteData, elsewhere: frozenset[bytes], secret: bytes) -> SiteData:
    """The records of all patients but these. Each patient's absence changes only the patient's own records."""
    if not elsewhere:
        return data

    def kept(part: Records) -> Records:
        assert part.units is not None
        units = set(part.units.tolist())
        gone = [unit for unit in units if hashes(secret, [unit]) <= elsewhere]
        return part.select((~torch.isin(part.units, torch.tensor(gone))).nonzero()[:, 0])

    note = (
        f"{len(elsewhere):,} patients of this file belong to another population of the institution and are left out; if"
        " the file is of that population, name it as `population` in site.toml"
    )
    train, validation, test = map(kept, (data.train, data.validation, data.test))
    return replace(data, train=train, validation=validation, test=test).with_notes(note)


def _held(path: Path | None) -> dict[str, int]:
    """Last entries of the ledgers in a file to import."""
    if path is None:
        return {}
    with Ledger(path) as found:
        return found.counters()


def site_of(config: NodeConfig, strategy: Strategy, journal: Journal, ledger: Ledger) -> Participant:
    """The site itself. Its noise and sampling are secure, except in a rehearsal."""
    context = SiteContext(
        config.run, journal, FailpointTrainer(), ledger=ledger, site_count=len(config.members),
        inputs_caveat=config.doubt, joined=True, sizes=config.sizes,
    )  # fmt: skip
    site = participant_of(config.study, strategy, config.data, config.task, context)
    if isinstance(strategy, ChecksMembers):
        strategy.check_members(list(config.members), config.rehearsal)
    site.secret = secret_beside(config.ledger)
    if not config.rehearsal:
        site.randomness = Secure()
    caveat = None if consents(config.study, site) else site.caveat()
    if caveat is not None and exchanges(config, 0):
        kind = "no proven guarantee" if site.unproven is not None else "less privacy than its ceiling demands"
        raise CustodyError(
            f'site "{config.me}" takes no part: {caveat}, so that what leaves it would have {kind}.'
            " If that is wanted, set accept_unproven_privacy = true in site.toml"
        )
    return site


def refuse_other_records(config: NodeConfig, store: Store) -> None:
    """Refuse to continue a run with other records: held-out records could become training records."""
    mark, known = records_hash(config.data), store.facts().get("records")
    if known is None:
        store.note(records=mark)
    elif known != mark:
        raise CheckpointError(
            f'site "{config.me}": its records are not those that this run was started with; put them back, or agree on'
            " a new study for the new ones"
        )


def newest_whole_state(store: Store) -> dict[str, Any] | None:
    """The newest state that is whole, with the rounds that were `done`; None before the first one."""
    for done, body in store.latest():
        with suppress(CheckpointError):
            return {**snapshot.loads(body, str(store.path)), "done": done}
    if store.newest() is not None:
        raise CheckpointError(
            f"{store.path}: neither of its two states is whole; restore the folder from a backup"
            " (but never the ledger)"
        )
    return None


def refuse_older_than_ledger(config: NodeConfig, store: Store, ledger: Ledger) -> None:
    """A round is charged once the state before it is in the store: one that paid for a later round has forgotten it."""
    start = f"{config.run}/"
    keys = [
        str(entry["key"]).removeprefix(start) for entry in ledger.entries() if entry["key"].startswith(start)
    ]
    paid = max((int(key.split("/")[0]) for key in keys), default=-1)
    known = store.newest()
    if paid > (-1 if known is None else known):
        raise CheckpointError(
            f"{config.home} is an old copy, or a new folder: its ledger has paid for round {paid + 1} of this run, and"
            f" the folder knows of {0 if known is None else known} rounds. Bring back the newest folder; if there is"
            " none, leave (`confrere roster leave`) and agree on another run (another seed)"
        )


def parcel_rules(config: NodeConfig, site: Participant, strategy: Strategy) -> ParcelRules:
    """Who may send what: members of the roster, models of this study, no larger than those."""
    models = [site.build(role) for role in ("private", "proxy", *site.extra_networks)]
    numbers = max(m.params.count for m in models)
    largest = (8 * len(config.members) if traits(strategy).shares_out else 8) * numbers + 2**18
    masked = masked_of(config.study) is not None
    if masked:  # a vector has eight bytes a number, and comes with a list of members and their signatures
        largest += MEMBER_BYTES * len(config.members)
    bounds, by = bounds_of(config.study, site, config.sizes), getattr(strategy, "mass", None)
    return ParcelRules(
        config.me, config.run, config.study.rounds, {n: m.key for n, m in config.peers.items()},
        {m.architecture: m.params.shapes for m in models}, sizes=config.sizes,
        numbers=traits(strategy).numbers, by_servers=traits(strategy).shares_out, bounds=bounds,
        start_mass=None if by is None else 1.0 if by == "equal" else float(config.sizes[config.me]),
        packing=exchange_options(config.study, site)["packing"],
        limits=replace(wire.STANDARD, total=min(wire.STANDARD.total, largest)),
        accept_unproven=consents(config.study, site), masked=masked,
    )  # fmt: skip


def most_waiting(caps: Caps, largest: int) -> int:
    """Parcels of one peer that are kept until they are used: what `caps.peer_bytes` allows, and enough for a round."""
    return max(FEWEST_WAITING, min(MOST_WAITING, caps.peer_bytes // largest))


def sync_result(path: Path) -> None:
    """Make sure that a file of the result is on the disk."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
    if path.name.startswith("model.safetensors"):
        reach("result-written")
