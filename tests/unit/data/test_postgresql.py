"""A real PostgreSQL, started for this test and gone after it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from confrere.core.errors import DataError
from confrere.data.column_kinds import Column
from confrere.data.encode.encoder import encode
from confrere.data.federation import Opening, Source, of_files
from confrere.data.read import sql
from confrere.data.read.sources import ReadOptions, chunks, read
from confrere.data.schema import Schema
from confrere.data.tasks import Label

SCHEMA = Schema(
    label=Label(column="sick"),
    columns=(Column("age", range=(0, 120)), Column("seen", kind="date", coarsen="year", range=(2000, 2030))),
    patient="who",
)


def programs() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"))
    return found[-1].parent if found else None


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of a fresh database cluster."""
    pytest.importorskip("sqlalchemy")
    pytest.importorskip("psycopg")
    bin_folder = programs()
    if bin_folder is None:
        pytest.skip("PostgreSQL is not installed (Debian: postgresql)")
    as_owner = []
    if os.geteuid() == 0:  # PostgreSQL refuses to run as root
        if shutil.which("runuser") is None:
            pytest.skip("PostgreSQL cannot be started as root, and runuser is not there")
        as_owner = ["runuser", "-u", "postgres", "--"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = Path(tempfile.mkdtemp(prefix="confrere-pg-"))
    if as_owner:
        shutil.chown(folder, "postgres", "postgres")
    data = folder / "data"
    options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder} -c fsync=off"
    run = [
        *as_owner,
        str(bin_folder / "initdb"),
        "-D",
        str(data),
        "-U",
        "tester",
        "--auth=trust",
        "-E",
        "UTF8",
    ]
    subprocess.run(run, check=True, capture_output=True, cwd="/")
    control = [*as_owner, str(bin_folder / "pg_ctl"), "-D", str(data), "-w"]
    log = str(folder / "log")
    subprocess.run(
        [*control, "-l", log, "-o", options, "start"], check=True, cwd="/", stdout=subprocess.DEVNULL
    )
    try:
        yield f"postgresql+psycopg://tester@127.0.0.1:{port}/postgres"
    finally:
        subprocess.run([*control, "-m", "immediate", "stop"], check=True, cwd="/", stdout=subprocess.DEVNULL)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def patients(server: str) -> pd.DataFrame:
    import sqlalchemy

    rng = np.random.default_rng(0)
    frame = pd.DataFrame({
        "who": np.arange(500),
        "age": np.where(rng.uniform(size=500) < 0.1, np.nan, rng.integers(0, 100, 500)),
        "seen": pd.to_datetime(rng.integers(1_000_000_000, 1_700_000_000, 500), unit="s"),
        "sick": rng.uniform(size=500) < 0.4,
    })  # fmt: skip
    engine = sqlalchemy.create_engine(server)
    frame.to_sql("patients", engine, index=False)
    engine.dispose()
    return frame


QUERY = "SELECT who, age, seen, sick FROM patients ORDER BY who"


def test_records_of_a_real_database_are_those_of_the_frame(server: str, patients: pd.DataFrame) -> None:
    found = encode(read(server, ReadOptions(query=QUERY)), SCHEMA)
    expected = encode(patients, SCHEMA)
    assert torch.equal(found.inputs, expected.inputs)
    assert torch.equal(found.targets, expected.targets)


def test_a_real_database_streams(server: str, patients: pd.DataFrame) -> None:
    assert [len(p) for p in chunks(server, 200, ReadOptions(query=QUERY))] == [200, 200, 100]
    streamed = of_files(
        {"a": Source(server, ReadOptions(QUERY), stream=True)}, SCHEMA, Opening(seed=0)
    ).sites["a"]
    known = of_files({"a": patients}, SCHEMA, Opening(seed=0)).sites["a"]
    assert torch.equal(streamed.train.inputs, known.train.inputs)


def test_a_query_cannot_write(server: str, patients: pd.DataFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = "WITH gone AS (DELETE FROM patients RETURNING *) SELECT * FROM gone"
    with pytest.raises(DataError, match="would write"):
        read(server, ReadOptions(query=gone))
    with monkeypatch.context() as patched:  # the database refuses it too
        patched.setattr(sql, "one_select", lambda query, name: query)
        with pytest.raises(DataError, match="must not contain data-modifying"):
            read(server, ReadOptions(query=gone))
    import sqlalchemy

    engine = sqlalchemy.create_engine(server)
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("CREATE SEQUENCE counter"))
    engine.dispose()
    with pytest.raises(DataError, match="read-only"):
        read(server, ReadOptions(query="SELECT nextval('counter')"))
    with pytest.raises(DataError):
        read(server, ReadOptions(query="DELETE FROM patients"))
    assert len(read(server, ReadOptions(query=QUERY))) == 500


def test_a_bad_query_is_a_message(server: str) -> None:
    with pytest.raises(DataError, match='relation "nobody" does not exist'):
        read(server, ReadOptions(query="SELECT * FROM nobody"))


def test_a_result_that_is_larger_than_expected_is_stopped_on_the_way(server: str) -> None:
    query = "SELECT i AS who, repeat('x', 1000) AS text, 0 AS sick FROM generate_series(1, 10000000) AS i"  # 10 GB
    with pytest.raises(DataError) as refused:
        of_files({"north": Source(server, ReadOptions(query, limit=4 * 1024**2))}, SCHEMA)
    said = str(refused.value)
    assert said.startswith("site north: postgresql database postgres: the query gives more than the 4 MB")
    assert "SELECT i AS who" in said
    assert "stream = true" in said
    assert "limit_mb" in said
    stopped = int(said.split("stopped after ")[1].split(" ")[0].replace(",", ""))
    assert 4000 < stopped < 6000  # of ten million: what was fetched fits into memory
