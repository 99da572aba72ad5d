"""What a person can get wrong: a line or two that say what, where and what to do; exit code 2; no file left."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.command import PRIVATE, QUICK, Desk

KEYS = {
    "top": (QUICK + 'stratgy = "x"', 'unknown key "stratgy" (did you mean "strategy"?)'),
    "training": (QUICK + "[training]\nlearning_rat = 1", '"training.learning_rat" (did you mean "learning_rate"?)'),
    "protected": (QUICK + "[training.protected]\nlearningrate = 1", '(did you mean "learning_rate"?)'),
    "privacy": (QUICK + PRIVATE + "epsilonn = 1", '"privacy.epsilonn" (did you mean "epsilon"?)'),
    "split": (QUICK + "[data.split]\ntets = 0.2", '"data.split.tets" (did you mean "test"?)'),
    "churn": (QUICK + "[churn]\nabsnt = {}", '"churn.absnt" (did you mean "absent"?)'),
    "evaluation": (QUICK + "[evaluation]\nevry = 1", '"evaluation.evry" (did you mean "every"?)'),
    "strategy option": (
        '[strategy]\nname = "fedprox"\npul = 1.0',
        'strategy "fedprox" has no option "pul" (did you mean "pull"?)',
    ),
    "topology option": (
        QUICK + '[topology]\nname = "ring"\nkep = 0.5',
        'topology "ring" has no option "kep" (did you mean "keep"?)',
    ),
    "network option": (
        QUICK + '[models]\nproxy = { name = "mlp", hiden = [3] }',
        'network "mlp" has no option "hiden" (did you mean "hidden"?)',
    ),
    "clipping option": (
        QUICK + PRIVATE + 'clipping = { name = "flat", nrm = 1.0 }',
        'clipping "flat" has no option "nrm" (did you mean "norm"?)',
    ),
    "churn site": (QUICK + "[churn]\nabsent = { sit1 = [1] }", 'churn.absent names "sit1"'),
    "models site": (
        QUICK + '[models.sites.sit1]\nprivate = "mlp"',
        'models.sites names "sit1", which is not a site of this study (did you mean "site1"?)',
    ),
    "models role": (
        QUICK + '[models.sites.site1]\nprivat = "mlp"',
        'models.sites.site1: unknown role "privat" (did you mean "private"?)',
    ),
}  # fmt: skip

NAMES = {
    "strategy": ('strategy = "fedavgg"', 'unknown strategy "fedavgg" (did you mean "fedavg"?)'),
    "topology": (QUICK + 'topology = "rng"', 'unknown topology "rng" (did you mean "ring"?)'),
    "network": (QUICK + '[models]\nproxy = "mpl"', 'unknown network "mpl" (did you mean "mlp"?)'),
    "clipping": (QUICK + PRIVATE + 'clipping = "flt"', 'unknown clipping "flt" (did you mean "flat"?)'),
    "optimiser": (QUICK + '[training]\noptimiser = "adm"', "choose one of sgd, adam, adamw"),
}

TYPES = {
    "text for a number": ('rounds = "many"', 'rounds must be a whole number, not "many"'),
    "digits in quotes": ('rounds = "2"', 'rounds must be a whole number, not "2"'),
    "a fraction": ("rounds = 2.5", "rounds must be a whole number, not 2.5"),
    "a truth value": ("rounds = true", "rounds must be a whole number, not true"),
    "nested": (QUICK + '[training]\nlearning_rate = "fast"', 'training.learning_rate must be a number, not "fast"'),
    "protected": (
        QUICK + '[training.protected]\nlearning_rate = "fast"', 'learning_rate must be a number, not "fast"'
    ),
    "strategy": ("strategy = 3", "strategy must be text in quotes or a table, not 3"),
    "strategy without name": ("[strategy]\npull = 3.0", "the name is missing"),
    "option": ('[strategy]\nname = "fedprox"\npull = "a"', 'strategy "fedprox": pull must be a number, not "a"'),
    "choice": ('[strategy]\nname = "proxyfl"\nteacher = "boss"', "teacher must be 'peers', 'none' or 'private'"),
    "network": (QUICK + "[models]\nproxy = 3", 'models.proxy is written as "mlp" or as { name = "mlp", … }, not 3'),
    "network option": (QUICK + '[models]\nproxy = { name = "mlp", hidden = "x" }', 'network "mlp" cannot be built'),
    "churn": (QUICK + "[churn]\nabsent = { site0 = 3 }", "churn.absent.site0 must be a list, not 3"),
    "table": ("privacy = 3\n" + QUICK, "privacy must be a table, not 3"),
}  # fmt: skip

VALUES = {
    "no round": ("rounds = 0", "rounds must be a number from 1 to 1,000,000, not 0"),
    "a path as name": (QUICK + 'name = "../evil"', "becomes the name of a folder"),
    "batch": (QUICK + "[training]\nbatch_size = 0", "training.batch_size"),
    "learning rate": (QUICK + "[training]\nlearning_rate = nan", "training.learning_rate must be a finite number, not NaN"),
    "split": (QUICK + "[data.split]\ntest = 1.2", "data.split leaves no training records"),
    "no test records": (QUICK + "[data.split]\nvalidation = 0.0\ntest = 0.0", "data.split.test is 0.0; it must be above 0"),
    "less than none": (QUICK + "[data.split]\nvalidation = -0.1", "data.split.validation is -0.1; it must be at least 0"),
    "no epsilon": (QUICK + "[privacy]\n", "privacy: state epsilon"),
    "epsilon": (QUICK + "[privacy]\nepsilon = nan", "privacy.epsilon must be a finite number, not NaN"),
    "noise": (QUICK + "[privacy]\nnoise_multiplier = 0.0", "privacy.noise_multiplier must be above 0"),
    "delta": (QUICK + "[privacy]\nepsilon = 8.0\ndelta = 0.2", "site \"site0\": δ = 0.2 is more than 1/n"),
    "clipping norm": (QUICK + PRIVATE + 'clipping = { name = "flat", norm = -1.0 }', "norm must be a positive"),
    "no patients": (QUICK + PRIVATE + 'unit = "patient"', "the records name no patient"),
    "matrix": (
        QUICK + '[topology]\nname = "matrix"\nmatrix = [[0.5, 0.3, 0.3], [0.3, 0.5, 0.3], [0.1, 0.2, 0.4]]',
        "column 1 of the matrix sums to 0.9, not 1: mass would be lost",
    ),
    "matrix of two": (
        QUICK + '[topology]\nname = "matrix"\nmatrix = [[0.5, 0.5], [0.5, 0.5]]',
        "the matrix is 2 × 2 but there are 3 members",
    ),
    "matrix of others": (
        QUICK + '[topology]\nname = "matrix"\nsites = ["site0", "site1", "x"]\n'
        "matrix = [[1, 0, 0], [0, 1, 0], [0, 0, 1]]",
        '"site2" is not a member (site0, site1, x)',
    ),
    "leader": (QUICK + '[topology]\nname = "star"\nleader = "boss"', 'the centre of the star, "boss"'),
    "network for images": (QUICK + '[models]\nproxy = "lenet5"', 'network "lenet5" needs images'),
    "proxies that differ": (
        '[models.sites.site1]\nproxy = "mlp"', "the proxy is common to all sites"
    ),
    "models that differ and are averaged": (
        'strategy = { name = "fedavg", architecture = "private" }\n[models.sites.site1]\nprivate = "mlp"',
        'strategy "fedavg" averages the private architecture, which differs between sites',
    ),
    "joins too late": (QUICK + "[churn]\njoin = { site0 = 2 }", '"site0" would join in round 2'),
    "leaves before it joins": (QUICK + "[churn]\njoin = { site0 = 1 }\nleave = { site0 = 1 }", "before it has joined"),
    "never there": (QUICK + "[churn]\nabsent = { site0 = [0, 1] }", '"site0" would miss every round'),
    "always away": (QUICK + "[churn]\nprobability = 1.0", "churn.probability is 1.0"),
    "two sources": (QUICK + '[data]\nbundled = "thyroid"', "data.bundled names a bundled data set"),
}  # fmt: skip


@pytest.mark.parametrize(("body", "said"), [*KEYS.values(), *NAMES.values()], ids=[*KEYS, *NAMES])
def test_a_misspelt_word_is_answered_with_the_nearest_known_one(desk: Desk, body: str, said: str) -> None:
    assert said in desk.refused("simulate", desk.study(body))


@pytest.mark.parametrize(("body", "said"), TYPES.values(), ids=list(TYPES))
def test_a_value_of_the_wrong_type_is_named_with_what_it_must_be(desk: Desk, body: str, said: str) -> None:
    assert said in desk.refused("simulate", desk.study(body))


@pytest.mark.parametrize(("body", "said"), VALUES.values(), ids=list(VALUES))
def test_a_value_that_cannot_be_is_refused_before_a_file_is_written(desk: Desk, body: str, said: str) -> None:
    assert said in desk.refused("simulate", desk.study(body))


def test_the_complaint_names_the_study_file(desk: Desk) -> None:
    path = desk.study("rounds = 0")
    assert str(path) in desk.refused("simulate", path)


def test_a_study_that_is_not_there_or_not_toml_is_said_to_be_so(desk: Desk) -> None:
    assert "nowhere.toml: no such file" in desk.refused("simulate", "nowhere.toml")
    (desk.folder / "broken.toml").write_text("rounds = = 2", encoding="utf-8")
    assert "broken.toml: not valid TOML: Invalid value (at line 1" in desk.refused("simulate", "broken.toml")
    (desk.folder / "binary.toml").write_bytes(b"\xff\xfe\x00")
    assert "binary.toml: cannot be read" in desk.refused("simulate", "binary.toml")
    assert "cannot be read" in desk.refused("simulate", desk.folder)


def test_a_collaboration_takes_two(desk: Desk) -> None:
    said = desk.refused("simulate", desk.study(sites=1))
    assert 'the study has one site ("site0"); a collaboration takes at least two' in said


def test_a_study_without_records_says_how_to_name_some(desk: Desk) -> None:
    (desk.folder / "bare.toml").write_text("rounds = 1", encoding="utf-8")
    assert "the study names no records" in desk.refused("simulate", "bare.toml")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("a,b,c,d,y\n", "site1.csv: has column names, but no record"),
        ("", "site1.csv: the file is empty"),
        ("a,b,c,d,y\n1,1,1,1,no\n0,1,2,1,no\n", "every record has the label 'no'"),
        (None, "site1.csv: there is no such file"),
    ],
)
def test_a_site_without_records_or_with_one_class_only_is_named(desk: Desk, content: Any, said: str) -> None:
    path = desk.study()
    (desk.folder / "site1.csv").unlink()
    if content is not None:
        (desk.folder / "site1.csv").write_text(content, encoding="utf-8")
    assert said in desk.refused("simulate", path)


def test_an_unknown_data_set_is_answered_with_the_nearest(desk: Desk) -> None:
    (desk.folder / "set.toml").write_text('[data]\nbundled = "thyrod"', encoding="utf-8")
    assert "no bundled data set 'thyrod'; did you mean 'thyroid'?" in desk.refused("simulate", "set.toml")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("nonsense", '--set takes a.b=value, not "nonsense"'),
        ("=3", '--set takes a.b=value, not "=3"'),
        ("rounds.x=3", '"rounds" is a value, not a table'),
        ("rounds=zwei", 'rounds must be a whole number, not "zwei"'),
        ("training.lr=3", 'unknown key "training.lr"'),
        ("rounds=1\nseed=4", "rounds must be a whole number"),
    ],
)
def test_set_takes_no_nonsense(desk: Desk, change: str, said: str) -> None:
    assert said in desk.refused("simulate", desk.study(), "--set", change)


def test_an_unknown_device_is_refused(desk: Desk) -> None:
    assert '--device "abacus" cannot be used here' in desk.refused(
        "simulate", desk.study(), "--device", "abacus"
    )


def test_a_loss_that_is_no_number_names_site_and_round_and_leaves_nothing_of_a_first_round(
    desk: Desk,
) -> None:
    body = 'strategy = "local"\nrounds = 3\n[models]\nprivate = "mlp"\n[training]\nbatch_size = 4\nlearning_rate = 1e30\n'
    said = desk.refused("simulate", desk.study(body))
    assert 'site "site0"' in said
    assert "round 1" in said
    assert "lower training.learning_rate" in said


def test_a_loss_that_is_no_number_later_on_keeps_the_last_good_checkpoint(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    from confrere.learning.local_training import one_site

    honest = one_site.train_site

    def train_site(job: one_site.Job) -> one_site.Trained:
        done = honest(job)
        if job.seed in poisoned:
            done.params["model"] = done.params["model"] * float("nan")
        return done

    from confrere.core.seeds import derive

    poisoned = {derive(0, "site1", 2, "training")}
    monkeypatch.setattr(one_site, "train_site", train_site)
    answer = desk.confrere(
        "simulate", desk.study('strategy = "fedavg"\nrounds = 4'), "--out", "run", "--trainer", "one"
    )
    assert answer.code == 2
    assert 'site "site1", round 3: the weights of "model" are no longer finite' in answer.said
    assert "Traceback" not in answer.err
    kept = sorted(p.name for p in (desk.folder / "run" / "checkpoints").iterdir())
    assert kept == ["round-00001.safetensors", "round-00002.safetensors"]
    assert not (desk.folder / "run" / "result.json").exists()
    monkeypatch.undo()
    monkeypatch.chdir(desk.folder)
    assert Desk(desk.folder, monkeypatch, desk._capsys).confrere("simulate", "--resume", "run").code == 0


def test_a_run_never_writes_over_anything(desk: Desk) -> None:
    path = desk.study()
    before = path.read_bytes()
    assert "is not empty" in desk.refused("simulate", path, "--out", ".")
    assert path.read_bytes() == before
    assert desk.confrere("simulate", path, "--out", "run").code == 0
    written = {p: p.read_bytes() for p in (desk.folder / "run").rglob("*") if p.is_file()}
    assert "run holds a run already" in desk.refused("simulate", path, "--out", "run")
    assert "run holds a run already" in desk.refused("compare", path, "--out", "run", "--seeds", 1)
    assert {p: p.read_bytes() for p in (desk.folder / "run").rglob("*") if p.is_file()} == written
    assert "Not a directory" in desk.refused("simulate", path, "--out", "site0.csv")


def test_resuming_what_is_not_there_or_finished_is_refused(desk: Desk) -> None:
    assert "nowhere: no run to resume" in desk.refused("simulate", "--resume", "nowhere")
    path = desk.study()
    assert "name the study to run" in desk.refused("simulate")
    assert "name the study to run" in desk.refused("simulate", path, "--resume", "run")
    desk.confrere("simulate", path, "--out", "run")
    assert "run: this run is finished; see run/result.json" in desk.refused("simulate", "--resume", "run")


def interrupted(desk: Desk) -> Path:
    """The folder of a run that stopped after its last checkpoint."""
    desk.confrere("simulate", desk.study('strategy = "fedavg"\nrounds = 3'), "--out", "run")
    (desk.folder / "run" / "result.json").unlink()
    return desk.folder / "run"


def test_resuming_an_edited_journal_is_refused(desk: Desk) -> None:
    journal = interrupted(desk) / "journal.jsonl"
    honest = journal.read_text(encoding="utf-8")
    lines = honest.splitlines(keepends=True)
    journal.write_text("".join([*lines[:3], lines[3].replace("site", "sote"), *lines[4:]]), encoding="utf-8")
    assert "line 4 does not fit the hash chain" in desk.refused("simulate", "--resume", "run")
    journal.write_text("".join([*lines[:3], *lines[4:]]), encoding="utf-8")
    assert "line 4 does not fit the hash chain" in desk.refused("simulate", "--resume", "run")
    journal.write_text("".join(lines[:5]), encoding="utf-8")
    assert "the journal ends before the checkpoint" in desk.refused("simulate", "--resume", "run")
    journal.write_text(honest, encoding="utf-8")
    assert desk.confrere("simulate", "--resume", "run").code == 0


def test_resuming_with_another_study_is_refused(desk: Desk) -> None:
    study = interrupted(desk) / "study.toml"
    study.write_text(study.read_text().replace("rounds = 3", "rounds = 4"), encoding="utf-8")
    assert "was started with another study or seed" in desk.refused("simulate", "--resume", "run")
    study.unlink()
    assert "study.toml: cannot be read" in desk.refused("simulate", "--resume", "run")


@pytest.mark.parametrize("damage", [b"junk", None, b""], ids=["junk", "cut", "empty"])
def test_a_damaged_newest_checkpoint_is_passed_over_for_the_one_before(desk: Desk, damage: Any) -> None:
    run = interrupted(desk)
    whole = desk.confrere("simulate", "study.toml", "--out", "whole", "--json").json
    newest = max((run / "checkpoints").iterdir())
    newest.write_bytes(damage if damage is not None else newest.read_bytes()[:-8])
    again = desk.confrere("simulate", "--resume", "run", "--json").json
    assert (again["sites"], again["mean"]) == (whole["sites"], whole["mean"])


def test_a_folder_that_cannot_be_written_is_said_to_be_so(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = desk.study()

    def refuse(self: Path, *more: Any, **options: Any) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", refuse)
        said = desk.refused("simulate", path, "--out", "run")
    assert "run: the run folder cannot be written: Permission denied" in said


@pytest.mark.parametrize("full", ["run.json", "round-00001", "round-00002", "result.json"])
def test_a_full_disk_is_said_in_a_line_and_what_was_complete_stays(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, full: str
) -> None:
    path, replace = desk.study(), os.replace

    def fail(source: Any, target: Any) -> None:
        if full in str(target):
            raise OSError(28, "No space left on device", str(target))
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", fail)
        answer = desk.confrere("simulate", path, "--out", "run")
    assert answer.code == 2
    assert "No space left on device" in answer.said
    assert "Traceback" not in answer.err
    if full in ("run.json", "round-00001"):
        assert desk.left() == set()
    else:
        assert not list((desk.folder / "run").rglob("*.part"))
        assert desk.confrere("simulate", "--resume", "run").code == 0


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="only root may mount a small disk")
def test_a_disk_that_really_is_full_is_said_in_a_line(desk: Desk) -> None:
    small = desk.folder / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", small], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("this machine mounts no small disk")
    try:
        body = 'strategy = "fedavg"\nrounds = 2\n[models]\nproxy = { name = "mlp", hidden = [200] }\n'
        answer = desk.confrere("simulate", desk.study(body), "--out", "small/run")
        left = list(small.iterdir())
    finally:
        subprocess.run(["umount", small], check=True)
    assert answer.code == 2
    assert "No space left on device" in answer.said
    assert "Traceback" not in answer.err
    assert left == []


def test_the_installed_command_itself_complains_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text("[training]\nlearning_rat = 1\n", encoding="utf-8")
    command = shutil.which("confrere", path=str(Path(sys.executable).parent))
    words = [command] if command else [sys.executable, "-m", "confrere"]
    done = subprocess.run(
        [*words, "simulate", "study.toml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith('confrere: study.toml: unknown key "training.learning_rat"')
    assert len(done.stderr.splitlines()) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["study.toml"]
