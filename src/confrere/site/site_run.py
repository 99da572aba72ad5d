"""One site over a whole run, in every runtime: begin, rounds, evaluation, finish, snapshot, restore and reset.

A simulation holds one `SiteRun` per site, a worker or a Ray actor a share of them, a node one with a durable store,
an audit one whose gate is observed. A runtime only decides who steps it, over which transport, with which trainer and
which memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from confrere.core.custody import Custody, public
from confrere.core.errors import TrainingError
from confrere.core.events import Event
from confrere.core.model import Model
from confrere.core.parcel import Parcel
from confrere.core.protocols import Finishes, Predictor, Predicts, Site, Strategy, Transport
from confrere.learning.local_training.one_site import failure_reason
from confrere.privacy.gate import Gate
from confrere.privacy.strategy_lint import numbers_named_in
from confrere.site.assemble import consents
from confrere.site.call_order import OneCallAtATime
from confrere.site.exchange_limits import exchange_options
from confrere.site.participant import Participant
from confrere.site.peers import SitePeers
from confrere.site.schedule import ABSENT, JOINED, LEFT, Schedule
from confrere.site.site_round import SiteRound
from confrere.site.stopping import Clock, Stopping, stop_reasons, stop_text
from confrere.study import Study

CHANGES = {JOINED: "joined", LEFT: "left for good", ABSENT: "could not be reached"}
"""The text of a planned change's event."""
BUDGET_SPENT = "its budget is spent"
"""Why a site has left whose study has `when_spent = "leave"`."""


@dataclass
class SiteRun:
    """One site over a whole run. `state` is the strategy's, between rounds."""

    site: Participant
    peers: SitePeers
    strategy: Strategy
    judges: Mapping[str, Participant] = field(default_factory=dict)
    """Who evaluates its models: the site itself, but for pooled records, where each site judges the common model."""
    state: Any = None

    def __post_init__(self) -> None:
        self.judges = self.judges or {self.site.name: self.site}

    @property
    def name(self) -> str:
        return self.site.name

    @property
    def study(self) -> Study:
        return self.site.study

    # -- rounds -----------------------------------------------------------------------------------

    def begin(self, number: int) -> None:
        """The state before the first round that the site takes part in."""
        if self.state is None:
            self.state = self.strategy.init(SiteRound(self.site, number))

    async def round(self, number: int, inside: Site | None = None, *, time_is_up: bool = False) -> None:
        """Take part in a round. `inside` stands in for the site where its calls have to survive a crash."""
        self.begin(number)
        stopping = self.site.stopping
        if stopping is not None:
            stopping.begin(time_is_up=time_is_up, spent=self.site.spent)
        site = OneCallAtATime(inside or SiteRound(self.site, number))
        try:
            self.state = await self.strategy.round(self.state, site, self.peers.round(number))
        finally:
            await site.close()
        if stopping is not None:
            self._judge_stopping(stopping, number)

    def _judge_stopping(self, stopping: Stopping, number: int) -> None:
        """Decide after a round whether the site stops training, and whether all have; add a notice of either."""
        known = self.stop_reasons(number - 1)
        held = {role: getattr(self.state, role, None) for role in self.strategy.deploys}
        models = {role: model for role, model in held.items() if isinstance(model, Model)}
        stopping.end_round(models, self.peers.schedule.round(number).rounds_to_reach_all)
        if stopping.stopped and not stopping.announced:
            stopping.announced = True
            self._notice(number, f"trains no more: {stopping.reason}")
        reasons = self.stop_reasons(number)
        if reasons and not known and number + 1 < self.study.rounds:
            text = stop_text(Clock(), self.study.stop, number + 1, reasons)
            self._notice(number, text, stopped=number + 1, reasons=reasons)

    def _notice(self, number: int, text: str, **facts: Any) -> None:
        self.site.journal.add(Event("notice", self.name, number, data={"text": text, **facts}))

    def announce(self, number: int, left_because: str = "") -> None:
        """Record what the schedule has for the site in a round: that it joins, has left, or cannot be reached."""
        kind = self.peers.schedule.round(number).changes.get(self.name)
        if kind is not None:
            reason = f": {left_because}" if left_because and kind == LEFT else ""
            self.site.journal.add(Event(kind, self.name, number, data={"text": CHANGES[kind] + reason}))

    def stop_reasons(self, number: int) -> list[str] | None:
        """Why all sites have stopped training, if this one knows after the round that they have; else None."""
        return stop_reasons([self.site.stopping], self.peers.churn, number)

    async def finish(self, inside: Site | None = None) -> bool:
        """When all rounds are over: train the site's own model to the end, where study and strategy do that."""
        if self.state is None or not (self.study.training.tune and isinstance(self.strategy, Finishes)):
            return False
        site = OneCallAtATime(inside or SiteRound(self.site, self.study.rounds))
        try:
            self.state = await self.strategy.finish(self.state, site)
        finally:
            await site.close()
        return True

    # -- evaluation -------------------------------------------------------------------------------

    def evaluation_due(self, number: int, stops: bool = False) -> bool:
        """Whether the study asks for an evaluation after this round; always after the site's last one.

        `stops` says that the study ends with this round. A site that has left is not evaluated again.
        """
        rounds = self.study.rounds
        last = min(rounds, self.peers.churn.leave.get(self.name, rounds))
        return number < last and (stops or self.study.evaluation.due(number, last))

    def evaluate(self, number: int, fitted: bool = False) -> dict[str, Any]:
        """Measure the models on held-out records and record the result; PRIVATE."""
        scores: dict[str, Any] = {}
        if self.state is not None:
            models = predictors(self.strategy, self.state)
            for name, judge in self.judges.items():
                try:
                    scores = dict(judge.scores(models, fitted))
                except Exception as error:
                    text = f"the models could not be evaluated on the site's records: {failure_reason(error)}"
                    if not judge.joined:
                        raise TrainingError(f'site "{name}": {text}') from error
                    judge.note(number, text)
                    continue
                judge.journal.add(Event("evaluated", name, number, Custody.PRIVATE, scores))
        return scores

    def models(self) -> dict[str, Model]:
        """The models that the site would use now."""
        if self.state is None:
            return {}
        return {role: getattr(self.state, role) for role in self.strategy.deploys}

    def predictor(self) -> Predictor:
        """The models that make the prediction which the site would use now."""
        return predictors(self.strategy, self.state)[self.strategy.deploys[0]]

    # -- keeping and restoring --------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """What the site needs to go on after the round, beside its records and its ledger."""
        site, peers = self.site, self.peers
        return {
            "state": self.state,
            "memory": site.memory,
            "spent": site.spent,
            "sequence": dict(peers.sequence),
            "caught_up": peers.caught_up,
            "attended": peers.attended,
            "counters": dict(peers.counters),
            **({"rest": site.stopping.state()} if site.stopping is not None else {}),
            **({"packing": dict(peers.packing.memory)} if peers.packing.memory else {}),
        }

    def restore(self, found: Mapping[str, Any]) -> None:
        """Return to what `snapshot` gave."""
        site, peers = self.site, self.peers
        self.state, site.memory, site.spent = found["state"], found["memory"], found["spent"]
        site.trainings.clear()  # rounds after the snapshot are done again
        if site.stopping is not None:
            site.stopping.restore(found["rest"])
        peers.sequence.update(found["sequence"])
        peers.caught_up, peers.attended = found["caught_up"], found["attended"]
        peers.counters.update(found["counters"])
        peers.packing.restore(found.get("packing", {}))

    def reset(self) -> None:
        """Return to the start of the run. Ledgers are not taken back: a charge stays written down."""
        self.state = None
        self.peers.reset()
        for participant in {id(p): p for p in (self.site, *self.judges.values())}.values():
            participant.reset()

    def volatile(self) -> dict[str, Any]:
        """What a node has in its store and a simulation only in memory: ledger, parcels that wait, predictions."""
        return {
            "ledger": self.site.ledger.entries(),
            "waiting": self.peers.mailbox.waiting(),
            "predictions": {name: judge.predictions.state() for name, judge in self.judges.items()},
        }

    def restore_volatile(self, found: Mapping[str, Any]) -> None:
        """Return to what `volatile` gave."""
        site = self.site
        site.ledger = site.ledger.restore(
            found["ledger"], dataset=site.name, accountant=site.ledger.accountant
        )
        for parcel in found["waiting"]:
            assert isinstance(parcel, Parcel)
            self.peers.mailbox.deliver(parcel)
        self.restore_predictions(found["predictions"])

    def restore_predictions(self, found: Mapping[str, Any]) -> None:
        for name, kept in found.items():
            data = self.judges[name].data
            self.judges[name].predictions.restore(
                name, kept, {"test": data.test, "common_test": data.common_test}
            )


