"""`confrere roster`: manage the members of a study and their signatures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from confrere.cli.options import AsJson, StudyFile
from confrere.cli.output import console, print_json
from confrere.core.errors import StudyError

if TYPE_CHECKING:
    from confrere.node.roster import Roster

app = typer.Typer(
    no_args_is_help=True,
    help="Who takes part: add, show, sign, verify, remove, leave.\n\n"
    "Example: `confrere roster add st-mary/peer.toml`, then `confrere roster sign study.toml --keys keys`",
)

RosterFile = Annotated[Path, typer.Option("--roster", metavar="ROSTER.toml", help="The roster.")]
Keys = Annotated[Path, typer.Option("--keys", metavar="DIR", help="The folder that `enroll` wrote.")]
HERE = Path("roster.toml")


@app.command("add")
def add(
    file: Annotated[
        Path, typer.Argument(metavar="FILE.toml", help="A peer.toml, or a signature that another site sent.")
    ],
    fingerprint: Annotated[
        str, typer.Option(help="As the other site read it out; refused if it is another.")
    ] = "",
    roster: RosterFile = HERE,
) -> None:
    """Add a site, its signature, or its signed statement that it leaves.

    Example: `confrere roster add st-mary/peer.toml --fingerprint "4f1c 09aa 77e0 …"`
    """
    from confrere.node import roster as rosters
    from confrere.transport.grpc.member import read_member

    if rosters.is_signature(file):
        _add_signature(file, roster)
        return
    member = read_member(file)
    told = "".join(fingerprint.split()).lower()
    if told and told != member.fingerprint.replace(" ", ""):
        raise StudyError(
            f'the key in {file} has the fingerprint {member.fingerprint}, not the one you gave: do not add "{member.name}"'
            " before you know why"
        )
    before = rosters.load_roster(roster) if roster.exists() else rosters.Roster()
    after = before.with_member(member, signed=_is_signed(before, roster))
    rosters.save(after, roster)
    _print(
        f'Added "{member.name}" to {roster}, which has {_members(after)} (epoch {after.epoch}). It declares {member.declared:,}.'
    )
    if after.epoch > before.epoch:
        _print("The roster was signed before: this is a new one, which all members sign again.")
    if not told:
        _print(f"Compare its fingerprint by telephone before you sign: {member.fingerprint}")
    _warn_unreachable(after)


@app.command("show")
def show(roster: RosterFile = HERE, as_json: AsJson = False) -> None:
    """Show the members, their fingerprints, and who has signed what.

    Example: `confrere roster show`
    """
    from confrere.node import roster as rosters

    found = rosters.load_roster(roster)
    signed = [
        s
        for s in rosters.load_signatures(roster)
        if s.kind == "member" and s.roster == found.hash and s.site in found.members
        and s.genuine(found.members[s.site].key)
    ]  # fmt: skip
    studies = {name: sorted({s.study for s in signed if s.site == name}) for name in found.members}
    if as_json:
        print_json(_facts(found, studies))
        return
    table = Table(box=None, pad_edge=False, title=f"{roster}: epoch {found.epoch}", title_justify="left")
    for heading in ("site", "address", "declares", "fingerprint", "signed studies"):
        table.add_column(heading)
    for name, member in found.members.items():
        signatures = ", ".join(study[:16] for study in studies[name])
        table.add_row(
            name, member.address or "dials out only", f"{member.declared:,}", member.fingerprint, signatures or "–"
        )  # fmt: skip
    console.print(table)
    _print(f"Hash of the roster: {found.hash}")
    for name in found.departed.values():
        _print(f'"{name}" has left for good.')
    _warn_unreachable(found)


@app.command("sign")
def sign(study: StudyFile, keys: Keys, roster: RosterFile = HERE) -> None:
    """Sign the study together with the roster, in the name of this site.

    Example: `confrere roster sign study.toml --keys keys`
    """
    from confrere.node import roster as rosters
    from confrere.study import load
    from confrere.transport.grpc.identity import load_identity

    found = rosters.load_roster(roster)
    signature = rosters.sign(found, load(study).digest(), load_identity(keys))
    path = rosters.keep_signature(signature, roster)
    _print(f'"{signature.site}" signed study {signature.study[:16]} with {_members(found)}.')
    _print(f"Send {path} to the others; they take it in with `confrere roster add`.")
    _warn_unreachable(found)


@app.command("verify")
def verify(study: StudyFile, roster: RosterFile = HERE, as_json: AsJson = False) -> None:
    """Check that every member has signed this study and this roster; exit code 2 if not.

    Example: `confrere roster verify study.toml`
    """
    from confrere.node import roster as rosters
    from confrere.study import load

    digest = load(study).digest()
    found = rosters.load_signed(roster, digest)
    if as_json:
        print_json(
            {"study": digest, "roster": found.hash, "epoch": found.epoch, "members": list(found.members)}
        )
        return
    _print(f"All {len(found.members)} members have signed study {digest[:16]} and roster {found.hash[:16]}.")
    _warn_unreachable(found)


@app.command("remove")
def remove(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The member that is lost.")],
    roster: RosterFile = HERE,
) -> None:
    """Take out a member that is lost for good; all others sign the roster of the new epoch.

    Example: `confrere roster remove st-mary`
    """
    from confrere.node import roster as rosters

    before = rosters.load_roster(roster)
    after = before.without_member(name, signed=_is_signed(before, roster))
    rosters.save(after, roster)
    _print(f'Took "{name}" out of {roster}, which has {_members(after)} (epoch {after.epoch}).')
    if after.epoch > before.epoch:
        _print("Its key can never be a member again. All remaining members sign this roster.")


@app.command("leave")
def leave(keys: Keys, roster: RosterFile = HERE) -> None:
    """Sign that this site leaves, for good; the others take the file in with `roster add`.

    Example: `confrere roster leave --keys keys`
    """
    from confrere.node import roster as rosters
    from confrere.transport.grpc.identity import load_identity

    found = rosters.load_roster(roster)
    path = rosters.keep_signature(rosters.leave(found, load_identity(keys)), roster)
    _print(f"Send {path} to the others. Leaving is final: this key can never be a member again.")


def _add_signature(file: Path, roster: Path) -> None:
    from confrere.node import roster as rosters

    signature, found = rosters.load_signature(file), rosters.load_roster(roster)
    if signature.kind == "leaves":
        after = rosters.after_leaving(found, signature)
        rosters.save(after, roster)
        _print(f'"{signature.site}" has left for good. All remaining members sign epoch {after.epoch}.')
        return
    member = found.members.get(signature.site)
    if member is None or signature.roster != found.hash or not signature.genuine(member.key):
        raise StudyError(
            f'{file} is no valid signature of a member of this roster; "{signature.site[:80]}" may have another one:'
            " compare `confrere roster show` at both sites"
        )
    rosters.keep_signature(signature, roster)
    _print(f'"{signature.site}" signed study {signature.study[:16]}.')


def _is_signed(roster: Roster, path: Path) -> bool:
    """Whether any member has signed exactly this roster, so that a change needs a new epoch."""
    from confrere.node import roster as rosters

    return any(
        s.kind == "member" and s.roster == roster.hash and s.site in roster.members
        and s.genuine(roster.members[s.site].key)
        for s in rosters.load_signatures(path)
    )  # fmt: skip


def _facts(roster: Roster, studies: dict[str, list[str]]) -> dict[str, Any]:
    return {
        "epoch": roster.epoch,
        "hash": roster.hash,
        "members": {
            name: {
                "address": m.address,
                "declared": m.declared,
                "fingerprint": m.fingerprint,
                "signed": studies[name],
            }
            for name, m in roster.members.items()
        },
        "departed": sorted(roster.departed.values()),
        "unreachable": [list(two) for two in roster.unreachable()],
    }


def _warn_unreachable(roster: Roster) -> None:
    for one, other in roster.unreachable():
        _print(
            f'Note: "{one}" and "{other}" can both only dial out: they would need a relay, which does not exist yet.'
        )


def _members(roster: Roster) -> str:
    return f"{len(roster.members)} member{'s' if len(roster.members) != 1 else ''}"


def _print(text: str) -> None:
    console.print(text, markup=False, soft_wrap=True)
