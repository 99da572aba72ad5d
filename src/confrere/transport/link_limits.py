"""The limits of a link: size of a parcel, waiting times, and where large parcels are buffered."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

LONGEST_SILENCE = 60.0


@dataclass(frozen=True)
class LinkLimits:
    """What this site grants its peers; the same for every link."""

    largest: int = 256 * 2**20
    """Bytes of a parcel, checked before a byte of it is read; a study has an expected parcel."""
    patience: float = 60.0
    """Seconds that a peer may take to decide on a parcel that it has received."""
    folder: Path | None = None
    """Where large parcels are spooled; the system's own folder for temporary files if None."""

    @property
    def silence(self) -> float:
        """Seconds without a sign of life after which a peer is lost."""
        return min(self.patience, LONGEST_SILENCE)
