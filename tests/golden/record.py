"""Record the golden studies anew, after a change of behaviour that is intended:

    python -m tests.golden.record [STUDY ...]

Look at the difference (`git diff tests/golden`) before you commit it.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch

from tests.golden.golden import RUNTIMES, STUDIES, described, record, recording, run_study, spelled


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    if unknown := set(names) - set(STUDIES):
        sys.exit(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(STUDIES)}")
    for name in names or STUDIES:
        found = {}
        for runtime in RUNTIMES:
            with tempfile.TemporaryDirectory() as folder:
                found[runtime] = described(run_study(name, runtime, Path(folder)))
        recording(name).parent.mkdir(exist_ok=True)
        recording(name).write_text(spelled(record(found)) + "\n", encoding="utf-8")
        print(recording(name))


if __name__ == "__main__":
    main(sys.argv[1:])
