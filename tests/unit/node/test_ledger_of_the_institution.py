"""Nodes of an institution share one ledger, whatever their records, folders and studies are called."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch

from confrere.core.custody import Custody
from confrere.core.errors import BudgetExhausted, ConfrereError, PrivacyError
from confrere.node import roster
from confrere.node.config import NodeConfig
from confrere.node.node import Node
from confrere.node.service import read_node_config
from confrere.node.start import record_start
from confrere.privacy.budget import Budget
from confrere.privacy.charges import gaussian
from confrere.privacy.ledger import Ledger
from confrere.study import load
from confrere.transport.grpc.identity import load_identity
from tests.unit.node.test_node_config import hospital
from tests.unit.node.wires import Network
from tests.unit.privacy.test_populations import old_file

STEP = gaussian(20.0)
BUDGET = Budget(1.0, 1e-5)  # 28 such steps fit

PLACES = ("ledger.sqlite", "ledger.key", "keys/witness.sqlite", "node/node.sqlite")


def started(study: Path, site: Path) -> Node:
    """A node that is ready to begin."""

    async def begin() -> Node:
        return Node(read_node_config(study, site), connect=Network().connect)

    return asyncio.run(begin())


def spend(study: Path, site: Path, steps: int = 28, key: str = "a study/0/proxy") -> tuple[str, int]:
    """Start a node, charge its ledger, and stop it; the ledger's id and counter."""
    node = started(study, site)
    try:
        node.ledger.spend([STEP * steps], key=key, budget=BUDGET)
        return node.ledger.id, node.ledger.counter
    finally:
        node.close()


def sign(study: Path, folder: Path) -> None:
    """A study that all have agreed on."""
    members = roster.load_roster(folder / "roster.toml")
    for keys in ("keys", "keys-site1"):
        signed = roster.sign(members, load(study).digest(), load_identity(folder / keys))
        roster.keep_signature(signed, folder / "roster.toml")


# -- what continues the ledger --------------------------------------------------------------------


def next_weeks_export(study: Path, site: Path) -> tuple[Path, Path]:
    records = pd.read_csv(site.parent / "site0.csv")
    later = pd.concat([records.iloc[5:], records.iloc[10:14].assign(a=0.5)])
    later.to_csv(site.parent / "site0.csv", index=False)
    site.write_text('data = "site0.csv"\nhome = "node-2"\n')
    return study, site


def renamed_file(study: Path, site: Path) -> tuple[Path, Path]:
    (site.parent / "site0.csv").rename(site.parent / "cohort-final-2.csv")
    site.write_text('data = "cohort-final-2.csv"\nhome = "node-2"\n')
    return study, site


def second_folder(study: Path, site: Path) -> tuple[Path, Path]:
    folder = site.parent / "second"
    folder.mkdir()
    another = folder / "site.toml"
    another.write_text('data = "../site0.csv"\nkeys = "../keys"\nroster = "../roster.toml"\n')
    return study, another


def another_study(study: Path, site: Path) -> tuple[Path, Path]:
    text = study.read_text().replace("rounds = 2", 'name = "another"\nrounds = 3')
    another = study.with_name("another.toml")
    another.write_text(text)
    sign(another, site.parent)
    site.write_text('data = "site0.csv"\nhome = "node-2"\n')
    return another, site


@pytest.mark.parametrize("change", [next_weeks_export, renamed_file, second_folder, another_study])
def test_the_ledger_is_continued_by(
    tmp_path: Path, change: Callable[[Path, Path], tuple[Path, Path]]
) -> None:
    files = hospital(tmp_path)
    before = spend(*files)
    files = change(*files)
    with pytest.raises(BudgetExhausted):
        spend(*files, steps=1, key="another/0/proxy")
    node = started(*files)
    assert (node.ledger.id, node.ledger.counter) == before
    node.close()


