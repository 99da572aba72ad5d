"""Would stacking pay for convolutions? One plain step of LeNet5 at several sites: in turn, as grouped convolution, by vmap.

    python benchmarks/convolutions.py

CPU milliseconds of forwards and backwards at all sites, the best of five, one thread. All three give the same gradients.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip


def grouped(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
    """The losses of all sites at once: a group of channels for each site, then batched products."""
    sites, batch = y.shape
    h = x.transpose(0, 1).reshape(batch, sites, 28, 28)
    for layer, padding in (("0", 2), ("3", 0)):
        kernel, bias = weights[f"{layer}.weight"].flatten(0, 1), weights[f"{layer}.bias"].flatten()
        h = F.max_pool2d(F.relu(F.conv2d(h, kernel, bias, padding=padding, groups=sites)), 2)
    h = h.view(batch, sites, 400).transpose(0, 1)
    for layer in ("7", "9", "11"):
        h = torch.baddbmm(weights[f"{layer}.bias"].unsqueeze(1), h, weights[f"{layer}.weight"].mT)
        h = F.relu(h) if layer != "11" else h
    return F.cross_entropy(h.reshape(-1, 10), y.reshape(-1), reduction="none").view(sites, batch).mean(1)


def best(work: Callable[[], object]) -> float:
    work()
    found = []
    for _ in range(5):
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return min(found) * 1e3


def measure(sites: int, batch: int) -> str:
    nets = [network() for _ in range(sites)]
    x, y = torch.randn(sites, batch, 1, 28, 28), torch.randint(0, 10, (sites, batch))
    start, _ = stack_module_state(nets)
    weights = {name: t.detach().clone().requires_grad_() for name, t in start.items()}
    like = network().to("meta")

    def in_turn() -> None:
        for k, net in enumerate(nets):
            net.zero_grad()
            F.cross_entropy(net(x[k]), y[k]).backward()

    def at_once() -> None:
        for t in weights.values():
            t.grad = None
        grouped(weights, x, y).sum().backward()

    def one(params: dict[str, Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(like, params, (inputs,)), targets)

    mapped = vmap(grad(one))
    plain, stacked, vmapped = best(in_turn), best(at_once), best(lambda: mapped(start, x, y))
    return f"{sites} sites, batches of {batch}: in turn {plain:.0f} ms, grouped {stacked:.0f} ms, vmap {vmapped:.0f} ms"


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(measure(8, 50))
    print(measure(50, 10))
