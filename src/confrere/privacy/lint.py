"""Check that a model can be trained privately, and replace layers that mix records.

Clipping bounds what one record does to the sum only if that record reaches no other record's output, neither by its
values nor by its presence: a record that is removed moves the others up by one place, and leaves one fewer.
BatchNorm breaks this openly; a custom module or loss may do it quietly, so `check` and `check_loss` also try it on
made-up records, in batches of several sizes and, for a module, with and without gradients. A trial finds mistakes
before anything is charged; it cannot prove that code has none. So the steps themselves check again on the real
records (`Recorder`), and what a network changed by itself is never released (`learning.networks.network.StepGuard`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext, suppress
from functools import singledispatch

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import UninitializedParameter

from confrere.core.errors import UnsafeModule
from confrere.core.protocols import Loss
from confrere.core.seeds import seed_torch
from confrere.privacy.gradients.place_trial import (
    ConstantChance,
    moved,
    place_matters,
    record_shares,
    summed_outputs,
)

TOLERANCE = 1e-5
"""How much, relative to the largest output, other records' outputs may wobble by rounding alone."""

SIZES = (2, 5, 33)
"""In batches of these sizes a model or a loss is tried, and in one of all made-up records."""

PLACE_TOLERANCE, SLOPE_TOLERANCE = 1e-4, 1e-3
"""The same for outputs, and for sums of gradients, of batches that differ in size or in order."""

FAR_OFF = 1e4
"""By this factor the outputs of one made-up record are larger than the others'."""


def check(module: nn.Module, example: Tensor | None = None) -> None:
    """Refuse a model that mixes records, keeps running statistics, or has nothing to train.

    `example` is a batch of at least two *public or made-up* records; with it the model is tried out too.
    """
    problems = list(_known_problems(module))
    if problems:
        named = "; ".join(problems[:3]) + (f"; and {len(problems) - 3} more" if len(problems) > 3 else "")
        raise UnsafeModule(
            f"{named}. One record would change what others contribute, so clipping would not protect it: "
            "use privacy.replace_unsafe(model), which puts GroupNorm in its place"
        )
    lazy = [name for name, p in module.named_parameters() if isinstance(p, UninitializedParameter)]
    if lazy:
        raise UnsafeModule(f"{lazy[0]} has no shape yet: run the model once on an example before training it")
    if not any(p.requires_grad for p in module.parameters()):
        raise UnsafeModule(
            "the model has no trainable layer: nothing could be learned, yet privacy would be spent"
        )
    if example is not None:
        check_behaviour(module, example)


