"""Choosing partners: what a site sends again is free only if it is the same release."""

from __future__ import annotations

from dataclasses import replace

from confrere.partners.selection_budget import PROFILES, Selection
from confrere.site.open_sites import open_sites
from confrere.study import Privacy
from tests.conftest import arrays
from tests.unit.quick import quick


def test_a_replayed_release_with_other_records_is_charged() -> None:
    plan = quick(privacy=Privacy(epsilon=8.0, delta=1e-4, selection_share=0.5))
    selection = Selection(plan, open_sites(plan, arrays(2, 60)), "site0")
    site = selection.prepare(PROFILES, {"name": "local"}).sites["site1"]
    selection.charge(site, PROFILES, "profile")
    selection.charge(site, PROFILES, "profile")
    assert site.ledger.counter == 1
    site.data = replace(site.data, train=site.data.train.select(range(1, len(site.data.train))))
    selection.charge(site, PROFILES, "profile")
    assert site.ledger.counter == 2
