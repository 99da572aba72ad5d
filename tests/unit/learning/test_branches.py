"""Networks for sequences, bags, volumes and records of several branches."""

from __future__ import annotations

import pytest
import torch

from confrere.core.errors import StudyError
from confrere.data.tasks import Branch
from confrere.learning.networks.architectures import architecture, fresh
from confrere.privacy.clipping import ROUNDING, Flat, clipped_sum
from confrere.privacy.gradients import Recorder
from confrere.privacy.lint import check

SERIES = Branch("pulse", 0, (6, 3), "series", mask=True)
BAG = Branch("patches", 0, (6, 3), "bag", mask=True)
TWO = (
    Branch("table", 0, (4,)),
    Branch("scan", 4, (1, 4, 4, 4), "volume"),
    Branch("pulse", 68, (6, 3), "series", True),
)

NETWORKS = {
    "lstm": ("lstm", (6, 3), (SERIES,)),
    "gru": ("gru", (6, 3), (SERIES,)),
    "conv1d": ("conv1d", (6, 3), (SERIES,)),
    "deepsets": ("deepsets", (6, 3), (BAG,)),
    "deepsets-sum": ({"name": "deepsets", "pool": "sum"}, (6, 3), (BAG,)),
    "cnn3d": ("cnn3d", (4, 4, 4), ()),
    "branches": ("branches", (86,), TWO),
}


def built(name: str) -> torch.nn.Module:
    spec, shape, branches = NETWORKS[name]
    return fresh(architecture(spec, shape, 2, branches), 1)


def records(name: str, count: int = 5) -> torch.Tensor:
    shape = NETWORKS[name][1]
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(3))


def with_mask(lengths: list[int], steps: int = 6) -> torch.Tensor:
    x = torch.randn(len(lengths), steps, 3, generator=torch.Generator().manual_seed(4))
    for row, length in enumerate(lengths):
        x[row, :, 2] = (torch.arange(steps) < length).float()
    return x


@pytest.mark.parametrize("name", list(NETWORKS))
def test_no_record_has_a_say_in_what_is_said_about_another(name: str) -> None:
    check(built(name), records(name))


@pytest.mark.parametrize("name", list(NETWORKS))
def test_its_clipped_sum_is_the_sum_of_clipped_gradients(name: str) -> None:
    module, x = built(name), records(name)

    def losses(outputs: torch.Tensor, part: object) -> torch.Tensor:
        return outputs.square().sum(1)

    recorder = Recorder(module)
    assert not recorder.notices
    found = clipped_sum(recorder, (x,), losses, Flat(norm=0.1), {}).flat
    total = torch.zeros_like(found)
    names = sorted(n for n, _ in module.named_parameters())
    for row in x:
        module.zero_grad()
        losses(module(row[None]), None).sum().backward()
        grads = {n: p.grad for n, p in module.named_parameters() if p.grad is not None}
        own = torch.cat([grads[n].reshape(-1) for n in names])
        total += own * min(1.0, 0.1 * (1 - ROUNDING) / float(own.norm()))
    assert float((found - total).norm()) < 1e-3 * float(total.norm())


@pytest.mark.parametrize("name", ["lstm", "gru", "conv1d", "deepsets", "deepsets-sum"])
def test_what_is_padded_has_no_say(name: str) -> None:
    module, x = built(name), with_mask([2, 4, 6])
    noisy = x.clone()
    noisy[..., :2] += 5 * (1 - x[..., 2:])
    assert torch.allclose(module(x), module(noisy))
    longer = torch.cat([x, torch.zeros(3, 4, 3)], 1)
    assert torch.allclose(module(x), module(longer), atol=1e-6)


def test_the_order_of_a_bag_does_not_matter() -> None:
    module, x = built("deepsets"), with_mask([2, 4, 6])
    assert torch.allclose(module(x), module(x[:, [5, 3, 1, 0, 2, 4]]), atol=1e-6)


def test_an_empty_sequence_or_bag_is_a_record_like_any_other() -> None:
    for name in ("lstm", "gru", "conv1d", "deepsets"):
        assert built(name)(with_mask([0])).isfinite().all()


def test_the_last_token_counts_and_not_the_padding_behind_it() -> None:
    module = fresh(architecture({"name": "lstm", "vocabulary": 9}, (5,), 1), 0)
    short, padded = torch.tensor([[3.0, 1, 2]]), torch.tensor([[3.0, 1, 2, 0, 0]])
    assert torch.allclose(module(short), module(padded), atol=1e-6)


def test_every_branch_has_a_say_and_its_own_encoder() -> None:
    spec = {"name": "branches", "encoders": {"scan": {"name": "mlp", "hidden": [3]}, "pulse": "conv1d"}}
    module = fresh(architecture(spec, (86,), 1, TWO), 0)
    x = records("branches", 2)
    for branch in TWO:
        other = x.clone()
        other[:, branch.start : branch.start + 2] += 3
        other[:, 70] = 1  # the first step of the series is there
        x[:, 70] = 1
        assert not torch.allclose(module(x), module(other))


@pytest.mark.parametrize(
    ("spec", "shape", "branches", "says"),
    [
        ({"name": "branches", "encoders": {"scans": "cnn3d"}}, (86,), TWO, 'no branch "scans" (did you mean "scan"?)'),
        ("branches", (86,), (), "these have one"),
        ({"name": "branches", "encoders": {"table": "cnn3d"}}, (86,), TWO, 'branch "table": network "cnn3d" needs volumes'),
        ({"name": "branches", "encoders": {"table": "branches"}}, (86,), TWO, "cannot itself"),
        ("cnn3d", (2, 4, 4), (), "at least 4 × 4 × 4"),
        ("gru", (3, 4, 5), (), "needs sequences"),
        ("deepsets", (5,), (), "needs bags"),
        ({"name": "deepsets", "pool": "median"}, (6, 3), (), '"mean", "sum" or "max"'),
        ({"name": "conv1d", "reach": 4}, (6, 3), (), "odd number"),
        ({"name": "gru", "mask": True}, (6, 1), (), "no values are left"),
    ],
)  # fmt: skip
def test_records_that_do_not_fit_are_refused_in_words(
    spec: object, shape: tuple[int, ...], branches: tuple[Branch, ...], says: str
) -> None:
    with pytest.raises(StudyError) as caught:
        architecture(spec, shape, 1, branches).build()  # type: ignore[arg-type]
    assert says in str(caught.value)


def test_architectures_of_different_branches_have_different_names() -> None:
    other = (TWO[0], Branch("scan", 4, (4, 4, 4), "volume"), TWO[2])
    assert architecture("branches", (86,), 1, TWO).name != architecture("branches", (86,), 1, other).name
