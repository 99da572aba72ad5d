"""How much a private model listens to the proxy: as much as the proxy is worth at the site."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch

from confrere.core.custody import Custody, Scalar, private, public
from confrere.core.model import Model
from confrere.core.params import Params
from confrere.core.protocols import Metrics, Objective
from confrere.learning.mutual import MOST, Mutual, auto_weight, worth
from confrere.learning.objectives import Distilled, Supervised


def metrics(loss: float, baseline: float = 1.0) -> Metrics:
    return {"loss": private(loss), "baseline_loss": private(baseline)}


def test_a_model_is_worth_what_it_knows_beyond_the_class_shares() -> None:
    assert worth(metrics(0.6)) == pytest.approx(0.4)
    assert worth(metrics(1.5)) == 0.0


@pytest.mark.parametrize(
    ("proxy", "own", "weight"),
    [(0.8, 0.8, 0.5), (0.8, 0.6, 0.2), (0.6, 0.8, 0.8), (0.6, 1.2, MOST), (1.0, 0.8, 0.0), (1.3, 1.3, 0.0)],
)
def test_the_better_model_dominates_and_a_useless_proxy_has_no_say(
    proxy: float, own: float, weight: float
) -> None:
    found = auto_weight(metrics(proxy), metrics(own))
    assert found.value == pytest.approx(weight)
    assert found.custody == Custody.PRIVATE


class Listener:
    """A site that notes what it is asked to train."""

    name, size = "a", 10

    def __init__(self) -> None:
        self.objective: Objective = {}
        self.models: Mapping[str, Model] = {}
        self.protect: Sequence[str] = ()

    def build(self, role: str) -> Model:
        return model(0.0)

    async def train(
        self, objective: Objective, models: Mapping[str, Model], *, protect: Sequence[str] = ()
    ) -> Mapping[str, Model]:
        self.objective, self.models, self.protect = objective, models, protect
        return models

    async def evaluate(self, models: Mapping[str, Model]) -> Mapping[str, Metrics]:
        return {"private": metrics(0.8), "proxy": metrics(0.6)}

    async def fit(self, *_: Any) -> Any:
        raise AssertionError("nothing is fitted in a round")


def model(value: float) -> Model:
    return Model(Params({"w": torch.tensor([value])}), "net", Custody.PROTECTED)


def taught(received: Model | None = None, **options: Any) -> Listener:
    site = Listener()
    chosen = {"alpha": 0.5, "beta": 0.3, "teacher": "peers", "kl": "teacher-student", **options}
    asyncio.run(Mutual(**chosen).teach(site, model(1.0), model(2.0), received))
    return site


def test_only_the_proxy_is_protected() -> None:
    assert list(taught().protect) == ["proxy"]


def test_the_proxy_learns_from_whom_the_study_says() -> None:
    assert taught(teacher="none").objective["proxy"] == Supervised()
    assert taught(teacher="peers").objective["proxy"] == Supervised()  # nothing has arrived yet
    heard = taught(model(3.0), teacher="peers")
    assert heard.objective["proxy"] == Distilled("teacher", public(0.3))
    assert float(heard.models["teacher"].params["w"]) == 3.0
    assert taught(model(3.0), teacher="peers", beta=0.0).objective["proxy"] == Supervised()
    assert taught(teacher="private").objective["proxy"] == Distilled("private", public(0.3))


@pytest.mark.parametrize(("alpha", "weight"), [(0.25, public(0.25)), ("auto", private(0.8))])
def test_the_private_model_learns_from_the_proxy(alpha: Any, weight: Scalar) -> None:
    found = taught(alpha=alpha, kl="student-teacher").objective["private"]
    assert isinstance(found, Distilled)
    assert (found.teacher, found.direction, found.weight.custody) == (
        "proxy",
        "student-teacher",
        weight.custody,
    )
    assert found.weight.value == pytest.approx(weight.value)
