"""What `import confrere` promises: every name is there, is documented, and its example runs."""

from __future__ import annotations

import dataclasses
import doctest
import inspect
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import typer

import confrere
from confrere.cli import add_commands, app
from confrere.core.registry import strategies
from confrere.learning.networks.architectures import networks
from tests.conftest import arrays
from tests.unit.quick import PRIVACY

FUNCTIONS = [name for name in confrere.__all__ if inspect.isfunction(getattr(confrere, name))]
COMMANDS = {
    "audit": ["audit"],
    "calibrate": ["calibrate", "masked_calibrate"],
    "check": ["check"],
    "compare": ["compare"],
    "datasets": ["list_datasets"],
    "datasets show": ["profile_dataset", "open_dataset"],
    "datasets fetch": ["fetch_dataset"],
    "demo": ["demo"],
    "enroll": ["enroll", "renew_certificate"],
    "epsilon": ["epsilon", "masked_epsilon"],
    "journal verify": ["verify_journal"],
    "node": ["run_node", "command_node", "node_status"],
    "partners": ["find_partners"],
    "plan": ["plan", "plan_for_sizes"],
    "predict": ["predict"],
    "rehearse": ["rehearse"],
    "report": ["write_report"],
    "roster add": ["add_to_roster"],
    "roster leave": ["leave_roster"],
    "roster remove": ["remove_from_roster"],
    "roster show": ["load_roster", "signed_studies"],
    "roster sign": ["sign_roster"],
    "roster upgrade": ["upgrade_roster"],
    "roster verify": ["verify_roster"],
    "schema check": ["check_schema"],
    "schema draft": ["draft_schema"],
    "simulate": ["load", "simulate", "resume"],
    "status": ["node_status"],
    "strategies": ["list_strategies"],
    "traffic": ["traffic"],
}
"""Every command of `confrere`, and the functions that do its work. `partners` and `report` are rooms of the package, so
these two functions are verbs."""


