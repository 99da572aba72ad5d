"""The status of a node as typed values, for `confrere status` and for Python users."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confrere.core.results import Metrics, ModelVerdict, PrivacySpent, Tested
from confrere.node.control import NotRunning, ask
from confrere.node.status import resting_status


@dataclass(frozen=True)
class PeerStatus:
    """A peer as the node sees it."""

    connected: bool
    last_contact: float | None
    """Seconds since 1970."""
    parcels_waiting: int
    missing_in_rounds: tuple[int, ...]
    """The latest rounds, counted from 1, in which it was expected and did not send in time."""
    reason: str
    """Why it is not connected, where that is known."""
    refused: int = 0
    """Parcels since the start that no honest site sends."""
    left_aside: int = 0
    """Parcels since the start whose numbers are out of the study's bounds."""


@dataclass(frozen=True)
class NodeStatus:
    """The state of a node. Figures about records are for its owner and stay at the site."""

    site: str
    study: str
    study_hash: str
    doing: str
    reason: str
    rehearsal: bool
    round: int
    """How many rounds are over."""
    rounds: int
    peers: Mapping[str, PeerStatus]
    left: Mapping[str, int]
    """Sites that leave for good, and before which round."""
    equivocations: Mapping[str, int]
    """How often each peer has signed two different parcels under one number; empty if all are honest."""
    privacy: PrivacySpent | None
    rounds_left: int | None
    """For about how many more rounds the budget lasts; None if that is not known."""
    training_ended: bool
    """Whether the budget is spent: the proxy is trained no more."""
    bytes_in_parcels: int
    bytes_sent: int | None
    """Since the start; None if the node is not running."""
    bytes_received: int | None
    metrics: Metrics[float]
    """Of the model that the site would use, on its own test records; PRIVATE."""
    tested: Tested | None
    """The patients that these figures are based on; PRIVATE."""
    deployed: str
    """Which model was saved, and why, once all rounds are over; PRIVATE."""
    verdict: ModelVerdict | None
    """The collaborative model against one trained alone, after the last round; PRIVATE."""
    verdict_text: str
    """The same in one sentence; PRIVATE."""
    document: Mapping[str, Any] = field(repr=False, default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """What `confrere status --json` prints."""
        return dict(self.document)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> NodeStatus:
        """The status in the document that a node sends, or that its files give."""
        spent, judged = found["privacy"] or {}, found.get("verdict_private") or {}
        verdict = ModelVerdict.from_json(judged or None)
        return cls(
            site=found["site"],
            study=found["study"]["name"],
            study_hash=found["study"]["hash"],
            doing=found["doing"],
            reason=found["reason"],
            rehearsal=found["rehearsal"],
            round=found["round"],
            rounds=found["rounds"],
            peers={name: _peer(peer) for name, peer in found["peers"].items()},
            left=found["left"],
            equivocations=found["equivocations"],
            privacy=PrivacySpent.from_json(found["privacy"]),
            rounds_left=spent.get("rounds_left"),
            training_ended=bool(spent.get("training_ended")),
            bytes_in_parcels=found["bytes"]["in_parcels"],
            bytes_sent=found["bytes"].get("sent"),
            bytes_received=found["bytes"].get("received"),
            metrics=Metrics(found["quality_private"]),
            tested=Tested.from_json(found.get("tested_private")) or (verdict.tested if verdict else None),
            deployed=found.get("deployed_private", {}).get("text", ""),
            verdict=verdict,
            verdict_text=judged.get("text", ""),
            document=found,
        )


def _peer(found: Mapping[str, Any]) -> PeerStatus:
    conduct = found.get("conduct", {})
    return PeerStatus(
        found["connected"], found["last_contact"], found["parcels_waiting"], tuple(found["missing_in_rounds"]),
        found["reason"], conduct.get("refused", 0), conduct.get("left_aside", 0),
    )  # fmt: skip


def node_status(folder: str | Path) -> NodeStatus:
    """The state of a node, running or not, from its folder (`home` in site.toml).

    >>> found = confrere.node_status(node)
    >>> found.doing, found.round, found.privacy.epsilon < 1
    ('not running', 8, True)
    """
    try:
        return NodeStatus.from_json(ask(Path(folder), "status"))
    except NotRunning:
        return NodeStatus.from_json(resting_status(Path(folder)))
