"""Networks by name: shapes that fit, options by their name, and weights that depend on the seed alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from confrere.core.errors import StudyError
from confrere.learning.networks.architectures import architecture, fresh, networks
from confrere.learning.networks.tables import Adapted
from confrere.privacy import lint

FITTING: dict[str, tuple[Any, tuple[int, ...]]] = {
    "linear": ("linear", (7,)),
    "mlp": ({"name": "mlp", "hidden": [5, 4], "dropout": 0.1}, (7,)),
    "lenet5": ("lenet5", (1, 28, 28)),
    "cnn1": ("cnn1", (3, 32, 32)),
    "cnn2": ("cnn2", (3, 32, 32)),
    "centred-linear": ("centred-linear", (7,)),
    "lstm": ({"name": "lstm", "hidden": 6}, (9, 2)),
    "gru": ({"name": "gru", "hidden": 6, "mask": True}, (9, 3)),
    "conv1d": ("conv1d", (9, 2)),
    "deepsets": ("deepsets", (9, 2)),
    "cnn3d": ("cnn3d", (5, 6, 7)),
    "vgg": ({"name": "vgg", "widths": [4, 8], "dense": 8}, (3, 16, 16)),
    "resnet18": ({"name": "resnet18", "width": 8, "groups": 4, "stem": 3}, (3, 16, 16)),
}
ELSEWHERE = {"branches", "matched", "loss_sum"}
"""Networks of records with several branches, of FedMA's layers and of released sums have tests of their own."""


def test_every_network_is_tried_here() -> None:
    assert {*FITTING, *ELSEWHERE} == {
        n for n in networks.names() if networks[n].__module__.startswith("confrere.")
    }


@pytest.mark.parametrize("name", FITTING)
@pytest.mark.parametrize("outputs", [1, 4])
def test_a_network_gives_one_row_of_outputs_per_record_and_mixes_none(name: str, outputs: int) -> None:
    spec, shape = FITTING[name]
    module = fresh(architecture(spec, shape, outputs), 0)
    example = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))
    assert module(example).shape == (3, outputs)
    lint.check(module, example)


def test_weights_depend_on_the_seed_alone() -> None:
    arch = architecture("mlp", (3,), 1)
    torch.manual_seed(1)
    one = fresh(arch, 5).state_dict()
    torch.manual_seed(2)
    two, other = fresh(arch, 5).state_dict(), fresh(arch, 6).state_dict()
    assert all(torch.equal(one[n], two[n]) for n in one)
    assert not all(torch.equal(one[n], other[n]) for n in one)


def test_an_architecture_is_told_apart_by_name_options_and_shapes() -> None:
    specs: list[tuple[Any, tuple[int, ...], int]] = [
        ("mlp", (3,), 1),
        ("mlp", (4,), 1),
        ("mlp", (3,), 2),
        ({"name": "mlp", "hidden": [8]}, (3,), 1),
        (lambda: nn.Linear(3, 1), (3,), 1),
        (lambda: nn.Linear(3, 2), (3,), 1),
    ]
    assert len({architecture(*s).name for s in specs}) == len(specs)
    assert architecture(lambda: nn.Linear(3, 1), (3,), 1).name == architecture(specs[4][0], (3,), 1).name


def test_a_network_that_does_not_fit_says_why() -> None:
    with pytest.raises(StudyError, match="needs images"):
        architecture("lenet5", (5,), 1).build()
    with pytest.raises(StudyError, match="at least 12 × 12"):
        architecture("lenet5", (8, 8), 1).build()
    with pytest.raises(StudyError, match="the name is missing"):
        architecture({"hidden": [3]}, (3,), 1)


def test_a_site_may_wrap_the_common_proxy_in_layers_of_its_own() -> None:
    module = Adapted(nn.Linear(6, 3), nn.Linear(3, 1), nn.Linear(1, 1))
    assert module(torch.zeros(2, 6)).shape == (2, 1)
    assert {n.split(".")[0] for n, _ in module.named_parameters()} == {"before", "common", "after"}


def test_a_linear_network_may_start_at_zero() -> None:
    module = architecture({"name": "linear", "zeros": True}, (3,), 1).build()
    assert all(not p.any() for p in module.parameters())
