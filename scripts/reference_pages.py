"""Build the generated pages of the documentation site (a MkDocs hook, see mkdocs.yml).

Everything in them is read from the code when the site is built: the keys of study.toml, site.toml and the schema from
their dataclasses, commands and options from Typer, the Python API from `confrere.api.__all__`. Nothing generated is
kept in the repository. Pages of the repository's root (CHANGELOG.md, CONTRIBUTING.md) and the studies become part of
the site, and links to them are redirected. A nav entry that ends with "/" stands for all pages of that folder.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import posixpath
import re
import textwrap
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

ROOT = Path(__file__).parents[1]
ROOT_PAGES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "README.md": "index.md"}
LINK = re.compile(r"(\]\()([^)#\s:]+)((?:#[^)\s]*)?\))")
FETCHED = re.compile(r'<(?:script|link|img|iframe)\b[^>]*?\b(?:src|href)="((?:https?:)?//[^"]+)')
WORDS = {
    bool: "true or false",
    int: "whole number",
    float: "number",
    str: "text",
    type(None): "",
    Any: "anything",
}


def descriptions(kind: type) -> dict[str, str]:
    """What each field of a dataclass does: the string literal beneath it."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0].body  # type: ignore[attr-defined]
    return {
        field.target.id: " ".join(below.value.value.split())
        for field, below in pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(below, ast.Expr)
        and isinstance(below.value, ast.Constant)
        and isinstance(below.value.value, str)
    }


def part_of(hint: Any) -> type | None:
    """The dataclass in a type, if there is one: a table of its own in the TOML."""
    inside = (hint, *typing.get_args(hint))
    return next((h for h in inside if dataclasses.is_dataclass(h) and isinstance(h, type)), None)


def words(hint: Any) -> str:
    """A type as a person would say it."""
    from confrere.core.strict_reader import Named

    args = typing.get_args(hint)
    if hint == Named or hint == Named | None:
        return "name, or table with `name` and options"
    if typing.get_origin(hint) is Literal:
        return " or ".join(f"`{a!r}`".replace("'", '"') for a in args)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(filter(None, map(words, args))))
    if typing.get_origin(hint) in (list, tuple):
        return "list of " + " and ".join(dict.fromkeys(words(a) for a in args if a is not ...))
    if typing.get_origin(hint) is dict:
        return "table"
    return "table" if part_of(hint) else WORDS.get(hint, "text")


def default(field: dataclasses.Field[Any]) -> str:
    """The default of a field as TOML would write it."""
    value = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    if value is dataclasses.MISSING:
        return "required"
    if value is None or value in ((), {}, [], "") or dataclasses.is_dataclass(value):
        return "–"
    return f"`{toml(value)}`"


def toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml, value))}]"
    return str(value)


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *(tuple(c.replace("|", "\\|") for c in row) for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def keys(kind: type, path: str = "", apart: Mapping[type, str] | None = None) -> Iterator[str]:
    """A heading and a table for a dataclass, then for each dataclass inside it; those in `apart` are linked."""
    apart = apart or {}
    hints, said = typing.get_type_hints(kind), descriptions(kind)
    rows, inner = [], []
    for field in dataclasses.fields(kind):
        hint, key = hints[field.name], f"{path}.{field.name}".lstrip(".")
        part, kept = part_of(hint), said.get(field.name, "")
        if part in apart:
            kept += f" See [the keys]({apart[part]})."
        elif part is not None:
            mapped = typing.get_origin(hint) in (dict, tuple)
            inner.append((part, key + ".NAME" if mapped else key))
            kept += f" See [below](#{slug(inner[-1][1])})."
        rows.append((f"`{field.name}`", kept, words(hint), default(field)))
    yield f"## {f'`[{path}]`' if path else 'Top level'} {{ #{slug(path)} }}\n"
    yield prose(inspect.getdoc(kind) or "")
    yield table(("key", "what it does", "value", "default"), rows)
    for part, key in inner:
        yield from keys(part, key, apart)


def slug(path: str) -> str:
    return path.replace(".", "-").lower() or "top-level"


def prose(text: str) -> str:
    """A docstring as Markdown: paragraphs as they are, blocks of TOML as code, doctests left out."""
    out = []
    for block in text.split("\n\n"):
        if ">>>" not in block:
            is_toml = block.lstrip().startswith("[") or " = " in block.split("\n")[0]
            out.append(f"```toml\n{textwrap.dedent(block)}\n```" if is_toml else block)
    return "\n\n".join(out) + "\n"


def study_page() -> str:
    from confrere.study import SiteConfig, Study

    head = (
        "# Keys of study.toml\n\nEverything that the sites agree on. An unknown key or a value of the wrong type is an"
        " error that names the nearest known key. `--set a.b=value` changes a key on the command line. Keys that take a"
        " name (`strategy`, `topology` …) are listed with their options on [Named options](options.md).\n"
    )
    apart = {SiteConfig: "site.md"}
    schema = "\n`[schema]` has [a page of its own](schema.md).\n"
    return "\n".join([head, *keys(Study, apart=apart), schema])


def site_page() -> str:
    from confrere.study import SiteConfig

    head = (
        "# Keys of site.toml\n\nWhat a site keeps to itself. A node reads it from `site.toml`; a rehearsal reads the same"
        " keys from `[sites.NAME]` of the study, or from the file named by `config`.\n"
    )
    return "\n".join([head, *keys(SiteConfig)])


def schema_page() -> str:
    from confrere.data.schema import Schema

    head = (
        "# Keys of the schema\n\n`[schema]` of a study, or a file of its own. [Prepare records](../data.md) explains how to"
        " write one; `confrere schema draft` proposes one from a file.\n"
    )
    return "\n".join([head, *keys(Schema, "schema")])


def options_page() -> str:
    """The names that a study may use for each key, with their options."""
    from confrere.core.registry import Registry
    from confrere.exchange.attacks import attacks
    from confrere.exchange.combine import combiners
    from confrere.exchange.compression import compressions
    from confrere.exchange.topology import topologies
    from confrere.learning.networks.architectures import networks
    from confrere.privacy.clipping import clippings
    from confrere.strategies import strategies

    places: dict[str, Registry[Any]] = {
        "strategy": strategies,
        "topology": topologies,
        "combiner": combiners,
        "compression": compressions,
        "attack": attacks,
        "privacy.clipping": clippings,
        "models.private and models.proxy": networks,
    }
    out = [
        "# Named options\n\nKeys that take a name also take a table with `name` and options:"
        ' `strategy = { name = "proxyfl", alpha = 0.3 }`. `data.partition` is described under'
        " [Splits for rehearsal](../tasks.md#splits-for-rehearsal).\n"
    ]
    for key, registry in places.items():
        rows = [
            (f"`{n}`", summary(registry[n]), ", ".join(named_options(registry[n]))) for n in registry.names()
        ]
        out += [f"## `{key}`\n", table(("name", "what it is", "options and defaults"), rows)]
    return "\n".join(out)


def summary(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").split("\n\n")[0].replace("\n", " ").replace("[", "\\[")


def named_options(thing: Any) -> list[str]:
    if dataclasses.is_dataclass(thing):
        return [f"`{f.name} = {toml(f.default)}`" for f in dataclasses.fields(thing) if f.init]
    found = list(inspect.signature(thing).parameters.values())[2:]
    return [
        f"`{p.name} = {toml(p.default)}`" for p in found if p.name != "branches" and p.kind != p.VAR_KEYWORD
    ]


def commands_page() -> str:
    import typer.main

    from confrere.cli import add_commands, app

    add_commands()
    out = [
        "# Commands\n\nEvery command has `--help`. With `--json` a command prints one [JSON document](json.md) on standard"
        " output and nothing else there; progress goes to standard error.\n"
    ]
    for name, command in sorted(typer.main.get_command(app).commands.items()):  # type: ignore[attr-defined]
        inner = getattr(command, "commands", {})
        out += command_text(f"confrere {name}", command)
        for sub, below in inner.items():
            out += command_text(f"confrere {name} {sub}", below)
    return "\n".join(out)


def command_text(name: str, command: Any) -> list[str]:
    if command.hidden:
        return []
    rows = []
    for p in command.params:
        if getattr(p, "hidden", False) or p.name == "help":
            continue
        shown = p.show_default if isinstance(p.show_default, str) else p.default
        flags = (
            ", ".join([*p.opts, *p.secondary_opts])
            if p.opts[0].startswith("-")
            else p.metavar or p.name.upper()
        )
        usual = "–" if callable(shown) or shown in (None, False, True, ...) else f"`{shown}`"
        rows.append((f"`{flags}`", p.help or "", usual))
    out = [f"## `{name}` {{ #{name.replace(' ', '-')} }}\n", inspect.cleandoc(command.help or "") + "\n"]
    return [*out, table(("argument or option", "what it does", "default"), rows)] if rows else out


def api_page() -> str:
    from confrere import api

    groups: dict[str, list[str]] = {"Functions": [], "Classes": [], "Errors": [], "Values": []}
    for name in api.__all__:
        thing = getattr(api, name)
        kind = "Values" if not callable(thing) else "Functions"
        if isinstance(thing, type):
            kind = "Errors" if issubclass(thing, Exception) else "Classes"
        groups[kind].append(name)
    out = [
        "# Python API\n\nThe names of `import confrere`, from their docstrings. Everything else may change.\n"
    ]
    for group, names in groups.items():
        found = [n for n in names if not n.startswith("__")]
        out += [f"## {group}\n", *(f"::: confrere.api.{name}\n" for name in found)] if found else []
    return "\n".join(out)


def events_page() -> str:
    from confrere.core import events

    about, _, kinds = (events.__doc__ or "").partition("\nkind ")
    return f"# Events\n\n{about}\n```text\nkind {kinds.rstrip()}\n```\n"


EXIT_CODES = {
    0: "The command did what was asked. «Nobody is worth learning from» and «no gain» are results, not errors.",
    1: "`schema check`: a file does not fit the schema. `node leave`: you answered «no». Otherwise a bug, with a traceback.",
    2: "Something that you can correct: the message says what, where and what to do. Also an unknown option.",
    3: "A node's ledger is older than the site or its peers have seen it, or gone. Do not restart the node; see"
    " [Backup and restore](../operations.md#backup-and-restore).",
    4: "`audit`: an attacker detects a larger ε than the study claims.",
    130: "Stopped with Ctrl-C. An interrupted run can be [resumed](../how-to/resume.md).",
}


def errors_page() -> str:
    from confrere.core import errors

    codes = table(("exit code", "meaning"), [(str(code), meaning) for code, meaning in EXIT_CODES.items()])
    tree = (errors.__doc__ or "").split("\n\n")[1]
    return f"# Exit codes and errors\n\n{codes}\nIn Python these are exceptions:\n\n```text\n{tree}\n```\n"


PAGES: dict[str, Callable[[], str]] = {
    "reference/study.md": study_page,
    "reference/site.md": site_page,
    "reference/schema.md": schema_page,
    "reference/options.md": options_page,
    "reference/commands.md": commands_page,
    "reference/errors.md": errors_page,
    "reference/events.md": events_page,
    "reference/api.md": api_page,
}


def on_config(config: Any) -> Any:
    """Expand nav entries that name a folder."""
    for section in config.nav:
        for entries in section.values():
            for entry in entries if isinstance(entries, list) else ():
                for title, target in entry.items():
                    if isinstance(target, str) and target.endswith("/"):
                        found = sorted(
                            (ROOT / "docs" / target).glob("*.md"),
                            key=lambda p: (p.name != "README.md", p.name),
                        )
                        entry[title] = [f"{target}{p.name}" for p in found]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages, the pages of the root, and the studies."""
    from mkdocs.structure.files import File

    for path, page in PAGES.items():
        files.append(File.generated(config, path, content=page()))
    for source, path in ROOT_PAGES.items():
        if source != "README.md":
            files.append(File.generated(config, path, abs_src_path=str(ROOT / source)))
    for study in sorted((ROOT / "studies").glob("*.toml")):
        files.append(File.generated(config, f"studies/{study.name}", abs_src_path=str(study)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Redirect links that leave docs/: to the page or file that the site has for them."""
    own = page.file.src_uri
    source = next((s for s, p in ROOT_PAGES.items() if p == own and p != "index.md"), f"docs/{own}")

    def redirect(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[2]))
        if source.startswith("docs/") and target.startswith("docs/"):
            return match[0]
        inside = ROOT_PAGES.get(target) or target.removeprefix("docs/")
        return f"{match[1]}{posixpath.relpath(inside, posixpath.dirname(own) or '.')}{match[3]}"

    return LINK.sub(redirect, markdown)


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Refuse a page that would fetch something from another place."""
    from mkdocs.exceptions import PluginError

    if found := FETCHED.search(output):
        raise PluginError(f"{page.file.src_uri} would fetch {found[1]}")
    return output
