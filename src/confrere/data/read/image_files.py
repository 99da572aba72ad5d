"""Image files (PNG, JPEG, DICOM) as numbers from 0 to 1, of the size that the schema says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from confrere.core.errors import DataError, StudyError
from confrere.data.column_kinds import Column
from confrere.data.read.table_origin import for_each_record

DICOM = (".dcm", ".dicom")
PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff")
MAX_PIXELS = 64_000_000
"""The largest picture that is opened; a small file can claim to be enormous."""


def load_images(frame: pd.DataFrame, column: Column, folder: str = "") -> NDArray[np.float32]:
    """The pictures that a column names, float32 [n, channels, height, width]."""
    out = np.zeros((len(frame), column.channels, *column.size), dtype=np.float32)

    def load(row: int, name: Any) -> None:
        if not isinstance(name, str) or not name.strip():
            raise DataError("no image file is named")
        out[row] = read_image(find_inside(Path(folder), name), column.size, column.channels, name)

    for_each_record(frame, column.name, frame[column.name], load)
    return out


def find_inside(folder: Path, name: str, folders: bool = False) -> Path:
    """The file (or, where that is allowed, the folder) that a record names; it must lie in the site's own folder."""
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise DataError(f"{name!r} lies outside of the image folder")
    if not (path.is_file() or (folders and path.is_dir())):
        what = "file or folder" if folders else "image file"
        raise DataError(f"there is no {what} {name!r}")
    return path


def read_image(path: Path, size: tuple[int, int], channels: int = 1, name: str = "") -> NDArray[np.float32]:
    """One picture, float32 [channels, height, width] from 0 to 1; an error calls it `name`."""
    try:
        return _pixels(path, size, channels)
    except DataError as error:
        raise DataError(f"{name or path.name} {error}") from None


def is_picture(path: Path) -> bool:
    """Whether a file is meant to be a picture: by its name, or without an ending by the mark of DICOM."""
    suffix = path.suffix.lower()
    return suffix in (*PICTURES, *DICOM) or (not suffix and _has_dicom_mark(path))


def _has_dicom_mark(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(132)[128:] == b"DICM"


def _pixels(path: Path, size: tuple[int, int], channels: int) -> NDArray[np.float32]:
    """The same; the sentence of an error goes on after the name of the file."""
    if path.suffix.lower() in (*DICOM, ""):
        return _shaped(_dicom(path), size, channels)
    return _picture(path, size, channels)


def _picture(path: Path, size: tuple[int, int], channels: int) -> NDArray[np.float32]:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            if image.width * image.height > MAX_PIXELS:
                raise DataError(f"has {image.width} × {image.height} pixels: too large to open")
            deep = image.mode.startswith("I") or image.mode == "F"
            if deep:  # sixteen bits a pixel
                values = np.asarray(image, dtype=np.float32) / 65535.0
                return _shaped(values, size, channels)
            converted = image.convert("L" if channels == 1 else "RGB")
            if (converted.height, converted.width) != size:
                converted = converted.resize((size[1], size[0]), Image.Resampling.BILINEAR)
            array = np.asarray(converted, dtype=np.float32) / 255.0
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"cannot be read as a picture, is it truncated? ({error})") from None
    return array[None] if channels == 1 else np.ascontiguousarray(array.transpose(2, 0, 1))


def _dicom(path: Path) -> NDArray[np.float32]:
    """Pixels of a DICOM file from 0 to 1, by the range that its own header declares."""
    try:
        import pydicom
        from pydicom.errors import InvalidDicomError
    except ImportError:
        raise StudyError(f'{path.name} is DICOM, which needs pydicom: pip install "confrere[data]"') from None
    try:
        file = pydicom.dcmread(path)
        if int(file.Rows) * int(file.Columns) > MAX_PIXELS:
            raise DataError(f"has {file.Rows} × {file.Columns} pixels: too large to open")
        pixels = np.asarray(file.pixel_array, dtype=np.float32)
        bits, signed = int(file.BitsStored), int(file.PixelRepresentation)
        low = -(2.0 ** (bits - 1)) if signed else 0.0
        values = (pixels - low) / (2.0**bits - 1)
        if "WindowCenter" in file and "WindowWidth" in file:
            slope, intercept = float(file.get("RescaleSlope", 1)), float(file.get("RescaleIntercept", 0))
            centre, width = _first(file.WindowCenter), max(_first(file.WindowWidth), 1.0)
            values = np.clip((pixels * slope + intercept - centre) / width + 0.5, 0.0, 1.0)
        if str(file.get("PhotometricInterpretation", "")) == "MONOCHROME1":
            values = 1.0 - values
        return values.astype(np.float32)
    except DataError:
        raise
    except (
        InvalidDicomError,
        OSError,
        AttributeError,
        ValueError,
        KeyError,
        RuntimeError,
        EOFError,
    ) as error:
        raise DataError(f"cannot be read as DICOM, is it truncated? ({error})") from None


def _first(value: Any) -> float:
    return float(value[0]) if hasattr(value, "__getitem__") and not isinstance(value, str) else float(value)


def _shaped(values: NDArray[np.float32], size: tuple[int, int], channels: int) -> NDArray[np.float32]:
    """Resized to the schema's size; grey becomes colour by repetition, colour grey by its mean."""
    from PIL import Image

    planes = values if values.ndim == 3 else values[..., None]
    if planes.ndim != 3 or planes.shape[2] not in (1, 3):
        raise DataError(f"holds {values.shape} numbers: one picture was expected")
    if planes.shape[2] == 3 and channels == 1:
        planes = planes.mean(axis=2, keepdims=True)
    out = []
    for i in range(channels):
        plane = Image.fromarray(
            np.ascontiguousarray(planes[..., min(i, planes.shape[2] - 1)], dtype=np.float32)
        )
        if planes.shape[:2] != size:
            plane = plane.resize((size[1], size[0]), Image.Resampling.BILINEAR)
        out.append(np.asarray(plane, dtype=np.float32))
    return np.stack(out)
