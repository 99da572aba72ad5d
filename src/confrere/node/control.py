"""A node's control socket: a Unix socket in its folder that only its owner can open.

One request and one answer, each a line of JSON: {"do": "status"} and its result.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from confrere.core.errors import ConfrereError, StudyError

SOCKET = "control.sock"
LONGEST = 1 << 20
PATIENCE = 60.0
"""Seconds to wait for a node's answer; it may be in the middle of something."""

Answer = Callable[[str], Awaitable[Mapping[str, Any]]]


class Control:
    """Listens in a node's folder while the node runs."""

    def __init__(self, home: Path, answer: Answer) -> None:
        self._home, self._answer = home, answer
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Control:
        with suppress(FileNotFoundError):
            (self._home / SOCKET).unlink()
        with _short(self._home) as path:  # the folder is the owner's alone already
            self._server = await asyncio.start_unix_server(self._serve, path, limit=LONGEST)
            os.chmod(path, 0o600)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        with suppress(FileNotFoundError):
            (self._home / SOCKET).unlink()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = json.loads(await asyncio.wait_for(reader.readline(), PATIENCE))
            found = dict(await self._answer(str(request["do"])))
        except ConfrereError as error:
            found = {"error": str(error)}
        except (ValueError, KeyError, TypeError, TimeoutError) as error:
            found = {"error": f"not a request ({type(error).__name__})"}
        with suppress(OSError):
            writer.write(json.dumps(found, ensure_ascii=False).encode() + b"\n")
            await writer.drain()
            writer.close()


def ask(home: Path, what: str) -> dict[str, Any]:
    """Send a command to the node of a folder, and return its answer."""
    if not home.is_dir():
        raise StudyError(f"{home}: no such folder; it is `home` in site.toml")
    with _short(home) as path, socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE)
        try:
            connection.connect(path)
            connection.sendall(json.dumps({"do": what}).encode() + b"\n")
            with connection.makefile("rb") as file:
                found: dict[str, Any] = json.loads(file.readline(LONGEST))
        except (FileNotFoundError, ConnectionRefusedError):
            raise NotRunning(f"{home}: no node is at work here") from None
        except TimeoutError:
            raise StudyError(f"{home}: the node did not answer within {PATIENCE:g} seconds") from None
        except (OSError, ValueError) as error:
            raise StudyError(f"{home}: the node cannot be asked ({error})") from None
    if "error" in found:
        raise StudyError(str(found["error"]))
    return found


class NotRunning(StudyError):
    """No node is running in that folder."""


@contextmanager
def _short(home: Path) -> Iterator[str]:
    """The socket's address by way of its open folder: the system allows some hundred characters, folders more."""
    folder = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{SOCKET}" if os.path.isdir("/proc/self/fd") else str(home / SOCKET)
    finally:
        os.close(folder)
