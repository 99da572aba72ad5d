"""What version 0.1 wrote is opened by this one, and what it called otherwise is still understood."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import sqlite3
from contextlib import closing
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest
import typer

import confrere
from confrere import cli
from confrere.core.errors import CheckpointError, PeerRefused, Retired
from confrere.node.node import Node
from confrere.node.roster import load_roster
from confrere.node.service import read_node_config
from confrere.privacy.ledger import Ledger
from confrere.study import Study
from confrere.study.reading import parse
from confrere.transport.grpc import frames, handshake
from confrere.transport.grpc.greeting import PROTOCOL, Greeting, refuse_version
from confrere.version import __version__
from tests.system.test_node_old_copies import up_to
from tests.unit.cli.command import Desk
from tests.unit.node.wires import Network

FIXTURES = Path(__file__).parents[1] / "fixtures"
NAMES = json.loads((FIXTURES / "names-0.1.json").read_text())
SITES = ("nord", "sud", "ouest")


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Desk:
    """A folder that 0.1 wrote, as its owner has it: closed to others, which no repository can keep."""
    shutil.copytree(FIXTURES / "node-0.1", tmp_path, dirs_exist_ok=True)
    for path in tmp_path.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
    return Desk(tmp_path, monkeypatch, capsys)


def remedy(desk: Desk) -> None:
    """What docs/upgrading.md says."""
    for site in SITES:
        answer = desk.confrere("roster", "upgrade", "--keys", f"{site}/keys", "--declared", 80)
        assert answer.code == 0, answer.err
    for site in SITES:
        answer = desk.confrere("roster", "sign", "study.toml", "--keys", f"{site}/keys")
        assert answer.code == 0, answer.err


def another_folder(desk: Desk) -> None:
    for site in SITES:
        path = desk.folder / site / "site.toml"
        path.write_text('home = "node-2"\n' + path.read_text())


def test_a_roster_of_0_1_is_refused_with_its_remedy(desk: Desk) -> None:
    for command in (("node", "study.toml", "nord/site.toml"), ("roster", "show")):
        answer = desk.confrere(*command)
        assert (answer.code, answer.out) == (2, "")
        assert "states no declared size (it was made by version 0.1)" in answer.said
        assert "`confrere roster upgrade --keys KEYS --declared N`" in answer.said


SIGNED_IN_0_1 = "f141b0ac68e6f9c4ec03f9e1b713a2c14cd8e0d428ea64db68fc8abd20ad08fe"


def test_a_roster_of_0_1_is_upgraded_at_every_site_to_the_same_one(desk: Desk) -> None:
    """Each site has its own copy, upgrades it with its own keys, and takes in the peer.toml of the others."""
    sizes = {"nord": 90, "sud": 80, "ouest": 70}
    for site in SITES:
        shutil.copy(desk.folder / "roster.toml", desk.folder / site / "roster.toml")
        shutil.copytree(desk.folder / "signatures", desk.folder / site / "signatures")
    before = {site: (desk.folder / site / "keys" / "identity.key").read_bytes() for site in SITES}
    for site in SITES:
        roster = ("--roster", f"{site}/roster.toml")
        answer = desk.confrere(
            "roster", "upgrade", "--keys", f"{site}/keys", "--declared", sizes[site], *roster
        )
        assert answer.code == 0, answer.err
        assert answer.out.count("Waiting for the new peer.toml") == 2
        assert (desk.folder / site / "signatures-0.1").is_dir()
        assert desk.confrere("roster", "show", "--json", *roster).json["waiting"] == sorted(
            set(SITES) - {site}
        )
        said = desk.refused("roster", "sign", "study.toml", "--keys", f"{site}/keys", *roster)
        assert "waits for the new peer.toml of" in said
    for site in SITES:
        for other in set(SITES) - {site}:
            command = ("roster", "add", f"{other}/keys/peer.toml", "--roster", f"{site}/roster.toml")
            assert desk.confrere(*command).code == 0
    found = [load_roster(desk.folder / site / "roster.toml") for site in SITES]
    assert len({roster.hash for roster in found}) == 1
    assert (found[0].epoch, found[0].previous) == (1, SIGNED_IN_0_1)
    assert {name: m.declared for name, m in found[0].members.items()} == sizes
    assert {site: (desk.folder / site / "keys" / "identity.key").read_bytes() for site in SITES} == before


def test_an_upgrade_takes_no_other_key_for_a_member_of_0_1(desk: Desk) -> None:
    assert desk.confrere("roster", "upgrade", "--keys", "nord/keys", "--declared", 90).code == 0
    made = ("enroll", "--site", "sud", "--outgoing-only", "--declared", 80, "-o", "impostor")
    assert desk.confrere(*made).code == 0
    assert "a member with another key" in desk.refused("roster", "add", "impostor/peer.toml")


def test_an_upgrade_needs_a_size_and_takes_it_from_the_study_if_it_states_one(desk: Desk) -> None:
    assert "--declared N" in desk.refused("roster", "upgrade", "--keys", "nord/keys")
    study = desk.folder / "study.toml"
    text = study.read_text()
    for site, size in {"nord": 90, "sud": 80, "ouest": 70}.items():
        text = text.replace(f'config = "{site}/site.toml"\n', f"declared = {size}\n")
    study.write_text(text)
    assert desk.confrere("roster", "upgrade", "--keys", "nord/keys", "--study", "study.toml").code == 0
    shown = desk.confrere("roster", "show", "--json").json
    assert shown["waiting"] == []
    assert {n: m["declared"] for n, m in shown["members"].items()} == {"nord": 90, "sud": 80, "ouest": 70}
    assert "nothing to upgrade" in desk.refused("roster", "upgrade", "--keys", "nord/keys")


def test_the_folder_of_a_run_of_0_1_stays_readable_and_is_not_continued(desk: Desk) -> None:
    before = json.loads((desk.folder / "nord" / "status.json").read_text())
    now = desk.confrere("status", "nord/node", "--json").json
    assert (now["round"], now["privacy"]["epsilon"]) == (before["round"], before["privacy"]["epsilon"])
    assert desk.confrere("journal", "verify", "nord/node").code == 0
    assert now["round"] < now["rounds"], "the run was stopped halfway"
    remedy(desk)
    kept = {p: p.read_bytes() for p in (desk.folder / "nord").rglob("*") if p.is_file()}
    with pytest.raises(CheckpointError, match=r'home = "node-2" in site\.toml'):
        asyncio.run(started(desk))
    node = desk.folder / "nord" / "node"
    assert kept[node / "journal.jsonl"] == (node / "journal.jsonl").read_bytes()
    assert states(node / "node.sqlite") == now["round"], "nothing is lost"
    assert desk.confrere("status", "nord/node", "--json").json["round"] == now["round"]
    answer = desk.confrere("node", "study.toml", "nord/site.toml")
    assert answer.code == 2
    assert 'home = "node-2"' in answer.said


def states(path: Path) -> int:
    """How many rounds the store of a node has behind it."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        return int(database.execute("SELECT max(done) FROM states").fetchone()[0])


