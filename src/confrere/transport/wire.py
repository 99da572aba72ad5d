"""Parcels as signed bytes: a strict header and safetensors, in exactly one encoding.

    "CFP1" · header length (4 bytes, big-endian) · header (JSON) · tensors (safetensors, if there is a model)

Both JSON texts are canonical: sorted keys, no spaces, and tensors in the order of their names without gaps.
So equal parcels are equal bytes, and `decode` simply refuses any text that it would not have written itself:
duplicate keys, other orders, overlaps and paddings need no rule of their own. Sizes and counts are
checked before anything is parsed. Nothing is ever unpickled. Whatever is wrong is a `BadParcel`.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Annotated, Any, BinaryIO, Literal

import torch
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from confrere.core.custody import Custody, Scalar, require_may_leave
from confrere.core.errors import BadParcel
from confrere.core.model import Model
from confrere.core.params import Params, Shapes
from confrere.core.parcel import Parcel
from confrere.transport.body import PIECE, Body
from confrere.transport.ledger_marks import MarkFields

MAGIC = b"CFP1"
PREFIX = struct.Struct(">4sI")
TENSOR_PREFIX = struct.Struct("<Q")  # safetensors: the length of its own header

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8,
    "BOOL": torch.bool,
}  # fmt: skip
CODES = {str(dtype).removeprefix("torch."): code for code, dtype in DTYPES.items()}
CONTENTS = ("architecture", "custody", "scalars", "mark")
"""The fields of a header that the payload hash covers beside the tensors."""


@dataclass(frozen=True)
class Limits:
    """What a site is willing to take from another one."""

    total: int = 256 * 2**20
    """Bytes of a whole parcel."""
    header: int = 2**20
    """Bytes of each of the two headers."""
    tensors: int = 4096
    scalars: int = 64
    magnitude: float = 1e12
    """No weight and no number may be larger than this."""
    mass: float = 1e9
    """Sites may start with as much mass as they declare records."""


STANDARD = Limits()

Name = Annotated[str, Field(min_length=1, max_length=256)]
Count = Annotated[int, Field(ge=0, lt=2**53)]
Sendable = Literal["PUBLIC", "PROTECTED", "UNPROVEN"]
Hex = Annotated[str, Field(pattern=r"^([0-9a-f]{2})*$")]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class _Number(_Strict):
    value: Annotated[float, Field(allow_inf_nan=False)]
    custody: Sendable


class Header(_Strict):
    """Everything about a parcel but its tensors. PRIVATE cannot even be written down here."""

    run: Name
    epoch: Count
    round: Count
    phase: Count
    sender: Name
    receiver: Name
    sequence: Count
    architecture: Name | None
    custody: Sendable | None
    scalars: dict[Name, _Number]
    mark: MarkFields | None = None
    """Left out where there is none."""
    payload: Annotated[Hex, Field(min_length=64, max_length=64)]
    signature: Annotated[Hex, Field(max_length=128)]


def encode(parcel: Parcel) -> bytes:
    """The one spelling of a parcel. Refuses what is PRIVATE: the gate's second lock."""
    return b"".join(Sealed(parcel, _head(parcel, _payload_hash(parcel))).pieces())


@dataclass(frozen=True)
class Sealed:
    """A parcel that is ready to leave. Its tensors stay where they are until they are written."""

    parcel: Parcel
    head: bytes

    @property
    def size(self) -> int:
        return len(self.head) + sum(_tensor_sizes(self.parcel.model))

    def pieces(self) -> Iterator[bytes | memoryview]:
        """What `encode` puts together."""
        yield self.head
        yield from _tensor_chunks(self.parcel.model)


def seal(parcel: Parcel, key: Ed25519PrivateKey) -> Sealed:
    """The parcel signed and spelled: `sign` and `encode` in one, looking at the tensors once."""
    payload = _payload_hash(parcel)
    signed = replace(parcel, signature=key.sign(_signed_bytes(parcel, payload)))
    return Sealed(signed, _head(signed, payload))


