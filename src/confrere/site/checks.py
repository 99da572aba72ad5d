"""Refuse records that cannot be learned from, networks that do not fit them, and networks and losses that mix records."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

import torch

from confrere.core.errors import DataError, StudyError, UnsafeModule
from confrere.core.loss_inspection import LossContents
from confrere.core.model import Architecture, Model
from confrere.core.seeds import generator
from confrere.data.records import SiteData, made_up_inputs, made_up_targets
from confrere.data.tasks import Task
from confrere.learning.evaluation import predict
from confrere.learning.networks.network import MICROBATCH, Network, NetworkCache
from confrere.privacy import lint
from confrere.privacy.gradients.recorder import has_custom_code
from confrere.privacy.mechanism import Mechanism

_PASSED: set[tuple[object, ...]] = set()
"""What has passed the trial in this process. Networks with custom code are tried again in every run."""


class HasNetworks(Protocol):
    """What the checks need to know of a site: its task, its networks, and how it trains privately."""

    name: str
    task: Task
    device: str
    mechanism: Mechanism | None
    architectures: dict[str, Architecture]
    network_cache: NetworkCache

    def architecture(self, role: str) -> Architecture: ...
    def network(self, role: str, name: str) -> Network: ...


def check_fit(site: HasNetworks, role: str) -> None:
    """Whether the network of a role takes the site's records and gives the outputs of the task."""
    name, some = site.architecture(role).name, torch.zeros(2, *site.task.inputs)
    where = f'site "{site.name}": the {role} network {name}'
    try:
        outputs = predict(site.network(role, name).module, some.to(site.device))
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise StudyError(
            f"{where} cannot be used for records of shape {tuple(some.shape[1:])}: {reason}"
        ) from None
    if tuple(outputs.shape) != (wanted := (len(some), site.task.outputs)):
        raise StudyError(
            f"{where} gives outputs of shape {tuple(outputs.shape)} for {len(some)} records; this task needs"
            f" {wanted}{site.task.traits.outputs_hint}"
        )


def check_safe(site: HasNetworks, role: str, name: str) -> None:
    """Refuse to train a network privately that mixes records; tried on records that are made up.

    The largest trial has about the size of a private step, so that it is made again only for another order of size.
    """
    expected = site.mechanism.expected_batch if site.mechanism is not None else 0.0
    size = max(*lint.SIZES, min(MICROBATCH, math.ceil(expected)))
    known = (name, site.architectures[name].build, size.bit_length())
    if known in site.network_cache.safe:
        return
    module, made_up = site.network(role, name).module, made_up_inputs(site.task, size)
    custom = any(map(has_custom_code, module.modules()))
    alike = (repr(module), tuple(made_up.shape), str(made_up.dtype), str(site.device))
    if custom or alike not in _PASSED:
        try:
            lint.check(module, made_up.to(site.device))
        except UnsafeModule as error:
            raise UnsafeModule(f"the {role} network {name}: {error}") from None
        _PASSED.add(alike)
    site.network_cache.safe.add(known)


def check_loss_on_site(
    site: HasNetworks, role: str, contents: LossContents, models: Mapping[str, Model]
) -> None:
    """Refuse to train privately with a loss that mixes records; tried once for its options, on made-up outputs."""
    loss = contents.loss
    read = {other: models[other].architecture for other in (role, *sorted(loss.reads))}
    known = (type(loss), contents.text, *read.items())
    if known not in site.network_cache.safe:
        two, outputs = made_up_inputs(site.task, 2).to(site.device), {}
        for number, (other, name) in enumerate(read.items()):
            width = predict(site.network(other, name).module, two).shape[1:]
            chance = generator(number, "made up outputs")
            outputs[other] = 3 * torch.randn(MICROBATCH, *width, generator=chance)
        own = outputs[role] if role in loss.reads else outputs.pop(role)
        try:
            lint.check_loss(loss, own, outputs, made_up_targets(site.task, MICROBATCH))
        except UnsafeModule as error:
            raise UnsafeModule(f"the {role} loss {type(loss).__name__}: {error}") from None
        site.network_cache.safe.add(known)


def check_records(data: SiteData, task: Task, one_class: bool = False) -> None:
    """What learning cannot do without, in all records of a site: by chance its training part may lack a class, or all."""
    targets = torch.cat([part.targets for part in (data.train, data.validation, data.test)])
    if len(targets) == 0:
        raise DataError(f'site "{data.name}" has no records; leave it out or give it some')
    if not bool(data.train.inputs.isfinite().all()):
        raise DataError(
            f'site "{data.name}": the inputs hold NaN or infinite values; encode missing values first'
        )
    if not one_class and (reason := task.traits.unlearnable(task, targets)) is not None:
        raise DataError(f'site "{data.name}": {reason}')
