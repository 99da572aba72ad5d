"""What a node is started with: the study that all agreed on, the site's own configuration, and its records."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from confrere.core.errors import PrivacyError, StudyError
from confrere.core.owner_only import make_private_folder
from confrere.core.strategy_traits import traits
from confrere.data.read.delimited import USUAL
from confrere.data.records import SiteData, training_size
from confrere.data.schema import Schema
from confrere.data.tasks import Task
from confrere.site.assemble import check_common_proxy
from confrere.site.exchange_limits import check_combiner
from confrere.site.open_sites import inputs_caveat, open_sites
from confrere.site.site_run import run_id
from confrere.study import Caps, SiteConfig, Study, load, load_site
from confrere.study.masked_settings import check_members, check_nodes
from confrere.transport.grpc.identity import Identity
from confrere.transport.grpc.member import Member


@dataclass(frozen=True)
class NodeConfig:
    """What a node is started with: one site in one study."""

    study: Study
    """With this site's own configuration, and no other's, in `sites`."""
    identity: Identity
    members: Mapping[str, Member]
    """All members, including this site."""
    roster: str
    """The hash of the signed roster."""
    data: SiteData
    task: Task
    home: Path
    ledger: Path
    """The institution's ledger, shared by all of its nodes and studies."""
    schema: Schema | None = None
    doubt: str | None = None
    agreed: str = ""
    """The hash of the study as all have it."""
    digest: str = ""
    """The same in full length: what the roster was signed with, and handshakes compare."""
    epoch: int = 0
    """The epoch of the roster."""
    roster_path: Path | None = None
    """The roster file; if this site leaves, its signature is put next to it."""
    listen: str | None = None
    metrics: int | None = None
    rehearsal: bool = False
    """Seeded noise, so not private. Nothing that `confrere node` reads can set it."""
    caps: Caps = field(default_factory=Caps)
    population: str = ""
    """Which of the institution's populations the records are of."""
    earlier: Path | None = None
    """A ledger that this site had before it shared the institution's."""

    @property
    def me(self) -> str:
        return self.identity.name

    @property
    def run(self) -> str:
        return run_id(self.study, self.agreed)

    @property
    def sizes(self) -> dict[str, int]:
        """The public training size of every member, from what the signed roster states."""
        share = self.study.data.split.train
        return {n: training_size(m.declared, share) for n, m in self.members.items()}

    @property
    def peers(self) -> dict[str, Member]:
        return {n: m for n, m in self.members.items() if n != self.me}


def load_node_site(path: Path) -> SiteConfig:
    """site.toml as a node reads it: unless the file accepts it, nothing without a proven guarantee leaves."""
    found = load_site(path)
    if "accept_unproven_privacy" not in tomllib.loads(path.read_text(encoding="utf-8")):
        found = replace(found, accept_unproven_privacy=False)
    home = path.resolve().parent
    found = replace(
        found,
        keys=str(home / found.keys),
        roster=str(home / found.roster),
        home=str(home / found.home),
    )
    check_caps(found.caps, str(path))
    return found


def check_caps(caps: Caps, where: str) -> None:
    if caps.rounds is not None and caps.rounds < 1:
        raise StudyError(f"{where}: caps.rounds is {caps.rounds}; a site takes part in at least one round")
    if caps.bytes is not None and caps.bytes < 1:
        raise StudyError(f"{where}: caps.bytes is {caps.bytes}; it is the most that may leave the site")
    if caps.peer_bytes < 1:
        raise StudyError(f"{where}: caps.peer_bytes is {caps.peer_bytes}; it is what is kept of one peer")
    hours = caps.hours
    if hours is not None and (len(hours) != 2 or not all(0 <= h <= 24 for h in hours)):
        raise StudyError(f"{where}: caps.hours is written as [22, 6]: from 10 in the evening to 6")


def within(hours: list[int] | None, hour: int) -> bool:
    """Whether a round may begin at this hour of the day.

    >>> within([22, 6], 23), within([22, 6], 12), within([8, 18], 12), within(None, 3)
    (True, False, True, True)
    """
    if hours is None or hours[0] == hours[1]:
        return True
    start, end = hours
    return start <= hour < end if start < end else hour >= start or hour < end


