"""Upgrade a roster of version 0.1, which has no declared sizes, with the same members and keys.

Each site states its own size; the others add its new peer.toml, whose key must be the one that the roster has. The new
roster is the next epoch of the old one, so all sites get the same, and every member signs it. The old file and its
signatures are kept as roster-0.1.toml and signatures-0.1.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from confrere.core.errors import StudyError
from confrere.core.strict_reader import read_toml_file
from confrere.node import roster as rosters
from confrere.node.roster import LARGEST_FILE, SIGNATURES, Roster
from confrere.study import load
from confrere.transport.grpc.identity import PEER, load_identity, renew
from confrere.transport.grpc.member import Member, parse_member

OLD = "-0.1"


def upgrade_roster(
    keys: str | Path,
    roster: str | Path = "roster.toml",
    *,
    declared: int | None = None,
    study: str | Path | None = None,
) -> Roster:
    """Upgrade a roster that version 0.1 wrote, and state the size of the site with these keys.

    Sizes that a 0.1 study states (`[sites.NAME] declared`) are taken from `study`; otherwise `declared` is needed. The
    result lists in `waiting` the members whose new peer.toml has not been added yet.

    >>> sorted(confrere.upgrade_roster(old / "nord" / "keys", old / "roster.toml", declared=90).waiting)
    ['ouest', 'sud']
    """
    path, folder = Path(roster), Path(keys)
    sizes = {} if study is None else {n: c.declared for n, c in load(study).sites.items() if c.declared}
    table = read_toml_file(
        path, "a roster is made with `confrere roster add PEER.toml`", largest=LARGEST_FILE
    )
    old = any("declared" not in entry for entry in table.get("members", []))
    before = _read_old(table, path) if old else rosters.load_roster(path)
    if not before.waiting:
        raise StudyError(f"{path} states the size of every member already: there is nothing to upgrade")
    own = _own(folder, before, declared, sizes)
    after = before.with_member(own, signed=False) if own.name in before.waiting else before
    if old:
        for entry in table["members"]:
            if (name := str(entry["name"])) in sizes and name != own.name:
                member = parse_member({**entry, "declared": sizes[name]}, f"{path}: {name}")
                after = after.with_member(member, signed=False)
        _set_aside(path)
    rosters.save(after, path)
    return after


def _own(folder: Path, before: Roster, declared: int | None, sizes: Mapping[str, int]) -> Member:
    """The site with these keys, with its size; its peer.toml is written anew if it states none or another one."""
    table = read_toml_file(folder / PEER, "`confrere enroll` makes a site's keys", largest=LARGEST_FILE)
    name = str(table.get("name"))
    known = {**before.waiting, **{n: m.identity.hex() for n, m in before.members.items()}}
    if known.get(name) != table.get("identity"):
        raise StudyError(f'"{name[:80]}" is not in the roster with the key in {folder}')
    size = declared if declared is not None else sizes.get(name, table.get("declared"))
    if size is None:
        raise StudyError(
            f'state about how many records (patients, where studies protect patients) the whole file of "{name}" holds:'
            " --declared N; this number is public"
        )
    return (
        load_identity(folder).member if size == table.get("declared") else renew(folder, declared=size).member
    )


def _read_old(table: Mapping[str, Any], path: Path) -> Roster:
    """The next epoch after a roster of 0.1, with all of its members waiting; their keys and certificates are checked."""
    members = {}
    for number, entry in enumerate(table["members"], 1):
        member = parse_member({**entry, "declared": 1}, f"{path}: member {number}")
        members[member.name] = member.identity.hex()
    epoch, previous = int(table.get("epoch", 0)), str(table.get("previous", ""))
    departed = {str(k): str(v) for k, v in table.get("departed", {}).items()}
    return Roster({}, epoch + 1, _old_hash(epoch, previous, members, departed), departed, members)


def _old_hash(epoch: int, previous: str, members: Mapping[str, str], departed: Mapping[str, str]) -> str:
    """The hash that the members signed in 0.1."""
    text = [epoch, previous, sorted([name, key] for name, key in members.items()), sorted(departed.items())]
    return hashlib.sha256(b"confrere roster 1\n" + rosters.canonical(text)).hexdigest()


def _set_aside(path: Path) -> None:
    copy, signatures = path.with_name(path.stem + OLD + path.suffix), path.parent / SIGNATURES
    if copy.exists():
        raise StudyError(f"{copy} exists already: an upgrade was begun before; move it away")
    shutil.copy2(path, copy)
    if signatures.is_dir():
        signatures.rename(signatures.with_name(SIGNATURES + OLD))
