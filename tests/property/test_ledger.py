"""Whatever is spent in whatever order, the ledger keeps to its budget and to its own history."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from confrere.core.errors import BudgetExhausted, PrivacyError
from confrere.privacy.accounting import epsilon
from confrere.privacy.budget import Budget
from confrere.privacy.charges import Charge, gaussian
from confrere.privacy.ledger import Ledger

BUDGET = Budget(1.0, 1e-5)
charges = st.builds(gaussian, st.sampled_from([10.0, 15.0, 20.0, 40.0]), count=st.integers(1, 9))
spends = st.lists(st.lists(charges, min_size=1, max_size=3), min_size=1, max_size=12)


@given(spends)
@settings(max_examples=60, deadline=None)
def test_the_total_never_exceeds_the_budget_and_refusals_are_never_premature(
    plan: list[list[Charge]],
) -> None:
    ledger, accepted = Ledger(), list[Charge]()
    for number, step in enumerate(plan):
        try:
            ledger.spend(step, key=str(number), budget=BUDGET)
            accepted += step
        except BudgetExhausted:
            assert epsilon([*accepted, *step], BUDGET.delta) > BUDGET.epsilon
        assert ledger.epsilon(BUDGET.delta) == epsilon(accepted, BUDGET.delta) <= BUDGET.epsilon


@given(spends)
@settings(max_examples=60, deadline=None)
def test_what_remains_is_exactly_what_can_be_spent(plan: list[list[Charge]]) -> None:
    ledger = Ledger()
    for number, step in enumerate(plan):
        left = ledger.remaining(BUDGET, step[0])
        fits = epsilon([*ledger.charges(), step[0]], BUDGET.delta) <= BUDGET.epsilon
        assert (left > 0) == fits
        if fits:
            ledger.spend(step[:1], key=str(number), budget=BUDGET)
            assert ledger.remaining(BUDGET, step[0]) == left - 1


@given(spends, st.data())
@settings(max_examples=60, deadline=None)
def test_a_history_with_anything_changed_is_refused(plan: list[list[Charge]], data: st.DataObject) -> None:
    ledger = Ledger(dataset="d")
    for number, step in enumerate(plan):
        ledger.spend(step, key=str(number), budget=None)
    saved = json.loads(json.dumps(ledger.entries()))
    assert Ledger.restore(saved, dataset="d").head == ledger.head
    entry = data.draw(st.sampled_from(saved))
    field = data.draw(st.sampled_from(sorted(set(entry) - {"records"})))  # that one is no part of the chain
    if field == "charges":
        entry[field][0][1] += data.draw(st.integers(1, 5))
    else:
        entry[field] = entry[field] + 1 if field == "counter" else entry[field] + "0"
    try:
        Ledger.restore(saved, dataset="d")
    except PrivacyError:
        return
    raise AssertionError(f"a changed {field} went unnoticed")
