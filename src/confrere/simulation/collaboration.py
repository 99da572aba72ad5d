"""All sites of a study in one process, for simulations and rehearsals: built, checked against each other, and ready.

A simulation runs the rounds with them. A rehearsal checks them, lets nodes run the rounds, and reads the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from confrere.core.errors import StudyError
from confrere.core.events import Event, Journal
from confrere.core.model import Model
from confrere.core.protocols import ChecksMembers, Strategy
from confrere.core.registry import nearest
from confrere.core.strategy_traits import traits
from confrere.data.records import Federation, SiteData, concatenate
from confrere.learning.local_training.cohort import TRAINERS, ReportsNotices, trainer_of
from confrere.learning.local_training.one_site import Trainer
from confrere.learning.networks.network import NetworkCache
from confrere.privacy.strategy_lint import strategy_findings
from confrere.site.assemble import SiteContext, check_common_proxy, leaving_when_spent, participant_of
from confrere.site.attackers import attack_plan
from confrere.site.exchange_limits import check_combiners
from confrere.site.faults import Faults
from confrere.site.open_sites import inputs_caveat
from confrere.site.participant import Participant
from confrere.site.peers import SitePeers
from confrere.site.schedule import Schedule
from confrere.site.site_run import SiteRun, run_id, site_run_of
from confrere.study import Study
from confrere.study.churn import Churn
from confrere.study.masked_settings import check_members
from confrere.transport.memory import MemoryNetwork

POOLED_SITE = "everybody"
"""The site of pooled training, which holds all records. Its seeds are derived from this name."""

MANY = 64
"""How many members are asked for their edges to find out whether a graph fits its members."""


@dataclass(frozen=True)
class AllSites:
    """The names of all sites of a collaboration, and when they are there."""

    names: Sequence[str]
    churn: Churn
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Their public training sizes, where masked sums need them."""


class Collaboration:
    """The sites of a study, each with its own gate, ledger, mailbox and seeds."""

    sites: dict[str, Participant]
    judges: Mapping[str, Participant]
    """Who evaluates: the sites themselves; where records are pooled, each site judges the common model."""
    runs: dict[str, SiteRun]
    peers: dict[str, SitePeers]

    def __init__(
        self,
        study: Study,
        federation: Federation,
        *,
        device: str = "cpu",
        trainer: Trainer | str | None = None,
        among: AllSites | None = None,
    ) -> None:
        """`among` names all sites of the collaboration, where `federation` holds only some of them."""
        self.study, self.federation, self.device = study, federation, device
        self.strategy: Strategy = study.build_strategy()
        self.trainer = trainer_of(trainer)
        self.names = sorted(among.names if among is not None else federation.sites)
        self._known_churn = among.churn if among is not None else None
        self._known_sizes = among.sizes if among is not None else {}
        self.pools = traits(self.strategy).pools
        if len(self.names) < 2:
            raise StudyError(
                f'the study has one site ("{self.names[0]}"); a collaboration takes at least two'
            )
        study.churn.check(self.names, study.rounds)
        check_members(study, self.names)
        self.plan = attack_plan(study, self.names)
        self.remarks = strategy_findings(type(self.strategy))
        """The notices of the strategy about these sites, and lines of a custom one that a person should read."""
        if isinstance(self.strategy, ChecksMembers):
            self.remarks += self.strategy.check_members(self.names, rehearsal=True)
        for key, named in (
            ("models.sites", study.models.sites),
            ("training.site_epochs", study.training.site_epochs),
        ):
            for name in named:
                if name not in self.names:
                    raise StudyError(
                        f'{key} names "{name}", which is not a site of this study{nearest(name, self.names)}'
                    )
        check_common_proxy(study)

    def prepare(self, journal: Journal | None = None) -> None:
        """Build and check all sites, so that an error in study or records is raised before a file is written."""
        journal = journal or Journal(None)
        self._log_trainer_notices(journal)
        names = [POOLED_SITE] if self.pools else self.names
        context = SiteContext(
            run_id(self.study), journal, self.trainer, self.device, site_count=len(names),
            inputs_caveat=inputs_caveat(self.federation), sizes=self._sizes(),
        )  # fmt: skip
        workers = {POOLED_SITE: _pooled(self.federation)} if self.pools else dict(self.federation.sites)
        if self.plan is not None:
            workers = {n: self.plan.records(d, self.federation.task) for n, d in workers.items()}
        self.sites = {}
        for name, data in workers.items():
            if type(self.trainer) not in TRAINERS.values():  # a custom trainer may keep a site's networks
                context = replace(context, network_cache=NetworkCache())
            self.sites[name] = participant_of(self.study, self.strategy, data, self.federation.task, context)
        self.judges = self.sites if not self.pools else {
            n: replace(self.sites[POOLED_SITE], name=n, data=d) for n, d in self.federation.sites.items()
        }  # fmt: skip
        self.churn = self._known_churn or leaving_when_spent(self.study, self.sites)
        self.network, graph = MemoryNetwork(), self.study.graph()
        self.schedule = Schedule(self.churn, names, graph)
        self.ended: dict[str, int] = {}
        self.runs = {
            name: site_run_of(
                site, self.strategy, self.schedule, self.network.open(name),
                judges=self.judges if self.pools else {}, faults=self.planned_faults(), ended=self.ended,
            )
            for name, site in self.sites.items()
        }  # fmt: skip
        self.peers = {name: run.peers for name, run in self.runs.items()}
        for number in self.churn.changes(self.study.rounds):  # a graph that does not fit is noticed here
            there = self.schedule.round(number).participants
            for name in there[:MANY]:
                graph.column(number, there, name)
        there_when = [(n, self.schedule.round(n).participants) for n in self.churn.changes(self.study.rounds)]
        for number, members in there_when:
            check_members(self.study, members, number)
        check_combiners(self.study, there_when, self.plan.sites if self.plan is not None else ())

    def _sizes(self) -> dict[str, int]:
        """The public training sizes of all sites."""
        known = {name: data.size for name, data in self.federation.sites.items()}
        return {**self._known_sizes, **known}

    def planned_faults(self) -> Faults:
        """The losses of sites that the run rehearses."""
        return Faults()

    def use(self, journal: Journal) -> None:
        """Let the sites write to this journal."""
        self._log_trainer_notices(journal)
        for site in [*self.sites.values(), *self.judges.values()]:
            site.journal = journal
        for peers in self.peers.values():
            peers.journal = journal

    def _log_trainer_notices(self, journal: Journal) -> None:
        if isinstance(self.trainer, ReportsNotices):
            self.trainer.report = lambda text: journal.add(Event("notice", data={"text": text}))

    def run_of(self, name: str) -> SiteRun | None:
        """The run that trains a site's models: its own, or the one of all sites together."""
        return self.runs.get(POOLED_SITE if self.pools else name)

    def models(self, name: str) -> dict[str, Model]:
        """The models that a site would use now."""
        run = self.run_of(name)
        return run.models() if run is not None else {}


def _pooled(federation: Federation) -> SiteData:
    sites = list(federation.sites.values())
    return SiteData(
        POOLED_SITE,
        concatenate([s.train for s in sites]),
        concatenate([s.validation for s in sites]),
        concatenate([s.test for s in sites]),
        declared=sum(s.declared for s in sites),
        common_test=sites[0].common_test,
        size=sum(s.size for s in sites),
    )