async def started(desk: Desk) -> Node:
    config = read_node_config(desk.folder / "study.toml", desk.folder / "nord" / "site.toml")
    return Node(config, connect=Network().connect)


def test_after_the_remedy_a_site_of_0_1_goes_on_with_every_charge(desk: Desk) -> None:
    before = json.loads((desk.folder / "nord" / "status.json").read_text())["privacy"]
    remedy(desk)
    another_folder(desk)
    node = asyncio.run(started(desk))
    spent = node.ledger.guarantee(before["delta"], before["unit"])
    charges = [e for e in node.ledger.entries() if e["charges"]]
    node.close()
    assert before["epsilon"] > 0
    assert spent.epsilon == pytest.approx(before["epsilon"], rel=1e-9)
    assert len(charges) >= json.loads((desk.folder / "nord" / "status.json").read_text())["round"]
    places = {s: read_node_config(desk.folder / "study.toml", desk.folder / s / "site.toml") for s in SITES}
    asyncio.run(up_to(places, 1))
    with Ledger(places["nord"].ledger) as ledger:
        assert ledger.guarantee(before["delta"], before["unit"]).epsilon > spent.epsilon
        kept = [e for e in ledger.entries() if e["charges"]]
    assert kept[: len(charges)] == charges


# -- the handshake ------------------------------------------------------------------------------

