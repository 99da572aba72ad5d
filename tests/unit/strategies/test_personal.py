"""A common model made one's own never leaves, costs no privacy, and does no harm on what was held back."""

from __future__ import annotations

from typing import Any

import pytest

from confrere.core.custody import Custody
from confrere.core.errors import StudyError
from confrere.simulation.backends import simulate
from confrere.study import Privacy, Study, Training
from tests.conftest import arrays

PRIVACY = Privacy(epsilon=8.0, delta=1e-4)
TRAINING = Training(learning_rate=0.1, batch_size=32, protected={"optimiser": "sgd", "learning_rate": 0.5})


def strangers() -> dict[str, Any]:
    """One site's labels are the other way round: a common model is of no use to it."""
    found = arrays(records=300)
    x, y = found["site0"]
    return {**found, "site0": (x, 1 - y)}


@pytest.mark.parametrize("how", ["fine-tune", "interpolate"])
@pytest.mark.parametrize("privacy", [None, PRIVACY], ids=["plain", "private"])
def test_a_site_that_is_unlike_the_others_is_served_too(how: str, privacy: Privacy | None) -> None:
    study = Study(
        name="personal",
        rounds=6,
        strategy={"name": "personal", "how": how},
        training=TRAINING,
        privacy=privacy,
    )
    run = simulate(study, strangers())
    assert run.sites["site0"].metrics.accuracy > 0.8
    assert run.sites["site1"].metrics.accuracy > 0.8
    common = [e for e in run.events if e.kind == "evaluated" and e.site == "site0"][-1].data["test"]["common"]
    assert common["accuracy"] < 0.5
    for models in run.models.values():
        assert models["model"].custody == Custody.PRIVATE
    if privacy is not None:
        charged = [e for e in run.events if e.kind == "charged" and e.site == "site0"]
        assert [e.data["role"] for e in charged] == ["common"] * 6
        assert run.sites["site0"].privacy.epsilon <= 8.0


@pytest.mark.parametrize(("option", "value"), [("pull", -1.0), ("epochs", 0), ("how", "guess")])
def test_wrong_options_are_refused(option: str, value: Any) -> None:
    with pytest.raises(StudyError, match=option):
        Study(strategy={"name": "personal", option: value})


def test_the_common_model_is_combined_as_the_study_says() -> None:
    attack = {"name": "signflip", "attackers": 2, "strength": 20.0}
    mean, median = (
        simulate(
            Study(name="attacked", rounds=5, strategy="personal", combiner=rule, attack=attack),
            arrays(7, records=120),
        )
        for rule in (None, {"name": "median", "attackers": 2})
    )
    honest = [f"site{k}" for k in range(5)]
    for part in ("metrics", "proxy_metrics"):  # the site's own model, and the common one
        lost = [sum(getattr(run.sites[n], part).log_loss for n in honest) / 5 for run in (mean, median)]
        assert lost[1] < lost[0] - 0.3, part
