"""Who takes part: the members by name and key, signed by every one of them together with the study.

    roster.toml                epoch, the roster before (its hash), the members, who has left for good
    signatures/*.toml          beside it: one file per member, which people send to each other

A roster is a value with a hash; names, keys and declared sizes are in it, addresses are not, so a site may move. Before
it is signed it is a draft that grows with `roster add`. Once a member has signed it, a change makes another roster: the
next epoch, chained to the one before. It counts when all of its members have signed it. Leaving needs the signature of
the one that leaves alone, and is final: its key can never be a member again.
"""

from __future__ import annotations

import hashlib
import json
import os
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import tomli_w
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from confrere.core.errors import StudyError
from confrere.core.strict_reader import read_toml_file
from confrere.transport.grpc.identity import Identity
from confrere.transport.grpc.member import Member, fingerprint, parse_member

SIGNATURES = "signatures"
LARGEST_FILE = 2**20


@dataclass(frozen=True)
class Roster:
    """The members of one epoch."""

    members: Mapping[str, Member] = field(default_factory=dict)
    epoch: int = 0
    previous: str = ""
    """The hash of the roster before this one; empty for the first."""
    departed: Mapping[str, str] = field(default_factory=dict)
    """Keys (hexadecimal) of those who left, with the names that they had."""
    waiting: Mapping[str, str] = field(default_factory=dict)
    """In a roster that is being upgraded from 0.1: members that have not stated their size yet, with their keys."""

    @property
    def hash(self) -> str:
        """The same at all sites, independent of the order of members and of their addresses."""
        members = sorted(
            [name, member.identity.hex(), member.declared] for name, member in self.members.items()
        )
        text = [self.epoch, self.previous, members, sorted(self.departed.items())]
        return hashlib.sha256(b"confrere roster 2\n" + canonical(text)).hexdigest()

    def with_member(self, member: Member, *, signed: bool) -> Roster:
        """This draft with one more member; if it was signed already, the next epoch."""
        if member.identity.hex() in self.departed:
            raise StudyError(
                f'"{self.departed[member.identity.hex()]}" has left with the key {member.fingerprint}, and leaving'
                " is final; to come back, a site enrolls anew"
            )
        for known in self.members.values():
            if known.identity == member.identity and known.name == member.name:
                if (known.address, known.declared) == (member.address, member.declared):
                    raise StudyError(f'"{member.name}" is in the roster already')
                # a site that moved leaves the roster as it is; one that declares another size changes it
                base = self._next() if signed and known.declared != member.declared else self
                return replace(base, members={**self.members, member.name: member})
            if known.identity == member.identity:
                raise StudyError(f'the key of "{member.name}" is in the roster already, as "{known.name}"')
            if _alike(known.name) == _alike(member.name):
                raise StudyError(
                    f'there is a "{known.name}" with another key ({known.fingerprint}) in the roster; '
                    f"names must be distinct, and a site keeps its key"
                )
        expected = self.waiting.get(member.name)
        if expected is not None and expected != member.identity.hex():
            raise StudyError(
                f'"{member.name}" was a member with another key than the one in this peer.toml ({member.fingerprint});'
                " ask for the file that its own `confrere roster upgrade` wrote"
            )
        members = dict(sorted({**self.members, member.name: member}.items()))
        waiting = {name: key for name, key in self.waiting.items() if name != member.name}
        return replace(self._next() if signed else self, members=members, waiting=waiting)

    def without_member(self, name: str, *, signed: bool) -> Roster:
        """The next epoch, without a member that left or was lost for good; in a draft, the member is simply removed."""
        if name in self.waiting:
            departed = {**self.departed, self.waiting[name]: name}
            return replace(
                self, departed=departed, waiting={n: k for n, k in self.waiting.items() if n != name}
            )
        if name not in self.members:
            raise StudyError(
                f'"{name}" is not in the roster; it has: {", ".join(self.members) or "no members"}'
            )
        members = {n: m for n, m in self.members.items() if n != name}
        if not signed:
            return replace(self, members=members)
        departed = {**self.departed, self.members[name].identity.hex(): name}
        return replace(self._next(), members=members, departed=departed)

    def unreachable(self) -> list[tuple[str, str]]:
        """Pairs that cannot connect, since neither can be dialled."""
        hidden = [name for name, member in sorted(self.members.items()) if member.address is None]
        return list(combinations(hidden, 2))

    def to_toml(self) -> str:
        table: dict[str, Any] = {"epoch": self.epoch}
        if self.previous:
            table["previous"] = self.previous
        if self.departed:
            table["departed"] = dict(sorted(self.departed.items()))
        if self.waiting:
            table["waiting"] = dict(sorted(self.waiting.items()))
        return tomli_w.dumps({**table, "members": [m.as_table() for m in self.members.values()]})

    def _next(self) -> Roster:
        return replace(self, epoch=self.epoch + 1, previous=self.hash)


