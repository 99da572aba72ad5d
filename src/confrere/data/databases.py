"""Records from a database, by an SQLAlchemy URL and a query."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pandas as pd

from confrere.core.errors import DataError
from confrere.data.origin import Origin


def read_sql(url: str, query: str) -> pd.DataFrame:
    """All rows of a query."""
    with _connection(url, query) as (connection, text, name):
        frame = pd.read_sql_query(text, connection)
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