def size(parcel: Parcel) -> int:
    """The length of `encode(parcel)`, without encoding it."""
    return content_size(parcel) + route_size(parcel)


def route_size(parcel: Parcel) -> int:
    """The part of `size` that says from whom to whom a parcel goes, and when."""
    numbers = f"{parcel.epoch}{parcel.round}{parcel.phase}{parcel.sequence}"
    return len(numbers) + _text_size(parcel.sender) + _text_size(parcel.receiver)


def content_size(parcel: Parcel) -> int:
    """The part of `size` that parcels of one run with the same content have in common. Refuses what is PRIVATE."""
    require_may_leave(parcel.custodies)
    model = parcel.model
    kinds = tuple([(name, number.custody) for name, number in parcel.scalars.items()])
    held = None if model is None else (model.architecture, model.custody)
    total = _fixed_size(parcel.run, held, kinds, len(parcel.signature))
    values = [number.value for number in parcel.scalars.values()]
    if not all(map(math.isfinite, values)):
        raise BadParcel("this parcel cannot be written: a number is not finite")
    total += sum(map(len, map(float.__repr__, values)))
    mark = 0 if parcel.mark is None else len(_canonical({"mark": asdict(parcel.mark)})) - len("{}") + len(",")
    return total + mark + sum(_tensor_sizes(model))


@lru_cache(maxsize=1024)
def _fixed_size(
    run: str, model: tuple[str, Custody] | None, kinds: tuple[tuple[str, Custody], ...], signature: int
) -> int:
    """The part of a parcel's length that does not change from one to the next."""
    architecture, custody = (None, None) if model is None else (model[0], model[1].name)
    header = {
        "run": run, "epoch": 0, "round": 0, "phase": 0, "sender": "", "receiver": "", "sequence": 0,
        "payload": "0" * 64, "signature": "00" * signature, "architecture": architecture,
        "custody": custody, "scalars": {name: {"value": 0, "custody": held.name} for name, held in kinds},
    }  # fmt: skip
    return PREFIX.size + len(_canonical(header)) - 4 - 2 * len('""') - len(kinds)


@lru_cache(maxsize=65536)
def _text_size(text: str) -> int:
    return len(_canonical(text))


def decode(
    data: Body | bytes,
    *,
    expect: Shapes | None = None,
    limits: Limits = STANDARD,
    key: Ed25519PublicKey | Mapping[str, Ed25519PublicKey] | None = None,
) -> Parcel:
    """The parcel that these bytes spell, or BadParcel. With `expect`, a model has exactly these tensors; with `key`,
    its holder (where there are several, its sender) has signed it, which is looked at before any tensor is."""
    body = Body.of(data)
    try:
        with body.open() as file:
            return _decode(file, body.size, expect, limits, key)
    except BadParcel:
        raise
    except (ValueError, TypeError, LookupError, ArithmeticError, RuntimeError, struct.error) as error:
        raise BadParcel(f"a parcel that cannot be read: {type(error).__name__}") from None


def header_of(body: Body) -> str:
    """The header of a parcel that was decoded before, as text: enough to prove that its sender has sent it."""
    with body.open() as file:
        _, length = PREFIX.unpack(_exactly(file, PREFIX.size))
        return _exactly(file, length).decode()


def proven(text: str, key: Ed25519PublicKey) -> Header | None:
    """A header that the holder of the key has signed, as it is returned to that holder; None if it is made up."""
    try:
        header = _parse_header(text.encode(), STANDARD)
        route = [header.run, header.epoch, header.round, header.phase, header.sender, header.receiver]
        key.verify(bytes.fromhex(header.signature), _signed(route, header.sequence, header.payload))
    except (BadParcel, InvalidSignature, UnicodeEncodeError):
        return None
    return header


def signed_bytes(parcel: Parcel) -> bytes:
    """What a signature covers: who sends what to whom, when. The payload hash covers all the rest."""
    return _signed_bytes(parcel, _payload_hash(parcel))


