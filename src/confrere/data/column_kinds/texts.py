"""Free text without a vocabulary: words are hashed, so no word list is drawn from the records."""

from __future__ import annotations

import re
import zlib
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from confrere.data.column_kinds import Column, ColumnKind, Encoding, Fields, column_kind
from confrere.data.read.values import as_text

_WORD = re.compile(r"\w+", re.UNICODE)
PADDING = 0


def words(text: str) -> list[str]:
    """Lower-case words and numbers.

    >>> words("No fever; SpO2 97%.")
    ['no', 'fever', 'spo2', '97']
    """
    return _WORD.findall(text.lower())


@lru_cache(maxsize=1 << 18)
def bucket(token: str, buckets: int) -> int:
    """The same bucket at every site and on every machine."""
    return zlib.crc32(token.encode()) % buckets


@column_kind("text")
class TextColumn(ColumnKind):
    """Counts of hashed n-grams scaled to length one, or token numbers in order, padded with 0."""

    optional = False

    def features(self, column: Column) -> tuple[str, ...]:
        count = column.buckets if column.encoding == "hashed" else column.length
        return tuple(f"{column.name}[{i}]" for i in range(count))

    def must_be_alone(self, column: Column) -> bool:
        return column.encoding == "ids"

    def encode(self, fields: Fields) -> Encoding:
        texts = as_text(fields.series, fields.column.missing)
        return encode_texts(texts, fields.column), np.zeros(len(texts), dtype=bool)


def encode_texts(texts: pd.Series[Any], column: Column) -> NDArray[np.float32]:
    return _ids(texts, column) if column.encoding == "ids" else _hashed(texts, column)


def _hashed(texts: pd.Series[Any], column: Column) -> NDArray[np.float32]:
    out = np.zeros((len(texts), column.buckets), dtype=np.float32)
    for row, text in enumerate(texts):
        found = words(text) if text is not None else []
        grams = found
        for n in range(2, column.ngrams + 1):
            grams = grams + [" ".join(found[i : i + n]) for i in range(len(found) - n + 1)]
        if grams:
            at = np.fromiter((bucket(g, column.buckets) for g in grams), dtype=np.int64, count=len(grams))
            counts = np.sqrt(np.bincount(at, minlength=column.buckets)).astype(np.float32)
            out[row] = counts / np.linalg.norm(counts)
    return out


def _ids(texts: pd.Series[Any], column: Column) -> NDArray[np.float32]:
    """Token numbers 1 … buckets − 1; they are exact as float32 up to 16 million."""
    out = np.full((len(texts), column.length), PADDING, dtype=np.float32)
    for row, text in enumerate(texts):
        found = words(text)[: column.length] if text is not None else []
        out[row, : len(found)] = [1 + bucket(w, column.buckets - 1) for w in found]
    return out
