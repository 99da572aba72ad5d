"""Recording one forward and backward pass of a model, from which every per-record gradient follows.

While a model is recorded, each layer that has a rule runs with its parameters frozen: autograd then
never computes their summed gradient, and the recorder keeps what went in and the gradient of what
came out (Bu et al. 2023, book-keeping). Outside of those layers parameters stay as they are, so a
use that no rule saw shows up in the backward pass, and is refused instead of being left out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from confrere.core.errors import UnsafeModule
from confrere.privacy.gradients.batch_gradients import Layout, Recorded
from confrere.privacy.gradients.fallback import expanded_forward
from confrere.privacy.gradients.place_trial import (
    ConstantChance,
    moved,
    place_matters,
    record_shares,
    summed_outputs,
)
from confrere.privacy.gradients.rules import Gradients, Rule, rule_for

PROBE_TOLERANCE = 1e-4
"""How much, relative to the largest output of a batch, a record's outputs may differ by rounding alone."""

PLACE_TOLERANCE = 1e-2
"""The same between batches of different sizes, which are computed in another order, and for sums of gradients."""


class _Start(torch.autograd.Function):
    """Makes an output that depends on no variable part of a graph, so that its gradient is computed."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, output: Tensor) -> Tensor:
        ctx.mark_dirty(output)
        return output

    @staticmethod
    def backward(ctx: Any, *errors: Tensor) -> Any:
        return None, None


@dataclass(frozen=True)
class _Use:
    """A tapped tensor: where its gradient appears, and what follows from it."""

    layer: str
    names: Mapping[str, str]
    edge: GradientEdge
    dim: int
    then: Callable[[Tensor], Gradients]
    reads: tuple[tuple[Tensor, int], ...]


class Recorder:
    """Records a model's forward and backward pass so that it can be clipped per record.

    >>> recorder = Recorder(nn.Linear(3, 2))
    >>> outputs = recorder.forward(torch.randn(8, 3))
    >>> recorded = recorder.backward(outputs.square().sum(1))
    >>> recorded.squares().shape
    torch.Size([8])

    The first dimension of inputs and losses counts records. With `probe`, a model or a loss that mixes records is
    refused in the step itself, on the records that are really used: a record must have the same outputs among copies
    of itself, and its loss must reach only its own activations. Both are checked whenever a batch is larger than
    all batches before; the outputs of a module with custom code are checked in every batch. Custom code is also run on
    the records in another order and without one of them, once for each size of a batch: neither may change an output.
    `microbatch` is how many records `clipped_sum` runs at a time.
    """

    def __init__(self, module: nn.Module, microbatch: int | None = None, probe: bool = True) -> None:
        if microbatch is not None and microbatch < 1:
            raise ValueError(f"a micro-batch has at least one record, not {microbatch}")
        self.module = module
        self.microbatch = microbatch
        self.layout = Layout.of(module)
        self.notices: list[str] = []
        if not self.layout.names:
            raise UnsafeModule("the model has no trainable parameter: unfreeze a layer or leave it out")
        self._parameters = {n: p for n, p in module.named_parameters() if p.requires_grad}
        self._canonical = {id(p): name for name, p in self._parameters.items()}
        self._plan: list[tuple[str, nn.Module, Callable[..., Any]]] = []
        self._dtype = next(iter(self._parameters.values())).dtype
        self._anchor = torch.zeros((), requires_grad=True)
        self._uses: list[_Use] = []
        self._records = 0
        self._probe = probe
        self._probed = 1
        """The largest batch that was probed; in a batch of one there is nothing to mix."""
        self._at = 0
        self._sizes: set[int] = set()
        """The sizes of batches in which the places of records were tried."""
        self._custom = any(has_custom_code(part) for part in module.modules())
        self._bypass = False
        self._make_plan()

    def _make_plan(self) -> None:
        inside: list[str] = []
        planned: set[int] = set()
        for path, layer in self.module.named_modules(remove_duplicate=False):
            _refuse(path, layer)
            if id(layer) in planned or any(path.startswith(outer) for outer in inside):
                continue
            names = self._names_of(layer)
            if not names:
                continue
            found = rule_for(layer) if "forward" not in vars(layer) else None
            if found is not None:
                self._plan.append((path, layer, self._recorded_forward(path, layer, found, names)))
                planned.add(id(layer))
            elif any(p.requires_grad for p in layer.parameters(recurse=False)):
                count = sum(self._parameters[n].numel() for n in set(names.values()))
                self.notices.append(
                    f"{_place(path, layer)} has no rule: its per-record gradients are written out, "
                    f"{count:,} numbers for each record of a micro-batch"
                )
                self._plan.append((path, layer, self._fallback_forward(path, layer, names)))
                planned.add(id(layer))
                inside.append(f"{path}." if path else "")

    def _names_of(self, layer: nn.Module) -> dict[str, str]:
        """Trainable parameters of a layer: its own name for each → the name in the layout."""
        return {
            local: self._canonical[id(p)]
            for local, p in layer.named_parameters(remove_duplicate=False)
            if id(p) in self._canonical
        }

    def _recorded_forward(
        self, path: str, layer: nn.Module, found: Rule, names: dict[str, str]
    ) -> Callable[..., Any]:
        parameters = [self._parameters[name] for name in set(names.values())]
        tap = functools.partial(self._tap, _place(path, layer), names)

        def forward(*inputs: Any, **options: Any) -> Any:
            if self._bypass or not torch.is_grad_enabled():
                return type(layer).forward(layer, *inputs, **options)
            for p in parameters:
                p.requires_grad_(False)
            try:
                return found.forward(layer, tap, *inputs, **options)
            finally:
                for p in parameters:
                    p.requires_grad_(True)

        return forward

    def _fallback_forward(self, path: str, layer: nn.Module, names: dict[str, str]) -> Callable[..., Any]:
        tap = functools.partial(self._tap, _place(path, layer), names)

        def forward(*inputs: Any, **options: Any) -> Any:
            original = functools.partial(type(layer).forward, layer)
            if self._bypass or not torch.is_grad_enabled():
                return original(*inputs, **options)
            patched = vars(layer).pop("forward")
            self._bypass = True
            try:
                return expanded_forward(layer, set(names), self._records, tap, inputs, options)
            except UnsafeModule as e:
                raise UnsafeModule(f"{_place(path, layer)}: {e}") from e
            finally:
                self._bypass = False
                vars(layer)["forward"] = patched

        return forward

    def _tap(
        self,
        place: str,
        names: Mapping[str, str],
        tensor: Tensor,
        then: Callable[[Tensor], Gradients],
        reads: tuple[Any, ...] = (),
        dim: int = 0,
    ) -> Tensor:
        if tensor.dim() <= dim or tensor.shape[dim] != self._records:
            raise UnsafeModule(
                f"{place} gave a tensor of shape {tuple(tensor.shape)} for a batch of "
                f"{self._records} records: the record must be dimension {dim} "
                "(use batch_first=True, and keep records out of other dimensions)"
            )
        if not tensor.requires_grad:
            if tensor._base is not None or any(tensor is x for x in reads):
                tensor = tensor.clone()
            tensor = _Start.apply(self._anchor, tensor)  # type: ignore[no-untyped-call]
        edge = get_gradient_edge(tensor)
        versions = tuple((x, x._version) for x in reads if isinstance(x, Tensor))
        self._uses.append(_Use(place, names, edge, dim, then, versions))
        return tensor

    @contextmanager
    def _patched(self) -> Iterator[None]:
        for _, layer, forward in self._plan:
            vars(layer)["forward"] = forward
        try:
            yield
        finally:
            for _, layer, _ in self._plan:
                vars(layer).pop("forward", None)

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Runs the model once on a batch; what the backward pass will need is kept."""
        tensors = [x for x in (*inputs, *options.values()) if isinstance(x, Tensor) and x.dim()]
        if not tensors:
            raise UnsafeModule("the model got no tensor whose first dimension counts the records")
        self._records = len(tensors[0])
        self._uses = []
        probed = self._probe and (self._records > self._probed or (self._custom and self._records > 1))
        device = tensors[0].device
        chance = _chance(device) if probed else None
        with self._patched(), torch.enable_grad():
            outputs = self.module(*inputs, **options)
            if chance is not None:
                drawn = not all(map(torch.equal, chance, _chance(device)))
                uses, self._uses = self._uses, []
                self._probe_outputs(inputs, options, outputs, chance, device)
                self._uses = uses
                if self._custom and self._records not in self._sizes:
                    self._probe_places(inputs, options, outputs, drawn, device)
        return outputs

    def _probe_outputs(
        self,
        inputs: tuple[Any, ...],
        options: Mapping[str, Any],
        outputs: Any,
        chance: tuple[Tensor, ...],
        device: torch.device,
    ) -> None:
        """Refuses a model that gives a record other outputs among copies of itself than among the others.

        The copies are as many as the batch had records and meet the same random numbers, so that dropout is no
        difference, and the record has the place that it had. The place is another one in every batch.
        """
        many = self._records
        self._at = at = (self._at + many // 2 + 1) % many

        def copies(x: Any) -> Any:
            of_records = isinstance(x, Tensor) and x.dim() and len(x) == many
            return x[at : at + 1].expand_as(x).clone() if of_records else x

        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            _set_chance(device, chance)
            alone = self.module(*map(copies, inputs), **{k: copies(x) for k, x in options.items()})
        for one, among in zip(_rows(alone, many), _rows(outputs, many), strict=True):
            scale = among.detach().nan_to_num(0, 0, 0).abs().max()
            if not torch.allclose(
                one[at], among[at], rtol=0, atol=PROBE_TOLERANCE * float(scale), equal_nan=True
            ):
                raise UnsafeModule(
                    f"a record has other outputs among {many} records than among copies of itself: the model mixes "
                    "records, remembers them, or draws random numbers of its own. Compute each output from its own "
                    "record alone, and random numbers with PyTorch's default generator"
                )

    def _probe_places(
        self,
        inputs: tuple[Any, ...],
        options: Mapping[str, Any],
        outputs: Any,
        drawn: bool,
        device: torch.device,
    ) -> None:
        """Refuses a model to which the place of a record matters, or how many records there are.

        The records are run in another order and without one of them; in a batch larger than all before, also without
        half of them, and gradients are compared too. Unless random numbers were `drawn`, `outputs` are compared as they are.
        """
        many, larger = self._records, self._records > max(self._sizes, default=1)
        rest = moved(many)[1:]
        tried = (rest, rest[: many // 2]) if larger else (rest,)
        uses, self._probe = self._uses, False

        def run(rows: Tensor) -> tuple[list[Tensor], Recorded | None]:
            def some(x: Any) -> Any:
                of_records = isinstance(x, Tensor) and x.dim() and len(x) == many
                return x[rows.to(x.device)] if of_records else x

            self._records, self._uses = len(rows), []
            again = self.module(*map(some, inputs), **{k: some(x) for k, x in options.items()})
            found = list(_rows(again, len(rows)))
            sums = summed_outputs(found)
            sloped = larger and sums is not None and sums.requires_grad
            return found, self.backward(sums) if sums is not None and sloped else None

        try:
            constant = ConstantChance() if drawn else nullcontext()
            with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), constant:
                known = list(_rows(outputs, many)), None
                together, recorded = run(torch.arange(many)) if drawn or larger else known
                for rows in tried:
                    observed = f"among {many} records and among {len(rows)}"
                    found, again = run(rows)
                    among = [out[rows.to(out.device)] for out in together]
                    if len(among) != len(found) or not all(map(_alike, among, found)):
                        raise UnsafeModule(place_matters("the output", observed))
                    if recorded is None or again is None:
                        continue
                    spoilt = ~(recorded.squares()[rows.to(device)].isfinite() & again.squares().isfinite())
                    placed = torch.ones(many, dtype=torch.bool, device=device)
                    placed[rows.to(device)] = spoilt
                    shares = record_shares(torch.arange(many)).to(device, self._dtype)
                    slopes = (
                        recorded.without(placed).weighted_sum(shares * ~placed),
                        again.without(spoilt).weighted_sum(shares[rows.to(device)] * ~spoilt),
                    )
                    if not _alike(*slopes):
                        raise UnsafeModule(place_matters("the gradient", observed))
        finally:
            self._records, self._uses, self._probe = many, uses, True
        self._sizes.add(many)

    def backward(self, losses: Tensor) -> Recorded:
        """Runs one backward pass from a vector of losses, one per record."""
        uses, self._uses = self._uses, []
        if losses.shape != (self._records,):
            raise UnsafeModule(
                f"{self._records} records need a vector of {self._records} losses, one each; "
                f"got shape {tuple(losses.shape)} (use reduction='none')"
            )
        if self._records == 0:
            return self.nothing()
        if not losses.requires_grad:
            raise UnsafeModule("the losses do not depend on any trainable parameter")
        edges: list[Any] = [use.edge for use in uses]
        if self._probe and self._records > self._probed and _probe(losses, uses):
            self._probed = self._records
        watched = list(self._parameters.values())
        found: tuple[Tensor | None, ...] = torch.autograd.grad(
            losses.sum(), [*edges, *watched], allow_unused=True
        )
        strays = [n for n, g in zip(self._parameters, found[len(edges) :], strict=True) if g is not None]
        if strays:
            raise UnsafeModule(
                f"{', '.join(strays)}: used outside of the layer that owns it, where no rule sees it; "
                "call the layer itself, or register a rule for the module that uses it"
            )
        gathered: dict[str, list[Any]] = {}
        for use, error in zip(uses, found, strict=False):
            if error is None:
                continue
            for x, version in use.reads:
                if x._version != version:
                    raise UnsafeModule(f"{use.layer}: its input was changed in place after it was read")
            for local, gradients in use.then(error).items():
                if local in use.names:
                    gathered.setdefault(use.names[local], []).append(gradients)
        return Recorded.gather(self.layout, self._records, gathered, self._dtype)

    def nothing(self) -> Recorded:
        """What an empty batch leaves."""
        return Recorded(self.layout, 0, {}, self._dtype)


def has_custom_code(part: nn.Module) -> bool:
    """Whether more may happen in a module than PyTorch's layers and this package's networks do."""
    known = type(part).__module__.partition(".")[0] in ("torch", "confrere")
    return not known or has_hooks(part)


def has_hooks(part: nn.Module) -> bool:
    """Whether a call of the module does more than its class says."""
    hooks = (part._forward_hooks, part._forward_pre_hooks, part._backward_hooks, part._backward_pre_hooks)
    return any(hooks) or "forward" in vars(part)


def _chance(device: torch.device) -> tuple[Tensor, ...]:
    """Where the sources of random numbers stand that a model on this device draws from."""
    own = (torch.cuda.get_rng_state(device),) if device.type == "cuda" else ()
    return (torch.get_rng_state(), *own)


def _set_chance(device: torch.device, chance: tuple[Tensor, ...]) -> None:
    torch.set_rng_state(chance[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(chance[1], device)


def _rows(output: Any, records: int) -> Iterator[Tensor]:
    """The tensors of an output that have a row for each record."""
    for x in torch.utils._pytree.tree_leaves(output):
        if isinstance(x, Tensor) and x.dim() and len(x) == records:
            yield x


def _alike(a: Tensor, b: Tensor) -> bool:
    """Whether numbers are the same up to rounding."""
    if a.shape != b.shape or not a.numel():
        return a.shape == b.shape
    scale = float(a.detach().nan_to_num(0, 0, 0).abs().max())
    return torch.allclose(a, b, rtol=0, atol=PLACE_TOLERANCE * scale, equal_nan=True)


def _probe(losses: Tensor, uses: list[_Use]) -> bool:
    """Refuses a model in which the loss of one record depends on another record's activations.

    False if there was no record with a finite loss to try it on.
    """
    finite = torch.isfinite(losses.detach()).nonzero()
    if not len(finite):
        return False
    at = int(finite[0])
    errors: tuple[Tensor | None, ...] = torch.autograd.grad(
        losses[at], [u.edge for u in uses], retain_graph=True, allow_unused=True
    )
    for use, error in zip(uses, errors, strict=True):
        if error is None:
            continue
        reached = error.movedim(use.dim, 0).flatten(1).nan_to_num(0, 0, 0).abs().sum(1)
        reached[at] = 0
        if bool(reached.any()):
            raise UnsafeModule(
                f"{use.layer}: the loss of one record depends on other records, so clipping would protect "
                "nobody; remove what mixes records (batch normalisation, a loss over pairs, a batch that "
                "is not the first dimension)"
            )
    return True


def _refuse(path: str, layer: nn.Module) -> None:
    """Layers that can never be clipped per record."""
    if isinstance(layer, nn.modules.batchnorm._BatchNorm) and (
        layer.training or not layer.track_running_stats
    ):
        raise UnsafeModule(f"{_place(path, layer)} mixes the records of a batch: use GroupNorm instead")
    if isinstance(layer, nn.modules.instancenorm._InstanceNorm) and (
        layer.training and layer.track_running_stats
    ):
        raise UnsafeModule(
            f"{_place(path, layer)} keeps statistics of records without noise: switch them off"
        )
    for name, p in layer.named_parameters(recurse=False):
        if isinstance(p, nn.parameter.UninitializedParameter):
            raise UnsafeModule(f"{_place(path, layer)} has no {name} yet: run the model once before training")


def _place(path: str, layer: nn.Module) -> str:
    return f"{path or 'the model'} ({type(layer).__name__})"
