"""Deep networks for pictures: as large as published, trained privately, and no layer mixes records."""

from __future__ import annotations

import pytest
import torch

from confrere.core.errors import StudyError
from confrere.learning.networks.architectures import architecture, fresh

SMALL = {
    "resnet18": {"name": "resnet18", "width": 4, "stem": 3},
    "vgg": {"name": "vgg", "widths": [4, 8], "dense": 8},
}


def test_resnet18_has_the_size_of_the_published_one() -> None:
    network = fresh(architecture("resnet18", (3, 64, 64), 1000), 0)
    assert sum(p.numel() for p in network.parameters()) == 11_689_512


@pytest.mark.parametrize("name", list(SMALL))
def test_a_record_is_judged_the_same_whatever_stands_beside_it(name: str) -> None:
    network = fresh(architecture(SMALL[name], (3, 16, 16), 4), 0)
    pictures = torch.randn(6, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    together, alone = network(pictures)[:1], network(pictures[:1])
    assert torch.allclose(together, alone, atol=1e-5)


@pytest.mark.parametrize("spec", ["vgg", "resnet18"])
def test_records_that_are_no_pictures_are_refused(spec: str) -> None:
    with pytest.raises(StudyError, match="needs images"):
        fresh(architecture(spec, (30,), 2), 0)
    with pytest.raises(StudyError, match="at least"):
        fresh(architecture(spec, (3, 4, 4), 2), 0)