def sign(parcel: Parcel, key: Ed25519PrivateKey) -> Parcel:
    """The same parcel, signed by its sender."""
    return replace(parcel, signature=key.sign(signed_bytes(parcel)))


def verify(parcel: Parcel, key: Ed25519PublicKey) -> None:
    """Returns if the holder of the key sent exactly this parcel; otherwise it is a BadParcel."""
    _verify(parcel, _payload_hash(parcel), key)


def _verify(parcel: Parcel, payload: str, key: Ed25519PublicKey) -> None:
    try:
        key.verify(parcel.signature, _signed_bytes(parcel, payload))
    except InvalidSignature:
        raise BadParcel(f'a parcel in the name of "{parcel.sender}" without its valid signature') from None


def _decode(
    file: BinaryIO,
    size: int,
    expect: Shapes | None,
    limits: Limits,
    key: Ed25519PublicKey | Mapping[str, Ed25519PublicKey] | None,
) -> Parcel:
    if size > limits.total:
        raise BadParcel(f"a parcel of {size:,} bytes; at most {limits.total:,} are taken")
    if size < PREFIX.size:
        raise BadParcel("a parcel that ends before its header")
    magic, length = PREFIX.unpack(_exactly(file, PREFIX.size))
    if magic != MAGIC:
        raise BadParcel("not a parcel, or one of another version")
    start = PREFIX.size + length
    if length > limits.header or start > size:
        raise BadParcel(f"a parcel with a header of {length:,} bytes")
    header = _parse_header(_exactly(file, length), limits)
    parcel = Parcel(
        header.run,
        header.epoch,
        header.round,
        header.phase,
        header.sender,
        header.receiver,
        header.sequence,
        None,
        {name: Scalar(n.value, Custody[n.custody]) for name, n in header.scalars.items()},
        bytes.fromhex(header.signature),
        None if header.mark is None else header.mark.mark(),
    )
    if isinstance(key, Mapping):
        if header.sender not in key:
            raise BadParcel(f'a parcel from "{header.sender[:80]}", which is not a peer')
        key = key[header.sender]
    if key is not None:
        _verify(parcel, header.payload, key)
    content = {k: v for k, v in _written(header).items() if k in CONTENTS}
    digest = hashlib.sha256(_canonical(content) + b"\n")
    model = _parse_model(header, file, size - start, limits, digest)
    if digest.hexdigest() != header.payload:
        raise BadParcel("a parcel whose payload was altered under way: its hash does not fit")
    if expect is not None and model is not None and model.params.shapes != expect:
        raise BadParcel(f"a parcel with other tensors than the study's: {_difference(model, expect)}")
    return replace(parcel, model=model)


def _parse_header(text: bytes, limits: Limits) -> Header:
    if text.count(b'"custody"') > limits.scalars + 1:
        raise BadParcel(f"a parcel with more than {limits.scalars} numbers")
    try:
        header = Header.model_validate_json(text)
    except ValidationError as error:
        where = ".".join(str(part) for part in error.errors()[0]["loc"]) or "its text"
        raise BadParcel(f"a parcel with a malformed header: {where[:80]}") from None
    if _canonical(_written(header)) != text:
        raise BadParcel("a parcel whose header is not in the canonical spelling")
    if (header.architecture is None) != (header.custody is None):
        raise BadParcel("a parcel with half a model: architecture and custody belong together")
    for name, number in header.scalars.items():
        if not abs(number.value) <= limits.magnitude:
            raise BadParcel(f'a parcel whose number "{name[:80]}" is out of all proportion')
    mass = header.scalars.get("mass")
    if mass is not None and not 0 <= mass.value <= limits.mass:
        raise BadParcel("a parcel whose mass is negative or implausibly large")
    return header


