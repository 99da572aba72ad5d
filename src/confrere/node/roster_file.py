"""Change the file of a roster and the signatures next to it: what `confrere roster` does."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from confrere.core.errors import StudyError
from confrere.node import roster as rosters
from confrere.node.roster import Roster, Signature
from confrere.study import load
from confrere.transport.grpc.identity import load_identity
from confrere.transport.grpc.member import Member, read_member


@dataclass(frozen=True)
class Added:
    """A roster after `add_to_roster`, and what was added."""

    roster: Roster
    member: Member | None = None
    signature: Signature | None = None
    new_epoch: bool = False
    """Whether it had been signed before, so that all members have to sign it again."""


def add_to_roster(file: str | Path, roster: str | Path = "roster.toml", *, fingerprint: str = "") -> Added:
    """Add a site (its peer.toml), its signature, or its signed statement that it leaves.

    With `fingerprint`, as the other site read it out, a key with another one is refused.

    >>> confrere.enroll("south", place / "south", declared=900, address="south.example:7443").name
    'south'
    >>> confrere.add_to_roster(place / "south" / "peer.toml", place / "another-roster.toml").member.declared
    900
    """
    file, path = Path(file), Path(roster)
    if rosters.is_signature(file):
        return _add_signature(file, path)
    member = read_member(file)
    stated = "".join(fingerprint.split()).lower()
    if stated and stated != member.fingerprint.replace(" ", ""):
        raise StudyError(
            f'the key in {file} has the fingerprint {member.fingerprint}, not the one you gave: do not add "{member.name}"'
            " before you know why"
        )
    before = rosters.load_roster(path) if path.exists() else Roster()
    after = before.with_member(member, signed=is_signed(before, path))
    rosters.save(after, path)
    return Added(after, member=member, new_epoch=after.epoch > before.epoch)


def _add_signature(file: Path, path: Path) -> Added:
    signature, found = rosters.load_signature(file), rosters.load_roster(path)
    if signature.kind == "leaves":
        after = rosters.after_leaving(found, signature)
        rosters.save(after, path)
        return Added(after, signature=signature, new_epoch=True)
    member = found.members.get(signature.site)
    if member is None or signature.roster != found.hash or not signature.genuine(member.key):
        raise StudyError(
            f'{file} is not a valid signature of a member of this roster; "{signature.site[:80]}" may have another one:'
            " compare `confrere roster show` at both sites"
        )
    rosters.keep_signature(signature, path)
    return Added(found, signature=signature)


def load_roster(roster: str | Path = "roster.toml") -> Roster:
    """The members of a roster's file.

    >>> {name: member.declared for name, member in confrere.load_roster(roster).members.items()}
    {'north': 2300}
    """
    return rosters.load_roster(Path(roster))


def signed_studies(roster: str | Path = "roster.toml") -> dict[str, list[str]]:
    """By member, the hashes of the studies that it has signed together with this roster.

    >>> list(confrere.signed_studies(roster))
    ['north']
    """
    found = rosters.load_roster(Path(roster))
    signed = [s for s in rosters.load_signatures(Path(roster)) if _counts(s, found)]
    return {name: sorted({s.study for s in signed if s.site == name}) for name in found.members}


def sign_roster(study: str | Path, keys: str | Path, roster: str | Path = "roster.toml") -> Path:
    """Sign a study together with the roster, in the name of the site with these keys; the file is for the other sites.

    >>> confrere.sign_roster(study_file, keys, roster).parent.name
    'signatures'
    """
    found = rosters.load_roster(Path(roster))
    signature = rosters.sign(found, load(study).digest(), load_identity(Path(keys)))
    return rosters.keep_signature(signature, Path(roster))


def verify_roster(study: str | Path, roster: str | Path = "roster.toml") -> Roster:
    """The roster, if every member has signed it together with this study; otherwise an error that names the others.

    >>> _ = confrere.sign_roster(study_file, keys, roster)
    >>> list(confrere.verify_roster(study_file, roster).members)
    ['north']
    """
    return rosters.load_signed(Path(roster), load(study).digest())


def remove_from_roster(name: str, roster: str | Path = "roster.toml") -> Roster:
    """Take out a member that is lost for good; if the roster was signed, all others sign the next epoch.

    >>> other = place / "third-roster.toml"
    >>> _ = confrere.add_to_roster(keys / "peer.toml", other)
    >>> confrere.remove_from_roster("north", other).members
    {}
    """
    before = rosters.load_roster(Path(roster))
    after = before.without_member(name, signed=is_signed(before, Path(roster)))
    rosters.save(after, Path(roster))
    return after


def leave_roster(keys: str | Path, roster: str | Path = "roster.toml") -> Path:
    """Sign that the site with these keys leaves, for good; the others add the file to their rosters.

    >>> confrere.leave_roster(keys, roster).suffix
    '.toml'
    """
    found = rosters.load_roster(Path(roster))
    return rosters.keep_signature(rosters.leave(found, load_identity(Path(keys))), Path(roster))


def is_signed(roster: Roster, path: Path) -> bool:
    """Whether any member has signed exactly this roster, so that a change needs a new epoch."""
    return any(_counts(s, roster) for s in rosters.load_signatures(path))


def _counts(signature: Signature, roster: Roster) -> bool:
    member = roster.members.get(signature.site)
    return (
        signature.kind == "member"
        and signature.roster == roster.hash
        and member is not None
        and signature.genuine(member.key)
    )
