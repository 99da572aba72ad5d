"""The checkpoints of a run on disk: each file holds the sites that have changed, and names the files of the others.

With `churn.participation` a round may change 50 sites of 1,000; the files of the other 950 stay. The last two checkpoints
are kept, and a file that neither of them needs is removed. A damaged newest file costs one round. A damaged older file may
be needed by both checkpoints; then the run cannot be resumed, and the error names the file. To keep the number of files
at `FILES`, the sites of the oldest file are written again when there are more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from confrere.core.errors import CheckpointError
from confrere.site import snapshot
from confrere.site.snapshot import Packed

TABLES = ("sites", "records")
"""What a checkpoint holds by site."""
FILES = 24


class CheckpointFiles:
    """The checkpoint files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._where: dict[str, int] = {}
        """After how many rounds each site was written last."""
        self._needed: set[int] = set()

    def due(self, changed: Collection[str]) -> set[str] | None:
        """The sites that the next checkpoint has to hold if these have changed; None: all of them."""
        if not self._where:
            return None
        files = set(self._where.values())
        oldest = min(files) if len(files) >= FILES else -1
        return {*changed, *(name for name, at in self._where.items() if at == oldest)}

    def put(self, done: int, content: Mapping[str, Any]) -> None:
        """Write a checkpoint, whole or not at all."""
        held = {name for table in TABLES for name in names_in(content.get(table, {}))}
        elsewhere = {name: at for name, at in self._where.items() if name not in held}
        snapshot.save(self._file(done), {**content, **({"elsewhere": elsewhere} if elsewhere else {})})
        self._where = {**elsewhere, **dict.fromkeys(held, done)}
        needed = {done, *elsewhere.values()}
        for old in self.path.glob("round-*.safetensors"):
            if _number(old) not in needed | self._needed:
                old.unlink(missing_ok=True)
        self._needed = needed

    def latest(self) -> dict[str, Any] | None:
        """The newest checkpoint that can be read; a damaged one is passed over. None if there never was one."""
        damage: CheckpointError | None = None
        for path in sorted(self.path.glob("round-*.safetensors"), reverse=True):
            try:
                found = self._whole(snapshot.load(path))
            except CheckpointError as error:
                damage = damage or error
                continue
            self._needed = {_number(path), *found.pop("elsewhere", {}).values()}
            return found
        if damage is not None:
            raise CheckpointError(
                f"no checkpoint of this run can be read; restore its folder from a copy, or start a new run ({damage})"
            )
        return None

    def _whole(self, found: dict[str, Any]) -> dict[str, Any]:
        """A checkpoint with the sites that are in other files."""
        elsewhere: Mapping[str, int] = found.get("elsewhere", {})
        for number in set(elsewhere.values()):
            other = snapshot.load(self._file(number))
            if any(other.get(key) != found.get(key) for key in ("study", "seed")) or other["done"] != number:
                raise CheckpointError(f"{self._file(number)}: belongs to another run")
            for name in (n for n, at in elsewhere.items() if at == number):
                if name not in other["sites"]:
                    raise CheckpointError(f'{self._file(number)}: does not hold site "{name}"')
                for table in TABLES:
                    if name in other[table]:
                        found[table][name] = other[table][name]
        return found

    def _file(self, done: int) -> Path:
        return self.path / f"round-{done:05d}.safetensors"


def names_in(table: Mapping[str, Any] | Packed) -> Collection[str]:
    """The sites of a table, also of one that was packed by a worker."""
    names: Collection[str] = (table.form["map"] if isinstance(table, Packed) else table).keys()
    return names


def _number(path: Path) -> int:
    digits = path.stem.partition("-")[2]
    return int(digits) if digits.isdigit() else -1
