"""What a node keeps of its masked sums over a crash: each outcome, and the last turn that it has led."""

from __future__ import annotations

from collections.abc import Callable

from confrere.node.failpoints import reach
from confrere.node.replay import CallCounter, durably, in_thread
from confrere.node.shortage import WaitForSpace
from confrere.node.store import Store
from confrere.privacy.ledger import Ledger
from confrere.site import snapshot
from confrere.site.masked_sums import SumOutcome

CLOSED = "sum_closed"
"""The fact in the store: round and turn."""


class StoredSums:
    """The outcomes of masked sums in the node's store, under the number of the call within its round."""

    def __init__(
        self, store: Store, call_counter: Callable[[], CallCounter], wait_for_space: WaitForSpace
    ) -> None:
        self._store, self._call_counter, self._wait_for_space = store, call_counter, wait_for_space
        self._call = 0

    async def read(self, round: int) -> SumOutcome | None:
        self._call = self._call_counter().call()
        body = await in_thread(self._store.kept, round, self._call, "sum")
        if body is None:
            return None
        found = snapshot.loads(body, f"the masked sum of round {round + 1}")["outcome"]
        assert isinstance(found, SumOutcome)
        return found

    async def write(self, round: int, outcome: SumOutcome) -> None:
        body = await in_thread(snapshot.dumps, {"outcome": outcome})
        await durably(self._wait_for_space, self._store.keep, round, self._call, body, "sum")

    async def closed(self, round: int) -> int:
        number, _, turn = (await in_thread(self._store.facts)).get(CLOSED, "-1/-1").partition("/")
        return int(turn) if int(number) == round else -1

    async def close(self, round: int, turn: int) -> None:
        def note() -> None:
            self._store.note(**{CLOSED: f"{round}/{turn}"})

        await durably(self._wait_for_space, note)


class RecordedFacts:
    """The facts of attempts in the ledger, with a failpoint before and after each is written."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def write_once(self, subject: str, fact: str, value: str, /) -> str:
        reach("sum-recording")
        found = self._ledger.write_once(subject, fact, value)
        reach("sum-recorded")
        return found

    def written(self, subject: str, fact: str, /) -> str | None:
        return self._ledger.written(subject, fact)
