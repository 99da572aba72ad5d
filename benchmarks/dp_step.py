"""How much a differentially private step costs, as a multiple of a step without privacy.

    python benchmarks/dp_step.py [--json] [--models mlp,lenet5] [--repeats 30] [--no-opacus] [--no-memory]

Everything runs on one thread, interleaved in one process: in each repeat every contender makes one step,
in shuffled order, so that a busy machine slows all alike. `ratio` is the median of our step over the median
of the fastest of PyTorch's own Adam steps (plain, foreach, fused); `spread` holds the 10th and 90th
percentile of the ratio within a repeat. Opacus (its unmodified hooks) stands beside it where it is
installed. Memory is what a step adds to the peak of a fresh process that has the model and the batch.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

import torch
import torch.nn.functional as F
from networks import CASES, Case
from torch import nn

from confrere.learning.optimisers import Adam
from confrere.privacy.clipping import AdaCliP, Clipping, Flat
from confrere.privacy.gradients import Recorder

Step = Callable[[], None]
CLIPPINGS: dict[str, Clipping] = {"flat": Flat(1.0), "adaclip": AdaCliP(1.0)}
TARGETS = {
    "mlp": (1.3, 2.3, 25),
    "lenet5": (1.15, 1.3, 70),
    "cnn1": (1.1, 1.15, 90),
    "cnn2": (1.25, 1.35, 800),
    "resnet18": (1.45, 3.0, 850),
    "lstm": (2.2, 2.8, 120),
}
"""At most: ratio with flat clipping, ratio with AdaCliP, megabytes over the baseline."""


def plain_step(case: Case, **options: bool) -> Step:
    """A step without privacy: PyTorch's own Adam."""
    torch.manual_seed(0)
    model = case.build()
    x, y = case.data()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-4, **options)

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        F.cross_entropy(model(x), y).backward()
        optimiser.step()

    return step


def private_step(case: Case, clipping: Clipping) -> Step:
    """Our step: record, clip, noise, release, Adam on one flat vector."""
    torch.manual_seed(0)
    model = case.build()
    x, y = case.data()
    recorder = Recorder(model)
    layout = recorder.layout
    parameters = dict(model.named_parameters())
    weights = torch.cat([parameters[n].detach().reshape(-1) for n in layout.names])
    for name, view in layout.split(weights).items():
        parameters[name].data = view
    generator = torch.Generator().manual_seed(1)
    optimiser = Adam(1e-3, weight_decay=1e-4)
    moments = optimiser.start(layout.size)
    held = {"clip": clipping.start(layout)}
    batch, noise_multiplier = float(case.batch), 1.0

    reused = torch.empty(layout.size)

    def noise(size: int, std: float) -> torch.Tensor:
        return reused[:size].normal_(0, std, generator=generator)

    def step() -> None:
        losses = F.cross_entropy(recorder.forward(x), y, reduction="none")
        clipped = clipping.sum(recorder.backward(losses), held["clip"])
        std = clipping.noise_std(noise_multiplier, batch, held["clip"])
        released, held["clip"] = clipping.finish(
            clipped.flat.add_(noise(layout.size, std)).to(clipped.dtype),
            held["clip"],
            noise_multiplier=noise_multiplier,
            expected_batch=batch,
            clipped=clipped,
            noise=noise,
        )
        optimiser.update(weights, released, moments)

    return step


def opacus_step(case: Case) -> Step | None:
    """A step of unmodified Opacus (hooks), if it is installed."""
    try:
        from opacus import GradSampleModule
        from opacus.layers import DPLSTM
        from opacus.optimizers import DPOptimizer
    except ImportError:
        return None
    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    model = case.build()
    if isinstance(getattr(model, "lstm", None), nn.LSTM):
        model.lstm = DPLSTM(model.lstm.input_size, model.lstm.hidden_size, batch_first=True)
    for layer in model.modules():  # Opacus' hooks do not go with activations that overwrite their input
        if hasattr(layer, "inplace"):
            layer.inplace = False
    x, y = case.data()
    wrapped = GradSampleModule(model)
    optimiser = DPOptimizer(
        torch.optim.Adam(wrapped.parameters(), lr=1e-3, weight_decay=1e-4),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        expected_batch_size=case.batch,
    )

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        F.cross_entropy(wrapped(x), y).backward()
        optimiser.step()

    return step


def contenders(case: Case, opacus: bool) -> dict[str, Step]:
    out: dict[str, Step] = {
        "plain": plain_step(case, foreach=False),
        "foreach": plain_step(case, foreach=True),
        "fused": plain_step(case, fused=True),
    }
    out.update({name: private_step(case, clipping) for name, clipping in CLIPPINGS.items()})
    other = opacus_step(case) if opacus else None
    if other is not None:
        out["opacus"] = other
    return out


