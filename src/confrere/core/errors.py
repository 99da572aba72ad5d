"""The errors of the package, as one tree.

ConfrereError
├── StudyError            the study or a command says something that cannot be done
├── DataError             a file, a column or a record is not what the schema promises
├── PrivacyError          a guarantee would not hold
│   ├── BudgetExhausted   the next step would overspend; nothing was computed
│   ├── CustodyError      something PRIVATE was about to leave the site
│   ├── LedgerRolledBack  the ledger is older than this site or a peer has seen it, or gone
│   └── UnsafeModule      a model mixes records or has a layer that no rule covers
├── IdentityError         this site's own key or certificate is missing, expired, or open to others
├── PeerError             another site is missing, refused, or sent something broken
│   ├── PeerMissing
│   ├── PeerRefused
│   └── BadParcel
├── TrainingError         a loss or a weight stopped being a finite number
├── WorkerLost            a process or machine that ran a share of a simulation is gone
└── CheckpointError       a saved state is missing, broken or of another study

A message says what was wrong, where (site, round, file, key) and what to do about it.
The command line prints it in a line or two and ends with the error's exit code: 2, or 3 for a ledger that was rolled back,
so that a service manager can tell them apart.
"""

from __future__ import annotations

import warnings
from typing import ClassVar


class ConfrereError(Exception):
    """What the command line shows as a message; anything else that escapes is a bug."""

    exit_code: ClassVar[int] = 2


class StudyError(ConfrereError):
    """The study, or the way a command was called, cannot be carried out."""


class DataError(ConfrereError):
    """A file, a column or a record is not what the schema promises."""


class PrivacyError(ConfrereError):
    """A guarantee would not hold."""


class BudgetExhausted(PrivacyError):
    """The next step would overspend the budget; it was refused before anything was computed."""


class CustodyError(PrivacyError):
    """Something PRIVATE was about to leave the site."""


class LedgerRolledBack(PrivacyError):
    """A ledger is older than this site or its peers have seen it, or gone: what was spent would be spent again."""

    exit_code: ClassVar[int] = 3


class UnsafeModule(PrivacyError):
    """A model mixes records, or has a trainable layer that no rule covers."""


class IdentityError(ConfrereError):
    """A key or a certificate of this site is missing, expired, broken, or readable by others."""


class PeerError(ConfrereError):
    """Another site is missing, refused, or sent something broken."""


class PeerMissing(PeerError):
    """A peer that a strategy cannot do without did not answer."""


class PeerRefused(PeerError):
    """A peer answered that it will not take part."""


class BadParcel(PeerError):
    """A message that is malformed, of the wrong shape, or not finite; it changed nothing."""


class TrainingError(ConfrereError):
    """A loss or a weight stopped being a finite number."""


class WorkerLost(ConfrereError):
    """A process or machine that ran a share of a simulation is gone."""


class CheckpointError(ConfrereError):
    """A saved state is missing, broken, or belongs to another study."""


class Retired(FutureWarning):
    """A key, option or name of an earlier version that is accepted for one more version, or ignored."""


def warn_renamed(old: str, new: str) -> None:
    """Warn the caller's caller that it uses a name of an earlier version."""
    warnings.warn(
        f"{old} is now {new}; the old name will be removed in the next version", Retired, stacklevel=3
    )
