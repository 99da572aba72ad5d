"""`confrere enroll`: create a site's keys and certificate, and renew the certificate."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from confrere.cli.options import AsJson
from confrere.cli.output import console, print_json
from confrere.core.errors import StudyError

if TYPE_CHECKING:
    from confrere.transport.grpc.identity import Identity


def enroll(
    site: Annotated[str | None, typer.Option("--site", metavar="NAME", help="The name of this site.")] = None,
    address: Annotated[
        str | None, typer.Option("--address", metavar="HOST:PORT", help="Where peers can dial this site.")
    ] = None,
    outgoing_only: Annotated[
        bool, typer.Option("--outgoing-only", help="Peers cannot dial this site; it dials them.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="DIR", help="Where the keys are written.")
    ] = None,
    declared: Annotated[
        int | None,
        typer.Option(
            "--declared",
            metavar="N",
            help="About how many records the site's whole file holds (patients, where studies protect patients)."
            " Public; never counted from the file.",
        ),
    ] = None,
    renew: Annotated[
        Path | None, typer.Option("--renew", metavar="DIR", help="Make a new certificate for these keys.")
    ] = None,
    days: Annotated[int, typer.Option(help="How long the certificate is valid.")] = 365,
    as_json: AsJson = False,
) -> None:
    """Make this site's identity and certificate, and the peer.toml to give to the other sites.

    Example: `confrere enroll --site st-mary --address node.st-mary.example:7443 --declared 2300 -o keys`
    """
    if not 1 <= days <= 3650:
        raise StudyError(f"--days is {days}; a certificate is valid for 1 to 3650 days")
    valid = dt.timedelta(days=days)
    if renew is not None:
        if site or address or outgoing_only or out:
            raise StudyError(
                "--renew goes with --declared and --days only: name and identity stay as they are"
            )
        made, folder, lines = _renew(renew, declared, valid)
    else:
        if site is None or out is None:
            raise StudyError("enroll needs --site NAME and -o DIR (or --renew DIR)")
        if (address is None) != outgoing_only:
            raise StudyError("state where peers can dial this site, --address HOST:PORT, or --outgoing-only")
        if declared is None:
            raise StudyError(
                "enroll needs --declared N: about how many records (patients, where studies protect patients) the"
                " site's whole file holds; this number is public"
            )
        made, folder, lines = _enroll(site, address, out, declared, valid)
    if as_json:
        print_json(_facts(made, folder))
        return
    what = "Renewed the certificate of" if renew is not None else "Enrolled"
    console.print(
        f'{what} "{made.name}" in {folder}; it is valid until {made.expires:%Y-%m-%d}.', markup=False
    )
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)


def _renew(folder: Path, declared: int | None, valid: dt.timedelta) -> tuple[Identity, Path, list[str]]:
    from confrere.transport.grpc import identity as identities

    made = identities.renew(folder, declared=declared, valid=valid)
    if declared is None:
        return made, folder, ["Peers need not do anything; a running node takes it up by itself."]
    more = (
        f"It now declares {declared:,}. Give {folder / identities.PEER} to all sites: each adds it with"
        " `confrere roster add`, and all members sign the roster again."
    )
    return made, folder, [more]


def _enroll(
    site: str, address: str | None, folder: Path, declared: int, valid: dt.timedelta
) -> tuple[Identity, Path, list[str]]:
    from confrere.transport.grpc import identity as identities

    made = identities.enroll(site, address, folder, declared=declared, valid=valid)
    lines = [
        f"Give {folder / identities.PEER} to the other sites, and read them this fingerprint by telephone:",
        f"  {made.member.fingerprint}",
        f"Keep a copy of {folder / identities.IDENTITY} in a safe place, and never share it.",
    ]
    return made, folder, lines


def _facts(made: Identity, folder: Path) -> dict[str, str | int | None]:
    from confrere.transport.grpc.identity import PEER

    return {
        "site": made.name,
        "declared": made.member.declared,
        "fingerprint": made.member.fingerprint,
        "identity": made.member.identity.hex(),
        "address": made.member.address,
        "expires": made.expires.isoformat(),
        "peer": str(folder / PEER),
    }
