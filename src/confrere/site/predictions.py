"""The predictions of a site's model for its test records, record by record, kept for paired comparisons.

Everything here is PRIVATE to a site. A rehearsal holds all sites on one machine, so it may keep these arrays in the folder
of the run; no report shows them.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from confrere.core.metrics import Predictions, proper
from confrere.core.owner_only import private_draft
from confrere.data.records import Records

PARTS = ("test", "common_test")


@dataclass(frozen=True)
class RecordPredictions:
    """A model's outputs for some records, with their targets."""

    outputs: NDArray[np.float32]
    targets: NDArray[Any]
    whose: NDArray[np.str_] | Callable[[], NDArray[np.str_]]
    """The `marks`, or a function that computes them: only comparisons need them."""
    spread: float = 1.0
    """Brings the error of a number back into the unit of its column."""

    @property
    def predictions(self) -> Predictions:
        return Predictions(self.outputs, self.targets, self.spread)

    @property
    def marks(self) -> NDArray[np.str_]:
        """For each record, a name for its patient; where patients are unknown, for the record itself."""
        return self.whose() if callable(self.whose) else self.whose


@dataclass
class SelectedPredictions:
    """The predictions of the evaluation that counts: the last one, or the best on validation records (`outcome.chosen`)."""

    parts: dict[str, RecordPredictions] = field(default_factory=dict)
    _least: float = math.inf
    _spread: float = 1.0
    _marks: dict[str, NDArray[np.str_]] = field(default_factory=dict)

    def counts(self, validation: Mapping[str, float], last: bool) -> bool:
        """Whether the evaluation with these metrics is the one that counts so far."""
        chosen_by = proper(validation)
        value = validation[chosen_by] if chosen_by else math.nan
        better = value < self._least
        if better:
            self._least = value
        return last or better or not self.parts or math.isinf(self._least)

    def keep(self, site: str, part: str, outputs: Tensor, records: Records, spread: float = 1.0) -> None:
        self._spread = spread
        place = "" if part == "common_test" else site
        self.parts[part] = RecordPredictions(
            outputs.float().cpu().numpy(),
            records.targets.numpy(),
            partial(self._whose, part, records, place),
            spread,
        )

    def _whose(self, part: str, records: Records, place: str) -> NDArray[np.str_]:
        if part not in self._marks:
            self._marks[part] = marks_of(records, place)
        return self._marks[part]

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds: outputs alone, since the records are read again when a run is resumed."""
        parts = {part: torch.from_numpy(found.outputs) for part, found in self.parts.items()}
        return {"least": self._least, "parts": parts, "spread": self._spread}

    def restore(self, site: str, state: Mapping[str, Any], records: Mapping[str, Records | None]) -> None:
        """Return to what `state` gave."""
        self.parts, self._least = {}, float(state["least"])
        for part, outputs in state["parts"].items():
            if (found := records.get(part)) is not None:
                self.keep(site, part, outputs, found, float(state.get("spread", 1.0)))


def write_predictions(sites: Mapping[str, SelectedPredictions], path: Path) -> None:
    """Write one file of plain arrays into the folder of a run, readable by its owner only."""
    arrays: dict[str, Any] = {
        f"{site}/{part}/{what}": getattr(found, what)
        for site, selected in sites.items()
        for part, found in selected.parts.items()
        for what in ("outputs", "targets")
    }
    draft = private_draft(path)
    with draft.open("wb") as file:
        np.savez_compressed(file, **arrays)
    os.replace(draft, path)


def marks_of(records: Records, place: str) -> NDArray[np.str_]:
    """A name for each record that is the same in the test sets of all seeds, so that a bootstrap draws it in all of them."""
    if records.units is not None:
        return np.array([f"{place}/{unit}" for unit in records.units.tolist()])
    inputs = np.ascontiguousarray(records.inputs.numpy().reshape(len(records), -1))
    targets = np.ascontiguousarray(records.targets.numpy().reshape(len(records), -1))
    return np.array(
        [
            f"{place}/{hashlib.blake2b(x.tobytes() + y.tobytes(), digest_size=12).hexdigest()}"
            for x, y in zip(inputs, targets, strict=True)
        ]
    )
