"""Tables out of pickles: nothing that a pickle names is imported or called."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pandas as pd
import pytest

from confrere.core.errors import DataError
from confrere.data.bundled.unpickle import convert, table


class Bomb:
    """What a hostile pickle would hold."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch /tmp/confrere-was-here",)


@pytest.mark.parametrize(
    "raw",
    [
        pickle.dumps(Bomb()),
        b"cos\nsystem\n(S'true'\ntR.",
        b"cbuiltins\neval\n(S'1'\ntR.",
        pickle.dumps(pd.io.common.get_handle),
    ],
)
def test_a_hostile_pickle_is_refused_and_calls_nothing(raw: bytes) -> None:
    with pytest.raises(DataError, match="which no table needs"):
        table(raw)


@pytest.mark.parametrize(
    "raw", [b"", b"junk", pickle.dumps([1, 2]), pickle.dumps({"a": 1})[:-3], b"\x80\x04."]
)
def test_a_pickle_that_is_no_table_is_refused_with_a_message(raw: bytes) -> None:
    with pytest.raises(DataError):
        table(raw)


def test_the_separate_process_refuses_too_and_leaves_nothing(tmp_path: Path) -> None:
    source, target = tmp_path / "bomb.pickle", tmp_path / "out.csv"
    source.write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(DataError, match=r"bomb\.pickle: could not be converted: the pickle asks for"):
        convert(source, target)
    assert not target.exists()
    assert not Path("/tmp/confrere-was-here").exists()
