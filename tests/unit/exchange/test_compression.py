"""Smaller parcels say the same, keep the rest for later, and are refused in every form that nobody would write."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from confrere.core.custody import Custody, public
from confrere.core.errors import BadParcel, StudyError
from confrere.core.model import Model
from confrere.core.params import Params
from confrere.core.parcel import Parcel
from confrere.exchange.compression import ParcelContext, compressions, filled, numbers
from confrere.exchange.packing import Packing

ALL: dict[str, dict[str, Any]] = {
    "float16": {}, "int8": {}, "top-k": {"share": 0.25}, "random-k": {"share": 0.25},
}  # fmt: skip
START = Params({"b": torch.zeros(3), "steps": torch.tensor(7), "w": torch.linspace(-1, 1, 12).reshape(3, 4)})
NOW = ParcelContext("run", 0, 0, "me")


def model(scale: float = 1.0, seed: int = 0, custody: Custody = Custody.PROTECTED) -> Model:
    chance = torch.Generator().manual_seed(seed)
    moved = {
        n: t + scale * torch.randn(t.shape, generator=chance) if t.is_floating_point() else t
        for n, t in START.items()
    }
    return Model(Params(moved), "net", custody)


def packing(name: str, **options: Any) -> Packing:
    return Packing(compressions[name](**{**ALL[name], **options}), {"net": START}.get)


def parcel(found: Model, round: int = 0, **scalars: float) -> Parcel:
    return Parcel("run", 0, round, 0, "me", "you", round, found, {k: public(v) for k, v in scalars.items()})


def there_and_back(name: str, sent: Model, own: Model, **options: Any) -> Model:
    out, back = packing(name, **options), packing(name, **options)
    packed = parcel(out.pack(sent, NOW, epoch=0, leaving=None))
    back.check(packed)
    opened = back.unpack(packed, own).model
    assert opened is not None
    return opened


@pytest.mark.parametrize("name", ALL)
def test_a_parcel_has_exactly_the_tensors_that_the_study_foretells(name: str) -> None:
    rule = compressions[name](**ALL[name])
    packed = packing(name).pack(model(), NOW, epoch=0, leaving=None)
    assert packed.params.shapes == rule.shapes(START.shapes)
    opened = there_and_back(name, model(), model(seed=1))
    assert opened.params.shapes == START.shapes
    assert int(opened.params["steps"]) == 7


def test_half_precision_keeps_eleven_bits() -> None:
    sent = model()
    found = there_and_back("float16", sent, model(seed=1))
    torch.testing.assert_close(numbers(found.params), numbers(sent.params), rtol=2**-11, atol=1e-6)


def test_eight_bits_are_right_on_the_mean_and_never_off_by_a_step() -> None:
    sent, rule = model(), compressions["int8"]()
    flat = numbers(sent.params)
    drawn = []
    for round in range(400):
        moment = replace(NOW, round=round)
        pressed = rule.press(flat, sent.params, flat, moment)
        drawn.append(rule.spread(pressed, flat, START.shapes, moment))
    steps = torch.cat([torch.full((3,), float(sent.params["b"].abs().max()) / 127),
                       torch.full((12,), float(sent.params["w"].abs().max()) / 127)]).double()  # fmt: skip
    rows = torch.stack(drawn)
    assert bool(((rows - flat).abs() <= steps * 1.0001).all())
    assert bool(((rows.mean(0) - flat).abs() <= 4 * steps / 2 / 400**0.5 + 1e-9).all())
    nearest = compressions["int8"](rounding="nearest")
    off = nearest.spread(nearest.press(flat, sent.params, flat, NOW), flat, START.shapes, NOW) - flat
    assert bool((off.abs() <= steps / 2 * 1.0001).all())


def test_top_k_sends_what_changed_most_and_fills_in_the_receivers_own() -> None:
    sent, own = model(), model(seed=1)
    found = numbers(there_and_back("top-k", sent, own).params)
    changed = (numbers(sent.params) - numbers(START)).abs()
    most = changed.topk(4).indices
    told = torch.zeros(15, dtype=torch.bool).index_fill(0, most, True)
    torch.testing.assert_close(found[told], numbers(sent.params)[told])
    assert torch.equal(found[~told], numbers(own.params)[~told])


def test_what_top_k_leaves_out_is_told_later() -> None:
    out, sent = packing("top-k"), model()
    heard = model(scale=0.0)
    for round in range(4):
        packed = parcel(out.pack(sent, replace(NOW, round=round), epoch=0, leaving=None), round)
        opened = packing("top-k").unpack(packed, heard).model
        assert opened is not None
        heard = opened
    torch.testing.assert_close(numbers(heard.params), numbers(sent.params))


def test_random_k_draws_the_same_weights_at_every_site_and_others_in_every_round() -> None:
    rule, flat = compressions["random-k"](share=0.25), torch.arange(15).double()
    whole = filled(flat, START, START.shapes)
    drawn = {
        (round, sender): tuple(
            rule.press(flat, whole, flat, ParcelContext("run", round, 0, sender))[":values"].tolist()
        )
        for round in range(12)
        for sender in "ab"
    }
    assert all(drawn[r, "a"] == drawn[r, "b"] for r in range(12))
    assert {n for values in drawn.values() for n in values} == set(flat.tolist())


@pytest.mark.parametrize("name", ALL)
def test_what_leaves_and_what_stays_is_what_there_was(name: str) -> None:
    """With mass: what is taken away by parcels, counted as their receivers read them, and what is kept, add up."""
    out, mass, kept = packing(name), 8.0, 0.5
    started = mass * numbers(model().params)
    owned = torch.zeros(15, dtype=torch.float64)
    gone = torch.zeros(15, dtype=torch.float64)
    held = model()
    for round in range(6):
        moment = replace(NOW, round=round)
        packed = out.pack(held, moment, epoch=0, leaving=public(mass * (1 - kept)))
        rule = compressions[name](**ALL[name])
        said = rule.spread(packed.params, numbers(START), START.shapes, moment)
        gone += mass * (1 - kept) * said
        mass *= kept
        rest = out.owed("net")
        assert rest is not None
        owned = rest
        torch.testing.assert_close(mass * numbers(held.params) + gone + owned, started, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["top-k", "random-k"])
def test_a_receiver_owes_what_it_was_credited_with_and_not_told(name: str) -> None:
    sender, receiver, own = packing(name), packing(name), model(seed=1)
    packed = parcel(sender.pack(model(), NOW, epoch=0, leaving=public(3.0)), mass=3.0)
    opened = receiver.unpack(packed, own).model
    owed, kept = receiver.owed("net"), sender.owed("net")
    assert opened is not None
    assert owed is not None
    assert kept is not None
    total = 3.0 * numbers(opened.params) + owed + kept
    torch.testing.assert_close(total, 3.0 * numbers(model().params), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ALL)
def test_a_new_membership_owes_nothing(name: str) -> None:
    out = packing(name)
    out.pack(model(), NOW, epoch=0, leaving=public(2.0))
    before = out.owed("net")
    out.pack(model(scale=0.0), replace(NOW, round=1), epoch=1, leaving=public(2.0))
    fresh = packing(name)
    fresh.pack(model(scale=0.0), replace(NOW, round=1), epoch=1, leaving=public(2.0))
    now, other = out.owed("net"), fresh.owed("net")
    assert before is not None
    assert now is not None
    assert other is not None
    if name != "top-k":  # which chooses by what it told before
        assert torch.equal(now, other)


def test_the_memory_is_held_as_closely_as_the_strictest_model_that_went_into_it() -> None:
    out = packing("int8")
    assert out.pack(model(custody=Custody.PUBLIC), NOW, epoch=0, leaving=None).custody == Custody.PUBLIC
    assert out.pack(model(custody=Custody.UNPROVEN), NOW, epoch=0, leaving=None).custody == Custody.UNPROVEN
    assert out.pack(model(custody=Custody.PUBLIC), NOW, epoch=0, leaving=None).custody == Custody.UNPROVEN


def test_the_common_model_goes_whole_where_a_receiver_would_have_nothing_to_fill_in() -> None:
    for name in ALL:
        out, sent = packing(name), model()
        packed = out.pack(sent, replace(NOW, phase=2), epoch=0, leaving=None, whole=True)
        back = packing(name).unpack(parcel(packed), None, whole=True).model
        assert back is not None
        torch.testing.assert_close(numbers(back.params), numbers(sent.params), rtol=0.02, atol=0.02)
        assert not out.memory


def _hostile() -> dict[str, tuple[str, dict[str, torch.Tensor]]]:
    def of(name: str) -> dict[str, torch.Tensor]:
        return dict(packing(name).pack(model(), NOW, epoch=0, leaving=None).params)

    top, small = of("top-k"), of("int8")
    at = top[":indices"]
    return {
        "an index out of range": ("top-k", {**top, ":indices": at.clone().index_fill(0, torch.tensor([3]), 15)}),
        "a negative index": ("top-k", {**top, ":indices": at.clone().index_fill(0, torch.tensor([0]), -1)}),
        "an index twice": ("top-k", {**top, ":indices": at[[0, 0, 2, 3]]}),
        "indices out of order": ("top-k", {**top, ":indices": at.flip(0)}),
        "too many weights": ("top-k", {**top, ":indices": torch.arange(5).int(), ":values": torch.zeros(5)}),
        "wide indices": ("top-k", {**top, ":indices": at.long()}),
        "a whole model": ("top-k", dict(model().params)),
        "values of another type": ("random-k", {**of("random-k"), ":values": torch.zeros(4, dtype=torch.float64)}),
        "fewer values": ("random-k", {**of("random-k"), ":values": torch.zeros(3)}),
        "a negative step length": ("int8", {**small, ":scales": torch.tensor([-1.0, 1.0])}),
        "a step that nobody writes": ("int8", {**small, "w": torch.full((3, 4), -128, dtype=torch.int8)}),
        "no step lengths": ("int8", {n: t for n, t in small.items() if n != ":scales"}),
        "full precision": ("float16", dict(model().params)),
        "another shape": ("float16", {**of("float16"), "w": torch.zeros(4, 3, dtype=torch.float16)}),
    }  # fmt: skip


@pytest.mark.parametrize("what", list(_hostile()))
def test_a_hostile_form_is_refused(what: str) -> None:
    name, tensors = _hostile()[what]
    with pytest.raises(BadParcel):
        packing(name).check(parcel(Model(Params(tensors), "net", Custody.PROTECTED)))


def test_options_that_cannot_be_are_refused() -> None:
    for name, options in (
        ("top-k", {"share": 0.0}),
        ("random-k", {"share": 1.5}),
        ("int8", {"rounding": "up"}),
    ):
        with pytest.raises(StudyError):
            compressions[name](**options)
