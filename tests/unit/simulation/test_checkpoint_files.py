"""Checkpoints write the sites that have changed, and together they hold all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from confrere.core.errors import CheckpointError
from confrere.core.events import Event
from confrere.simulation import checkpoints
from confrere.simulation.backends import resume, simulate
from confrere.simulation.checkpoints import CheckpointFiles
from confrere.site import snapshot
from confrere.study import Data, Evaluation, Models, Study, Training
from confrere.study.churn import Churn
from tests.conformance.test_strategies import same_models
from tests.conftest import arrays

SITES, DRAWN = 14, 3


def study(**more: Any) -> Study:
    base = Study(
        rounds=8,
        strategy="fedavg",
        topology="star",
        models=Models("linear", "linear"),
        training=Training(tune=False, learning_rate=0.1),
        churn=Churn(participation=DRAWN),
        evaluation=Evaluation(every=100),
        data=Data(one_class="allow"),
    )
    return base.with_(**more)


def pulled(round: int) -> Callable[[Event], None]:
    def stop(event: Event) -> None:
        if event.kind == "sent" and event.round == round:
            raise RuntimeError("the plug was pulled")

    return stop


def files(folder: Path) -> list[Path]:
    return sorted((folder / "checkpoints").iterdir())


def interrupted(folder: Path, found: Study, workers: int | None = None, round: int = 6) -> list[Path]:
    with pytest.raises(RuntimeError, match="plug"):
        simulate(
            found, arrays(SITES, 40), out=folder, workers=workers, trainer="one", listeners=(pulled(round),)
        )
    return files(folder)


@pytest.mark.parametrize("workers", [None, 2])
def test_a_round_writes_the_sites_that_took_part_and_those_that_were_told_of_it(
    tmp_path: Path, workers: int | None
) -> None:
    kept = interrupted(tmp_path / "run", study(), workers)
    newest = snapshot.load(kept[-1])
    assert (
        DRAWN <= len(newest["sites"]) <= 3 * DRAWN
    )  # this round's, and next round's, for whom something waits
    assert newest["sites"].keys() == newest["records"].keys()
    assert newest["sites"].keys() | newest["elsewhere"].keys() == {f"site{k}" for k in range(SITES)}
    assert len(snapshot.load(kept[0])["sites"]) > len(newest["sites"])


@pytest.mark.parametrize("workers", [None, 2])
@pytest.mark.parametrize(
    "found",
    [
        study(),
        study(strategy="avgpush", topology="exponential", churn=Churn(probability=0.6)),
        study(topology="complete", evaluation=Evaluation(every=3)),
    ],
    ids=["drawn", "often away", "evaluated"],
)
def test_a_run_that_goes_on_ends_as_it_would_have(tmp_path: Path, workers: int | None, found: Study) -> None:
    whole = simulate(found, arrays(SITES, 40), trainer="one")
    interrupted(tmp_path / "part", found, workers)
    again = resume(tmp_path / "part", arrays(SITES, 40), trainer="one", workers=workers)
    assert replace(again.result, run=None) == replace(whole.result, run=None)
    same_models(whole, again)


def test_where_the_newest_file_is_damaged_the_one_before_it_still_holds_all(tmp_path: Path) -> None:
    whole = simulate(study(), arrays(SITES, 40), trainer="one")
    newest = interrupted(tmp_path / "run", study())[-1]
    newest.write_bytes(newest.read_bytes()[:-100])
    again = resume(tmp_path / "run", arrays(SITES, 40), trainer="one")
    same_models(whole, again)


def test_where_a_file_is_damaged_that_all_checkpoints_need_a_run_does_not_begin_anew(tmp_path: Path) -> None:
    kept = interrupted(tmp_path / "run", study())
    oldest = min(snapshot.load(kept[-1])["elsewhere"].values())
    needed = kept[0].parent / f"round-{oldest:05d}.safetensors"
    needed.write_bytes(needed.read_bytes()[:-100])
    before = {p.name: p.read_bytes() for p in needed.parent.iterdir()}
    with pytest.raises(CheckpointError, match="no checkpoint of this run can be read"):
        resume(tmp_path / "run", arrays(SITES, 40), trainer="one")
    assert {p.name: p.read_bytes() for p in needed.parent.iterdir()} == before


def test_sites_that_never_change_do_not_keep_many_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "FILES", 4)
    names = [f"s{k}" for k in range(12)]
    found = CheckpointFiles(tmp_path)
    for done in range(1, 30):
        due = found.due([names[done % 12]])
        held = names if due is None else sorted(due)
        table = {n: {"at": done} for n in held}
        found.put(done, {"done": done, "study": "x", "seed": 0, **dict.fromkeys(checkpoints.TABLES, table)})
        assert len(list(tmp_path.iterdir())) <= 6
        whole = CheckpointFiles(tmp_path).latest()
        assert whole is not None
        assert sorted(whole["sites"]) == sorted(names)
        assert whole["sites"][names[done % 12]] == {"at": done}
