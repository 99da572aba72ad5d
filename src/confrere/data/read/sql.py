"""Records from a database, by an SQLAlchemy URL and a query.

A source of records only reads. The query is one SELECT (or WITH … SELECT); SQLite is opened read-only, and its authorizer
denies everything but reading (no ATTACH, no PRAGMA); PostgreSQL, MySQL and MariaDB run it in a read-only transaction;
and whatever the database, the transaction is rolled back.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from confrere.core.errors import DataError
from confrere.data.read.sources import DataSource, ReadOptions, data_source, exact
from confrere.data.read.table_origin import NoRecords, TableOrigin


@data_source("sql")
class Sql(DataSource):
    """Every address whose scheme no other source has: SQLAlchemy knows many dialects."""

    def read(self, source: str | Path, how: ReadOptions) -> pd.DataFrame:
        return read_sql(str(source), how.query, how.limit)

    def pieces(self, source: str | Path, how: ReadOptions, rows: int) -> Iterator[pd.DataFrame]:
        return stream_sql(str(source), how.query, rows)


READS = re.compile(r"(select|with|values|table)\b|\(", re.IGNORECASE)
WRITES = re.compile(r"\b(insert|update|delete|merge|into)\b", re.IGNORECASE)
UNCLEAR = {
    r"/\*(?:(?!\*/).)*/\*": "a comment within a comment",
    r"/\*M?!": "a comment that MySQL runs",
    r"\bn?q'": "a quoted text that starts with q'",
    r"\0": "a zero byte",
}
"""What one database takes for a comment or a text and another one runs."""


def _skipped(dashes: str, backslash: bool, dollar: bool, bracket: bool, hash_sign: bool) -> re.Pattern[str]:
    """Comments, quoted text and quoted names, as some database reads them."""
    inside = r"[^{0}\\]|\\.|{0}{0}" if backslash else r"[^{0}]|{0}{0}"
    parts = [dashes, r"/\*.*?\*/", *(f"{q}(?:{inside.format(q)})*{q}" for q in "'\""), r"`[^`]*`"]
    parts += [r"\[[^\]]*\]"] * bracket + [r"\$(\w*)\$.*?\$\1\$"] * dollar + [r"#[^\n]*"] * hash_sign
    return re.compile("|".join(parts), re.DOTALL)


READINGS = tuple(
    _skipped(dashes, *flags)
    for flags in product(*[(False, True)] * 4)
    for dashes in (r"--[^\n]*", r"--[^\n\r]*", r"--(?=\s|$)[^\n]*")
)
"""Databases disagree about escapes, quotes and comments. A query has to be harmless in every reading."""
READING = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
"""What SQLite's authorizer allows."""


def read_sql(url: str, query: str, limit: int) -> pd.DataFrame:
    """All rows of a query, unless they come to more than `limit` bytes, written as text."""
    with _connection(url, query) as (connection, text, name):
        result = connection.execution_options(stream_results=True).execute(text)
        if not result.returns_rows:
            raise DataError(f"{name}: the query gives no table; start it with SELECT")
        rows: list[Any] = []
        size, batch = 0.0, 100
        while fetched := result.fetchmany(batch):
            rows += fetched
            each = _written(fetched)
            size += each * len(fetched)
            if size > limit:
                raise DataError(
                    f"{name}: the query gives more than the {limit / 1024**2:,.0f} MB that were expected "
                    f"(stopped after {len(rows):,} records): {_short(query)}. Ask for fewer columns or records, say "
                    "stream = true to read it piece by piece, or raise limit_mb."
                )
            batch = max(1, min(10_000, int(limit / 8 / each)))  # a record can hold a whole document
        frame = _table(rows, list(result.keys()))
    frame = _named(frame, name)
    if frame.empty:
        raise NoRecords(f"{name}: the query gives no record", frame)
    return frame


def stream_sql(url: str, query: str, rows: int) -> Iterator[pd.DataFrame]:
    """The rows of a query in pieces; the index goes on counting."""
    start = 0
    with _connection(url, query) as (connection, text, name):
        result = connection.execution_options(stream_results=True).execute(text)
        if not result.returns_rows:
            raise DataError(f"{name}: the query gives no table; start it with SELECT")
        names = list(result.keys())
        while fetched := result.fetchmany(rows):
            piece = _table(fetched, names)
            piece.index = pd.RangeIndex(start, start + len(piece))
            start += len(piece)
            yield _named(piece, name)
    if not start:
        raise NoRecords(f"{name}: the query gives no record", _table([], names))