def _parse_model(
    header: Header, file: BinaryIO, size: int, limits: Limits, digest: hashlib._Hash
) -> Model | None:
    """The model in the `size` bytes that are left, all of which go through `digest`."""
    if header.architecture is None or header.custody is None:
        if size:
            raise BadParcel("a parcel with tensors but without a model")
        return None
    if size < TENSOR_PREFIX.size:
        raise BadParcel("a parcel that ends before its tensors")
    prefix = _exactly(file, TENSOR_PREFIX.size)
    (length,) = TENSOR_PREFIX.unpack(prefix)
    start = TENSOR_PREFIX.size + length
    if length > limits.header or start > size:
        raise BadParcel(f"a parcel with a tensor header of {length:,} bytes")
    text = _exactly(file, length)
    if text.count(b'"dtype"') > limits.tensors:
        raise BadParcel(f"a parcel with more than {limits.tensors:,} tensors")
    table = json.loads(text, parse_constant=_refuse_constant)
    if not isinstance(table, dict):
        raise BadParcel("a parcel whose tensor header is not a table")
    layout = [(name, entry["dtype"], entry["shape"]) for name, entry in sorted(table.items())]
    canonical, total = _layout(layout)
    if prefix + text != canonical:
        raise BadParcel("a parcel whose tensor header is not in the canonical spelling")
    if start + total != size:
        raise BadParcel(f"a parcel with {size - start:,} bytes of tensors instead of {total:,}")
    digest.update(canonical)
    return Model(
        Params(dict(_tensors(layout, file, limits, digest))), header.architecture, Custody[header.custody]
    )


def _tensors(
    layout: list[tuple[str, str, list[int]]], file: BinaryIO, limits: Limits, digest: hashlib._Hash
) -> Iterator[tuple[str, Tensor]]:
    """Read each tensor straight into its own memory, piece by piece."""
    for name, code, shape in layout:
        dtype = DTYPES[code]
        tensor = torch.empty(math.prod(shape), dtype=dtype)
        raw = tensor.view(torch.uint8).numpy()
        view = raw.data
        for at in range(0, len(view), PIECE):
            piece = view[at : at + PIECE]
            _fill(file, piece)
            digest.update(piece)
        if dtype is torch.bool and raw.max(initial=0) > 1:
            raise BadParcel(f'a parcel whose tensor "{name[:80]}" has truth values other than 0 and 1')
        if len(view) and dtype.is_floating_point:
            low, high = torch.aminmax(tensor)
            if not (float(low) >= -limits.magnitude and float(high) <= limits.magnitude):
                raise BadParcel(f'a parcel whose tensor "{name[:80]}" is not finite or out of all proportion')
        yield name, tensor.reshape(shape)


def _exactly(file: BinaryIO, length: int) -> bytes:
    data = bytearray(length)
    _fill(file, memoryview(data))
    return bytes(data)


def _fill(file: BinaryIO, view: memoryview) -> None:
    """A file may give less than it is asked for."""
    while len(view):
        count = file.readinto(view)  # type: ignore[attr-defined]
        if not count:
            raise BadParcel("a parcel that ends before its tensors")
        view = view[count:]


def _head(parcel: Parcel, payload: str) -> bytes:
    header = _header(parcel, payload)
    return PREFIX.pack(MAGIC, len(header)) + header


def _header(parcel: Parcel, payload: str) -> bytes:
    header = _fields(parcel, payload)
    try:
        return _canonical(_written(Header.model_validate(header)))
    except (ValidationError, UnicodeEncodeError) as error:
        where = error.errors()[0]["loc"] if isinstance(error, ValidationError) else ["its text"]
        raise BadParcel(f"this parcel cannot be written: {'.'.join(map(str, where))}") from None


def _fields(parcel: Parcel, payload: str) -> dict[str, Any]:
    return {
        "run": parcel.run,
        "epoch": parcel.epoch,
        "round": parcel.round,
        "phase": parcel.phase,
        "sender": parcel.sender,
        "receiver": parcel.receiver,
        "sequence": parcel.sequence,
        "payload": payload,
        "signature": parcel.signature.hex(),
        **_contents(parcel),
    }


