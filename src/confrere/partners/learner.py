"""Train the study's network on weighted records, regularised towards a centre: the one learner of all comparisons.

Choosing partners trains the same network on many sets of records, so training is simple and repeatable: small networks
are trained to convergence by L-BFGS, larger ones for a fixed number of passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor

from confrere.core.params import Params
from confrere.core.seeds import generator, seed_torch
from confrere.data.records import Records
from confrere.learning.evaluation import predict
from confrere.learning.networks.network import Network
from confrere.learning.objectives import supervised_loss
from confrere.statistics.fixed_model_gain import JudgedPatients

Losses = NDArray[np.float64]
"""One loss for each record."""

SMALL = 20_000
"""Networks with more weights than this are trained in passes over batches."""

PRIORS = (1.0, 10.0, 100.0, 1000.0)
"""Strengths of regularisation that are tried, each as a number of records."""


@dataclass(frozen=True)
class Learner:
    """A network with the weights that it starts from."""

    network: Network
    start: Params
    prior: float = 10.0
    length: int = 100
    """Iterations of L-BFGS; larger networks make a fifth as many passes."""
    seed: int = 0

    def learn(
        self,
        records: Records,
        weights: Tensor | None = None,
        *,
        prior: float | None = None,
        centre: Params | None = None,
    ) -> Params:
        """The weights with the least mean loss on the records, which count by `weights`.

        They are pulled towards `centre`, or towards zero, with a prior worth `prior` records; training starts there.
        """
        shares = torch.ones(len(records)) if weights is None else weights.float()
        shares = shares * (len(records) / shares.sum())
        self.network.load(centre or self.start)
        middle = self.network.flat.clone() if centre is not None else torch.zeros_like(self.network.flat)
        effective = float(shares.sum() ** 2 / shares.square().sum())  # the effective number of records
        pull = self._regularised(centre is not None) * ((self.prior if prior is None else prior) / effective)
        self.network.module.train()
        if self.network.flat.numel() <= SMALL:
            self._converge(records, shares, pull, middle)
        else:
            self._descend(records, shares, pull, middle)
        return self.network.params()

    def outputs(self, params: Params, records: Records) -> Tensor:
        """The outputs of the network for these records."""
        self.network.load(params)
        return predict(self.network.module, records.inputs).double()

    def losses(self, params: Params, records: Records) -> Losses:
        """The loss of each record."""
        return losses_of(self.outputs(params, records), records)

    def _value(self, records: Records, shares: Tensor) -> Tensor:
        return (shares * supervised_loss(self.network.module(records.inputs), records.targets)).mean()

    def _converge(self, records: Records, shares: Tensor, pull: Tensor, middle: Tensor) -> None:
        network = self.network

        def value(at: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
            network.flat.copy_(torch.from_numpy(at).to(network.flat))
            mean, away = self._value(records, shares), network.flat - middle
            gradient = network.backward(mean) + pull * away
            return float(mean.detach() + 0.5 * (pull * away * away).sum()), gradient.double().numpy()

        begin = network.flat.double().numpy().copy()
        found = minimize(value, begin, jac=True, method="L-BFGS-B", options={"maxiter": self.length})
        network.flat.copy_(torch.from_numpy(found.x).to(network.flat))

    def _descend(self, records: Records, shares: Tensor, pull: Tensor, middle: Tensor) -> None:
        flat = self.network.flat
        mean, square, steps = torch.zeros_like(flat), torch.zeros_like(flat), 0
        with torch.random.fork_rng(devices=[]):
            seed_torch(self.seed)  # dropout
            for epoch in range(max(1, self.length // 5)):
                order = torch.randperm(len(records), generator=generator(self.seed, "order", epoch))
                for rows in torch.split(order, 256):
                    gradient = self.network.backward(self._value(records.select(rows), shares[rows]))
                    gradient = gradient + pull * (flat - middle)
                    steps += 1
                    mean.mul_(0.9).add_(gradient, alpha=0.1)
                    square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
                    scale = (square / (1 - 0.999**steps)).sqrt_().add_(1e-8)
                    flat.sub_(mean / (1 - 0.9**steps) / scale, alpha=1e-3)

    def _regularised(self, everything: bool) -> Tensor:
        """1 for each parameter that is regularised: weights always, biases only towards a centre."""
        shapes = {n: p for n, p in sorted(self.network.module.named_parameters()) if p.requires_grad}
        parts = [torch.full((p.numel(),), float(everything or p.ndim > 1)) for p in shapes.values()]
        return torch.cat(parts).to(self.network.flat)


def losses_of(outputs: Tensor, records: Records) -> Losses:
    """The loss of each record under these outputs."""
    targets = records.targets.double() if records.targets.is_floating_point() else records.targets
    return np.asarray(supervised_loss(outputs.double(), targets).numpy())


def joined(parts: Sequence[Records]) -> Records:
    """Records of several sites in one set, without patients."""
    return Records(torch.cat([p.inputs for p in parts]), torch.cat([p.targets for p in parts]))


def patients_in(records: Records) -> JudgedPatients:
    """Whose records these are."""
    units = None if records.units is None else records.units.numpy()
    return JudgedPatients.of(records.targets.numpy(), units)


def mean_and_error(values: Losses) -> tuple[float, float]:
    """The mean of values and its standard error."""
    if len(values) < 2:
        return float(values.mean()) if len(values) else 0.0, float("inf")
    return float(values.mean()), float(values.std(ddof=1) / len(values) ** 0.5)
