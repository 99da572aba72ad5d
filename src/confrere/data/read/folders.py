"""A folder of pictures as a table: with a file that names pictures and labels, or with a sub-folder for each class."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from confrere.core.errors import DataError
from confrere.data.read.image_files import is_picture
from confrere.data.read.table_origin import TableOrigin, counted, some

TABLES = (".csv", ".tsv", ".txt", ".xlsx", ".parquet", ".pq")
PICTURE, CLASS = "image", "label"
"""The columns of a folder whose sub-folders are the classes."""


def label_file(folder: Path) -> Path | None:
    """The one table that lies in the folder, if there is one; it says what is in the pictures."""
    tables = [p for p in _inside(folder) if p.is_file() and p.suffix.lower() in TABLES]
    if len(tables) > 1:
        named = [p for p in tables if p.stem.lower() in ("labels", "label")]
        if len(named) != 1:
            raise DataError(
                f"{folder.name}: holds the tables {some([p.name for p in tables])}; which one has the labels? "
                "Name it as `data`, or call it labels.csv"
            )
        return named[0]
    return tables[0] if tables else None


def classes_table(folder: Path) -> pd.DataFrame:
    """Picture and class of every file in the sub-folders; the notes list what was skipped."""
    subfolders = [p for p in _inside(folder) if p.is_dir()]
    rows: list[tuple[str, str]] = []
    strays: list[str] = []
    empty: list[str] = []
    for path in _inside(folder):
        if path.is_file() and is_picture(path):
            raise DataError(
                f"{folder.name}: the picture {path.name!r} lies in no sub-folder, so its class is not known; "
                "move it, or add a file labels.csv that names every picture and its label"
            )
        if path.is_file():
            strays.append(path.name)
    for subfolder in subfolders:
        before = len(rows)
        for path in sorted(p for p in subfolder.rglob("*") if p.is_file() and not p.name.startswith(".")):
            name = path.relative_to(folder).as_posix()
            if is_picture(path):
                rows.append((name, subfolder.name))
            else:
                strays.append(name)
        if len(rows) == before:
            empty.append(subfolder.name)
    if not rows:
        raise DataError(
            f"{folder.name}: holds no picture; put pictures (PNG, JPEG, DICOM) into sub-folders named after their "
            "classes, or beside a file labels.csv"
        )
    frame = pd.DataFrame(rows, columns=[PICTURE, CLASS])
    frame.attrs["notes"] = [
        *([f"{counted(len(strays), 'file')} passed over, not a picture: {some(strays)}"] if strays else []),
        *([f"sub-folders without a picture: {some(empty)}"] if empty else []),
    ]
    return TableOrigin(folder.name, header=0, path=str(folder)).attach(frame)


def size_of(folder: Path) -> int:
    """Bytes of all files in the folder and below."""
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())


def _inside(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if not p.name.startswith("."))
