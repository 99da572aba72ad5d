"""What a parcel looks like on the wire, and what a site does not take from another."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import safetensors.torch
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from confrere.core.custody import Custody, Scalar, private, public
from confrere.core.errors import BadParcel, CustodyError
from confrere.core.model import Model
from confrere.core.params import Params
from confrere.core.parcel import LedgerMark, Parcel
from confrere.transport import wire
from confrere.transport.wire import Limits, decode, encode, sign, signed_bytes, size, verify

WEIGHTS = {"b.weight": torch.arange(6.0).reshape(2, 3), "a": torch.tensor([1, -2]), "c": torch.zeros(0, 3)}
MODEL = Model(Params(WEIGHTS), "tiny", Custody.PROTECTED)
PARCEL = Parcel("run", 1, 2, 0, "north", "south", 7, MODEL, {"mass": public(0.5)})


def holding(weights: dict[str, torch.Tensor]) -> Parcel:
    return replace(PARCEL, model=Model(Params(weights), "tiny", Custody.PUBLIC))


def same(a: Parcel, b: Parcel) -> bool:
    plain = replace(a, model=None) == replace(b, model=None)
    if a.model is None or b.model is None:
        return plain and a.model is b.model
    return (
        plain
        and a.model.params.equals(b.model.params)
        and (a.model.architecture, a.model.custody) == (b.model.architecture, b.model.custody)
    )


def parts(data: bytes) -> tuple[dict[str, Any], bytes]:
    (length,) = struct.unpack(">I", data[4:8])
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def built(header: dict[str, Any] | bytes, tensors: bytes) -> bytes:
    text = header if isinstance(header, bytes) else wire._canonical(header)
    return wire.MAGIC + struct.pack(">I", len(text)) + text + tensors


def with_tensors(table: object, body: bytes = b"") -> bytes:
    """A parcel with this tensor header, and otherwise right."""
    text = table if isinstance(table, bytes) else wire._canonical(table)
    return built(parts(encode(PARCEL))[0], struct.pack("<Q", len(text)) + text + body)


def test_weights_that_are_a_view_into_others_are_encoded_like_their_copies() -> None:
    rows = torch.arange(10.0).reshape(5, 2)
    views = {"one": rows[:1, 1], "column": rows[:, 1], "turned": rows.T}
    assert views["one"].is_contiguous()  # so PyTorch says, with a stride of 2
    copies = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in views.items()}
    assert encode(holding(views)) == encode(holding(copies))


def test_what_is_decoded_is_what_was_encoded() -> None:
    assert same(decode(encode(PARCEL), expect=MODEL.params.shapes), PARCEL)


def test_a_parcel_without_a_model_or_numbers_travels_too() -> None:
    bare = replace(PARCEL, model=None, scalars={})
    assert same(decode(encode(bare)), bare)
    assert same(decode(encode(bare), expect=MODEL.params.shapes), bare)
    assert size(bare) == len(encode(bare))


@pytest.mark.parametrize("dtype", wire.DTYPES.values(), ids=str)
def test_every_type_of_number_keeps_its_bits(dtype: torch.dtype) -> None:
    parcel = replace(
        PARCEL, model=Model(Params({"x": torch.tensor([0, 1, 1]).to(dtype)}), "t", Custody.PUBLIC)
    )
    assert same(decode(encode(parcel)), parcel)
    assert size(parcel) == len(encode(parcel))


def test_the_size_is_known_without_encoding() -> None:
    signed = sign(PARCEL, Ed25519PrivateKey.generate())
    assert size(PARCEL) == len(encode(PARCEL))
    assert size(signed) == len(encode(signed)) == size(PARCEL) + 128


def test_the_same_parcel_is_the_same_bytes_whatever_the_order_it_was_made_in() -> None:
    turned = Model(Params(dict(reversed(WEIGHTS.items()))), "tiny", Custody.PROTECTED)
    one = replace(PARCEL, scalars={"mass": public(1), "weight": public(2)})
    other = replace(PARCEL, model=turned, scalars={"weight": public(2), "mass": public(1)})
    assert encode(one) == encode(other)
    strided = Model(
        Params({**WEIGHTS, "b.weight": WEIGHTS["b.weight"].t().contiguous().t()}), "tiny", MODEL.custody
    )
    assert encode(replace(PARCEL, model=strided)) == encode(PARCEL)


def test_the_tensors_are_ordinary_safetensors() -> None:
    loaded = safetensors.torch.load(parts(encode(PARCEL))[1])
    assert Params(loaded).equals(MODEL.params)


def test_a_private_model_or_number_cannot_be_written() -> None:
    with pytest.raises(CustodyError):
        encode(replace(PARCEL, model=MODEL.held(Custody.PRIVATE)))
    with pytest.raises(CustodyError):
        encode(replace(PARCEL, scalars={"auc": private(0.9)}))
    with pytest.raises(CustodyError):
        signed_bytes(replace(PARCEL, model=MODEL.held(Custody.PRIVATE)))


HEADERS: dict[str, Callable[[dict[str, Any]], object]] = {
    "a private model": lambda h: h.update(custody="PRIVATE"),
    "a private number": lambda h: h["scalars"]["mass"].update(custody="PRIVATE"),
    "an unknown key": lambda h: h.update(extra=1),
    "a missing key": lambda h: h.pop("epoch"),
    "a round as text": lambda h: h.update(round="2"),
    "a round that is true": lambda h: h.update(round=True),
    "a negative round": lambda h: h.update(round=-1),
    "an endless round": lambda h: h.update(round=2**70),
    "no sender": lambda h: h.update(sender=""),
    "a sender without end": lambda h: h.update(sender="x" * 1000),
    "negative mass": lambda h: h["scalars"]["mass"].update(value=-1.0),
    "enormous mass": lambda h: h["scalars"]["mass"].update(value=1e10),
    "a number out of proportion": lambda h: h["scalars"].update(x={"value": 1e30, "custody": "PUBLIC"}),
    "a number that is an integer": lambda h: h["scalars"]["mass"].update(value=1),
    "too many numbers": lambda h: h["scalars"].update(
        {f"n{i}": {"value": 1.0, "custody": "PUBLIC"} for i in range(100)}
    ),
    "another payload": lambda h: h.update(payload="0" * 64),
    "a payload in capitals": lambda h: h.update(payload=h["payload"].upper()),
    "half a model": lambda h: h.update(architecture=None),
    "tensors of no model": lambda h: h.update(architecture=None, custody=None),
    "a long signature": lambda h: h.update(signature="00" * 65),
    "another architecture": lambda h: h.update(architecture="other"),
    "a lower custody": lambda h: h.update(custody="PUBLIC"),
    "another mass": lambda h: h["scalars"]["mass"].update(value=0.75),
}


@pytest.mark.parametrize("what", HEADERS)
def test_a_header_that_is_not_right_is_a_bad_parcel(what: str) -> None:
    header, tensors = parts(encode(PARCEL))
    assert same(decode(built(header, tensors)), PARCEL)
    HEADERS[what](header)
    with pytest.raises(BadParcel):
        decode(built(header, tensors))


@pytest.mark.parametrize("constant", [b"NaN", b"Infinity", b"-Infinity", b"1e999", b'"0.5"', b"null"])
def test_a_mass_that_is_no_number_is_a_bad_parcel(constant: bytes) -> None:
    header, tensors = parts(encode(PARCEL))
    with pytest.raises(BadParcel):
        decode(built(wire._canonical(header).replace(b'"value":0.5', b'"value":' + constant), tensors))


def test_a_header_with_a_key_twice_or_spaces_is_a_bad_parcel() -> None:
    header, tensors = parts(encode(PARCEL))
    text = wire._canonical(header)
    for odd in (text.replace(b'"round":2', b'"round":2,"round":2'), text.replace(b":", b": "), text + b" "):
        with pytest.raises(BadParcel):
            decode(built(odd, tensors))


ENTRY = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
TABLES: dict[str, tuple[object, bytes]] = {
    "not JSON": (b"{", b""),
    "a list": ([], b""),
    "a nest": (b"[" * 100_000, b""),
    "a table of lists": ({"a": []}, b""),
    "an unknown dtype": ({"a": {**ENTRY, "dtype": "C64"}}, b"\0" * 4),
    "a dtype that is a list": ({"a": {**ENTRY, "dtype": []}}, b"\0" * 4),
    "a negative shape": ({"a": {**ENTRY, "shape": [-1, -1]}}, b"\0" * 4),
    "a shape of truth": ({"a": {**ENTRY, "shape": [True]}}, b"\0" * 4),
    "a shape that is a table": ({"a": {**ENTRY, "shape": {}}}, b"\0" * 4),
    "a shape without end": ({"a": {**ENTRY, "shape": [1] * 99}}, b"\0" * 4),
    "an enormous empty shape": ({"a": {**ENTRY, "shape": [0, 2**62, 2**62], "data_offsets": [0, 0]}}, b""),
    "an enormous promise": ({"a": {"dtype": "F32", "shape": [2**38], "data_offsets": [0, 2**40]}}, b""),
    "an offset elsewhere": ({"a": {**ENTRY, "data_offsets": [4, 8]}}, b"\0" * 8),
    "an overlap": ({"a": ENTRY, "b": ENTRY}, b"\0" * 4),
    "too few bytes": ({"a": ENTRY}, b"\0" * 3),
    "too many bytes": ({"a": ENTRY}, b"\0" * 5),
    "metadata": ({"__metadata__": {"format": "pt"}, "a": ENTRY}, b"\0" * 4),
    "many empty tensors": (
        {f"t{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(10_000)}, b"",
    ),
    "NaN": ({"a": ENTRY}, struct.pack("<f", float("nan"))),
    "infinity": ({"a": ENTRY}, struct.pack("<f", float("-inf"))),
    "1e30": ({"a": ENTRY}, struct.pack("<f", 1e30)),
    "a truth value of 2": ({"a": {"dtype": "BOOL", "shape": [1], "data_offsets": [0, 1]}}, b"\2"),
}  # fmt: skip


@pytest.mark.parametrize("what", TABLES)
def test_tensors_that_are_not_right_are_a_bad_parcel(what: str) -> None:
    table, body = TABLES[what]
    text = table if isinstance(table, bytes) else wire._canonical(table)
    with pytest.raises(BadParcel) as refusal:
        decode(with_tensors(text + b" " * (-len(text) % 8), body))
    assert "hash" not in str(refusal.value), "refused for its hash only"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
def test_hostile_weights_with_a_true_hash_are_a_bad_parcel(value: float) -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        with pytest.raises(BadParcel, match="not finite or out of all proportion"):
            decode(encode(holding({"a": torch.tensor([0.0, value], dtype=dtype)})))


def test_an_enormous_header_is_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("parsed")

    monkeypatch.setattr(wire.Header, "model_validate_json", never)
    monkeypatch.setattr(json, "loads", never)
    for limits in (Limits(total=10), Limits(header=10)):
        with pytest.raises(BadParcel):
            decode(encode(PARCEL), limits=limits)


def test_too_many_tensors_are_refused_before_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode(PARCEL)
    monkeypatch.setattr(json, "loads", lambda *_, **__: pytest.fail("parsed"))
    with pytest.raises(BadParcel, match="more than 2 tensors"):
        decode(data, limits=Limits(tensors=2))


@pytest.mark.parametrize(
    "other",
    [
        {**WEIGHTS, "d": torch.zeros(1)},
        {k: v for k, v in WEIGHTS.items() if k != "a"},
        {**WEIGHTS, "b.weight": torch.zeros(3, 2)},
        {**WEIGHTS, "b.weight": torch.zeros(2, 3, dtype=torch.float64)},
    ],
)
def test_other_tensors_than_the_studys_are_a_bad_parcel(other: dict[str, torch.Tensor]) -> None:
    parcel = holding(other)
    decode(encode(parcel))
    with pytest.raises(BadParcel, match="other tensors than the study's"):
        decode(encode(parcel), expect=MODEL.params.shapes)


@pytest.mark.parametrize(
    "parcel",
    [
        replace(PARCEL, round=-1),
        replace(PARCEL, sender=""),
        replace(PARCEL, sender="\ud800"),
        replace(PARCEL, scalars={"mass": public(float("nan"))}),
        replace(PARCEL, scalars={"\ud800": public(1)}),
        replace(
            PARCEL, model=Model(Params({"a": torch.zeros(1, dtype=torch.complex64)}), "t", Custody.PUBLIC)
        ),
        replace(PARCEL, model=Model(Params({"\ud800": torch.zeros(1)}), "t", Custody.PUBLIC)),
        replace(PARCEL, model=Model(Params({"__metadata__": torch.zeros(1)}), "t", Custody.PUBLIC)),
    ],
)
def test_what_has_no_spelling_is_not_written(parcel: Parcel) -> None:
    with pytest.raises(BadParcel):
        encode(parcel)


def test_a_signature_stands_for_route_numbers_and_tensors() -> None:
    key = Ed25519PrivateKey.generate()
    signed = decode(encode(sign(PARCEL, key)))
    verify(signed, key.public_key())
    changed = Model(Params({**WEIGHTS, "a": torch.tensor([1, 2])}), "tiny", Custody.PROTECTED)
    for forged in (
        replace(signed, run="other"),
        replace(signed, epoch=9),
        replace(signed, round=9),
        replace(signed, phase=1),
        replace(signed, sender="east"),
        replace(signed, receiver="east"),
        replace(signed, sequence=9),
        replace(signed, scalars={"mass": public(0.75)}),
        replace(signed, scalars={"mass": Scalar(0.5, Custody.PROTECTED)}),
        replace(signed, model=changed),
        replace(signed, model=replace(MODEL, architecture="other")),
        replace(signed, model=replace(MODEL, custody=Custody.PUBLIC)),
        replace(signed, model=None),
        replace(signed, signature=b""),
        replace(signed, signature=bytes(64)),
    ):
        with pytest.raises(BadParcel, match="without its valid signature"):
            verify(forged, key.public_key())
    with pytest.raises(BadParcel):
        verify(signed, Ed25519PrivateKey.generate().public_key())


def test_a_ledger_mark_travels_with_its_parcel_and_is_covered_by_the_signature() -> None:
    marked = replace(PARCEL, mark=LedgerMark("1e" * 32, 7, "ab" * 32, "0f" * 64))
    data = encode(marked)
    assert decode(data).mark == marked.mark
    assert size(marked) == len(data)
    assert wire.size(marked) == len(data)
    with pytest.raises(BadParcel, match="its hash does not fit"):
        decode(data.replace(b'"counter":7', b'"counter":8'))
    assert b'"mark"' not in encode(PARCEL)