def _table(rows: Sequence[Any], names: list[str]) -> pd.DataFrame:
    """The rows with every value as the database gives it."""
    return pd.DataFrame([tuple(row) for row in rows], columns=names, dtype=object)


def one_select(query: str, name: str) -> str:
    """The query, if it is a single statement that reads, however a database reads its quotes and comments."""
    for pattern, what in UNCLEAR.items():
        if re.search(pattern, query, re.DOTALL | re.IGNORECASE):
            raise DataError(
                f"{name}: the query has {what}, which databases read differently; leave it out: {_short(query)}"
            )
    for reading in READINGS:
        plain = reading.sub(" ", query).strip().rstrip(";").strip()
        if ";" in plain:
            raise DataError(f"{name}: the query is several statements; give a single SELECT: {_short(query)}")
        if not READS.match(plain):
            raise DataError(f"{name}: the query does not read; start it with SELECT or WITH: {_short(query)}")
        if WRITES.search(plain):  # WITH … DELETE, SELECT … INTO
            raise DataError(f"{name}: the query would write; a source of records only reads: {_short(query)}")
    return query


def _read_only(engine: Any, backend: str) -> None:
    """Let connections of this engine only read, as far as the database knows such a thing."""
    from sqlalchemy import event

    @event.listens_for(engine, "connect")
    def connected(connection: Any, _record: Any) -> None:
        if backend == "sqlite":
            connection.set_authorizer(_authorize)
        elif backend in ("mysql", "mariadb"):
            cursor = connection.cursor()
            cursor.execute("SET SESSION TRANSACTION READ ONLY")
            cursor.close()


def _authorize(action: int, *_: str | None) -> int:
    return sqlite3.SQLITE_OK if action in READING else sqlite3.SQLITE_DENY


def _sqlite_read_only(parsed: Any, name: str) -> Any:
    """The address of an SQLite file, opened read-only: a file that is not there is not made either."""
    if not parsed.database or parsed.database == ":memory:" or parsed.database.startswith("file:"):
        raise DataError(f"{name}: give the path of an SQLite file, such as sqlite:///patients.sqlite")
    path = Path(parsed.database).resolve()
    if not path.is_file():
        raise DataError(f"{name}: no such file")
    return parsed.set(database=f"{path.as_uri()}", query={"mode": "ro", "uri": "true"})


def _written(rows: Sequence[Any]) -> float:
    """About how many characters a record has, by a few of them."""
    some = rows[:: max(1, len(rows) // 50)]
    return max(1.0, sum(len(str(value)) + 1 for row in some for value in row) / len(some))


def _short(query: str, most: int = 120) -> str:
    text = " ".join(query.split())
    return text if len(text) <= most else text[: most - 1] + "…"


def _named(frame: pd.DataFrame, name: str) -> pd.DataFrame:
    twice = frame.columns[frame.columns.duplicated()]
    if len(twice):
        raise DataError(f"{name}: the query gives the column {twice[0]!r} twice; name one of them with AS")
    return TableOrigin(name).attach(exact(frame))


@contextmanager
def _connection(url: str, query: str) -> Iterator[tuple[Any, Any, str]]:
    """A connection that can only read where the database knows such a thing; no password in a message."""
    try:
        import sqlalchemy
        from sqlalchemy import exc
    except ImportError:
        raise DataError('a database needs sqlalchemy: pip install "confrere[data]"') from None
    if not query.strip():
        raise DataError('a database needs a query, for example query = "SELECT * FROM patients"')
    try:
        parsed = sqlalchemy.make_url(url)
    except exc.ArgumentError:
        raise DataError("the database address cannot be read; write dialect://user@host/database") from None
    backend = parsed.get_backend_name()
    name = f"{backend} database {parsed.database or ''}".strip()
    one_select(query, name)
    if backend == "sqlite":
        parsed = _sqlite_read_only(parsed, name)
    try:
        engine = sqlalchemy.create_engine(parsed)
    except (exc.NoSuchModuleError, ImportError) as error:
        raise DataError(f"{name}: the driver is not installed: {error}") from None
    _read_only(engine, backend)
    try:
        with engine.connect() as connection:
            if backend == "postgresql":
                connection = connection.execution_options(postgresql_readonly=True)
            yield connection, sqlalchemy.text(query), name
            connection.rollback()
    except (exc.SQLAlchemyError, pd.errors.DatabaseError) as error:
        inner = error.__cause__ if isinstance(error, pd.errors.DatabaseError) else error
        cause = str(getattr(inner, "orig", None) or error).strip().splitlines()[0]
        raise DataError(f"{name}: {cause}") from None
    finally:
        engine.dispose()