def listening_address(stated: str, dialled: str | None) -> str | None:
    """The address to bind: the one in site.toml, or the address that peers dial (a name: its port, on all interfaces)."""
    if stated or dialled is None:
        return stated or None
    host, _, port = dialled.rpartition(":")
    numeric = host.startswith("[") or all(part.isdigit() for part in host.split("."))
    return dialled if numeric or host == "localhost" else f"0.0.0.0:{port}"


def own_part(study: Study, me: str, config: SiteConfig) -> Study:
    """The study as one site uses it: with its own configuration only."""
    return replace(study, sites={me: config})


def open_own(
    study: Study, me: str, config: SiteConfig, declared: int, key: bytes
) -> tuple[SiteData, Task, Schema | None, str | None]:
    """The records of this site alone, split by its own key; `declared` is the size that the signed roster states."""
    if config.declared not in (None, declared):
        raise StudyError(
            f'site "{me}": site.toml declares {config.declared:,}, and the signed roster {declared:,}. Drop the line'
            " from site.toml, or change the roster: `confrere enroll --renew KEYS --declared N`"
        )
    config = replace(config, declared=declared)
    if config.data is None:
        raise StudyError(f'site "{me}": site.toml does not say where its records are: data = "records.csv"')
    if study.schema is None:
        raise StudyError(
            "a node needs a schema that all sites agreed on: without one, ranges and categories would be drawn from"
            " records; see `confrere schema draft`"
        )
    # Guesses from records could change with one of them.
    config = replace(
        config,
        encoding=config.encoding or "utf-8-sig",
        decimal=config.decimal or ".",
        delimiter=config.delimiter or USUAL.get(Path(config.data).suffix.lower(), ","),
    )
    alone = replace(
        own_part(study, me, config), data=replace(study.data, bundled=None, file=None), partners=None
    )
    home = Path(config.home)
    if study.data.encoder is not None:
        make_private_folder(home)
    federation = open_sites(alone, key=key, tolerant=True, features_in=home / "features")
    if set(federation.sites) != {me}:
        raise StudyError(
            f'site "{me}": its file holds records of {len(federation.sites)} sites; a node opens its own only'
        )
    return federation.sites[me], federation.task, federation.schema, inputs_caveat(federation)


def check_partners(me: str, members: Mapping[str, Member], caps: Caps) -> None:
    """Refuse a study with sites that this site's own caps do not allow."""
    if caps.partners is None:
        return
    strangers = sorted(set(members) - {me} - set(caps.partners))
    if strangers:
        raise PrivacyError(
            f'site "{me}": caps.partners does not allow «{strangers[0]}», which is in the roster; agree on a roster'
            " without it, or allow it in site.toml"
        )


def load_study(path: Path, me: str, members: Mapping[str, Member]) -> Study:
    """The study of a roster; what a rehearsal makes up, a node refuses."""
    study = load(path)
    if me not in members:
        raise StudyError(f'the roster does not have this site, "{me}"; see `confrere roster`')
    for name in study.sites:
        if name not in members:
            raise StudyError(f'{path}: [sites] names "{name}", which is not in the roster')
    for name in sorted(set(members) ^ set(study.partners)) if study.partners is not None else ():
        where = "is in the roster and not among" if name in members else "is not in the roster and among"
        raise StudyError(
            f'{path}: "{name}" {where} the study\'s partners; both name those who learn together'
        )
    if study.data.bundled or study.data.file:
        raise StudyError(
            f"{path}: [data] bundled and file put all records in one place; a node opens its own, as site.toml says"
        )
    if study.data.partition is not None:
        raise StudyError(f"{path}: data.partition cuts sites for a rehearsal; on a node a site is what it is")
    if study.data.split.method != "hash":
        raise StudyError(
            f'{path}: data.split.method = "{study.data.split.method}" is for rehearsals: one record would move others'
            ' across the split, and ε would not hold for the whole file; a node takes "hash"'
        )
    if study.attack is not None:
        raise StudyError(
            f"{path}: attack is for rehearsals; a node takes no part in a study with dishonest sites"
        )
    check_nodes(study, len(members))
    for round in study.churn.changes(study.rounds):
        check_members(study, study.churn.members(round, sorted(members)), round)
    check_combiner(study, sorted(members))
    check_common_proxy(study)
    if traits(study.build_strategy()).pools:
        raise StudyError(f'strategy "{study.strategy_name}" needs all records in one place; run it in memory')
    study.churn.check(sorted(members), study.rounds)
    return study
