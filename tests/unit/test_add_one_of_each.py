"""Adding one thing takes one file: a module outside of the package adds one of each and a study uses them all."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from confrere.core.errors import StudyError
from confrere.core.metrics import METRICS
from confrere.core.registry import Registry, strategies
from confrere.data.read.sources import data_sources
from confrere.data.tasks import task_kinds
from confrere.exchange.combine import combiners
from confrere.learning.local_training import cohort
from confrere.privacy.clipping import clippings
from confrere.report.page import write_report
from confrere.report.page.sections import report_sections
from confrere.simulation.backends import simulate
from confrere.simulation.finished_run import Run
from confrere.simulation.ray import shard_content
from confrere.simulation.simulation import Simulation
from confrere.site.open_sites import open_sites
from confrere.study import load

MODULE = '''
"""One of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pandas as pd
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from confrere.core.custody import Scalar, public
from confrere.core.metrics import metric, weighted_mean
from confrere.core.model import Model
from confrere.core.parcel import Parcel
from confrere.core.registry import strategy
from confrere.data.encode.labels import refuse_gaps
from confrere.data.read.sources import DataSource, checked, data_source
from confrere.data.tasks import Task
from confrere.data.tasks import TaskKind, task_kind
from confrere.data.tasks.classes import class_numbers
from confrere.exchange.averaging import agree, common_model
from confrere.exchange.combine import Mean, combiner
from confrere.learning.objectives import Supervised
from confrere.privacy.clipping import Flat, clipping
from confrere.report.page.markup import section, tag
from confrere.report.page.sections import report_section


@dataclass(frozen=True)
class State:
    model: Model


@strategy("one-strategy")
@dataclass(frozen=True)
class OneStrategy:
    """Averages models."""

    label: ClassVar[str] = "A strategy of my own"
    deploys: ClassVar[tuple[str, ...]] = ("model",)
    topology: ClassVar[str] = "complete"
    combines: ClassVar[str] = "models"

    def init(self, site):
        return State(site.build("proxy"))

    async def round(self, state, site, peers):
        model = await common_model(peers) or state.model
        trained = await site.train({"model": Supervised()}, {"model": model}, protect=["model"])
        return State(await agree(peers, trained["model"], public(site.size), Mean()))


USED = []


@combiner("one-combiner")
@dataclass(frozen=True)
class OneCombiner:
    """The plain mean, noted down."""

    def __call__(self, own: Model, weight: Scalar, inbox: Sequence[Parcel]) -> Model:
        USED.append("combiner")
        return Mean()(own, weight, inbox)


@clipping("one-clipping")
@dataclass(frozen=True)
class OneClipping(Flat):
    """Flat clipping to half of the norm."""

    @property
    def bound(self) -> float:
        return self.norm / 2

    def sum(self, gradients, state):
        USED.append("clipping")
        return Flat(self.bound).sum(gradients, state)

    def sensitivity(self, state) -> float:
        return self.bound

    def noise_std(self, noise_multiplier, expected_batch, state) -> float:
        return noise_multiplier * self.bound


@metric("grades_off", label="grades off", meaning="how far off", forms=("labels",), higher_is_better=False)
def grades_off(p, weights):
    return weighted_mean((p.predicted != p.truth).sum(axis=1).astype(float), weights)


@task_kind("graded")
class Graded(TaskKind):
    """Classes in order: one yes-or-no label for each step up."""

    form = "labels"

    def loss(self, outputs, targets):
        """Steps that are missed cost twice as much as steps too many."""
        USED.append("loss")
        each = binary_cross_entropy_with_logits(outputs, targets, reduction="none")
        return (each * (1 + targets)).sum(1)

    def problems(self, label):
        return [] if len(label.classes) > 2 else ["a graded label needs three classes or more"]

    def task(self, label, **shape):
        return Task("graded", label.classes, **shape)

    def encode(self, frame, label, tally):
        grades = class_numbers(frame, label, frame[label.column])
        known = ~np.isnan(grades)
        refuse_gaps(frame, label, known, tally)
        steps = np.arange(1, len(label.classes))
        return (grades[known][:, None] >= steps).astype(np.float32), known

    def outputs(self, task):
        return len(task.classes) - 1

    def unlearnable(self, task, targets):
        return None if len(torch.unique(targets.sum(1))) > 1 else "all records have one grade"

    def flipped(self, task, targets):
        return 1 - targets.flip(1)

    def predictions(self, task, outputs):
        return {"prediction": [task.classes[int(n)] for n in (outputs > 0).sum(1)]}

    def summary(self, task, targets):
        counts = torch.bincount(targets.sum(1).long(), minlength=len(task.classes)).double()
        return dict(zip(task.classes, (counts / max(1, len(targets))).tolist()))


@data_source("json-lines")
class JsonLines(DataSource):
    suffixes = (".jsonl",)

    def read(self, source, how):
        return checked(pd.read_json(source, lines=True), Path(source))


@report_section("one section", order=25)
def one_section(page):
    return section("A section of my own", tag("p", f"It knows {len(page.sites)} sites."))
