"""A node of a rehearsal opens its own records, and keeps no others."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from confrere.core.events import Journal
from confrere.data.records import Federation
from confrere.simulation.rehearsal import RehearsalNodes, rehearsal_config
from confrere.simulation.run_folder import RunFolder
from confrere.site import open_sites as opening
from confrere.site.open_sites import open_site, open_sites, records_hash
from confrere.study import load
from tests.conftest import write_study

STUDY = 'rounds = 1\nstrategy = "fedavg"\npartners = ["site0", "site1"]\n'


def test_a_rehearsed_node_reads_only_the_file_of_its_site(tmp_path: Path) -> None:
    study = load(write_study(tmp_path, STUDY, records=60))
    expected = open_sites(study)
    folder = RunFolder(tmp_path / "run", study)
    folder.open().close()
    nodes = RehearsalNodes(folder.path, sorted(expected.sites), Journal(None))
    nodes.enroll(study, {name: data.declared for name, data in expected.sites.items()})
    for other in ("site1", "site2"):
        (tmp_path / f"{other}.csv").unlink()
    config = rehearsal_config(folder.path, "site0")
    assert records_hash(config.data) == records_hash(expected.sites["site0"])
    assert (config.data.size, config.data.declared) == (
        expected.sites["site0"].size,
        expected.sites["site0"].declared,
    )
    assert (config.task, config.schema) == (expected.task, expected.schema)


def test_where_one_set_is_cut_into_sites_the_records_of_the_others_are_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_study(tmp_path, sites=1, records=120)
    (tmp_path / "site0.csv").rename(tmp_path / "all.csv")
    text = (tmp_path / "study.toml").read_text(encoding="utf-8").partition("[sites.")[0]
    cut = '[data]\nfile = "all.csv"\npartition = { name = "iid", sites = 3 }\n'
    (tmp_path / "study.toml").write_text(f'rounds = 1\nstrategy = "fedavg"\n{cut}{text}', encoding="utf-8")
    assert len(pd.read_csv(tmp_path / "all.csv")) == 120
    study = load(tmp_path / "study.toml")
    others: list[weakref.ref[Any]] = []

    def opened(*given: Any, **options: Any) -> Federation:
        found = open_sites(*given, **options)
        assert len(found.sites) == 3
        others.extend(
            weakref.ref(part.inputs)
            for name, data in found.sites.items() if name != own
            for part in (data.train, data.validation, data.test)
        )  # fmt: skip
        return found

    own = sorted(open_sites(study).sites)[0]
    monkeypatch.setattr(opening, "open_sites", opened)
    found = open_site(study, own)
    gc.collect()
    assert list(found.sites) == [own]
    assert others
    assert [ref() for ref in others] == [None] * len(others)
    for part in (found.sites[own].train, found.sites[own].test):  # no view of a larger tensor either
        assert part.inputs.untyped_storage().nbytes() == part.inputs.nbytes
