"""Leave-one-out correction: what a proxy would predict for a record, had it not learned from that record.

A site that judges a proxy on its own records judges it too well: the proxy has learned from them. At two sites
with 200 records each that alone makes a useless proxy look worth using. For a linear proxy the influence of a single
record can be computed and taken out: leaving a record out of a fitted model moves the weights by H⁻¹·g, with g the
record's (clipped) gradient and H the curvature of all records' losses (Cook and Weisberg 1982). The site does not know
the other sites' records and takes its own curvature for theirs. What comes out stays at the site.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from confrere.learning.fit.exact_regression import Matrix, Vector, chances, head_of
from confrere.learning.networks.tables import Centred
from confrere.learning.objectives import is_multilabel


@dataclass(frozen=True)
class ProxyTraining:
    """How the proxy has learned. `time` is the sum of its steps: a short training limits the influence, like a prior."""

    records: float
    """Of all sites."""
    clip: float = np.inf
    time: float = np.inf

    def influence(self, features: Matrix, errors: Matrix, curvature: Vector) -> Matrix:
        """How far each record has moved its own outputs, from the slope of its loss at them (records × outputs).

        `curvature` is that of each record's loss, the same for all outputs.
        """
        norm = np.linalg.norm(errors, axis=1) * np.linalg.norm(features, axis=1)
        clipped = np.minimum(1.0, self.clip / np.maximum(norm, 1e-12))
        curve = (features * (curvature * clipped)[:, None]).T @ features / len(features)
        curve[np.diag_indices_from(curve)] += max(1 / self.time, 1e-4)
        reach = np.einsum("ij,ij->i", features, np.linalg.solve(curve, features.T).T) / self.records
        return np.asarray((reach * clipped)[:, None] * errors)


def left_out_outputs(
    module: nn.Module, inputs: Tensor, targets: Tensor, seen: Tensor, how: ProxyTraining
) -> Vector | None:
    """The outputs for records, each without its own influence on them; None where that cannot be computed."""
    if isinstance(module, Centred) and module.outputs > 1:
        with torch.no_grad():
            features = module.features(inputs).double().cpu().numpy()
            outputs = features @ module.head.weight.detach().double().cpu().numpy().T
        odds = np.exp(outputs - outputs.max(1, keepdims=True))
        chance = odds / odds.sum(1, keepdims=True)
        errors = chance.copy()
        errors[np.arange(len(errors)), targets.cpu().numpy()] -= 1
        # one curvature for all classes, that of an average class
        moved = how.influence(features, errors, (chance * (1 - chance)).mean(1))
        return np.asarray(outputs + moved * seen.numpy()[:, None])
    head = head_of(module)
    if head is None or is_multilabel(targets):
        return None
    features, truth = head.features(inputs), targets.double().reshape(-1).numpy()
    outputs = features @ head.weights()
    if targets.is_floating_point():
        errors, curvature = 2 * (outputs - truth), np.full(len(truth), 2.0)
    else:
        chance = chances(outputs)
        errors, curvature = chance - truth, chance * (1 - chance)
    moved = how.influence(features, errors[:, None], curvature)[:, 0]
    return np.asarray(np.where(seen.numpy(), outputs + moved, outputs))
