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
