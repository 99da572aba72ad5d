"""A custom network can read its records as it computes: nothing that it writes or mixes by itself leaves as PROTECTED."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from confrere.core.custody import Custody
from confrere.core.errors import UnsafeModule
from confrere.core.model import Model
from confrere.learning.networks import network as networks
from confrere.learning.objectives import Supervised
from confrere.privacy import lint
from confrere.privacy.gradients import recorder
from confrere.simulation.simulation import Simulation
from confrere.site.open_sites import open_sites
from confrere.site.participant import Participant
from confrere.site.site_round import SiteRound
from confrere.study import Models, Privacy, Study, Training
from tests.conftest import arrays

Patch = pytest.MonkeyPatch


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.frozen = nn.Parameter(torch.zeros(4), requires_grad=False)
        self.register_buffer("seen", torch.zeros(4))
        self.register_buffer("unsaved", torch.zeros(4), persistent=False)
        self.batches = 0

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        self.batches += 1
        if self.training:
            x = self.look(x)
        out: Tensor = self.layer(x)
        return out

    def look(self, x: Tensor) -> Tensor:
        return x


class WritesBuffer(Plain):
    def look(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            self.seen.copy_(x.detach().mean(0))
        return x


class WritesInLargeBatches(Plain):
    def look(self, x: Tensor) -> Tensor:
        if len(x) > 64:
            self.seen.copy_(x.detach().mean(0))
        return x


class CountsBatches(Plain):
    def look(self, x: Tensor) -> Tensor:
        self.seen += 1
        return x


class WritesUnsavedBuffer(Plain):
    def look(self, x: Tensor) -> Tensor:
        self.unsaved.copy_(x.detach().mean(0))
        return x


class ReplacesBuffer(Plain):
    def look(self, x: Tensor) -> Tensor:
        self.seen = x.detach().mean(0)
        return x


class AddsBuffer(Plain):
    def look(self, x: Tensor) -> Tensor:
        self.register_buffer("added", x.detach().mean(0))
        return x


class WritesFrozenWeight(Plain):
    def look(self, x: Tensor) -> Tensor:
        self.frozen.data.copy_(x.detach().mean(0))
        return x


class WritesWeight(Plain):
    def look(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            self.layer.weight.data.add_(0.1 * x.detach().mean(0))
        return x


class RebindsWeight(Plain):
    def look(self, x: Tensor) -> Tensor:
        self.layer.weight.data = self.layer.weight.data + 0.1 * x.detach().mean(0)
        return x


class WritesByHook(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.layer.register_forward_hook(lambda _, inputs, __: self.note(inputs[0]))

    def note(self, x: Tensor) -> None:
        if torch.is_grad_enabled():
            self.seen.copy_(x.detach().mean(0))


class WritesWhileItIsDifferentiated(Plain):
    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        if out.requires_grad:
            out.register_hook(self.note)
        return out

    def note(self, slope: Tensor) -> None:
        self.seen.fill_(float(slope.abs().mean()))


WRITES = [
    WritesBuffer, WritesInLargeBatches, CountsBatches, WritesUnsavedBuffer, ReplacesBuffer, AddsBuffer,
    WritesFrozenWeight, WritesWeight, RebindsWeight, WritesByHook, WritesWhileItIsDifferentiated,
]  # fmt: skip


class MixesWithGradients(Plain):
    def look(self, x: Tensor) -> Tensor:
        return x - x.mean(0) if torch.is_grad_enabled() else x


class MixesLargeBatches(Plain):
    def look(self, x: Tensor) -> Tensor:
        return x - x.mean(0) if len(x) > 64 else x


class MixesDetached(Plain):
    def look(self, x: Tensor) -> Tensor:
        return x - x.detach().mean(0) if torch.is_grad_enabled() else x


class MixesLater(Plain):
    """After a number of batches that no trial reaches."""

    def look(self, x: Tensor) -> Tensor:
        return x - x.mean(0) if self.batches > 12 else x


class LooksAtTheRecordBefore(Plain):
    def look(self, x: Tensor) -> Tensor:
        return x + x.roll(1, 0) if torch.is_grad_enabled() else x


MIXES = [MixesWithGradients, MixesLargeBatches, MixesDetached, MixesLater, LooksAtTheRecordBefore]


def site_of(proxy: Any, **privacy: Any) -> Participant:
    study = Study(
        name="networks",
        rounds=2,
        strategy="fedavg",
        models=Models("linear", proxy),
        training=Training(tune=False, protected={"optimiser": "sgd", "learning_rate": 0.1}),
        privacy=Privacy(**{"epsilon": 2.0, "delta": 1e-4, "steps": 8, **privacy}),
    )
    simulation = Simulation(study, open_sites(study, arrays(2, 300)))
    simulation.prepare()
    return simulation.sites["site0"]


def trained(site: Participant) -> Model:
    given = {"model": site.build("proxy")}
    return asyncio.run(SiteRound(site, 0).train({"model": Supervised()}, given, protect=["model"]))["model"]


def test_a_custom_network_that_changes_nothing_is_trained_privately() -> None:
    site = site_of(Plain)
    found = trained(site)
    assert found.custody is Custody.PROTECTED
    assert found.params["seen"].equal(torch.zeros(4))
    assert "unsaved" not in found.params
    assert not found.params["layer.weight"].equal(site.build("proxy").params["layer.weight"])


@pytest.mark.parametrize("proxy", [*WRITES, *(m for m in MIXES if m is not MixesLater)])
def test_a_network_that_writes_or_mixes_records_is_refused_before_anything_is_charged(proxy: Any) -> None:
    site = site_of(proxy)
    with pytest.raises(UnsafeModule):
        trained(site)
    assert site.ledger.charges() == ()


@pytest.mark.parametrize("sampling", ["poisson", "full"])
@pytest.mark.parametrize("proxy", WRITES)
def test_what_a_network_wrote_by_itself_is_never_released_and_the_charge_is_kept(
    monkeypatch: Patch, proxy: Any, sampling: str
) -> None:
    """The trial and the probe are switched off: this is the mechanism itself."""
    monkeypatch.setattr(lint, "check", lambda *_: None)
    monkeypatch.setattr(recorder.Recorder, "_probe_outputs", lambda *_: None)
    monkeypatch.setattr(recorder.Recorder, "_probe_places", lambda *_: None)
    site = site_of(proxy, sampling=sampling)
    with pytest.raises(UnsafeModule, match="by the network's own code"):
        trained(site)
    assert site.ledger.charges() != ()


def test_without_the_guard_what_a_network_wrote_would_be_called_protected(monkeypatch: Patch) -> None:
    monkeypatch.setattr(lint, "check", lambda *_: None)
    monkeypatch.setattr(networks, "_same_bits", lambda *_: True)
    monkeypatch.setattr(networks.StepGuard, "released", lambda guard: guard._network.params())
    found = trained(site_of(WritesBuffer))
    assert found.custody is Custody.PROTECTED
    assert found.params["seen"].abs().max() > 0.01


@pytest.mark.parametrize("proxy", MIXES)
def test_a_network_that_mixes_records_is_refused_in_the_step_itself(monkeypatch: Patch, proxy: Any) -> None:
    monkeypatch.setattr(lint, "check", lambda *_: None)
    with pytest.raises(UnsafeModule, match="among copies of itself"):
        trained(site_of(proxy))
    monkeypatch.setattr(recorder.Recorder, "_probe_outputs", lambda *_: None)
    monkeypatch.setattr(recorder.Recorder, "_probe_places", lambda *_: None)
    assert trained(site_of(proxy)).custody is Custody.PROTECTED  # nothing else would have noticed


def test_dropout_in_a_custom_network_is_no_mixing() -> None:
    class Dropped(Plain):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Dropout(0.5)

        def look(self, x: Tensor) -> Tensor:
            out: Tensor = self.second(torch.tanh(self.first(self.second(x))))
            return out

    assert trained(site_of(Dropped)).custody is Custody.PROTECTED


class PlaceEncoding(Plain):
    """The usual encoding of positions, along the batch by mistake."""

    def look(self, x: Tensor) -> Tensor:
        places = torch.arange(len(x))[:, None] * torch.arange(1, 5)[None]
        return x + torch.sin(places.to(x.dtype))


class SignByPlace(Plain):
    def look(self, x: Tensor) -> Tensor:
        signs = torch.ones(len(x), 1)
        signs[::2] = -1
        return x * signs


class SignByCount(Plain):
    def look(self, x: Tensor) -> Tensor:
        return x if len(x) % 2 else -x


class DividesByCount(Plain):
    def look(self, x: Tensor) -> Tensor:
        return x / len(x)


class FirstCountsMore(Plain):
    def look(self, x: Tensor) -> Tensor:
        return torch.cat([5 * x[:1], x[1:]])


class SlopeByPlace(Plain):
    """The outputs are those of an honest network; only the gradients have a sign by their place."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = super().forward(x)
        signs = torch.ones(len(out), 1)
        signs[::2] = -1
        return out * signs + (out * (1 - signs)).detach()


