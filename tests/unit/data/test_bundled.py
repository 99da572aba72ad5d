"""Every bundled set that is here opens, with a card, honest notes and disjoint parts."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch

from confrere.core.errors import StudyError
from confrere.data.bundled import catalogue, federation
from confrere.data.bundled.fetch import fetch
from confrere.data.bundled.sets import sets
from confrere.data.records import Federation

RECIPES = {name: own.recipe for name, own in sets().items() if own.recipe}
INSTALLED = ["thyroid", "breast-diagnostic", "digits"]
SIZES = {
    "breast-original": (3, 699), "lung": (9, 147), "titanic": (4, 1046), "preterm": (4, 814),
    "pancreatitis": (3, 599), "medicare": (14, 831), "aids": (4, 2298), "dialysis": (32, 3691), "pbc": (6, 250),
    "leukaemia": (11, 682), "diabetes": (2, 390), "mnist": (8, 8000), "fashion-mnist": (8, 8000),
    "cifar10": (8, 24000), "movie-reviews": (2, 400),
}  # fmt: skip


def promise(opened: Federation) -> None:
    """What holds for every set."""
    assert opened.card is not None
    assert opened.card.source
    assert opened.card.licence
    for site in opened.sites.values():
        assert len(site.train) > 0
        assert site.train.inputs.dtype == torch.float32
        assert tuple(site.train.inputs.shape[1:]) == opened.task.inputs
        assert bool(torch.isfinite(site.train.inputs).all())
        assert int(site.train.targets.max()) < len(opened.task.classes)
        if site.train.units is not None and site.test.units is not None:
            assert not set(site.train.units.tolist()) & set(site.test.units.tolist())


@pytest.mark.parametrize("name", INSTALLED)
def test_a_set_of_an_installed_package_opens(name: str) -> None:
    if name != "thyroid" and importlib.util.find_spec("sklearn") is None:
        pytest.skip("scikit-learn is not installed")
    promise(federation(name, seed=1))


@pytest.mark.large
@pytest.mark.parametrize("name", list(RECIPES))
def test_a_fetched_set_opens_and_has_the_size_that_its_card_says(name: str) -> None:
    fetch(RECIPES[name])
    options: dict[str, Any] = {"records": 200} if name == "movie-reviews" else {}
    opened = federation(name, seed=1, **options)
    promise(opened)
    sites, records = SIZES[name]
    assert len(opened.sites) == sites
    assert sum(len(s.all) for s in opened.sites.values()) == records


@pytest.mark.large
def test_pictures_have_a_common_test_and_the_partition_that_was_asked_for() -> None:
    fetch(RECIPES["mnist"])
    opened = federation("mnist", seed=0, sites=3, partition="dirichlet", concentration=0.5, records=0)
    assert len(opened.sites) == 3
    test = opened.sites["site1"].common_test
    assert test is not None
    assert len(test) == 10_000


def test_every_set_has_a_card_that_says_what_training_reached() -> None:
    cards = catalogue()
    assert len(cards) == len(SIZES) + len(INSTALLED)
    for card in cards:
        assert "alone" in card.reach, card.name
        assert "pooled" in card.reach, card.name
        assert card.fetched == (card.name in RECIPES)


def test_an_unknown_set_or_option_is_a_message() -> None:
    with pytest.raises(StudyError, match="did you mean 'dialysis'"):
        federation("dialisis")
    with pytest.raises(StudyError, match="has no option 'least'"):
        federation("thyroid", least=3)