@dataclass(frozen=True)
class Signature:
    """One member's signature: that it agrees to this study with these members, or that it leaves."""

    site: str
    kind: str
    """member or leaves."""
    study: str
    roster: str
    signature: str

    def genuine(self, key: Ed25519PublicKey) -> bool:
        try:
            key.verify(bytes.fromhex(self.signature), _signed(self.kind, self.site, self.study, self.roster))
        except (InvalidSignature, ValueError):
            return False
        return True

    def to_toml(self) -> str:
        return tomli_w.dumps({key: str(value) for key, value in self.__dict__.items()})


def sign(roster: Roster, study: str, identity: Identity) -> Signature:
    """A member agrees to take part in this study with these members."""
    _own_key(roster, identity)
    if roster.waiting:
        names = ", ".join(f'"{name}"' for name in sorted(roster.waiting))
        raise StudyError(
            f"the roster is being upgraded from version 0.1 and waits for the new peer.toml of {names}; add it with"
            " `confrere roster add` before you sign"
        )
    stated, own = roster.members[identity.name].declared, identity.member.declared
    if stated != own:
        raise StudyError(
            f'the roster states that "{identity.name}" declares {stated:,}, and its own peer.toml states {own:,};'
            " add the newer peer.toml with `confrere roster add` before you sign"
        )
    return _sign("member", roster, study, identity.name, identity.key)


def leave(roster: Roster, identity: Identity) -> Signature:
    """A member leaves for good, in every study."""
    _own_key(roster, identity)
    return _sign("leaves", roster, "", identity.name, identity.key)


def after_leaving(roster: Roster, record: Signature) -> Roster:
    """The roster of the next epoch, given the signature of the member that leaves."""
    member = roster.members.get(record.site)
    if record.kind != "leaves" or member is None or not record.genuine(member.key):
        raise StudyError(f'no valid notice that "{record.site[:80]}" leaves')
    if record.roster not in (roster.hash, roster.previous):
        raise StudyError(f'the notice that "{record.site}" leaves is about another roster')
    return roster.without_member(record.site, signed=True)


def missing(roster: Roster, study: str, signatures: Iterable[Signature]) -> dict[str, str]:
    """Whose signature there is not, and why; empty if every member has signed this study and this roster."""
    found = [s for s in signatures if s.kind == "member"]
    out = dict.fromkeys(sorted(roster.waiting), "has not sent its new peer.toml (`confrere roster upgrade`)")
    for name, member in sorted(roster.members.items()):
        theirs = [s for s in found if s.site == name and s.genuine(member.key)]
        if any((s.study, s.roster) == (study, roster.hash) for s in theirs):
            continue
        if any(s.roster == roster.hash for s in theirs):
            out[name] = "signed another study"
        elif any(s.study == study for s in theirs):
            out[name] = "signed another roster"
        elif any(s.site == name for s in found):
            out[name] = "its signature is not valid" if not theirs else "signed another study and roster"
        else:
            out[name] = "has not signed"
    return out


