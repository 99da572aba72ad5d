"""What an ε assumes of the other sites is stated wherever the ε is."""

from __future__ import annotations

from types import SimpleNamespace

from confrere.cli.status import privacy_line
from confrere.core.results.privacy import PrivacySpent
from confrere.privacy.charges import Guarantee
from confrere.report import words
from confrere.report.history import _spending
from confrere.site.site_folder import statement

CONDITION = "if at most 1 of the other 7 sites pool what they see or depart from the protocol"
DATA = {"epsilon": 2.5, "delta": 1e-5, "unit": "record", "proven": True, "accountant": "rdp", "role": "model"}


def test_tables_report_and_status_state_it() -> None:
    spent = PrivacySpent.from_json({**DATA, "condition": CONDITION})
    assert spent is not None
    assert CONDITION in words.privacy(spent)
    assert _spending("a", 0, {**DATA, "condition": CONDITION}).condition == CONDITION
    assert CONDITION in privacy_line(SimpleNamespace(privacy=spent, training_ended=False, rounds_left=None))  # type: ignore[arg-type]


def test_the_card_of_a_model_states_it() -> None:
    found = statement(Guarantee(2.5, 1e-5, accountant="rdp", condition=CONDITION), {})
    assert CONDITION in found["text"]
    assert found["condition"] == CONDITION


def test_an_epsilon_that_assumes_nothing_has_no_condition() -> None:
    spent = PrivacySpent.from_json(DATA)
    assert spent is not None
    assert "condition" not in spent.as_json()
    assert "condition" not in statement(Guarantee(2.5, 1e-5), {})
