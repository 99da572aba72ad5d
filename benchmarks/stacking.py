"""Would stacking pay for networks that are trained one at a time? A plain step at several sites, in turn and stacked.

    python benchmarks/stacking.py [--json]

LeNet5 on pictures of 28 × 28: site by site, as grouped convolution, as batched products over unfolded patches, and by
`torch.func.vmap`. An LSTM over 50 words: site by site, and with all sites in one batched product per word. CPU milliseconds
of forwards and backwards at all sites, the best of five, one thread; all ways give the same losses (checked).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from machine import machine
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


def measure(sites: int, batch: int) -> list[dict[str, Any]]:
    """LeNet5, in all ways."""
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
    with torch.no_grad():
        truth = torch.stack([F.cross_entropy(net(x[k]), y[k]) for k, net in enumerate(nets)])
        for way in (grouped, unfolded):
            assert torch.allclose(way(weights, x, y), truth, atol=1e-4)
    stacked = {
        "grouped": lambda: at_once(grouped), "unfolded": lambda: at_once(unfolded), "vmap": lambda: mapped(start, x, y),
    }  # fmt: skip
    return rows("LeNet5", sites, batch, in_turn, stacked)


class Words(nn.Module):
    """An LSTM over a text; the mean of what it says at each word decides."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.lstm, self.out = (
            nn.Embedding(500, 32),
            nn.LSTM(32, 64, batch_first=True),
            nn.Linear(64, 2),
        )

    def forward(self, x: Tensor) -> Tensor:
        said: Tensor = self.out(self.lstm(self.words(x))[0].mean(1))
        return said


def in_step(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
    """The losses of all sites, which read their texts word by word together."""
    sites, batch, length = x.shape
    words = weights["words.weight"][torch.arange(sites)[:, None, None], x].flatten(1, 2)
    bias = (weights["lstm.bias_ih_l0"] + weights["lstm.bias_hh_l0"]).unsqueeze(1)
    read = torch.baddbmm(bias, words, weights["lstm.weight_ih_l0"].mT).view(sites, batch, length, -1)
    h = c = total = torch.zeros(sites, batch, 64)
    for word in read.unbind(2):
        i, f, g, o = torch.baddbmm(word, h, weights["lstm.weight_hh_l0"].mT).chunk(4, 2)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        total = total + h
    out = torch.baddbmm(weights["out.bias"].unsqueeze(1), total / length, weights["out.weight"].mT)
    return F.cross_entropy(out.flatten(0, 1), y.flatten(), reduction="none").view(sites, batch).mean(1)


def measure_words(sites: int, batch: int) -> list[dict[str, Any]]:
    """The LSTM, in turn and in step."""
    nets = [Words() for _ in range(sites)]
    x, y = torch.randint(0, 500, (sites, batch, 50)), torch.randint(0, 2, (sites, batch))
    weights = {n: t.detach().clone().requires_grad_() for n, t in stack_module_state(nets)[0].items()}

    def in_turn() -> None:
        for k, net in enumerate(nets):
            net.zero_grad()
            F.cross_entropy(net(x[k]), y[k]).backward()

    def together() -> None:
        for t in weights.values():
            t.grad = None
        in_step(weights, x, y).sum().backward()

    with torch.no_grad():
        truth = torch.stack([F.cross_entropy(net(x[k]), y[k]) for k, net in enumerate(nets)])
        assert torch.allclose(in_step(weights, x, y), truth, atol=1e-4)
    return rows("LSTM", sites, batch, in_turn, {"in step": together})


def rows(
    name: str, sites: int, batch: int, in_turn: Callable[[], object], stacked: dict[str, Callable[[], object]]
) -> list[dict[str, Any]]:
    plain = best(in_turn)
    out = []
    for way, work in stacked.items():
        took = best(work)
        out.append(
            {
                "case": f"{name}, {sites} sites, batches of {batch}, {way}", "ours": took, "peer": plain,
                "unit": "CPU ms (peer: in turn)", "ratio": plain / took,
            }
        )  # fmt: skip
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    found = [*measure(8, 50), *measure(50, 10), *measure_words(8, 50), *measure_words(50, 10)]
    if asked.json:
        print(json.dumps({"benchmark": "stacking", "machine": machine(), "rows": found}, indent=2))
        return
    for row in found:
        print(
            f"{row['case']:45} {row['ours']:5.0f} ms, in turn {row['peer']:5.0f} ms: {row['ratio']:.2f} times as fast"
        )


if __name__ == "__main__":
    main()