def site_run_of(
    site: Participant,
    strategy: Strategy,
    schedule: Schedule,
    transport: Transport,
    *,
    judges: Mapping[str, Participant] | None = None,
    **options: Any,
) -> SiteRun:
    """A site behind its gate, connected to the other sites of this schedule.

    `options` are further fields of `SitePeers`: a node's mailbox and patience, a simulation's faults.
    """
    site.members_at = lambda number: len(schedule.round(number).members)
    gate = Gate(
        accept_unproven=consents(site.study, site),
        site=site.name,
        on_event=lambda event: site.journal.add(event),
        architectures=site.architectures.keys(),
        names=numbers_named_in(type(strategy)),
    )
    peers = SitePeers(
        site.name, site.run, schedule.sites, schedule.topology, schedule.churn, gate, transport, site.journal,
        counter=lambda: site.ledger.counter, shared=schedule, stopping=site.stopping, rounds=site.study.rounds,
        **{**exchange_options(site.study, site), **options},
    )  # fmt: skip
    return SiteRun(site, peers, strategy, judges or {})


def predictors(strategy: Strategy, state: Any) -> Mapping[str, Predictor]:
    """For each role that is evaluated, the models that make its prediction."""
    if isinstance(strategy, Predicts):
        return strategy.predictors(state)
    return {role: ((public(1.0), getattr(state, role)),) for role in strategy.deploys}


def run_id(study: Study, agreed: str = "") -> str:
    """Names a run in ledgers, parcels and stores; `agreed` is the study's hash where a site's own part differs."""
    return f"{study.name}-{agreed or study.hash()}-{study.seed}"
