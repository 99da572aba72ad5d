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
from confrere.data.federate import Source, of_files
from confrere.data.schema import Column, Label, Schema
from confrere.data.tables import chunks, encode, read

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
    found = encode(read(server, query=QUERY), SCHEMA)
    expected = encode(patients, SCHEMA)
    assert torch.equal(found.inputs, expected.inputs)
    assert torch.equal(found.targets, expected.targets)


def test_a_real_database_streams(server: str, patients: pd.DataFrame) -> None:
    assert [len(p) for p in chunks(server, 200, query=QUERY)] == [200, 200, 100]
    sites = of_files({"a": Source(server, query=QUERY, stream=True), "b": patients}, SCHEMA, seed=0).sites
    assert torch.equal(sites["a"].train.inputs, sites["b"].train.inputs)


def test_a_query_cannot_write(server: str, patients: pd.DataFrame) -> None:
    with pytest.raises(DataError, match="read-only"):
        read(server, query="WITH gone AS (DELETE FROM patients RETURNING *) SELECT * FROM gone")
    assert len(read(server, query=QUERY)) == 500


def test_a_bad_query_is_a_message(server: str) -> None:
    with pytest.raises(DataError, match='relation "nobody" does not exist'):
        read(server, query="SELECT * FROM nobody")