def _written(header: Header) -> dict[str, Any]:
    """The fields of a header; a mark that is not there is not written."""
    return header.model_dump(exclude={"mark"} if header.mark is None else None)


def _contents(parcel: Parcel) -> dict[str, Any]:
    """The content of a parcel without its route and its tensors."""
    require_may_leave(parcel.custodies)
    model = parcel.model
    return {
        **({} if parcel.mark is None else {"mark": asdict(parcel.mark)}),
        "architecture": None if model is None else model.architecture,
        "custody": None if model is None else model.custody.name,
        "scalars": {n: {"value": s.value, "custody": s.custody.name} for n, s in parcel.scalars.items()},
    }


def _payload_hash(parcel: Parcel) -> str:
    """Over the numbers, custodies and the architecture as well as the tensors."""
    try:
        digest = hashlib.sha256(_canonical(_contents(parcel)) + b"\n")
    except (ValueError, UnicodeEncodeError):
        raise BadParcel(
            "this parcel cannot be written: a number is not finite, or a name is not text"
        ) from None
    for chunk in _tensor_chunks(parcel.model):
        digest.update(chunk)
    return digest.hexdigest()


def _signed_bytes(parcel: Parcel, payload: str) -> bytes:
    route = [parcel.run, parcel.epoch, parcel.round, parcel.phase, parcel.sender, parcel.receiver]
    return _signed(route, parcel.sequence, payload)


def _signed(route: Sequence[object], sequence: int, payload: str) -> bytes:
    return b"confrere parcel 1\n" + _canonical([*route, sequence, payload])


@lru_cache(maxsize=256)
def _tensor_layout(shapes: Shapes) -> tuple[bytes, int]:
    """The safetensors header of a model, with its own length, and how many bytes follow it."""
    try:
        return _layout([(name, CODES[dtype], list(shape)) for name, shape, dtype in shapes])
    except (KeyError, UnicodeEncodeError):
        raise BadParcel(
            "this model cannot be written: a type of number or a name that has no spelling"
        ) from None


def _tensor_sizes(model: Model | None) -> tuple[int, int]:
    """Bytes of the safetensors header, and of the tensors."""
    if model is None:
        return 0, 0
    header, tensors = _tensor_layout(model.params.shapes)
    return len(header), tensors


def _layout(tensors: list[tuple[str, str, list[int]]]) -> tuple[bytes, int]:
    table, at = {}, 0
    for name, code, shape in tensors:
        if name == "__metadata__" or not isinstance(shape, list) or len(shape) > 16:
            raise BadParcel("a parcel with a tensor that cannot be")
        if not all(type(n) is int and 0 <= n < 2**40 for n in shape):
            raise BadParcel("a parcel with a shape that cannot be")
        end = at + math.prod(shape) * DTYPES[code].itemsize
        table[name] = {"dtype": code, "shape": shape, "data_offsets": [at, end]}
        at = end
    text = _canonical(table)
    text += b" " * (-len(text) % 8)
    return TENSOR_PREFIX.pack(len(text)) + text, at


def _tensor_chunks(model: Model | None) -> Iterator[bytes | memoryview]:
    if model is not None:
        yield _tensor_layout(model.params.shapes)[0]
        for tensor in model.params.values():
            if tensor.numel():
                flat = tensor.cpu().contiguous().reshape(-1)
                # a single number cut out of a row counts as contiguous, whatever its stride says
                yield flat.as_strided((flat.numel(),), (1,)).view(torch.uint8).numpy().data


def _canonical(value: object) -> bytes:
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def _refuse_constant(name: str) -> Callable[[], None]:
    raise ValueError(name)


def _difference(model: Model, expect: Shapes) -> str:
    found, wanted = set(model.params.shapes), set(expect)
    odd = sorted(found - wanted) or sorted(wanted - found)
    verb = "it has" if found - wanted else "it lacks"
    name, shape, dtype = odd[0]
    return f'{verb} "{name[:80]}", {dtype} {list(shape)}'
