"""What the benchmarks say about the machine they ran on, and about the spread of what they measured."""

from __future__ import annotations

import os
import platform

import torch


def machine() -> dict[str, object]:
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load": list(os.getloadavg()),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def spread(values: list[float]) -> list[float]:
    """The least and the largest."""
    return [min(values), max(values)]
