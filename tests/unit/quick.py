"""Studies that are over in a moment."""

from __future__ import annotations

from typing import Any

from confrere.study import Privacy, Study, Training

TRAINING = Training(
    learning_rate=0.05,
    batch_size=32,
    tune=False,
    tune_priors=(1.0, 10.0),  # for what is compared before a model is deployed
    protected={"optimiser": "sgd", "learning_rate": 0.5},
)
PRIVACY = Privacy(epsilon=8.0, delta=1e-4, steps=2)


def quick(strategy: Any = "fedavg", **changes: Any) -> Study:
    """Two private rounds of linear models, unless told otherwise."""
    return Study(**{"rounds": 2, "training": TRAINING, "privacy": PRIVACY, **changes}, strategy=strategy)