def test_a_folder_of_an_institution_that_names_a_common_ledger_brings_its_own_charges_along(
    tmp_path: Path,
) -> None:
    """Also those of version 0.1, and only once."""
    files = hospital(tmp_path, 'data = "site0.csv"\nledger = "common/ledger.sqlite"\n')
    (tmp_path / "common").mkdir()
    old_file(tmp_path / "ledger.sqlite")
    for _ in range(2):
        node = started(*files)
        assert node.ledger.epsilon(1e-5) == pytest.approx(0.46236635122218056)
        node.close()
    assert not (tmp_path / "ledger.sqlite").exists()
    assert (tmp_path / "ledger.adopted").exists()


def test_a_site_that_shares_the_ledger_of_its_institution_later_on_loses_no_charge(tmp_path: Path) -> None:
    files = hospital(tmp_path)
    spend(*files)
    (tmp_path / "common").mkdir()
    files[1].write_text('data = "site0.csv"\nledger = "common/ledger.sqlite"\nhome = "node-2"\n')
    for _ in range(2):
        with pytest.raises(BudgetExhausted):
            spend(*files, steps=1)


def test_an_old_copy_of_a_ledger_is_not_taken_in(tmp_path: Path) -> None:
    files = hospital(tmp_path)
    spend(*files, steps=1)
    shutil.copy(tmp_path / "ledger.sqlite", tmp_path / "backup")
    spend(*files, steps=1)
    shutil.copy(tmp_path / "backup", tmp_path / "ledger.sqlite")
    (tmp_path / "common").mkdir()
    files[1].write_text('data = "site0.csv"\nledger = "common/ledger.sqlite"\nhome = "node-2"\n')
    with pytest.raises(PrivacyError, match="rolled back"):
        started(*files)
    assert (tmp_path / "ledger.sqlite").exists()


def test_a_node_of_version_0_1_goes_on_with_its_ledger(tmp_path: Path) -> None:
    files = hospital(tmp_path)
    old_file(tmp_path / "ledger.sqlite")
    node = started(*files)
    assert node.ledger.epsilon(1e-5) == pytest.approx(0.46236635122218056)
    node.close()


def of_patients(config: NodeConfig, first: int) -> NodeConfig:
    """The same records, as those of patients with consecutive ids."""
    parts = {}
    for name in ("train", "validation", "test"):
        part = getattr(config.data, name)
        parts[name] = replace(part, units=torch.arange(first, first + len(part)))
        first += len(part)
    return replace(config, data=replace(config.data, **parts))


@pytest.mark.parametrize(("first", "shared"), [(1000, 0), (39, 1), (0, 40)])
def test_patients_of_another_population_are_left_out_by_their_id(
    tmp_path: Path, first: int, shared: int
) -> None:
    files = hospital(tmp_path)
    config = of_patients(read_node_config(*files), 0)

    async def begin(config: NodeConfig) -> Node:
        return Node(config, connect=Network().connect)

    node = asyncio.run(begin(config))
    node.ledger.spend([STEP * 28], key="a study/0/proxy", budget=BUDGET)
    node.close()
    other = replace(of_patients(config, first), population="maternity", home=tmp_path / "node-2")
    node = asyncio.run(begin(other))
    assert node.ledger.counter == 0
    assert node.ledger.also == ()
    assert node.ledger.remaining(BUDGET, STEP) == 28
    assert other.data.all.patients - node.config.data.all.patients == shared
    assert node.site.data is node.config.data
    record_start(node.config, node.site, node.store, node.done)
    said = [e for e in node.journal.events if "belong to another population" in e.data.get("text", "")]
    assert [e.custody for e in said] == [Custody.PRIVATE] * bool(shared)
    node.close()


def test_a_population_without_patient_ids_is_charged_to_every_ledger(tmp_path: Path) -> None:
    """Rows that differ may be of the same patient: a corrected value, or another column, makes every row another one."""
    files = hospital(tmp_path)
    spend(*files)
    files[1].write_text('data = "site1.csv"\npopulation = "maternity"\nhome = "node-2"\n')
    with pytest.raises(BudgetExhausted):
        spend(*files, steps=1)


# -- a ledger that is gone, or older than it was ----------------------------------------------------


def test_a_deleted_ledger_is_noticed(tmp_path: Path) -> None:
    files = hospital(tmp_path)
    spend(*files)
    for file in tmp_path.glob("ledger.sqlite*"):
        file.unlink()
    with pytest.raises(PrivacyError, match=r"is missing.*Put the newest copy back"):
        started(*files)
    assert not (tmp_path / "ledger.sqlite").exists()  # nothing is in the way of the copy