def check_behaviour(module: nn.Module, example: Tensor) -> None:
    """Change, move or remove one record of a batch and refuse the model if another record's output changes.

    The batch after it counts too: what a model keeps in an attribute of its own shows only there. A model that writes
    into its weights or buffers is refused whatever it writes.
    """
    if len(example) < 2:
        raise UnsafeModule("an example of at least two records is needed to see whether a model mixes them")
    for size in (n for n in SIZES if n <= len(example)):
        for gradients in (False, True):
            _check_batch(module, example[:size], {0, size // 2, size - 1}, gradients)
        for training in (True, False):
            _check_places(module, example[: size + 1], size, training)
    if len(example) not in SIZES:
        _check_batch(module, example, {len(example) // 2}, gradients=True)
        check_place(module, example, _without(moved(len(example)), 0))


def _check_batch(module: nn.Module, example: Tensor, positions: Iterable[int], gradients: bool) -> None:
    before, later = _run(module, example, example, gradients)
    for position in positions:
        after, still = _run(module, _with_another_record(example, position), example, gradients)
        others = [i for i in range(len(example)) if i != position]
        for a, b in zip(before, after, strict=True):
            if a.ndim == 0 or a.shape[0] != len(example) or a.shape != b.shape:
                raise UnsafeModule(
                    f"the model returns {tuple(a.shape)} for {len(example)} records: an output needs one row "
                    "per record, or records are mixed in it"
                )
            a, b = a[others].double(), b[others].double()
            if not _close(a, b):
                raise UnsafeModule(
                    f"changing record {position + 1} of a batch changed other records' outputs: the model "
                    "mixes records. Compute each output from its own record alone"
                )
        if not all(_close(a.double(), b.double()) for a, b in zip(later, still, strict=True)):
            raise UnsafeModule(
                f"changing record {position + 1} of a batch changed what the model says about the next batch: it "
                "remembers records on the side. Compute each output from its own record alone"
            )


def _check_places(module: nn.Module, example: Tensor, size: int, training: bool) -> None:
    """Try the first `size` records in another order, without one of them, with one more, and one by one."""
    order = moved(size)
    tried = [order, *(_without(torch.arange(size), at) for at in sorted({0, size // 2}))]
    tried += [torch.tensor([at]) for at in sorted({0, size // 2, size - 1})]
    for rows in tried:
        with (
            suppress(ValueError) if len(rows) == 1 else nullcontext()
        ):  # PyTorch does not normalise a single value
            check_place(module, example[:size], rows, training)
    if len(example) > size:
        check_place(module, example, torch.arange(size), training)


def check_place(module: nn.Module, batch: Tensor, rows: Tensor, training: bool = True) -> None:
    """Refuse a model for which these records of a batch, in this order, are not what they are in the whole batch.

    Outputs are compared, and the gradient of a weighted sum of them, in which each record has its own weight: so a model
    is noticed that only alters gradients. Dropout keeps everything meanwhile.
    """
    outputs, slopes = _outputs_and_slopes(module, batch, rows, training, whole=True)
    found, found_slopes = _outputs_and_slopes(module, batch, rows, training, whole=False)
    same = all(_close(a.double(), b.double(), PLACE_TOLERANCE) for a, b in zip(outputs, found, strict=True))
    if not same or not _close(slopes, found_slopes, SLOPE_TOLERANCE):
        what = "the output" if not same else "the gradient"
        raise UnsafeModule(place_matters(what, f"among {len(batch)} records and among {len(rows)}"))


def _outputs_and_slopes(
    module: nn.Module, batch: Tensor, rows: Tensor, training: bool, whole: bool
) -> tuple[list[Tensor], Tensor]:
    """The outputs of some records, computed in the whole batch or by themselves, and the gradient of a sum of them."""
    trial = copy.deepcopy(module).train(training)
    records = torch.arange(len(batch)) if whole else rows
    with torch.random.fork_rng(devices=[]), torch.enable_grad(), ConstantChance():
        outputs = list(_tensors(trial(batch[records])))
    for out in outputs:
        if out.ndim == 0 or len(out) != len(records):
            raise UnsafeModule(
                f"the model returns {tuple(out.shape)} for {len(records)} records: an output needs one row "
                "per record, or records are mixed in it"
            )
    if whole:
        outputs = [out[rows] for out in outputs]
    sums = summed_outputs(outputs)
    if sums is None or not sums.requires_grad:
        return [out.detach() for out in outputs], torch.zeros(0)
    total = sums @ record_shares(rows).to(sums)
    weights = [p for p in trial.parameters() if p.requires_grad]
    slopes = torch.autograd.grad(total, weights, allow_unused=True, materialize_grads=True)
    return [out.detach() for out in outputs], torch.cat([g.reshape(-1).double() for g in slopes])


def _without(rows: Tensor, at: int) -> Tensor:
    return torch.cat([rows[:at], rows[at + 1 :]])


def check_loss(loss: Loss, own: Tensor, others: Mapping[str, Tensor], targets: Tensor) -> None:
    """Refuse a loss in which one record reaches another's value or slope, on made-up outputs and targets.

    Every record must come out the same alone, in batches of several sizes, among equals, and beside other records.
    """
    own, many = own.clone(), len(own)
    own[1] *= FAR_OFF

    def trial(rows: Tensor) -> Tensor:
        return _values_and_slopes(loss, own[rows], {o: t[rows] for o, t in others.items()}, targets[rows])

    for size in (n for n in (*SIZES, many) if n <= many):
        rows = torch.arange(size)
        together = trial(rows)
        for at in sorted({0, size // 2, size - 1}):
            rest = rows != at
            for record in (1, (at + 2) % many):
                if not torch.equal(
                    *(t[rest].nan_to_num() for t in (trial(rows.masked_fill(~rest, record)), together))
                ):
                    raise UnsafeModule(
                        _mixing(f"changing record {at + 1} of {size} changed other records' losses")
                    )
            _check_loss_alone(trial, rows, together, at)
        if not torch.equal(trial(rows).nan_to_num(), together.nan_to_num()):
            raise UnsafeModule(
                "the same records had another loss later: it remembers records, or draws at random"
            )
    for record in range(min(8, many)):  # a batch of equals: what depends on a count of some kind shows here
        rows = torch.full((many,), record)
        _check_loss_alone(trial, rows, trial(rows), 0)


def _check_loss_alone(trial: Callable[[Tensor], Tensor], rows: Tensor, together: Tensor, at: int) -> None:
    """A record by itself, and the others without it, must have the losses that they have together."""
    if not _same(trial(rows[at : at + 1]), together[at : at + 1]):
        raise UnsafeModule(_mixing(f"a record has another loss alone than among {len(rows)}"))
    rest = torch.arange(len(rows)) != at
    if not _same(trial(rows[rest]), together[rest]):
        raise UnsafeModule(_mixing(f"removing record {at + 1} of {len(rows)} changed other records' losses"))


def _mixing(observed: str) -> str:
    return f"{observed}: the loss mixes records. Compute each loss from its own record alone"


def _values_and_slopes(loss: Loss, own: Tensor, others: Mapping[str, Tensor], targets: Tensor) -> Tensor:
    """A row for each record: its loss, and the slope of the sum of all losses at its outputs, which is what is clipped."""
    own = own.detach().requires_grad_()
    try:
        with torch.enable_grad():
            values = loss(own, others, targets)
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UnsafeModule(f"it cannot be computed for {len(own)} made-up records: {reason}") from None
    if not isinstance(values, Tensor) or values.shape != (len(own),):
        what = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise UnsafeModule(
            f"it gives {what} for {len(own)} records: a private step needs one loss per record"
        )
    slopes = torch.zeros_like(own)
    if values.requires_grad:
        slopes = torch.autograd.grad(values.sum(), own, allow_unused=True, materialize_grads=True)[0]
    return torch.cat([values.detach().reshape(-1, 1), slopes.reshape(len(own), -1)], 1)


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether rows of numbers are the same, up to the rounding that comes with a record's place in a batch."""
    scale = b.nan_to_num().abs().amax(-1, keepdim=True).clamp_min(1e-30)
    return bool(((a - b).abs().nan_to_num(0.0) <= TOLERANCE * scale).all()) and torch.equal(
        a.isnan(), b.isnan()
    )


def replace_unsafe(module: nn.Module) -> nn.Module:
    """A copy of the model with GroupNorm (Wu and He 2018) wherever a layer would mix or remember records.

    >>> replace_unsafe(nn.BatchNorm2d(64)).num_groups
    16
    """
    module = copy.deepcopy(module)
    if (safe := _replacement(module)) is not None:
        return safe
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if (safe := _replacement(child)) is not None:
                setattr(parent, name, safe)
    return module


def group_count(channels: int) -> int:
    """At most 32 groups of at least 4 channels: one alone would be normalised to a constant.

    >>> [group_count(c) for c in (3, 6, 16, 64, 200, 512)]
    [1, 1, 4, 16, 25, 32]
    """
    return max((g for g in range(1, 33) if channels % g == 0 and channels // g >= 4), default=1)


def _known_problems(module: nn.Module) -> Iterator[str]:
    for name, part in module.named_modules():
        where = f"{type(part).__name__} «{name}»" if name else type(part).__name__
        if isinstance(part, _BatchNorm):
            yield f"{where} mixes the records of a batch"
        elif isinstance(part, _InstanceNorm) and part.track_running_stats:
            yield f"{where} keeps running statistics of records"


@singledispatch
def _replacement(part: nn.Module) -> nn.Module | None:
    """The layer that takes the place of one that mixes or remembers records; None for a safe layer."""
    return None


@_replacement.register
def _of_batch_norm(part: _BatchNorm) -> nn.Module:
    if isinstance(part, nn.BatchNorm1d) and part.num_features == 1:
        return nn.Identity()  # a single number has nothing to be normalised with
    return _like(part, nn.GroupNorm(group_count(part.num_features), part.num_features, part.eps, part.affine))


@_replacement.register
def _of_instance_norm(part: _InstanceNorm) -> nn.Module | None:
    if not part.track_running_stats:
        return None
    return _like(part, type(part)(part.num_features, part.eps, affine=part.affine))


def _like(part: _BatchNorm | _InstanceNorm, safe: nn.Module) -> nn.Module:
    """The replacement with the weights and the mode of the layer it replaces."""
    if part.affine and not isinstance(part.weight, UninitializedParameter):
        safe.to(part.weight.device, part.weight.dtype)
        for name in ("weight", "bias"):
            old, new = getattr(part, name), getattr(safe, name)
            new.data.copy_(old.data)
            new.requires_grad_(old.requires_grad)
    return safe.train(part.training)


def _run(
    module: nn.Module, batch: Tensor, following: Tensor, gradients: bool
) -> tuple[list[Tensor], list[Tensor]]:
    """The outputs, and the outputs for the batch that follows.

    It is a copy in training mode, with always the same chance. A copy that has changed by itself is refused.
    """
    trial = copy.deepcopy(module).train()
    with torch.random.fork_rng(devices=[]), torch.set_grad_enabled(gradients):
        seed_torch(0)
        outputs = list(_tensors(trial(batch)))
        if gradients and (sloped := [t.sum() for t in outputs if t.requires_grad]):
            torch.stack(sloped).sum().backward()  # type: ignore[no-untyped-call]
        outputs = [t.detach().clone() for t in outputs]
        later = [t.detach() for t in _tensors(trial(following))]
    before, after = (dict(_held(m)) for m in (module, trial))
    for name in sorted(before.keys() | after):
        if name not in before or name not in after or not _identical(before[name], after[name]):
            what = "weight" if name in dict(module.named_parameters()) else "buffer"
            raise UnsafeModule(
                f"the {what} «{name}» remembers what passed through the model: it would leave without noise. Let forward "
                "and hooks change nothing; running statistics are replaced by privacy.replace_unsafe(model)"
            )
    return outputs, later


def _held(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _identical(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a.nan_to_num(), b.nan_to_num())


def _tensors(output: object) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from _tensors(value)
    elif isinstance(output, tuple | list):
        for value in output:
            yield from _tensors(value)


def _with_another_record(example: Tensor, position: int) -> Tensor:
    """The batch with one record replaced: by a far-off one or, of whole numbers, by another."""
    other = example.clone()
    if example.is_floating_point():
        other[position] = 3 * example[position] + 10
        return other
    for record in example:
        if not torch.equal(record, example[position]):
            other[position] = record
            return other
    raise UnsafeModule("all records of the example are equal: no mixing would show; give it different ones")


def _close(a: Tensor, b: Tensor, tolerance: float = TOLERANCE) -> bool:
    if a.shape != b.shape:
        return False
    if a.numel() == 0:
        return True
    scale = float(torch.nan_to_num(a).abs().max())
    return bool(torch.allclose(a, b, rtol=0, atol=tolerance * max(scale, 1e-30), equal_nan=True))
