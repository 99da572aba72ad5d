"""What a proxy would say about a record, had it not learned from that record.

A site that judges a proxy on its own records judges it too well: the proxy has learned from them. At two sites
with 200 records each that alone makes a useless proxy look worth using. For a linear proxy the echo of a single
record can be computed and taken out: leaving a record out of a fitted model moves the weights by H⁻¹·g, with g the
record's (clipped) gradient and H the curvature of all records' losses (Cook and Weisberg 1982). The site does not know
the other sites' records and takes its own curvature for theirs. What comes out stays at the site.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from confrere.learning.logistic import Vector, chances, head_of
from confrere.learning.nets import Centred
from confrere.learning.objectives import is_multilabel
from confrere.learning.ridge import without_echo_of_squares


@dataclass(frozen=True)
class Echo:
    """How the proxy has learned. `time` is the sum of its steps: a short training curbs the echo, like a prior."""

    records: float
    """Of all sites."""
    clip: float = np.inf
    time: float = np.inf


def without_echo(
    module: nn.Module, inputs: Tensor, targets: Tensor, seen: Tensor, how: Echo
) -> Vector | None:
    """The logits for records, each without its own share in them; None where that cannot be computed."""
    if isinstance(module, Centred) and module.outputs > 1:
        return _several(module, inputs, targets, seen, how)
    head = head_of(module)
    if head is None or is_multilabel(targets):
        return None
    if targets.is_floating_point():
        features, values = head.features(inputs), targets.double().reshape(-1).numpy()
        curb = max(1 / how.time, 1e-4)
        alone = without_echo_of_squares(features, head.weights(), values, how.clip, curb, how.records)
        return np.asarray(np.where(seen.numpy(), alone, features @ head.weights()))
    features, labels = head.features(inputs), targets.double().numpy()
    logits = features @ head.weights()
    chance = chances(logits)
    error = chance - labels
    norm = np.abs(error) * np.linalg.norm(features, axis=1)
    clipped = np.minimum(1.0, how.clip / np.maximum(norm, 1e-12))
    curve = (features * (chance * (1 - chance) * clipped)[:, None]).T @ features / len(labels)
    curve[np.diag_indices_from(curve)] += max(1 / how.time, 1e-4)
    reach = np.einsum("ij,ij->i", features, np.linalg.solve(curve, features.T).T) / how.records
    return np.asarray(np.where(seen.numpy(), logits + reach * error * clipped, logits))


def _several(module: Centred, inputs: Tensor, targets: Tensor, seen: Tensor, how: Echo) -> Vector:
    """The same for several classes: one curvature for all of them, that of an average class."""
    with torch.no_grad():
        features = module.features(inputs).double().cpu().numpy()
        logits = features @ module.head.weight.detach().double().cpu().numpy().T
    odds = np.exp(logits - logits.max(1, keepdims=True))
    chance = odds / odds.sum(1, keepdims=True)
    error = chance.copy()
    error[np.arange(len(error)), targets.cpu().numpy()] -= 1
    norm = np.linalg.norm(error, axis=1) * np.linalg.norm(features, axis=1)
    clipped = np.minimum(1.0, how.clip / np.maximum(norm, 1e-12))
    spread = (chance * (1 - chance)).mean(1) * clipped
    curve = (features * spread[:, None]).T @ features / len(features)
    curve[np.diag_indices_from(curve)] += max(1 / how.time, 1e-4)
    reach = np.einsum("ij,ij->i", features, np.linalg.solve(curve, features.T).T) / how.records
    echo = (reach * clipped * seen.numpy())[:, None] * error
    return np.asarray(logits + echo)