def commands(group: Any, before: str = "") -> Iterator[str]:
    """The commands of a group and of the groups in it, but for those that only keep an old name."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{before}{name} ")
            if not command.invoke_without_command:
                continue
        if not command.hidden:
            yield before + name


def test_every_command_is_a_function_with_a_typed_result() -> None:
    add_commands()
    assert set(commands(typer.main.get_command(app))) == set(COMMANDS)
    for names in COMMANDS.values():
        for name in names:
            result = inspect.signature(getattr(confrere, name)).return_annotation
            assert "Any" not in str(result), name


def test_names_are_sorted_and_there_are_no_others() -> None:
    assert list(confrere.__all__) == sorted(confrere.__all__) == dir(confrere)
    assert all(hasattr(confrere, name) for name in confrere.__all__)
    assert set(FUNCTIONS) >= {name for names in COMMANDS.values() for name in names} | {"mix"}
    with pytest.raises(AttributeError, match="no attribute 'simulat'"):
        _ = confrere.simulat


def test_help_begins_with_an_overview_that_names_every_function() -> None:
    overview = confrere.__doc__ or ""
    named = set(re.findall(r"\w+", overview))
    assert [name for name in FUNCTIONS if name not in named] == []
    groups = re.findall(
        r"^(Run|Describe|Look up|Privacy|On nodes|Extend)  +(.*(?:\n  .*)*)", overview, re.MULTILINE
    )
    assert len(groups) == 6
    listed = [name for _, text in groups for name in re.findall(r"\w+", text)]
    assert set(listed) - {"with"} <= set(confrere.__all__)
    assert ">>> #" not in overview


@pytest.mark.parametrize("name", [n for n in confrere.__all__ if n != "__version__"])
def test_every_name_is_documented(name: str) -> None:
    text = inspect.getdoc(getattr(confrere, name)) or ""
    assert len(text.splitlines()[0]) > 15, f"help(confrere.{name}) says nothing"
    assert not text.startswith(f"{name}("), f"help(confrere.{name}) is the generated signature"


def test_import_alone_loads_no_library() -> None:
    heavy = "'torch', 'numpy', 'pandas', 'scipy', 'pydantic'"
    code = f"import sys, confrere; print([m for m in ({heavy}) if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the examples refer to: a study, the records of its sites, and the folder of a run of it."""
    folder = tmp_path_factory.mktemp("examples") / "run"
    study = confrere.Study(name="example", rounds=2, strategy="fedavg", privacy=PRIVACY)
    columns = {c: {"range": [-3.0, 3.0]} for c in "abcd"}
    schema = {"label": {"column": "y", "classes": ["no", "yes"]}, "columns": columns}
    frames = {
        n: pd.DataFrame(x, columns=list("abcd")).clip(-3, 3).assign(y=np.where(y == 1, "yes", "no"))
        for n, (x, y) in arrays().items()
    }
    confrere.simulate(study.with_(schema=schema), frames, out=folder)
    interrupted = folder.parent / "interrupted"

    def stop(event: Any) -> None:
        if event.kind == "trained" and event.round == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        confrere.simulate(study, arrays(), out=interrupted, listeners=(stop,))
    frames["site0"].to_csv(folder / "site0.csv", index=False)
    place = folder.parent / "place"
    node = shutil.copytree(
        Path(__file__).parents[1] / "fixtures" / "node-0.1" / "nord" / "node", place / "node"
    )
    confrere.enroll("north", place / "keys", declared=2300, address="north.example:7443")
    confrere.add_to_roster(place / "keys" / "peer.toml", place / "roster.toml")
    for name in ("north", "south"):
        frames["site0" if name == "north" else "site1"].to_csv(place / f"{name}.csv", index=False)
    sites = "".join(f'[sites.{name}]\ndata = "{name}.csv"\n' for name in ("north", "south"))
    text = study.with_(schema=schema, rounds=1, training=confrere.Training(tune=False)).to_toml()
    (place / "study.toml").write_text(text + sites, encoding="utf-8")
    old = shutil.copytree(Path(__file__).parents[1] / "fixtures" / "node-0.1", place / "old")
    for path in (old / "nord" / "keys").iterdir():
        path.chmod(0o600)
    return {
        "old": old,
        "lonely": lonely_site(folder.parent / "lonely", text, frames["site0"]),
        "place": place,
        "node": node,
        "keys": place / "keys",
        "roster": place / "roster.toml",
        "study_file": place / "study.toml",
        "confrere": confrere,
        "dataclasses": dataclasses,
        "nn": torch.nn,
        "padded": confrere.padded,
        "study": study,
        "sites": arrays(),
        "folder": folder,
        "interrupted": interrupted,
    }


def lonely_site(folder: Path, study: str, records: pd.DataFrame) -> Path:
    """The folder of a site whose study sends nothing, so that its node needs no peer."""
    folder.mkdir()
    text = study.replace('strategy = "fedavg"', 'strategy = "local"')
    (folder / "study.toml").write_text(text + "[sites.north]\n[sites.south]\n", encoding="utf-8")
    records.to_csv(folder / "records.csv", index=False)
    (folder / "site.toml").write_text('data = "records.csv"\nkeys = "north"\n', encoding="utf-8")
    for name in ("north", "south"):
        confrere.enroll(name, folder / name, declared=len(records))
        confrere.add_to_roster(folder / name / "peer.toml", folder / "roster.toml")
    for name in ("north", "south"):
        confrere.sign_roster(folder / "study.toml", folder / name, folder / "roster.toml")
    return folder


FUNCTIONS = sorted(n for n in confrere.__dir__() if inspect.isroutine(getattr(confrere, n)))


SLOW = {"rehearse"}  # it starts a process for each site

EXAMPLES = [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in FUNCTIONS]


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_function_has_an_example_that_runs(name: str, names: dict[str, Any]) -> None:
    text = inspect.getdoc(getattr(confrere, name)) or ""
    found = doctest.DocTestParser().get_doctest(text, dict(names), name, None, None)
    assert found.examples, f"confrere.{name} has no example"
    said: list[str] = []
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(found, out=said.append)
    strategies.remove("mine")  # what the examples registered
    networks.remove("wide")
    assert result.failed == 0, "".join(said)
