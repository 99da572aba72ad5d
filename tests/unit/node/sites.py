"""Three small sites as nodes of a test."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from confrere.node.config import NodeConfig
from confrere.node.store import Store
from confrere.site.open_sites import open_sites
from confrere.study import Caps, Study
from confrere.transport.grpc.identity import Identity, new_identity
from tests.conftest import arrays
from tests.unit.quick import quick


def settings(
    folder: Path, study: Study | None = None, *, sites: int = 3, rehearsal: bool = True, **caps: Any
) -> dict[str, NodeConfig]:
    """What each node of a small study is started with; everything is under `folder`."""
    study = study or quick("avgpush", rounds=4, patience=5.0)
    federation = open_sites(study, arrays(sites, 60))
    identities: dict[str, Identity] = {
        n: new_identity(n, declared=d.declared) for n, d in federation.sites.items()
    }
    members = {n: i.member for n, i in identities.items()}
    return {
        name: NodeConfig(
            study=study, identity=identities[name], members=members, roster="roster", data=data,
            task=federation.task, home=folder / name, ledger=folder / name / "ledger.sqlite",
            agreed=study.hash(), rehearsal=rehearsal, caps=Caps(**caps),
        )
        for name, data in federation.sites.items()
    }  # fmt: skip


def arrived(store: Store) -> list[tuple[str, int, int, float]]:
    """(sender, sequence, round that took it, mass) of what has come in; the round is -1 while it waits."""
    return store._rows(
        "SELECT sender, sequence, coalesce(taken_round, -1), mass FROM inbox ORDER BY sender, sequence"
    )


def changed(config: NodeConfig, **changes: Any) -> NodeConfig:
    return replace(config, **changes)