def measure(case: Case, repeats: int, opacus: bool) -> dict[str, list[tuple[float, float]]]:
    """(wall, CPU) seconds of each contender's steps, interleaved in shuffled order."""
    steps = contenders(case, opacus)
    for _ in range(3):
        for step in steps.values():
            step()
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
    order = random.Random(0)
    for repeat in range(repeats):
        names = list(steps)
        order.shuffle(names)
        for name in names:
            if name == "opacus" and repeat % 4:
                continue
            steps[name]()  # brings its own data back into the caches
            wall, cpu = time.perf_counter(), time.process_time()
            steps[name]()
            times[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    return times


def peak(model: str, contender: str) -> float:
    """Megabytes that five steps add to the peak of this process."""
    step = contenders_one(CASES[model], contender)
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = high_water()
    for _ in range(5):
        step()
    return high_water() - before


def high_water() -> float:
    """Megabytes of memory at the peak of this process."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))


def contenders_one(case: Case, contender: str) -> Step:
    if contender in CLIPPINGS:
        return private_step(case, CLIPPINGS[contender])
    if contender == "opacus":
        step = opacus_step(case)
        assert step is not None
        return step
    return plain_step(case, **{} if contender == "plain" else {contender: True})


def memory(model: str, contender: str) -> float:
    """The same in a fresh process, so that nothing else counts."""
    command = [sys.executable, os.path.abspath(__file__), "--peak", f"{model}:{contender}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout)


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def rows_of(model: str, repeats: int, opacus: bool, with_memory: bool) -> list[dict[str, object]]:
    times = measure(CASES[model], repeats, opacus)
    wall = {name: [w for w, _ in found] for name, found in times.items()}
    cpu = {name: statistics.median(c for _, c in found) for name, found in times.items()}
    median = {name: statistics.median(found) for name, found in wall.items()}
    fastest = min(("plain", "foreach", "fused"), key=median.__getitem__)
    rows = []
    base = memory(model, fastest) if with_memory else None
    for at, name in enumerate(CLIPPINGS):
        within = [a / b for a, b in zip(wall[name], wall[fastest], strict=True)]
        row: dict[str, object] = {
            "case": f"{model}/{name}",
            "ours": median[name],
            "peer": median[fastest],
            "unit": "s",
            "ratio": median[name] / median[fastest],
            "spread": [percentile(within, 0.1), percentile(within, 0.9)],
            "ratio_of_minima": min(wall[name]) / min(wall[fastest]),
            "ratio_of_cpu": cpu[name] / cpu[fastest],
            "peer_name": f"torch.optim.Adam ({fastest})",
            "target": TARGETS[model][at],
        }
        if base is not None:
            row["memory_mb"] = memory(model, name) - base
            row["memory_target_mb"] = TARGETS[model][2]
        if "opacus" in median:
            row["opacus"] = median["opacus"]
            row["opacus_ratio"] = median["opacus"] / median[fastest]
            if with_memory and base is not None and at == 0:
                row["opacus_memory_mb"] = memory(model, "opacus") - base
        rows.append(row)
    return rows


def machine() -> dict[str, object]:
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def show(row: dict[str, object]) -> str:
    ours, peer = float(str(row["ours"])), float(str(row["peer"]))
    text = (
        f"{row['case']:18} {ours * 1e3:8.2f} ms  plain {peer * 1e3:8.2f} ms  "
        f"ratio {row['ratio']:5.2f} (at most {row['target']}, minima {row['ratio_of_minima']:.2f}, "
        f"CPU {row['ratio_of_cpu']:.2f})"
    )
    if "memory_mb" in row:
        text += f"  memory {row['memory_mb']:6.0f} MB (at most {row['memory_target_mb']})"
    if "opacus_ratio" in row:
        text += f"  Opacus {row['opacus_ratio']:5.2f}"
    if "opacus_memory_mb" in row:
        text += f" {row['opacus_memory_mb']:.0f} MB"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--models", default=",".join(CASES), help="which of " + ", ".join(CASES))
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--no-opacus", action="store_true")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.peak:
        print(peak(*options.peak.split(":")))
        return
    rows = []
    for model in options.models.split(","):
        for row in rows_of(model, options.repeats, not options.no_opacus, not options.no_memory):
            rows.append(row)
            print(show(row), file=sys.stderr if options.json else sys.stdout, flush=True)
    if options.json:
        print(json.dumps({"benchmark": "dp_step", "machine": machine(), "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
