"""Records from a database, by an SQLAlchemy URL and a query."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pandas as pd

from confrere.core.errors import DataError
from confrere.data.origin import Origin


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
        frame = pd.DataFrame.from_records(rows, columns=list(result.keys()), coerce_float=True)
    if frame.empty:
        raise DataError(f"{name}: the query gives no record")
    return _named(frame, name)


def stream_sql(url: str, query: str, rows: int) -> Iterator[pd.DataFrame]:
    """The rows of a query in pieces; the index goes on counting."""
    start = 0
    with _connection(url, query) as (connection, text, name):
        streaming = connection.execution_options(stream_results=True)
        for piece in pd.read_sql_query(text, streaming, chunksize=rows):
            if not piece.empty:
                piece.index = pd.RangeIndex(start, start + len(piece))
                start += len(piece)
                yield _named(piece, name)
    if not start:
        raise DataError(f"{name}: the query gives no record")


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
    return Origin(name).attach(frame)


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
    name = f"{parsed.get_backend_name()} database {parsed.database or ''}".strip()
    try:
        engine = sqlalchemy.create_engine(parsed)
    except (exc.NoSuchModuleError, ImportError) as error:
        raise DataError(f"{name}: the driver is not installed: {error}") from None
    try:
        with engine.connect() as connection:
            if parsed.get_backend_name() == "postgresql":
                connection = connection.execution_options(postgresql_readonly=True)
            yield connection, sqlalchemy.text(query), name
    except (exc.SQLAlchemyError, pd.errors.DatabaseError) as error:
        inner = error.__cause__ if isinstance(error, pd.errors.DatabaseError) else error
        cause = str(getattr(inner, "orig", None) or error).strip().splitlines()[0]
        raise DataError(f"{name}: {cause}") from None
    finally:
        engine.dispose()
