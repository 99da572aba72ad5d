"""The version and every help text appear without loading the libraries that only a running command needs."""

from __future__ import annotations

import subprocess
import sys

HEAVY = [
    "torch", "numpy", "scipy", "pandas", "dp_accounting", "matplotlib", "pydantic", "sklearn", "cryptography", "grpc",
    "ray", "asyncio",
]  # fmt: skip

SHOW_ALL = f"""
import contextlib, io, sys
import typer
import confrere.cli

confrere.cli.add_commands()
program = typer.main.get_command(confrere.cli.app)

def paths(command, path=()):
    yield path
    for name, inner in getattr(command, "commands", {{}}).items():
        yield from paths(inner, (*path, name))

shown = 0
for words in [("--version",), *((*path, "--help") for path in paths(program))]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            program(list(words), prog_name="confrere")
        except SystemExit as leaving:
            assert not leaving.code, words
    assert out.getvalue().strip(), words
    loaded = [name for name in {HEAVY!r} if name in sys.modules]
    assert not loaded, f"confrere {{' '.join(words)}} loads {{', '.join(loaded)}}"
    shown += 1
print(shown)
"""


def test_the_version_and_every_help_text_load_no_heavy_library() -> None:
    done = subprocess.run([sys.executable, "-c", SHOW_ALL], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 25, "some commands were not found"


FIRST_ROUND = """
import sys
from confrere.simulation.simulation import Simulation
from confrere.site.open_sites import open_sites
from confrere.study import Privacy, Study
from tests.conftest import arrays

study = Study(privacy=Privacy(epsilon=3.0, delta=1e-4))
simulation = Simulation(study, open_sites(study, arrays()))
simulation.prepare()
assert simulation.sites["site0"].mechanism.noise_multiplier > 0
print([name for name in ("dp_accounting", "scipy.stats", "scipy.signal", "matplotlib", "sklearn") if name in sys.modules])
"""


def test_training_in_full_batches_begins_without_loading_what_only_sampling_and_audits_need() -> None:
    done = subprocess.run([sys.executable, "-c", FIRST_ROUND], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


TRIAL = """
import sys
import torch
from confrere.privacy import lint

lint.check(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(), torch.nn.Linear(4, 2)), torch.randn(8, 3))
print("torch._dynamo" in sys.modules)
"""


def test_the_trial_of_a_network_does_not_load_the_compiler_of_pytorch() -> None:
    done = subprocess.run([sys.executable, "-c", TRIAL], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stdout + done.stderr
