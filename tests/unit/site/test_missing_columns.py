"""A site that lacks columns: the results say so, beside its figures, and apart from sites that have them all."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.console import Console, RenderableType

from confrere.core.custody import Custody
from confrere.core.errors import DataError
from confrere.data.column_kinds import Column
from confrere.data.federation import Source, of_files
from confrere.data.schema import Schema
from confrere.data.tasks import Label
from confrere.evaluate.compare import compare
from confrere.report.result_tables import comparison_table, run_table
from confrere.simulation.backends import simulate
from confrere.study import Study, Training

SCHEMA = Schema(
    label=Label(column="sick"),
    columns=(Column("age", range=(0, 120)), Column("tsh", range=(0, 100)), Column("ft4", range=(0, 50))),
)


def table(site: int, *without: str, empty: str = "") -> pd.DataFrame:
    rng = np.random.default_rng(site)
    frame = pd.DataFrame(
        {
            "age": rng.integers(20, 90, 80),
            "tsh": rng.uniform(0, 10, 80).round(2),
            "ft4": rng.uniform(5, 30, 80).round(1),
        }
    )
    frame["sick"] = (frame["age"] + rng.normal(0, 10, 80) > 55).astype(int)
    if empty:
        frame[empty] = np.nan
    return frame.drop(columns=list(without))


def study(missing: str = "impute") -> Study:
    schema = {**SCHEMA.to_dict(), "missing_columns": missing}
    return Study(name="gaps", strategy="fedavg", rounds=1, schema=schema, training=Training(tune=False))


SITES: dict[str, Any] = {"full": table(0), "poor": table(1, "tsh", empty="ft4"), "rich": table(2)}


def printed(what: RenderableType, width: int = 120) -> str:
    out = StringIO()
    Console(file=out, width=width).print(what)
    return " ".join(out.getvalue().split())


def test_a_run_says_beside_the_figures_which_columns_a_site_lacks_and_how_they_are_handled() -> None:
    run = simulate(study(), SITES)
    assert run.sites["poor"].missing_columns == {"tsh": "imputed", "ft4": "imputed"}
    assert run.sites["full"].missing_columns == {}
    groups = run.result.by_columns
    assert groups["complete"].sites == ("full", "rich")
    assert groups["lacking"].mean == run.sites["poor"].metrics
    auc = [run.sites[s].metrics.auc for s in ("full", "rich")]
    assert groups["complete"].mean.auc == pytest.approx(sum(auc) / 2)
    json.dumps(run.result.as_json())
    text = printed(run_table(run.result))
    assert "lacks tsh and ft4 (imputed)" in text
    assert "mean over 2 sites with all columns" in text
    assert "mean over 1 site that lacks some" in text


def test_columns_that_are_left_out_everywhere_are_told_apart_from_imputed_ones() -> None:
    run = simulate(study("common"), SITES)
    assert run.sites["poor"].missing_columns == {"tsh": "left out", "ft4": "imputed"}
    assert "lacks tsh (left out); ft4 (imputed)" in printed(run_table(run.result))


def test_a_site_that_is_refused_has_no_result() -> None:
    with pytest.raises(DataError, match="the column 'tsh' is not there"):
        simulate(study("refuse"), SITES)


def test_nothing_is_said_where_no_site_lacks_a_column() -> None:
    run = simulate(study(), {"full": table(0), "rich": table(2)})
    assert not run.result.by_columns
    assert "missing_columns" not in run.result.as_json()["sites"]["full"]


def test_who_lacks_what_is_private_like_the_notes() -> None:
    run = simulate(study(), SITES)
    told = [e for e in run.events if "tsh" in json.dumps(dict(e.data))]
    assert {e.kind for e in told} == {"notice", "run-finished"}
    assert all(e.custody is Custody.PRIVATE for e in told)


def test_a_comparison_shows_the_mean_over_either_kind_of_site(tmp_path: Path) -> None:
    done = compare(study(), ["fedavg"], (0, 1), SITES, out=tmp_path / "c")
    fedavg = done.result.strategies["fedavg"]
    assert fedavg.sites["poor"].missing_columns == {"tsh": "imputed", "ft4": "imputed"}
    lacking, poor = fedavg.by_columns["lacking"], fedavg.sites["poor"]
    assert lacking.mean.auc.values == poor.metrics.auc.values
    assert lacking.gains.auc.values == poor.gains.auc.values
    both = fedavg.by_columns["complete"].mean.auc.values
    each = [fedavg.sites[s].metrics.auc.values for s in ("full", "rich")]
    assert both == pytest.approx([sum(pair) / 2 for pair in zip(*each, strict=True)])
    for width in (80, 140):
        text = printed(comparison_table(done.result), width)
        assert "2 sites with all columns" in text
        assert "1 site that lacks some" in text
    page = done.report().read_text(encoding="utf-8")
    assert "Missing columns" in page
    assert "tsh and ft4 (imputed)" in page
    assert "1 site that lacks some" in page.lower()


def test_the_report_of_a_run_shows_it_too(tmp_path: Path) -> None:
    page = simulate(study(), SITES, out=tmp_path / "r").report().read_text(encoding="utf-8")
    assert "tsh and ft4 (imputed)" in page
    assert "mean over 2 sites with all columns" in page


def test_a_streamed_column_is_lacking_only_if_no_piece_has_a_value(tmp_path: Path) -> None:
    late = pd.concat([table(1, empty="ft4")] * 1300, ignore_index=True)  # more than two pieces
    late["tsh"] = np.nan
    late.loc[len(late) - 1, "tsh"] = 3.0
    late.to_csv(tmp_path / "late.csv", index=False)
    sources = {"late": Source(tmp_path / "late.csv", stream=True), "full": table(0)}
    assert dict(of_files(sources, SCHEMA).sites["late"].lacks) == {"ft4": "imputed"}
