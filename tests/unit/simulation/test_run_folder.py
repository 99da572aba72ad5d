"""The folder of a run: whole, its own, and safe from whatever sites are called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from confrere.core.errors import StudyError, TrainingError
from confrere.simulation.backends import resume, simulate
from confrere.simulation.run_folder import RunFolder, check_free
from confrere.site.site_folder import site_folder_of
from confrere.study import Training, load
from tests.conftest import arrays, write_study
from tests.unit.quick import quick

ODD = ["St. Mary/North", "../evil", 'é [x] = "q"']


def stop_in_round_two(event: Any) -> None:
    if event.kind == "trained" and event.round == 2:
        raise RuntimeError("the plug was pulled")


def test_sites_may_be_called_what_they_are_called(tmp_path: Path) -> None:
    sites = dict(zip(ODD, arrays().values(), strict=True))
    study = quick("avgpush", rounds=3)
    whole = simulate(study, sites)
    with pytest.raises(RuntimeError, match="plug"):
        simulate(study, sites, out=tmp_path / "run", listeners=(stop_in_round_two,))
    again = resume(tmp_path / "run", sites)
    assert again.sites == whole.sites
    assert again.report().exists()
    assert [p.name for p in tmp_path.iterdir()] == ["run"]
    for name in ODD:
        assert site_folder_of(tmp_path, name).parent == tmp_path / "sites"


def test_workers_that_all_fail_leave_nothing(tmp_path: Path) -> None:
    loaded = load(write_study(tmp_path, records=40, sites=2))
    wild = Training(learning_rate=1e38, batch_size=2)
    study = quick("local", sites=loaded.sites, schema=loaded.schema, training=wild)
    with pytest.raises(TrainingError, match="round 1"):
        simulate(study, out=tmp_path / "run", workers=2)
    assert not (tmp_path / "run").exists()


def test_a_folder_that_was_there_stays_when_a_run_is_taken_back(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    for path in (there, tmp_path / "new" / "deep"):
        folder = RunFolder(path, quick())
        journal = folder.open()
        assert (path / "study.toml").exists()
        folder.discard_if_nothing_was_done(journal)
    assert [p.name for p in tmp_path.rglob("*")] == ["there"]


def test_a_run_with_a_checkpoint_is_never_taken_back(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run", quick())
    journal = folder.open()
    folder.checkpoint(1, {"done": 1}, journal)
    folder.discard_if_nothing_was_done(journal)
    journal.close()
    assert folder.latest() == {"done": 1}


def test_only_the_last_two_checkpoints_are_kept(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run", quick())
    journal = folder.open()
    for done in range(1, 5):
        folder.checkpoint(done, {"done": done}, journal)
    journal.close()
    kept = sorted(p.stem for p in (tmp_path / "run" / "checkpoints").iterdir())
    assert kept == ["round-00003", "round-00004"]


def test_nothing_is_ever_written_over(tmp_path: Path) -> None:
    check_free(tmp_path / "new")
    check_free(tmp_path)
    (tmp_path / "thesis.txt").write_text("years of work", encoding="utf-8")
    with pytest.raises(StudyError, match="is not empty"):
        check_free(tmp_path)