'''

STUDY = """
name = "one of each"
rounds = 3
strategy = "one-strategy"
combiner = "one-combiner"

[training]
tune_priors = [1.0]

[privacy]
epsilon = 8.0
delta = 1e-3
clipping = { name = "one-clipping", norm = 2.0 }

[schema.label]
column = "grade"
kind = "graded"
classes = ["none", "mild", "severe"]

[schema.columns.x]
range = [0, 3]

[sites.north]
data = "north.jsonl"

[sites.south]
data = "south.jsonl"
"""
NAME = "one_of_each_module"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A study that uses one of each, and their module; afterwards all of them are gone."""
    folder = tmp_path_factory.mktemp("one-of-each")
    (folder / f"{NAME}.py").write_text(MODULE, encoding="utf-8")
    (folder / "study.toml").write_text(STUDY, encoding="utf-8")
    chance = np.random.default_rng(1)
    for site in ("north", "south"):
        x = chance.uniform(0, 3, 90).round(3)
        rows = [{"x": v, "grade": ("none", "mild", "severe")[int(v)]} for v in x]
        (folder / f"{site}.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    sys.path.insert(0, str(folder))
    try:
        importlib.import_module(NAME)
        yield folder
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop(NAME, None)
        tables: dict[str, Registry[Any]] = {
            "grades_off": METRICS,
            "one-strategy": strategies, "one-combiner": combiners, "one-clipping": clippings, "graded": task_kinds,
            "json-lines": data_sources, "one section": report_sections,
        }  # fmt: skip
        for name, table in tables.items():
            table.remove(name)


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    return simulate(load(folder / "study.toml"), out=folder / "run")


def test_a_strategy_a_data_source_and_a_task_kind_from_one_file_run(run: Run) -> None:
    assert run.result.strategy == "one-strategy"
    assert set(run.sites) == {"north", "south"}
    assert run.mean["accuracy"] > 0.6


def test_a_metric_from_one_file_is_measured(run: Run) -> None:
    assert 0 <= run.mean["grades_off"] < 1


def test_a_combiner_and_a_clipping_from_one_file_are_used(run: Run) -> None:
    assert set(sys.modules[NAME].USED) == {"combiner", "clipping", "loss"}
    assert 0 < run.sites["north"].privacy.epsilon <= 8.0


def test_the_loss_of_a_task_kind_from_one_file_trains_one_site_and_many_stacked(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, used, stacked = load(folder / "study.toml"), sys.modules[NAME].USED, []
    together = cohort.train_together
    monkeypatch.setattr(cohort, "train_together", lambda jobs: stacked.append(len(jobs)) or together(jobs))
    for trainer in ("one", "cohort"):
        used.clear()
        again = simulate(study, trainer=trainer)
        assert "loss" in used, trainer
        assert again.mean == pytest.approx(run.mean, rel=1e-4)
        assert bool(stacked) == (trainer == "cohort")
    monkeypatch.setattr(type(task_kinds["graded"]), "loss", None)
    assert simulate(study).mean != pytest.approx(run.mean, rel=1e-4)


def test_one_of_each_gives_the_same_with_workers(run: Run, folder: Path) -> None:
    again = simulate(load(folder / "study.toml"), trainer="one", workers=2)
    assert again.mean == pytest.approx(run.mean, rel=1e-4)
    assert again.sites["north"].metrics["grades_off"] == pytest.approx(
        run.sites["north"].metrics["grades_off"]
    )


@pytest.mark.slow
def test_one_of_each_gives_the_same_on_ray(run: Run, folder: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'confrere[ray]'")
    again = simulate(load(folder / "study.toml"), trainer="one", engine="ray", workers=2)
    assert again.mean == pytest.approx(run.mean, rel=1e-4)


OPENED = """
import sys
from pathlib import Path
from confrere.core.errors import StudyError
from confrere.simulation.ray import shard_simulation
try:
    simulation = shard_simulation(Path(sys.argv[1]).read_bytes())
except StudyError as error:
    sys.exit(str(error))
from confrere.core.metrics import METRICS
print(type(simulation.strategy).__name__, simulation.federation.task.kind, "grades_off" in METRICS)
"""


def opened_elsewhere(content: bytes, folder: Path) -> subprocess.CompletedProcess[str]:
    """Open what a Ray actor is sent, in a process that has imported nothing but the package."""
    (folder / "content").write_bytes(content)
    command = [sys.executable, "-c", OPENED, str(folder / "content")]
    return subprocess.run(command, capture_output=True, text=True, cwd="/", check=False)


def content_of(folder: Path) -> bytes:
    study = load(folder / "study.toml")
    simulation = Simulation(study, open_sites(study))
    simulation.prepare()
    return shard_content(simulation, dict.fromkeys(simulation.names, 0), 0)


def test_an_actor_imports_the_modules_that_the_study_needs(folder: Path, tmp_path: Path) -> None:
    done = opened_elsewhere(content_of(folder), tmp_path)
    assert done.stdout.split() == ["OneStrategy", "graded", "True"], done.stderr


def test_an_actor_that_cannot_import_a_module_says_which(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[NAME], "__file__", str(tmp_path / "gone" / f"{NAME}.py"))
    done = opened_elsewhere(content_of(folder), tmp_path)
    assert done.returncode == 1
    for part in ('strategy "one-strategy"', f"module {NAME}", "cannot be imported here", "on every machine"):
        assert part in done.stderr


def test_what_is_defined_at_a_prompt_is_refused_on_ray(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sys.modules[NAME], "__file__")
    with pytest.raises(StudyError, match=r'cannot import strategy "one-strategy".*move it to a module'):
        content_of(folder)


def test_a_report_section_from_one_file_is_on_the_page(run: Run) -> None:
    page = write_report(Path(str(run.result.run))).read_text(encoding="utf-8")
    assert "A strategy of my own" in page
    assert "A section of my own" in page
    assert "It knows 2 sites." in page
    assert page.index("Site by site") < page.index("A section of my own") < page.index("How they learned")
    assert "grades off" in page
