"""The status of a node as typed values: what `confrere status` shows, for Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confrere.core.results import Metrics, ModelVerdict, PrivacySpent
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
    privacy: PrivacySpent | None
    rounds_left: int | None
    """For about how many more rounds the budget lasts; None if that is not known."""
    bytes_in_parcels: int
    metrics: Metrics[float]
    """Of the model that the site would use, on its own test records; PRIVATE."""
    verdict: ModelVerdict | None
    """The collaborative model against one trained alone, after the last round; PRIVATE."""
    document: Mapping[str, Any] = field(repr=False, default_factory=dict)
    """Everything that `confrere status --json` prints."""


def node_status(folder: str | Path) -> NodeStatus:
    """The state of a node, running or not, from its folder (`home` in site.toml).

    >>> found = confrere.node_status(node)
    >>> found.doing, found.round, found.privacy.epsilon < 1
    ('not running', 8, True)
    """
    found = status_document(Path(folder))
    peers = {
        name: PeerStatus(
            p["connected"],
            p["last_contact"],
            p["parcels_waiting"],
            tuple(p["missing_in_rounds"]),
            p["reason"],
        )
        for name, p in found["peers"].items()
    }
    spent = found["privacy"]
    return NodeStatus(
        found["site"], found["study"]["name"], found["study"]["hash"], found["doing"], found["reason"],
        found["rehearsal"], found["round"], found["rounds"], peers, found["left"], PrivacySpent.from_json(spent),
        None if spent is None else spent.get("rounds_left"), found["bytes"]["in_parcels"],
        Metrics(found["quality_private"]), ModelVerdict.from_json(found.get("verdict_private")), found,
    )  # fmt: skip


def status_document(folder: Path) -> dict[str, Any]:
    """The same as the JSON document of `confrere status --json`."""
    try:
        return dict(ask(folder, "status"))
    except NotRunning:
        return resting_status(folder)