@pytest.mark.parametrize("left", ["ledger.key", "keys/witness.sqlite", "node/node.sqlite"])
def test_a_deleted_ledger_is_noticed_by_each_witness_alone(tmp_path: Path, left: str) -> None:
    files = hospital(tmp_path)
    spend(*files)
    for place in PLACES:
        if place != left:
            for file in tmp_path.glob(f"{place}*"):
                file.unlink()
    with pytest.raises(PrivacyError, match="is missing"):
        started(*files)


@pytest.mark.parametrize("left", ["keys/witness.sqlite", "node/node.sqlite"])
def test_an_old_copy_of_the_ledger_is_noticed_by_each_witness_alone(tmp_path: Path, left: str) -> None:
    files = hospital(tmp_path)
    spend(*files, steps=1)
    shutil.copy(tmp_path / "ledger.sqlite", tmp_path / "backup")
    spend(*files, steps=1, key="a study/1/proxy")
    for file in tmp_path.glob("ledger.sqlite*"):
        file.unlink()
    shutil.copy(tmp_path / "backup", tmp_path / "ledger.sqlite")
    for place in PLACES[2:]:
        if place != left:
            for file in tmp_path.glob(f"{place}*"):
                file.unlink()
    with pytest.raises(PrivacyError, match="entry 1, but this site has seen entry 2: it was rolled back"):
        started(*files)


def test_a_ledger_in_the_place_of_another_is_noticed(tmp_path: Path) -> None:
    files = hospital(tmp_path)
    spend(*files)
    for file in tmp_path.glob("ledger.*"):
        file.unlink()
    with Ledger(tmp_path / "ledger.sqlite") as another:
        another.spend([STEP], key="a study/0/proxy", budget=BUDGET)
    with pytest.raises(PrivacyError, match="is not the one that this site has charged"):
        started(*files)


def test_a_charge_is_witnessed_before_it_is_used(tmp_path: Path) -> None:
    files = hospital(tmp_path)
    node = started(*files)
    entry = node.ledger.spend([STEP], key="a study/0/proxy", budget=BUDGET)
    assert node.rollback_check.seen() == {node.ledger.id: entry.counter}  # although no round is over
    node.close()


def test_a_node_that_is_refused_for_its_ledger_can_start_again_with_the_right_one(tmp_path: Path) -> None:
    files = hospital(tmp_path)
    before = spend(*files)
    moved = [(p, tmp_path / "aside" / p.name) for p in tmp_path.glob("ledger.sqlite*")]
    (tmp_path / "aside").mkdir()
    for here, there in moved:
        here.rename(there)
    with pytest.raises(ConfrereError):
        started(*files)
    for here, there in moved:
        there.rename(here)
    node = started(*files)
    assert (node.ledger.id, node.ledger.counter) == before
    node.close()


def test_a_ledger_that_others_can_read_is_refused_by_the_node(tmp_path: Path) -> None:
    files = hospital(tmp_path)
    spend(*files)
    (tmp_path / "ledger.sqlite").chmod(0o644)
    with pytest.raises(PrivacyError, match="chmod 600"):
        started(*files)


# -- what a handshake tells -----------------------------------------------------------------------


def test_a_greeting_tells_nothing_about_the_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for random numbers, a node with one record less says the same."""
    monkeypatch.setattr("confrere.privacy.ledger_storage.secrets.token_hex", lambda size: "7f" * size)
    files = hospital(tmp_path)
    said = []
    for home in ("node-1", "node-2"):
        files[1].write_text(f'data = "site0.csv"\nhome = "{home}"\nledger = "{home}.sqlite"\n')
        for file in tmp_path.glob("keys/witness.sqlite*"):  # each is the first node of its institution
            file.unlink()
        node = started(*files)
        said.append(node.handshake.greet("site1"))
        node.close()
        records = pd.read_csv(tmp_path / "site0.csv")
        records.iloc[:-1].to_csv(tmp_path / "site0.csv", index=False)
    assert said[0] == said[1]
