"""`confrere roster`: manage the members of a study and their signatures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from confrere.cli.options import AsJson, StudyFile
from confrere.cli.output import console, print_json

if TYPE_CHECKING:
    from confrere.node.roster import Roster

app = typer.Typer(
    no_args_is_help=True,
    help="Who takes part: add, show, sign, verify, remove, leave, upgrade.\n\n"
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
        str,
        typer.Option(help="The fingerprint that the other site read out to you; a different one is refused."),
    ] = "",
    roster: RosterFile = HERE,
) -> None:
    """Add a site, its signature, or its signed statement that it leaves.

    Example: `confrere roster add st-mary/peer.toml --fingerprint "4f1c 09aa 77e0 …"`
    """
    from confrere.node.roster_file import add_to_roster

    added = add_to_roster(file, roster, fingerprint=fingerprint)
    if added.signature is not None:
        site, study = added.signature.site, added.signature.study[:16]
        if added.signature.kind == "leaves":
            _print(f'"{site}" has left for good. All remaining members sign epoch {added.roster.epoch}.')
        else:
            _print(f'"{site}" signed study {study}.')
        return
    assert added.member is not None
    after, member = added.roster, added.member
    _print(
        f'Added "{member.name}" to {roster}, which has {_members(after)} (epoch {after.epoch}). It declares {member.declared:,}.'
    )
    if added.new_epoch:
        _print("The roster was signed before: this is a new one, which all members sign again.")
    if not fingerprint:
        _print(f"Compare its fingerprint by telephone before you sign: {member.fingerprint}")
    _warn_unreachable(after)


@app.command("show")
def show(roster: RosterFile = HERE, as_json: AsJson = False) -> None:
    """Show the members, their fingerprints, and who has signed what.

    Example: `confrere roster show`
    """
    from confrere.node.roster_file import load_roster, signed_studies

    found, studies = load_roster(roster), signed_studies(roster)
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
    for name in found.waiting:
        _print(f'Waiting for the new peer.toml of "{name}".')
    _warn_unreachable(found)


@app.command("sign")
def sign(study: StudyFile, keys: Keys, roster: RosterFile = HERE) -> None:
    """Sign the study together with the roster, in the name of this site.

    Example: `confrere roster sign study.toml --keys keys`
    """
    from confrere.node import roster as rosters
    from confrere.node.roster_file import load_roster, sign_roster

    path = sign_roster(study, keys, roster)
    signature, found = rosters.load_signature(path), load_roster(roster)
    _print(f'"{signature.site}" signed study {signature.study[:16]} with {_members(found)}.')
    _print(f"Send {path} to the others; they take it in with `confrere roster add`.")
    _warn_unreachable(found)


@app.command("verify")
def verify(study: StudyFile, roster: RosterFile = HERE, as_json: AsJson = False) -> None:
    """Check that every member has signed this study and this roster; exit code 2 if not.

    Example: `confrere roster verify study.toml`
    """
    from confrere.node.roster_file import verify_roster
    from confrere.study import load

    digest, found = load(study).digest(), verify_roster(study, roster)
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
    """Remove a member that is permanently lost; all others sign the roster of the new epoch.

    Example: `confrere roster remove st-mary`
    """
    from confrere.node.roster_file import load_roster, remove_from_roster

    before, after = load_roster(roster), remove_from_roster(name, roster)
    _print(f'Took "{name}" out of {roster}, which has {_members(after)} (epoch {after.epoch}).')
    if after.epoch > before.epoch:
        _print("Its key can never be a member again. All remaining members sign this roster.")


@app.command("leave")
def leave(keys: Keys, roster: RosterFile = HERE) -> None:
    """Sign that this site leaves permanently; the others add the file with `roster add`.

    Example: `confrere roster leave --keys keys`
    """
    from confrere.node.roster_file import leave_roster

    path = leave_roster(keys, roster)
    _print(f"Send {path} to the others. Leaving is final: this key can never be a member again.")


@app.command("upgrade")
def upgrade(
    keys: Keys,
    declared: Annotated[
        int | None,
        typer.Option(
            "--declared",
            metavar="N",
            help="About how many records this site's whole file holds (patients, where studies protect patients). Public.",
        ),
    ] = None,
    study: Annotated[
        Path | None,
        typer.Option("--study", metavar="STUDY.toml", help="Take the sizes that this study states."),
    ] = None,
    roster: RosterFile = HERE,
) -> None:
    """Upgrade a roster of version 0.1: the same members and keys, with the size that this site states.

    Example: `confrere roster upgrade --keys keys --declared 2300`
    """
    from confrere.node.roster_upgrade import upgrade_roster

    found = upgrade_roster(keys, roster, declared=declared, study=study)
    _print(f"Upgraded {roster} to epoch {found.epoch}, with the same members and keys.")
    _print(f"Give {keys / 'peer.toml'} to the other sites; they take it in with `confrere roster add`.")
    for name in sorted(found.waiting):
        _print(f'Waiting for the new peer.toml of "{name}": add it with `confrere roster add`.')
    if not found.waiting:
        _print(
            "Every member has stated its size. All members sign: `confrere roster sign STUDY.toml --keys DIR`."
        )


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
        "waiting": sorted(roster.waiting),
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
