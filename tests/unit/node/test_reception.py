"""What arrives is taken in whole: in the store and in the mailroom, or in neither."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from confrere.core.custody import public
from confrere.core.parcel import Parcel
from confrere.node.daemon import Node
from confrere.node.store import Store
from confrere.transport import wire
from tests.unit.node.sites import settings
from tests.unit.node.wires import Network


def test_a_parcel_is_in_the_mailroom_even_if_its_bringer_is_gone_before_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    credit = Store.credit

    def slowly(self: Store, *what: Any, **more: Any) -> Any:
        time.sleep(0.2)
        return credit(self, *what, **more)

    monkeypatch.setattr(Store, "credit", slowly)

    async def story() -> None:
        places = settings(tmp_path)
        node, key = Node(places["site0"], connect=Network().connect), places["site1"].identity.key
        parcel = Parcel(
            places["site0"].run, 0, 0, 0, "site1", "site0", 1, node.site.build("proxy"), {"mass": public(1.0)}
        )
        bringing = asyncio.create_task(node.reception.deliver("site1", wire.encode(wire.sign(parcel, key))))
        await asyncio.sleep(0.1)
        bringing.cancel()
        await asyncio.gather(bringing, return_exceptions=True)
        assert bringing.cancelled()
        await asyncio.gather(*node.reception._begun)
        assert len(node.store.balance()["in"]) == 1
        assert [p.id for p in node.mailroom.waiting()] == [("site1", "site0", 1)]
        node.close()

    asyncio.run(story())