GREETING_OF_0_1 = {
    "epoch": 0, "last": "", "mark": None, "process": "0123456789abcdef", "protocol": 1, "receiver": "b",
    "roster": "r", "run": "run", "seen": None, "sender": "a", "study": "s", "version": "0.1.0",
}  # fmt: skip


class Script:
    """A stream whose other end says what it is told."""

    def __init__(self, *said: bytes) -> None:
        self.said, self.heard = list(said), list[bytes]()

    async def read(self) -> bytes | None:
        return self.said.pop(0) if self.said else None

    async def write(self, frame: bytes) -> None:
        self.heard.append(frame)


@pytest.mark.parametrize("part", [handshake.introduce, handshake.receive])
def test_a_peer_of_0_1_is_refused_by_a_message_that_names_both_versions(part: Any) -> None:
    own = Greeting("run", "s", "r", 0, "b", "a", version=__version__)
    stream = Script(frames.GREETING + json.dumps(GREETING_OF_0_1).encode(), frames.AGREED)
    message = (
        rf'"a" runs Confrère 0.1.0 \(protocol 1\) and "b" {re.escape(__version__)} \(protocol {PROTOCOL}\)'
    )
    with pytest.raises(PeerRefused, match=message):
        asyncio.run(part(stream, own, lambda own, theirs: refuse_version(own, theirs)))
    said = json.loads(stream.heard[0][1:])
    assert set(said) == set(GREETING_OF_0_1), "0.1 reads no greeting with other fields"
    assert (said["mark"], said["seen"], said["last"]) == (None, None, "")
    assert "0.1.0" in frames.reason_in(stream.heard[-1])


# -- names --------------------------------------------------------------------------------------


def options(command: Any, name: str = "") -> dict[str, set[str]]:
    found = {} if not name else {name: {o for p in command.params for o in (*p.opts, *p.secondary_opts)}}
    for below, one in getattr(command, "commands", {}).items():
        found |= options(one, f"{name} {below}".strip())
    return found


def keys(kind: Any, path: str = "") -> set[str]:
    """Every key that a study may have, as a dotted path; `*` is the name of a site or role."""
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        own = {f.name: hints[f.name] for f in fields(kind)}
        return {path + n for n in own} | {k for n, t in own.items() for k in keys(t, f"{path}{n}.")}
    below, named = get_args(kind), get_origin(kind)
    if named is not None and isinstance(named, type) and issubclass(named, dict):
        return keys(below[1], f"{path}*.")
    return {key for one in below for key in keys(one, path)}


def test_every_command_and_option_of_0_1_is_still_there() -> None:
    cli.add_commands()
    now = options(typer.main.get_command(cli.app))
    for command, known in NAMES["commands"].items():
        assert set(known) <= now[command], command


def test_every_key_of_a_study_of_0_1_is_still_read() -> None:
    assert set(NAMES["keys"]) <= keys(Study)
    with pytest.warns(Retired, match=r"\[reported\] is no longer read: what a source reports is in repro/"):
        parse(
            {
                "rounds": 1,
                "strategy": "fedavg",
                "reported": {"source": "a table"},
                "data": {"bundled": "heart"},
            }
        )


def test_every_kind_of_event_of_0_1_is_still_there() -> None:
    sources = "\n".join(p.read_text() for p in Path(confrere.__path__[0]).rglob("*.py"))
    assert [kind for kind in NAMES["events"] if f'"{kind}"' not in sources] == []


def test_simulate_processes_names_its_replacements(desk: Desk) -> None:
    said = desk.refused("simulate", "study.toml", "--processes")
    assert "--workers" in said
    assert "confrere rehearse" in said