class SlopeByCount(Plain):
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = super().forward(x)
        return out if len(out) % 2 else 2 * out.detach() - out


class SignByPlaceInLargeBatches(SignByPlace):
    def look(self, x: Tensor) -> Tensor:
        return super().look(x) if len(x) > 36 else x


PLACES = [
    PlaceEncoding,
    SignByPlace,
    SignByCount,
    DividesByCount,
    FirstCountsMore,
    SlopeByPlace,
    SlopeByCount,
]


@pytest.mark.parametrize("proxy", [*PLACES, SignByPlaceInLargeBatches])
def test_a_network_to_which_place_or_count_matters_is_refused_before_anything_is_charged(proxy: Any) -> None:
    site = site_of(proxy)
    with pytest.raises(UnsafeModule, match="depends on its place in the batch or on how many"):
        trained(site)
    assert site.ledger.charges() == ()


@pytest.mark.parametrize("sampling", ["poisson", "full"])
@pytest.mark.parametrize("proxy", [*PLACES, SignByPlaceInLargeBatches])
def test_a_network_to_which_place_or_count_matters_is_refused_in_the_step_itself(
    monkeypatch: Patch, proxy: Any, sampling: str
) -> None:
    monkeypatch.setattr(lint, "check", lambda *_: None)
    with pytest.raises(UnsafeModule, match="depends on its place in the batch or on how many"):
        trained(site_of(proxy, sampling=sampling))
    monkeypatch.setattr(recorder.Recorder, "_probe_places", lambda *_: None)
    assert trained(site_of(proxy, sampling=sampling)).custody is Custody.PROTECTED  # nothing else notices


def test_random_layers_are_not_taken_for_an_effect_of_the_place() -> None:
    class Random(Plain):
        def look(self, x: Tensor) -> Tensor:
            kept = (torch.rand(len(x), 1) > 0.2).to(x.dtype)
            return nn.functional.dropout(x, 0.3, self.training) * kept + 0.1 * torch.randn_like(x)

    lint.check(Random(), torch.randn(40, 4))


def test_a_network_that_pytorch_cannot_train_on_a_single_record_is_not_refused_for_that() -> None:
    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(4, 4), nn.Flatten(), nn.Linear(4, 1))
    lint.check(module, torch.randn(9, 1, 3, 3, generator=torch.Generator().manual_seed(0)))
