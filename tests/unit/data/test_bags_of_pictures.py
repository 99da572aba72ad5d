"""Bags made of pictures: no picture twice, an external test of the other institutions, unlike looks."""

from __future__ import annotations

import pytest
import torch

from confrere.core.errors import StudyError
from confrere.data.bundled.slide_bags import bags_of
from confrere.data.federation import Opening
from confrere.data.records import Records


def pictures(each: int = 400) -> Records:
    """Every picture has a first block that no other one has."""
    labels = torch.arange(10).repeat(each)
    inputs = torch.zeros(len(labels), 1, 28, 28)
    inputs[:, 0, :4, :4] = (torch.arange(len(labels)) / len(labels))[:, None, None]
    return Records(inputs, labels)


def test_no_picture_is_in_two_bags_and_the_external_test_is_that_of_the_others() -> None:
    found = bags_of(pictures(), Opening(seed=1), bags=20, members=5, stain=0.0)
    everything = torch.cat([s.all.inputs[:, :, 0].flatten() for s in found.sites.values()])
    assert len(torch.unique(everything)) == len(everything) == 4 * 20 * 5
    for name, site in found.sites.items():
        assert site.common_test is not None
        others = sum(len(s.test) for n, s in found.sites.items() if n != name)
        assert len(site.common_test) == others
    assert found.task.inputs == (5, 49)


def test_stain_makes_institutions_look_unlike() -> None:
    plain, stained = (bags_of(pictures(), Opening(seed=1), bags=20, members=5, stain=s) for s in (0.0, 1.0))
    spread = [
        torch.stack([s.train.inputs[..., -1].mean() for s in f.sites.values()]).std()
        for f in (plain, stained)
    ]
    assert float(spread[0]) == 0.0
    assert float(spread[1]) > 0.05


def test_more_bags_than_pictures_are_refused() -> None:
    with pytest.raises(StudyError, match="ask for fewer"):
        bags_of(pictures(), Opening(seed=0), bags=2000)
    with pytest.raises(StudyError, match="share"):
        bags_of(pictures(), Opening(seed=0), share=2.0)
