"""What a site's model said about its test records, record by record, kept for paired comparisons.

Everything here is PRIVATE to a site. A rehearsal holds all sites on one machine, so it may keep these arrays in
the folder of the run; they go into no report.
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
class Said:
    """Outputs and truth of the same records."""

    outputs: NDArray[np.float32]
    targets: NDArray[Any]
    whose: NDArray[np.str_] | Callable[[], NDArray[np.str_]]
    """Names for whom each record is of, or how to find them: only comparisons ask."""
    spread: float = 1.0
    """Brings the error of a number back into the unit of its column."""

    @property
    def predictions(self) -> Predictions:
        return Predictions(self.outputs, self.targets, self.spread)

    @property
    def marks(self) -> NDArray[np.str_]:
        """Whom each record is of: a patient, else the record itself."""
        return self.whose() if callable(self.whose) else self.whose


@dataclass
class Kept:
    """What the model said that counts: the last one, or the best on validation records (as `results.chosen`)."""

    parts: dict[str, Said] = field(default_factory=dict)
    _least: float = math.inf
    _spread: float = 1.0
    _marks: dict[str, NDArray[np.str_]] = field(default_factory=dict)

    def counts(self, validation: Mapping[str, float], last: bool) -> bool:
        """Whether the evaluation with these figures is the one that counts so far."""
        chosen_by = proper(validation)
        value = validation[chosen_by] if chosen_by else math.nan
        better = value < self._least
        if better:
            self._least = value
        return last or better or not self.parts or math.isinf(self._least)

    def keep(self, site: str, part: str, outputs: Tensor, records: Records, spread: float = 1.0) -> None:
        self._spread = spread
        heard, truth = outputs.float().cpu().numpy(), records.targets.numpy()
        place = "" if part == "common_test" else site
        self.parts[part] = Said(heard, truth, partial(self._whose, part, records, place), spread)

    def _whose(self, part: str, records: Records, place: str) -> NDArray[np.str_]:
        if part not in self._marks:
            self._marks[part] = marks_of(records, place)
        return self._marks[part]

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds of this: outputs alone, since the records are there again when a run goes on."""
        parts = {part: torch.from_numpy(said.outputs) for part, said in self.parts.items()}
        return {"least": self._least, "parts": parts, "spread": self._spread}

    def put_back(self, site: str, state: Mapping[str, Any], records: Mapping[str, Records | None]) -> None:
        """Be again what `state` was taken of."""
        self.parts, self._least = {}, float(state["least"])
        for part, outputs in state["parts"].items():
            if (found := records.get(part)) is not None:
                self.keep(site, part, outputs, found, float(state.get("spread", 1.0)))


def write(kept: Mapping[str, Kept], path: Path) -> None:
    """One file of plain arrays in the folder of a run, as private as the checkpoints beside it."""
    arrays: dict[str, Any] = {
        f"{site}/{part}/{what}": getattr(said, what)
        for site, all_said in kept.items()
        for part, said in all_said.parts.items()
        for what in ("outputs", "targets")
    }
    draft = private_draft(path)
    with draft.open("wb") as file:
        np.savez_compressed(file, **arrays)
    os.replace(draft, path)


def marks_of(records: Records, place: str) -> NDArray[np.str_]:
    """A name for each record that is the same in every seed's test set, so that it can be drawn in all of them."""
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
