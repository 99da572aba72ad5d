"""Failpoints: named points at which tests can kill a node, to show that it survives a crash there.

`CONFRERE_FAILPOINT=name` kills the process the first time that it comes by; `name@3` the third time. Without the
variable `reach` does nothing at all.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

POINTS = (
    "charged",  # the ledger holds the cost, nothing is computed
    "trained",  # computed, and only in memory
    "training-written",  # its file is there, if it is large, and nothing names it
    "training-in-transaction",
    "training-kept",  # the released model is on the disk, nothing of it was sent
    "release-marked",  # the ledger says that it leaves, and nothing is in the outbox
    "debit-written",
    "debit-in-transaction",
    "debited",  # parcels are in the outbox, none has left
    "credit-written",
    "credit-in-transaction",
    "credited",  # a parcel is in the inbox, its sender does not know
    "acknowledged",  # a peer has a parcel, and this is not noted yet
    "delivery-noted",
    "take-in-transaction",
    "taken",  # parcels are assigned to a round that is not over
    "round-written",
    "round-in-transaction",
    "round-kept",
    "result-written",  # the model is there under its temporary name
)
"""Every step that makes something durable has an instant before it, within it, or after it."""

MASKED_POINTS = (
    "sum-numbers-sent",  # a member: each step was handed to the connection
    "sum-keys-sent",
    "sum-shares-sent",
    "sum-charged",  # the ledger holds the charge, no noise is drawn
    "sum-recording",  # the digest of a vector or a list is about to be written to the ledger
    "sum-recorded",
    "sum-vector-sent",
    "sum-vote-sent",
    "sum-opening-sent",
    "sum-message-acknowledged",  # a peer has a message
    "sum-received",  # the opened sum is here, and only in memory
    "sum-ended",  # the outcome is known, and only in memory
    "sum-kept",
    "sum-begun",  # the summing site: the members of the sum are chosen, and no answer was sent
    "sum-told",  # the answer of each step was handed to the connection, for one member
    "sum-keys-told",
    "sum-shares-told",
    "sum-list-told",
    "sum-certificate-told",
    "sum-opened",  # the sum is opened, and no answer was sent
    "sum-result-told",
)
"""The steps of a masked sum. A node that dies there drops out of the attempt."""


def armed(setting: str) -> Callable[[str], None]:
    """What `reach` is, for this value of the variable."""
    name, _, times = setting.partition("@")
    if not name:
        return lambda point: None
    left = [int(times or 1)]

    def reach(point: str) -> None:
        if point == name:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    return reach


reach = armed(os.environ.get("CONFRERE_FAILPOINT", ""))
