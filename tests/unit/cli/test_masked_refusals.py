"""Masked sums that would not protect, or cannot be computed, are refused in words: exit code 2, nothing sent or charged."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn

from confrere.cli import main
from confrere.core.errors import ConfrereError, StudyError
from confrere.core.sum_terms import SumTerms
from confrere.simulation.simulation import Simulation
from confrere.site.masked_sums import MaskedSums
from confrere.site.open_sites import open_sites
from confrere.study import Models, Privacy, Study
from tests.conftest import arrays, write_study

BASE = """
name = "masked"
rounds = 2
strategy = "{strategy}"
combiner = {combiner}
{top}
[masked]
colluding = {colluding}
dropouts = {dropouts}
[models]
private = "linear"
proxy = {proxy}
[privacy]
{noise}
delta = 1e-5
{privacy}
"""
USUAL = {
    "strategy": "fedavg", "combiner": '"masked-sum"', "top": "", "colluding": "1", "dropouts": "1", "proxy": '"linear"',
    "noise": "epsilon = 3.0", "privacy": "",
}  # fmt: skip
REFUSED: dict[str, tuple[dict[str, str], int, str]] = {
    "more than one step": ({"privacy": "steps = 2"}, 4, 'with combiner = "masked-sum" a round is one step'),
    "Poisson sampling": ({"privacy": 'sampling = "poisson"'}, 4, "no bound is proven for samples"),
    "nobody colludes": ({"colluding": "0"}, 4, "masked.colluding is 0; it must be at least 1"),
    "a negative number": ({"dropouts": "-1"}, 4, "masked.dropouts is -1; it must be at least 0"),
    "against the threshold": ({"dropouts": "2"}, 4, "at most 1 may drop out, not 2"),
    "all others collude": ({"colluding": "3", "dropouts": "0"}, 4, "fewer than 2 honest ones"),
    "two members": ({"dropouts": "0"}, 2, "at least 3 members, not 2"),
    "a grid too coarse": ({"noise": "noise_multiplier = 0.001"}, 4, "too coarse for the noise"),
    "adaptive clipping": ({"privacy": 'clipping = "adaclip"'}, 4, '"adaclip" does not go with'),
    "quantile clipping": ({"privacy": 'clipping = "quantile"'}, 4, '"quantile" does not go with'),
    "median": ({"combiner": '"median"'}, 4, "A study chooses between masks and robustness"),
    "krum": ({"combiner": '{ name = "krum", attackers = 1 }'}, 4, "single models, which masks hide"),
    "fedprox": ({"strategy": "fedprox"}, 4, '"fedprox" has no masked form; these have one: afl, fedavg'),
    "gossip": ({"strategy": "avgpush"}, 4, '"avgpush" has no masked form'),
    "an attack that sees others": ({"top": 'attack = "little"'}, 4, "masks hide them"),
    "compression": ({"top": 'compression = "int8"'}, 4, "masks cannot be compressed"),
    "a ring": ({"top": 'topology = "ring"'}, 4, 'set topology = "complete" or "star"'),
    "partial participation": (
        {"top": "churn = { participation = 2 }"},
        4,
        "all of them take part in every round",
    ),
}


def refusal(
    folder: Path, command: list[str], changes: dict[str, str], sites: int, patch: pytest.MonkeyPatch
) -> int:
    path = write_study(folder, BASE.format(**{**USUAL, **changes}), sites, 60)
    patch.setattr("sys.argv", ["confrere", command[0], str(path), *command[1:]])
    with pytest.raises(SystemExit) as stopped:
        main()
    return int(stopped.value.code or 0)


@pytest.mark.parametrize("command", ["check", "simulate"])
@pytest.mark.parametrize("case", REFUSED)
def test_it_is_refused_in_a_line_or_two(
    case: str,
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    changes, sites, reason = REFUSED[case]
    words = [command, "--out", str(tmp_path / "run")] if command == "simulate" else [command]
    code = refusal(tmp_path, words, changes, sites, monkeypatch)
    captured = capsys.readouterr()
    assert code == 2
    assert reason in " ".join((captured.err + captured.out).split())
    assert "Traceback" not in captured.err
    assert len(captured.err.strip().splitlines()) <= 3
    left = [p.name for p in tmp_path.rglob("*") if "ledger" in p.name or "parcel" in p.name]
    assert left == []


def test_what_is_not_refused_passes_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refusal(tmp_path, ["check"], {}, 4, monkeypatch) == 0
    capsys.readouterr()


def test_a_site_outside_the_agreement_is_refused() -> None:
    masks = MaskedSums({"a": 10, "b": 10, "c": 10}, seed=1)
    terms = SumTerms(3, 1, 0, noise_std=1.0, clip=1.0, size=10)
    with pytest.raises(StudyError, match='"d" is not part of the agreement on masked sums'):
        masks.agreement(["a", "b", "d"], terms, 0)


def test_a_proxy_that_keeps_statistics_of_records_is_refused() -> None:
    def normed() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))

    study = Study(
        name="normed", rounds=2, strategy="fedavg", combiner="masked-sum", models=Models("linear", normed),
        privacy=Privacy(epsilon=3.0, delta=1e-5),
    )  # fmt: skip
    with pytest.raises(
        ConfrereError, match="running statistics of records, which are not part of a masked sum"
    ):
        Simulation(study, open_sites(study, arrays(4, 60))).prepare()
