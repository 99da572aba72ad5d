"""Run the published experiments again and write docs/records/studies.md from the results.

    python -m repro                               run every experiment at its scale "small", then write the page
    python -m repro proxyfl-fig3-mnist            run one
    python -m repro --scale full coln-fig5-gender run one at its full scale
    python -m repro --stop-after 100              stop after 100 seconds (exit code 3 while something is left to do)
    python -m repro --page                        run nothing; write the page again from docs/records/studies/*.json

Single runs are kept in runs/studies under the study's hash and are not repeated: remove that folder after a change of
the code that should alter results. repro/reported/NAME.toml holds what the source reports; results go to
docs/records/studies/NAME.json, figures to docs/records/figures.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before PyTorch is loaded, as the command does

from confrere.core.errors import ConfrereError
from confrere.report.progress import progress
from confrere.simulation.run_folder import write_json
from confrere.study import FULL
from repro.experiment import Unfinished, repeat, result_file
from repro.page import write_page
from repro.reported import ROOT, Experiment, experiments


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="studies by name; without any, all that have a source")
    parser.add_argument(
        "--scale", help="one of the study's scales, or «full»; without it «small» where there is one"
    )
    parser.add_argument("--seeds", type=int, help="how many seeds, instead of the study's")
    parser.add_argument(
        "--kept", type=Path, default=ROOT / "runs" / "studies", help="where single runs are kept"
    )
    parser.add_argument(
        "--stop-after", type=float, default=math.inf, metavar="SECONDS", help="go on another time"
    )
    parser.add_argument("--page", action="store_true", help="only write the page")
    parser.add_argument(
        "--docs", type=Path, default=ROOT / "docs" / "records", help="where page, results and figures go"
    )
    wanted = parser.parse_args()
    sources = experiments()
    unknown = [n for n in wanted.names if n not in sources]
    if unknown:
        print(f"there is no experiment {unknown[0]}; known: {', '.join(sources)}", file=sys.stderr)
        return 2
    began = time.monotonic()
    if not wanted.page:
        for name in wanted.names or sources:
            experiment = sources[name]
            scale = wanted.scale or ("small" if "small" in experiment.study.scales else FULL)
            left = wanted.stop_after - (time.monotonic() - began)
            try:
                with progress(None, f"{name}, scale {scale}") as listener:
                    found = repeat(
                        experiment,
                        scale,
                        seeds=wanted.seeds,
                        kept=wanted.kept,
                        seconds=left,
                        listeners=(listener,),
                    )
            except Unfinished as error:
                print(f"not finished: {error}", file=sys.stderr)
                print(write_page(list(sources.values()), wanted.docs))
                return 3
            found["command"] = command(experiment, scale, wanted.seeds)
            place = result_file(wanted.docs, name)
            place.parent.mkdir(parents=True, exist_ok=True)
            write_json(place, found)
            print(f"{name}: scale {scale} → {place}")
    print(write_page(list(sources.values()), wanted.docs))
    return 0


def command(experiment: Experiment, scale: str, seeds: int | None) -> str:
    """The command that repeats an experiment."""
    name, by = experiment.study.name, experiment.reported.by
    if by == "epsilon":
        return f"python -m repro {name}"
    if by == "traffic":
        return f"confrere traffic studies/{name}.toml --figure traffic.svg"
    words = ["confrere compare", f"studies/{name}.toml"]
    words += [f"--scale {scale}"] if scale != FULL else []
    words += [f"--seeds {seeds}"] if seeds else []
    return " ".join(words)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ConfrereError as error:
        print(f"repro: {error}", file=sys.stderr)
        sys.exit(2)
