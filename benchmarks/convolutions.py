"""Would stacking pay for convolutions? One plain step of LeNet5 at several sites: in turn, and stacked in three ways.

    python benchmarks/convolutions.py

CPU milliseconds of forwards and backwards at all sites, the best of five, one thread: site by site, as grouped convolution,
as batched products over unfolded patches, and by `torch.func.vmap`. All give the same losses.
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
    return dense(weights, h.view(batch, sites, 400).transpose(0, 1), y)


def dense(weights: dict[str, Tensor], h: Tensor, y: Tensor) -> Tensor:
    """From the features to the losses of all sites, by batched products."""
    sites, batch = y.shape
    for layer in ("7", "9", "11"):
        h = torch.baddbmm(weights[f"{layer}.bias"].unsqueeze(1), h, weights[f"{layer}.weight"].mT)
        h = F.relu(h) if layer != "11" else h
    return F.cross_entropy(h.reshape(-1, 10), y.reshape(-1), reduction="none").view(sites, batch).mean(1)


def unfolded(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
    """The same with every convolution as a batched product over unfolded patches."""
    sites, batch = y.shape
    h = x.flatten(0, 1)
    for layer, padding in (("0", 2), ("3", 0)):
        kernel, bias = weights[f"{layer}.weight"], weights[f"{layer}.bias"]
        patches = F.unfold(h, 5, padding=padding)  # sites · batch, channels · 25, places
        places, side = patches.shape[2], h.shape[2] + 2 * padding - 4
        columns = patches.view(sites, batch, -1, places).transpose(1, 2).reshape(sites, -1, batch * places)
        h = torch.baddbmm(bias.unsqueeze(2), kernel.flatten(2), columns)
        h = h.view(sites, -1, batch, places).transpose(1, 2).reshape(sites * batch, -1, side, side)
        h = F.max_pool2d(F.relu(h), 2)
    return dense(weights, h.view(sites, batch, 400), y)


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

    def at_once(way: Callable[[dict[str, Tensor], Tensor, Tensor], Tensor]) -> None:
        for t in weights.values():
            t.grad = None
        way(weights, x, y).sum().backward()

    def one(params: dict[str, Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(like, params, (inputs,)), targets)

    mapped = vmap(grad(one))
    ways = {
        "in turn": in_turn, "grouped": lambda: at_once(grouped), "unfolded": lambda: at_once(unfolded),
        "vmap": lambda: mapped(start, x, y),
    }  # fmt: skip
    with torch.no_grad():
        one_way, another = grouped(weights, x, y), unfolded(weights, x, y)
    assert torch.allclose(one_way, another, atol=1e-4)
    found = ", ".join(f"{name} {best(way):.0f} ms" for name, way in ways.items())
    return f"{sites} sites, batches of {batch}: {found}"


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(measure(8, 50))
    print(measure(50, 10))
