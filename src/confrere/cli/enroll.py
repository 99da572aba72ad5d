"""`confrere enroll`: a site's keys, once, and a fresh certificate whenever it is time."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Annotated

import typer

from confrere.cli.output import console, print_json
from confrere.core.errors import StudyError
from confrere.transport import identity as identities
from confrere.transport.identity import Identity


def enroll(
    site: Annotated[str | None, typer.Option("--site", metavar="NAME", help="The name of this site.")] = None,
    address: Annotated[
        str | None, typer.Option("--address", metavar="HOST:PORT", help="Where peers can dial this site.")
    ] = None,
    outgoing_only: Annotated[
        bool, typer.Option("--outgoing-only", help="Nobody can dial this site; it dials its peers.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="DIR", help="Where the keys are written.")
    ] = None,
    renew: Annotated[
        Path | None, typer.Option("--renew", metavar="DIR", help="Make a new certificate for these keys.")
    ] = None,
    days: Annotated[int, typer.Option(help="How long the certificate is valid.")] = 365,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Make this site's identity and certificate, and the peer.toml that others may have.

    Example: `confrere enroll --site st-mary --address node.st-mary.example:7443 -o keys`
    """
    if not 1 <= days <= 3650:
        raise StudyError(f"--days is {days}; a certificate is valid for 1 to 3650 days")
    valid = dt.timedelta(days=days)
    if renew is not None:
        if site or address or outgoing_only or out:
            raise StudyError("--renew takes the folder alone: name and identity stay as they are")
        made = identities.renew(renew, valid=valid)
        folder, lines = renew, ["Peers need not do anything; a running node takes it up by itself."]
    else:
        if site is None or out is None:
            raise StudyError("enroll needs --site NAME and -o DIR (or --renew DIR)")
        if (address is None) != outgoing_only:
            raise StudyError("say where peers can dial this site, --address HOST:PORT, or --outgoing-only")
        made = identities.enroll(site, address, out, valid=valid)
        folder = out
        lines = [
            f"Give {out / identities.PEER} to the other sites, and read them this fingerprint by telephone:",
            f"  {made.member.fingerprint}",
            f"Keep a copy of {out / identities.IDENTITY} in a safe place, and show it to nobody.",
        ]
    if as_json:
        print_json(_facts(made, folder))
        return
    what = "Renewed the certificate of" if renew is not None else "Enrolled"
    console.print(
        f'{what} "{made.name}" in {folder}; it is valid until {made.expires:%Y-%m-%d}.', markup=False
    )
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)


def _facts(made: Identity, folder: Path) -> dict[str, str | None]:
    return {
        "site": made.name,
        "fingerprint": made.member.fingerprint,
        "identity": made.member.identity.hex(),
        "address": made.member.address,
        "expires": made.expires.isoformat(),
        "peer": str(folder / identities.PEER),
    }
