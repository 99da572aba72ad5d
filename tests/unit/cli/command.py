"""The command line inside this process: quick, and through the same `main` that the installed command runs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import confrere.cli
from tests.conftest import write_study

QUICK = 'rounds = 2\nstrategy = "fedavg"\n'
PRIVATE = "[privacy]\nepsilon = 8.0\ndelta = 1e-4\nsteps = 2\n"


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output as one JSON document; anything else there is an error."""
        return json.loads(self.out)

    @property
    def said(self) -> str:
        """The complaint without line breaks."""
        return " ".join(self.err.split())


class Desk:
    """A folder with a study in it, and somebody who types commands there."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
        self.folder, self._patch, self._capsys = folder, monkeypatch, capsys
        monkeypatch.chdir(folder)

    def study(self, body: str = QUICK, sites: int = 3, records: int = 40) -> Path:
        return write_study(self.folder, body, sites, records)

    def confrere(self, *words: object) -> Answer:
        self._patch.setattr("sys.argv", ["confrere", *map(str, words)])
        self._capsys.readouterr()
        code = 0
        try:
            confrere.cli.main()
        except SystemExit as leaving:
            code = int(leaving.code or 0)
        out, err = self._capsys.readouterr()
        return Answer(code, out, err)

    def left(self) -> set[str]:
        """What is in the folder beside the study and its records."""
        return {p.name for p in self.folder.iterdir() if p.suffix not in (".csv", ".toml")}

    def refused(self, *words: object) -> str:
        """The complaint of a command that must fail cleanly: exit code 2, a line or two, nothing written."""
        before = self.left()
        answer = self.confrere(*words)
        assert answer.code == 2, answer
        assert answer.out == ""
        assert "Traceback" not in answer.err
        assert answer.err.startswith("confrere: ")
        assert len(answer.err.strip().splitlines()) <= 2
        assert self.left() == before
        return answer.said
