"""Any parcel survives the wire; any bytes are a parcel or a BadParcel, and never anything else."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from confrere.core.custody import Custody, Scalar
from confrere.core.errors import BadParcel
from confrere.core.model import Model
from confrere.core.params import Params
from confrere.core.parcel import Parcel
from confrere.exchange.compression import ParcelContext, compressions
from confrere.exchange.packing import Packing
from confrere.transport.wire import DTYPES, MAGIC, decode, encode, size

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
counts = st.integers(0, 2**40)
custodies = st.sampled_from([Custody.PUBLIC, Custody.PROTECTED, Custody.UNPROVEN])


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    dtype = draw(st.sampled_from(sorted(DTYPES.values(), key=str)))
    return (torch.randn(shape, generator=torch.Generator().manual_seed(draw(counts))) * 3).to(dtype)


models = st.builds(Model, st.dictionaries(names, tensors(), max_size=4).map(Params), names, custodies)
scalars = st.dictionaries(names, st.builds(Scalar, st.floats(0, 1e6), custodies), max_size=4)
parcels = st.builds(
    Parcel, names, counts, counts, st.integers(0, 1), names, names, counts,
    st.none() | models, scalars, st.binary(max_size=64),
)  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(parcels)
def test_a_parcel_survives_the_wire_and_its_size_is_known(parcel: Parcel) -> None:
    data = encode(parcel)
    assert len(data) == size(parcel)
    back = decode(data, expect=None if parcel.model is None else parcel.model.params.shapes)
    assert replace(back, model=None) == replace(parcel, model=None)
    assert (back.model is None) == (parcel.model is None)
    if back.model is not None and parcel.model is not None:
        assert back.model.params.equals(parcel.model.params)
        assert (back.model.architecture, back.model.custody) == (
            parcel.model.architecture,
            parcel.model.custody,
        )
    assert encode(back) == data


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=400), st.booleans())
def test_random_bytes_are_refused_in_one_way_only(data: bytes, dressed: bool) -> None:
    framed = MAGIC + len(data).to_bytes(4, "big") + data if dressed else data
    with contextlib.suppress(BadParcel):
        decode(framed)
        raise AssertionError("nobody wrote this parcel")


@settings(max_examples=250, deadline=None)
@given(parcels, st.data())
def test_a_mutated_parcel_is_refused_or_only_its_route_changed(parcel: Parcel, data: st.DataObject) -> None:
    good = bytearray(encode(parcel))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(good) - 1))
        change = data.draw(st.sampled_from(["flip", "cut", "insert", "delete", "repeat"]))
        if change == "flip":
            good[at] ^= data.draw(st.integers(1, 255))
        elif change == "cut":
            del good[at:]
        elif change == "insert":
            good[at:at] = data.draw(st.binary(min_size=1, max_size=4))
        elif change == "delete":
            del good[at : at + 2]
        else:
            good[at:at] = good[at : at + 16]
        if not good:
            break
    with contextlib.suppress(BadParcel):
        taken = decode(bytes(good))
        # the route is covered by the signature; all else by the payload hash, which is in the header
        assert taken.scalars == parcel.scalars
        assert (taken.model is None) == (parcel.model is None)
        if taken.model is not None and parcel.model is not None:
            assert taken.model.params.equals(parcel.model.params)
            assert taken.model.custody == parcel.model.custody


START = Params({"b": torch.zeros(3), "steps": torch.tensor(7), "w": torch.linspace(-1, 1, 12).reshape(3, 4)})
kinds = st.sampled_from(
    [("float16", {}), ("int8", {}), ("top-k", {"share": 0.3}), ("random-k", {"share": 0.3})]
)


def packing(kind: tuple[str, dict[str, float]]) -> Packing:
    return Packing(compressions[kind[0]](**kind[1]), {"net": START}.get)


@st.composite
def compressed(draw: st.DrawFn) -> tuple[Packing, Parcel]:
    kind = draw(kinds)
    chance = torch.Generator().manual_seed(draw(counts))
    moved = {
        n: t + torch.randn(t.shape, generator=chance) if t.is_floating_point() else t
        for n, t in START.items()
    }
    route = ParcelContext("run", draw(st.integers(0, 5)), 0, "a")
    model = packing(kind).pack(Model(Params(moved), "net", Custody.PROTECTED), route, epoch=0, leaving=None)
    return packing(kind), Parcel("run", 0, route.round, 0, "a", "b", 1, model)


@settings(max_examples=40, deadline=None)
@given(compressed())
def test_a_compressed_parcel_survives_the_wire_and_says_the_same(found: tuple[Packing, Parcel]) -> None:
    receiver, parcel = found
    data = encode(parcel)
    assert len(data) == size(parcel)
    back = decode(data, expect=receiver.form(START.shapes))
    receiver.check(back)
    here, there = receiver.unpack(parcel, None).model, receiver.unpack(back, None).model
    assert here is not None
    assert there is not None
    assert here.params.equals(there.params)


@settings(max_examples=120, deadline=None)
@given(compressed(), st.data())
def test_hostile_compressed_tensors_are_opened_or_refused_and_nothing_else(
    found: tuple[Packing, Parcel], data: st.DataObject
) -> None:
    """Whatever an attacker writes into the tensors of a parcel that is otherwise in good order."""
    receiver, parcel = found
    assert parcel.model is not None
    tensors = {n: t.clone() for n, t in parcel.model.params.items()}
    name = data.draw(st.sampled_from(sorted(tensors)))
    raw = tensors[name].reshape(-1).view(torch.uint8)
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        tensors[name] = tensors[name].reshape(-1)[: data.draw(st.integers(0, 3))]
    forged = replace(parcel, model=replace(parcel.model, params=Params(tensors)))
    with contextlib.suppress(BadParcel):
        back = decode(encode(forged), expect=receiver.form(START.shapes))
        receiver.check(back)
        opened = receiver.unpack(back, None).model
        assert opened is not None
        assert opened.params.shapes == START.shapes
        assert opened.params.largest() < 1e15


@settings(max_examples=30, deadline=None)
@given(kinds, st.sampled_from(["indices", "nan scale", "huge count"]), counts)
def test_what_an_attacker_would_try_first_is_refused(
    kind: tuple[str, dict[str, float]], trick: str, seed: int
) -> None:
    k = 5
    forms = {
        "indices": ("top-k", {":indices": torch.full((k,), 3, dtype=torch.int32), ":values": torch.zeros(k)}),
        "nan scale": ("int8", {"b": torch.ones(3, dtype=torch.int8), "w": torch.ones(3, 4, dtype=torch.int8),
                               ":scales": torch.tensor([float("nan"), 1.0])}),
        "huge count": ("random-k", {":values": torch.zeros(4096 + seed % 1000)}),
    }  # fmt: skip
    name, tensors = forms[trick]
    receiver = packing((name, {"share": 0.3} if name != "int8" else {}))
    model = Model(Params({**tensors, "steps": torch.tensor(7)}), "net", Custody.PROTECTED)
    forged = encode(Parcel("run", 0, 0, 0, "a", "b", 1, model))
    try:
        receiver.check(decode(forged, expect=receiver.form(START.shapes)))
    except BadParcel:
        return
    raise AssertionError("nobody honest wrote this parcel")
