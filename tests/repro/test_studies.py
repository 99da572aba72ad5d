"""The files in studies/: they load, say how they are run, and those with a source run at their smallest scale."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main

import confrere.cli
from confrere.core.errors import DataError
from confrere.evaluate.compare import ALONE, default_arms, variant
from confrere.study import FULL, load, scaled
from repro.experiment import repeat
from repro.reported import Experiment, experiments

ROOT = Path(__file__).parents[2]
STUDIES = sorted((ROOT / "studies").glob("*.toml"))
EXPERIMENTS = list(experiments().values())


def commands(path: Path) -> list[list[str]]:
    """The commands in the comment at the head of a study."""
    head = path.read_text(encoding="utf-8").split("\nname =")[0]
    lines = [line.lstrip("# ") for line in head.splitlines() if line.startswith("#")]
    return [shlex.split(line, comments=True) for line in lines if line.startswith("confrere ")]


@pytest.mark.parametrize("path", STUDIES, ids=lambda p: p.stem)
def test_a_study_loads_at_every_scale_with_every_arm(path: Path) -> None:
    study = load(path)
    assert study.name == path.stem
    settings = list(study.comparison.settings)
    arms = [f"{arm}@{settings[0]}" if settings else arm for arm in study.comparison.arms]
    arms += [f"{arm}@{setting}" for setting in settings[1:] for arm in study.comparison.arms[:1]]
    for arm in arms or [study.strategy_name]:
        assert variant(study, arm).rounds >= 1
    for scale in (FULL, *study.scales):
        small = scaled(study, scale)
        assert variant(small, default_arms(small)[0]).rounds >= 1


@pytest.mark.parametrize("path", STUDIES, ids=lambda p: p.stem)
def test_its_head_has_a_command_that_the_program_understands(path: Path) -> None:
    confrere.cli.add_commands()
    program: Any = typer.main.get_command(confrere.cli.app)
    found = commands(path)
    assert found
    for words in found:
        program.commands[words[1]].make_context(words[1], words[2:])
        named = [w for w in words if w.endswith(".toml")]
        assert all(list(ROOT.glob(name)) for name in named), words


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda e: e.study.name)
def test_a_repeated_experiment_names_its_source_its_scales_and_arms_that_exist(
    experiment: Experiment,
) -> None:
    study, reported = experiment.study, experiment.reported
    assert reported.shows
    assert "smallest" in study.scales
    arms = {ALONE, "pooled", *default_arms(study)}
    named = {arm for claim in reported.claims for arm in (claim.better, claim.than)}
    if reported.by == "compare":
        named |= set(reported.values)
    assert {name.removesuffix("/proxy") for name in named} <= arms


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda e: e.study.name)
def test_the_page_has_a_section_for_it(experiment: Experiment) -> None:
    assert f'<a id="{experiment.study.name}">' in (ROOT / "docs" / "records" / "studies.md").read_text(
        encoding="utf-8"
    )


@pytest.mark.slow
@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda e: e.study.name)
def test_its_smallest_scale_runs(experiment: Experiment) -> None:
    try:
        found = repeat(experiment, "smallest")
    except DataError as error:
        if "fetch" not in str(error):
            raise
        pytest.skip(f"a data set that is not here: {error}")
    assert found["scale"] == "smallest"
    if found["by"] == "compare":
        assert set(default_arms(scaled(experiment.study, "smallest"))) <= set(found["reported"]["measured"])
        assert all(found["curves"].values())
    else:
        assert found[found["by"]]
