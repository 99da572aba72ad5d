"""Predict a file of records with a saved site model; no running node is needed."""

from __future__ import annotations

import json
from collections.abc import Mapping
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
from confrere.data.encode.frozen_encoder import Encoder, FrozenEncoder
from confrere.data.encode.image_features import encode as encode_features
from confrere.data.encode.image_features import features
from confrere.data.encode.public_features import encode_pictures, open_encoder
from confrere.data.read.sources import ReadOptions, read
from confrere.data.schema import Schema
from confrere.data.tasks import Label, Task
from confrere.learning.evaluation import predict as outputs_of
from confrere.learning.networks.architectures import architecture
from confrere.learning.networks.network import Network
from confrere.site.site_folder import FORMAT, schema_of_model

UNKNOWN = "what is to be predicted"


class SavedModel:
    """A model from its file: networks whose weighted outputs are added up."""

    def __init__(self, path: Path) -> None:
        path = path / "model.safetensors" if path.is_dir() else path
        self.path = path
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
            self.encoder = _encoder(json.loads(meta.get("encoder") or "null"))
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

    def open_encoder(self, source: Path, copy: Path | None = None) -> FrozenEncoder | None:
        """The encoder whose features the model has learned from; `copy` is its ONNX file, if that is not where it was."""
        if self.encoder is None:
            if copy is not None:
                raise DataError(f"{self.path}: this model has no encoder; drop --encoder")
            return None
        if self.encoder.name:
            if copy is not None:
                raise DataError(
                    f"{self.path}: this model has the encoder {self.encoder.title}; drop --encoder"
                )
            return open_encoder(self.encoder)
        name, own = self.encoder.file, str(self.translation.get("encoder") or "")
        places = [Path(own)] if own else []
        places += [self.path.parent / name, source.resolve().parent / name]
        found = copy or next((place for place in places if place.is_file()), None)
        if found is None:
            raise DataError(
                f"{self.path}: this model takes features of {self.encoder.title}, which is neither beside the model nor"
                " beside the records; name it with --encoder PATH"
            )
        return open_encoder(self.encoder, [found])

    def read(self, source: Path, encoder: Path | None = None) -> tuple[pd.DataFrame, Tensor]:
        """A file's records, encoded by the schema; the label need not be there. `encoder` is a copy of the ONNX file."""
        frozen = self.open_encoder(source, encoder)
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
        if frozen is not None:
            frozen.check_shape(tuple(inputs.shape[1:]))
            return frame, encode_pictures([inputs], frozen)[0]
        return frame, encode_features(inputs, features[self.features]) if self.features else inputs


def _encoder(facts: Mapping[str, Any] | None) -> Encoder | None:
    """The encoder that a model states; refused if this version would give other features."""
    if facts is None:
        return None
    named = {k: facts[k] for k in ("name", "file", "size") if facts.get(k)}
    spec = Encoder(**named, sha256="" if facts.get("name") else facts["sha256"])
    spec.check()
    if spec.identity != facts["identity"]:
        raise DataError(
            f"this model takes features of {facts['title']}, and this version of the program has another encoder of that"
            " name; use the version that the card of the model states"
        )
    return spec


def predictions(model: SavedModel, source: Path, encoder: Path | None = None) -> pd.DataFrame:
    """One row for each record of the file, in its order: the prediction, and how sure the model is.

    `encoder` is a copy of the ONNX file that the model's study names, if it is not where it was.
    """
    frame, inputs = model.read(source, encoder)
    outputs, task = model.outputs_for(inputs), model.task
    out = pd.DataFrame({"record": np.arange(1, len(frame) + 1)})
    if model.schema.patient and model.schema.patient in frame.columns:
        out[model.schema.patient] = frame[model.schema.patient].to_numpy()
    for name, column in task.traits.predictions(task, outputs).items():
        out[name] = column
    return out
