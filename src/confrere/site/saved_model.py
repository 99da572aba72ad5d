"""Predict a file of records with a saved site model; no running node is needed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from pydantic import TypeAdapter
from safetensors import SafetensorError, safe_open
from torch import Tensor

from confrere.core.errors import ConfrereError, DataError
from confrere.core.params import Params
from confrere.data.column_kinds import Translation
from confrere.data.encode.encoder import encode_table, number_names
from confrere.data.encode.image_features import encode as encode_features
from confrere.data.encode.image_features import features
from confrere.data.read.sources import ReadOptions, read
from confrere.data.records import Task
from confrere.data.schema import Label, Schema
from confrere.learning.evaluation import predict as outputs_of
from confrere.learning.networks.architectures import architecture
from confrere.learning.networks.network import Network
from confrere.site.site_folder import FORMAT, schema_of_model

UNKNOWN = "what is to be predicted"


class SavedModel:
    """A model from its file: networks whose weighted outputs are added up."""

    def __init__(self, path: Path) -> None:
        path = path / "model.safetensors" if path.is_dir() else path
        try:
            with safe_open(path, framework="pt") as file:
                meta = file.metadata() or {}
                if meta.get("format") != FORMAT:
                    raise DataError(
                        f"{path}: not a model of this program; a node leaves one in its folder model/"
                    )
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            task: dict[str, Any] = json.loads(meta["task"])
            outputs = int(task.pop("outputs"))
            self.task = TypeAdapter(Task).validate_python(task)
            self.schema: Schema = schema_of_model(meta, str(path))
            self.translation: dict[str, Any] = json.loads(meta["site"])
            self.parts: list[tuple[float, Network]] = []
            for n, part in enumerate(json.loads(meta["parts"])):
                network = Network(
                    architecture(part["network"], tuple(self.task.inputs), outputs, self.task.branches)
                )
                own = {k.partition("/")[2]: t for k, t in tensors.items() if k.partition("/")[0] == str(n)}
                network.load(Params(own))
                self.parts.append((float(part["weight"]), network))
            self.outputs = outputs
            self.features = meta.get("features", "")
            self.shift = torch.tensor(json.loads(meta.get("shift") or "[]") or [0.0] * outputs)
            """What the site's own mix of classes adds, where all classes counted alike in learning."""
        except FileNotFoundError:
            raise DataError(f"{path}: no such file; a node leaves its model in its folder model/") from None
        except ConfrereError:
            raise
        except (OSError, SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
            raise DataError(
                f"{path}: the model cannot be read ({type(error).__name__}); is it damaged?"
            ) from None

    def outputs_for(self, inputs: Tensor) -> Tensor:
        """The summed outputs for encoded records."""
        total = self.shift.expand(len(inputs), self.outputs)
        for weight, network in self.parts:
            total = total + weight * outputs_of(network.module, inputs)
        return total

    def read(self, source: Path) -> tuple[pd.DataFrame, Tensor]:
        """A file's records, encoded by the schema; the label need not be there."""
        how = {
            k: v for k, v in self.translation.items() if k in ("delimiter", "encoding", "decimal", "sheet")
        }
        rename = dict(self.translation.get("rename") or {})
        frame = read(source, ReadOptions(numbers=number_names(self.schema, rename), **how))
        rename = {old: new for old, new in rename.items() if old in frame.columns}
        units = dict(self.translation.get("units") or {})
        folder = str(Path(source).resolve().parent)
        # Every record gets its line, in the order of the file: labels are ignored.
        schema = replace(self.schema, label=Label(column=UNKNOWN), patient="", site="")
        seen = frame.assign(**{UNKNOWN: "no"})
        seen.attrs = dict(frame.attrs)
        encoded = encode_table(seen, schema, "", Translation(rename, units, folder))
        inputs = encoded.records.inputs
        return frame, encode_features(inputs, features[self.features]) if self.features else inputs


def predictions(model: SavedModel, source: Path) -> pd.DataFrame:
    """One row for each record of the file, in its order: the prediction, and how sure the model is."""
    frame, inputs = model.read(source)
    outputs, task = model.outputs_for(inputs), model.task
    out = pd.DataFrame({"record": np.arange(1, len(frame) + 1)})
    if model.schema.patient and model.schema.patient in frame.columns:
        out[model.schema.patient] = frame[model.schema.patient].to_numpy()
    for name, column in task.traits.predictions(task, outputs).items():
        out[name] = column
    return out