def load_roster(path: Path) -> Roster:
    """A roster from its file."""
    table = read_toml_file(
        path, "a roster is made with `confrere roster add PEER.toml`", largest=LARGEST_FILE
    )
    entries, departed = table.pop("members", []), table.pop("departed", {})
    epoch, previous, waiting = table.pop("epoch", 0), table.pop("previous", ""), table.pop("waiting", {})
    if table:
        raise StudyError(f'{path}: "{next(iter(table))}" is not a key of a roster')
    if type(epoch) is not int or epoch < 0 or not isinstance(previous, str):
        raise StudyError(f"{path}: epoch is a number, previous a hash, departed a table")
    if not isinstance(departed, dict) or not isinstance(waiting, dict):
        raise StudyError(f"{path}: departed and waiting are tables")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise StudyError(f"{path}: members are written as [[members]]")
    roster = Roster({}, epoch, previous, {str(k): str(v) for k, v in departed.items()})
    for number, entry in enumerate(entries, 1):
        roster = roster.with_member(parse_member(entry, f"{path}: member {number}"), signed=False)
    return replace(roster, waiting={str(k): str(v) for k, v in waiting.items()})


def load_signed(path: Path, study: str) -> Roster:
    """The roster of a study, if every member has signed both; what a node starts with."""
    roster = load_roster(path)
    absent = missing(roster, study, load_signatures(path))
    if absent:
        names = ", ".join(f'"{name}" {reason}' for name, reason in absent.items())
        raise StudyError(
            f"{path} does not count yet: {names}. Each member signs with `confrere roster sign` and sends the file"
            f" to the others, who put it into {path.parent / SIGNATURES}"
        )
    return roster


def load_signatures(roster: Path) -> list[Signature]:
    """The signatures in the folder beside a roster; a file that is none is an error."""
    folder = roster.parent / SIGNATURES
    return [load_signature(path) for path in sorted(folder.glob("*.toml"))] if folder.is_dir() else []


def load_signature(path: Path) -> Signature:
    table = read_toml_file(path, "signatures are made with `confrere roster sign`", largest=LARGEST_FILE)
    if set(table) != {"site", "kind", "study", "roster", "signature"}:
        raise StudyError(f"{path}: not a signature of a roster")
    return Signature(**{key: str(value) for key, value in table.items()})


def is_signature(path: Path) -> bool:
    return "signature" in read_toml_file(path, "", largest=LARGEST_FILE)


def save(roster: Roster, path: Path) -> None:
    """Whole or not at all."""
    draft = path.with_name(path.name + ".new")
    draft.write_text(roster.to_toml(), encoding="utf-8")
    os.replace(draft, path)


def keep_signature(signature: Signature, roster: Path) -> Path:
    """Put a signature beside its roster; returns the file to send to the others."""
    folder = roster.parent / SIGNATURES
    folder.mkdir(parents=True, exist_ok=True)
    about = hashlib.sha256(f"{signature.kind} {signature.study} {signature.roster}".encode()).hexdigest()[:8]
    safe = "".join(c if c.isalnum() or c in "-_" else "_" for c in signature.site)[:60]
    path = folder / f"{safe}-{fingerprint(signature.site.encode())[:4]}-{about}.toml"
    path.write_text(signature.to_toml(), encoding="utf-8")
    return path


def _sign(kind: str, roster: Roster, study: str, site: str, key: Ed25519PrivateKey) -> Signature:
    return Signature(site, kind, study, roster.hash, key.sign(_signed(kind, site, study, roster.hash)).hex())


def _signed(kind: str, site: str, study: str, roster: str) -> bytes:
    return b"confrere membership 1\n" + canonical([kind, site, study, roster])


def _own_key(roster: Roster, identity: Identity) -> None:
    member = roster.members.get(identity.name)
    if member is None or member.identity != identity.member.identity:
        raise StudyError(
            f'"{identity.name}" is not in the roster with this key ({identity.member.fingerprint}); '
            "add its own peer.toml as well"
        )


def _alike(name: str) -> str:
    return unicodedata.normalize("NFKC", name).casefold()


def canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
