"""A ledger that outlives a study: what is shown is never better than the worst that was spent on the records."""

from __future__ import annotations

import pytest

from confrere.core.events import Journal
from confrere.learning.local_training.one_site import OneAtATime
from confrere.privacy.charges import Charge, gaussian
from confrere.privacy.ledger import Ledger
from confrere.site.assemble import SiteContext, participant_of
from confrere.site.open_sites import open_sites
from tests.conftest import arrays
from tests.unit.quick import quick


@pytest.mark.parametrize(
    ("before", "proven", "unit"),
    [
        ([gaussian(50.0)], True, "record"),
        ([gaussian(50.0), gaussian(50.0, proven=False)], False, "record"),
        ([gaussian(50.0, unit="patient"), gaussian(50.0)], True, "record"),
    ],
)
def test_a_guarantee_covers_what_was_spent_before(before: list[Charge], proven: bool, unit: str) -> None:
    plan = quick()
    data = open_sites(plan, arrays(2, 60))
    ledger = Ledger(dataset="site0")
    ledger.spend(before, key="an earlier study", budget=None)
    context = SiteContext("r", Journal(None), OneAtATime(), ledger=ledger)
    site = participant_of(plan, plan.build_strategy(), data.sites["site0"], data.task, context)
    found = site.guarantee()
    assert found is not None
    assert (found.proven, found.unit) == (proven, unit)
