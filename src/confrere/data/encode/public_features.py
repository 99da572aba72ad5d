"""Replace the pictures of a federation by the features of a public, frozen encoder: the one place where that happens.

Each distinct picture is encoded once, alone, and kept in the `FeatureCache`. Everything behind it (simulations, workers,
nodes, audits, saved models) sees records that are vectors of norm 1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from confrere.core.errors import StudyError
from confrere.data.encode.feature_cache import FeatureCache, Features
from confrere.data.encode.frozen_encoder import Encoder, FrozenEncoder, encoders, require_checksum, unit
from confrere.data.encode.onnx_encoder import STUDYS, open_onnx
from confrere.data.records import Federation, Records, SiteData

GROUP = 128
"""Pictures whose features are kept on the disk together."""

Progress = Callable[[int, int], None]
"""Called with the number of pictures that were encoded, and of all that have to be."""


def _silent(done: int, total: int) -> None: ...


def open_encoder(spec: Encoder, copies: Sequence[Path] = ()) -> FrozenEncoder:
    """The encoder of a study. `copies` are the files that sites name; each must have the checksum, the first is used."""
    if spec.name:
        return encoders[spec.name].open(spec)
    first, *others = copies or [Path(spec.file)]
    for path in others:
        require_checksum(path, spec.sha256, STUDYS)
    return open_onnx(spec, first)


def with_encoder(
    federation: Federation,
    encoder: FrozenEncoder,
    cache_in: Path | None = None,
    progress: Progress = _silent,
) -> Federation:
    """The same federation, every picture replaced by its features; without `cache_in`, none are kept."""
    shape = tuple(federation.task.inputs)
    if federation.task.branches:
        names = ", ".join(b.name for b in federation.task.branches)
        raise StudyError(
            f"data.encoder is for records that are one picture each; these have several parts or steps ({names})"
        )
    encoder.check_shape(shape)
    encoder.check_function(shape)
    parts: dict[int, Records] = {}
    for site in federation.sites.values():
        for part in (site.train, site.validation, site.test, site.common_test):
            if part is not None:  # the common test set is the same for all sites
                parts[id(part)] = part
    cache = None
    if cache_in is not None:
        cache = FeatureCache(cache_in, encoder.spec.identity, encoder.width)
    try:
        features = encode_pictures([part.inputs for part in parts.values()], encoder, cache, progress)
    finally:
        if cache is not None:
            cache.close()
    encoded = {
        known: replace(part, inputs=found)
        for (known, part), found in zip(parts.items(), features, strict=True)
    }
    sites: dict[str, SiteData] = {}
    for name, site in federation.sites.items():
        common = encoded[id(site.common_test)] if site.common_test is not None else None
        train, validation, test = (encoded[id(p)] for p in (site.train, site.validation, site.test))
        sites[name] = replace(site, train=train, validation=validation, test=test, common_test=common)
    note = (
        f"every picture is replaced by {encoder.width:,} features of {encoder.spec.title}, which is public and frozen: that"
        " costs no privacy"
    )
    return replace(
        federation,
        task=replace(federation.task, inputs=(encoder.width,)),
        sites=sites,
        notes=(*federation.notes, note),
        encoder=encoder.spec.identity,
    )


def encode_pictures(
    parts: Sequence[Tensor],
    encoder: FrozenEncoder,
    cache: FeatureCache | None = None,
    progress: Progress = _silent,
) -> list[Tensor]:
    """The features of the pictures of each part; the same picture is encoded once."""
    first: dict[bytes, tuple[int, int]] = {}
    keys = [[_key(row) for row in part] for part in parts]
    for at, own in enumerate(keys):
        for row, key in enumerate(own):
            first.setdefault(key, (at, row))
    places = {key: n for n, key in enumerate(first)}
    table = np.empty((len(first), encoder.width), dtype=np.float32)
    missing = _read(cache, list(first), places, table)
    if missing:
        with cache.lock() if cache is not None else nullcontext():
            missing = _read(cache, missing, places, table)  # another process may have computed them meanwhile
            pictures = (_with_channel(parts[at][row]) for at, row in (first[key] for key in missing))
            for start, found in _encoded(pictures, encoder):
                group = missing[start : start + len(found)]
                for key, features in zip(group, found, strict=True):
                    table[places[key]] = features
                if cache is not None:
                    cache.write(dict(zip(group, found, strict=True)))
                progress(start + len(found), len(missing))
    for features in torch.from_numpy(table):
        features.copy_(unit(features))
    return [
        torch.from_numpy(
            table[np.array([places[key] for key in own], dtype=np.intp)].reshape(-1, encoder.width)
        )
        for own in keys
    ]


def _read(
    cache: FeatureCache | None, keys: list[bytes], places: dict[bytes, int], table: Features
) -> list[bytes]:
    """Copy what the cache has into the table; the keys of all others."""
    if cache is None:
        return keys
    missing = []
    for start in range(0, len(keys), 16 * GROUP):
        some = keys[start : start + 16 * GROUP]
        found = cache.read(some)
        for key in some:
            if key in found:
                table[places[key]] = found[key]
            else:
                missing.append(key)
    return missing


def _encoded(pictures: Iterator[Tensor], encoder: FrozenEncoder) -> Iterator[tuple[int, list[Features]]]:
    """Groups of features, each with the number of its first picture: one picture at a time on each core.

    Each thread computes on one core, so that the result has the same bits however many cores there are.
    """
    start = 0
    cores = max(1, torch.get_num_threads())
    try:
        with ThreadPoolExecutor(cores, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            while group := list(islice(pictures, GROUP)):
                yield start, list(pool.map(lambda picture: encoder.of(picture).numpy(), group))
                start += len(group)
    finally:
        torch.set_num_threads(cores)  # MKL has one number for all threads


def _key(picture: Tensor) -> bytes:
    """A hash of the picture: PRIVATE, since guesses about a picture can be tested against it."""
    content = np.ascontiguousarray(picture.numpy(), dtype="<f4")
    return hashlib.blake2b(f"{content.shape}".encode() + content.tobytes(), digest_size=16).digest()


def _with_channel(picture: Tensor) -> Tensor:
    return picture[None] if picture.ndim == 2 else picture
