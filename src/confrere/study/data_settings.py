"""The tables of a study about its records: where they come from, how pictures are encoded, how they are split."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date
from typing import Any, Literal

from pydantic import with_config

from confrere.core.errors import StudyError
from confrere.core.strict_reader import STRICT, Named
from confrere.data.encode.frozen_encoder import Encoder
from confrere.data.split.date_cut import DateCut
from confrere.data.split.holdout import Method, file_group, split_facts


@with_config(STRICT)
@dataclass(frozen=True)
class Split:
    """Which share of a site's patients is held out, and how they are chosen: see data/split/holdout.py.

    `hash`: each by a keyed hash of their own, so that ε holds for the site's whole file. `stratified`: each class in its
    share, by rank, so that one patient moves up to two others; for rehearsals only.
    """

    validation: float = 0.15
    """The share of patients held out to select models."""
    test: float = 0.25
    """The share of patients held out to report results."""
    method: Method = "hash"
    """"hash": each patient by a keyed hash. "stratified": each class in its share; rehearsals only."""
    by_date: date | None = None
    """A day, such as 2025-01-01: patients first seen before it train, later ones test. Records of earlier patients from that
    day on are left out. `test` then states the share of later patients that is expected: the public training size follows
    from it, and `validation` is taken from the earlier ones."""
    date_column: str | None = None
    """With by_date: the column of the files that has the date of each record. It need not be in the schema."""
    date_format: str | None = None
    """With by_date: how dates are written, where that is not ISO 8601, as in "%d/%m/%Y"; by default as the schema says."""

    @property
    def train(self) -> float:
        """The share of the training part."""
        return 1 - self.validation - self.test

    @property
    def file_group(self) -> int:
        """How many units of the training part one unit of the whole file moves; see `data.split.holdout.file_group`."""
        return file_group(self.method)

    @property
    def cut(self) -> DateCut | None:
        if self.by_date is None:
            return None
        return DateCut(self.date_column or "", self.by_date, self.date_format or "")

    @property
    def facts(self) -> dict[str, str | int]:
        """The split as results in JSON state it."""
        return split_facts(self.method, self.by_date)

    def check(self) -> None:
        if self.by_date is not None and not self.date_column:
            raise StudyError(
                'data.split.by_date needs the column that has the date of each record: date_column = "admitted"'
            )
        if self.by_date is None and (self.date_column or self.date_format):
            raise StudyError("data.split.date_column and date_format go with by_date = 2025-01-01")
        if self.by_date is not None and self.method != "hash":
            raise StudyError(
                'data.split.by_date goes with method = "hash" only: ranks would move other patients'
            )
        if not self.test > 0:
            raise StudyError(
                f"data.split.test is {self.test}; it must be above 0, since every site is evaluated"
            )
        if not self.validation >= 0:
            raise StudyError(f"data.split.validation is {self.validation}; it must be at least 0")
        if not self.validation + self.test < 1:
            raise StudyError(
                f"data.split leaves no training records: validation {self.validation} + test {self.test} must be below 1"
            )


@with_config(STRICT)
@dataclass(frozen=True)
class Data:
    """Where the records come from: a bundled data set, one file for all sites, or `[sites]`."""

    bundled: str | None = None
    """The name of a bundled data set; `confrere datasets` lists them."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the bundled data set."""
    file: str | None = None
    """One file with the records of all sites; `schema.site` names the column that says which."""
    label: str = ""
    """Without a schema: the column to predict. The schema is then drawn from the records: rehearsals only."""
    classes: tuple[str, ...] = ()
    """For arrays: the names of the classes 0, 1, 2 … Without them, classes are counted in the records of all sites."""
    range: tuple[float, float] | None = None
    """For arrays: the plausible range of a numeric target, scaled to −1 … 1. With tables it is in the schema."""
    partition: Named | None = None
    """For a rehearsal: how all records are divided into sites anew, from similar to very different ones."""
    features: str = ""
    """For images: "gradients" replaces pixels by fixed features that do not depend on any record."""
    encoder: Encoder | None = None
    """For images: a public, frozen network that replaces each picture by its features. It costs no privacy."""
    split: Split = field(default_factory=Split)
    """How each site's records are divided into training, validation and test."""
    one_class: Literal["refuse", "allow"] = "refuse"
    """Whether a site whose records all have the same label is refused or allowed."""

    def check(self) -> None:
        if self.range is not None and not self.range[0] < self.range[1]:
            raise StudyError("data.range is empty: the first number must be the smaller one")
        self.split.check()
        if self.encoder is not None:
            self.encoder.check()
            if self.features:
                raise StudyError("data.features and data.encoder both replace the pictures: drop one")
        if self.split.by_date is not None and (self.bundled or self.partition is not None):
            raise StudyError(
                "data.split.by_date needs the sites' own files: it does not go with data.bundled or data.partition"
            )
        if self.bundled and self.file:
            raise StudyError("data.bundled names a bundled data set; remove it to use your own files")
