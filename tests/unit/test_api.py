"""The Python API: one's own records, networks and strategies, as pleasant as the command line."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import confrere
from confrere.core.custody import Custody
from confrere.core.errors import CheckpointError, DataError, StudyError, UnsafeModule
from confrere.core.registry import strategies
from confrere.privacy.lint import replace_unsafe
from tests.conftest import arrays
from tests.unit.quick import PRIVACY, quick


def test_every_promised_name_is_there_and_no_other() -> None:
    assert all(hasattr(confrere, name) for name in confrere.__all__)
    assert dir(confrere) == sorted(confrere.__all__) == sorted(set(confrere.__all__))
    with pytest.raises(AttributeError, match="no attribute 'simulat'"):
        _ = confrere.simulat


def test_the_readers_first_lines_work(tmp_path: Path) -> None:
    study = confrere.Study(name="mine", strategy="fedavg", rounds=2)
    run = confrere.simulate(study, arrays(), out=tmp_path / "run")
    assert set(run.sites) == {"site0", "site1", "site2"}
    assert 0 <= run.mean["accuracy"] <= 1
    assert run.report().read_text(encoding="utf-8").startswith("<!")
    assert run.report(tmp_path / "mine.html") == tmp_path / "mine.html"


def test_a_report_needs_files() -> None:
    with pytest.raises(StudyError, match="out=FOLDER"):
        confrere.simulate(quick(), arrays()).report()


def test_two_ways_are_compared_beside_training_alone(tmp_path: Path) -> None:
    found = confrere.compare(quick(), ["fedavg"], [0, 1], arrays(), out=tmp_path / "c")
    assert list(found.result.strategies) == ["local", "fedavg"]
    assert len(found.runs["fedavg"]) == 2
    assert found.report().exists()


# -- one's own records ----------------------------------------------------------------------------


def test_arrays_lists_and_tensors_are_all_records() -> None:
    one = confrere.simulate(quick(), arrays())
    lists = {n: (x.tolist(), y.tolist()) for n, (x, y) in arrays().items()}
    tensors = {n: (torch.as_tensor(x), torch.as_tensor(y)) for n, (x, y) in arrays().items()}
    assert confrere.simulate(quick(), lists).result == one.result
    assert confrere.simulate(quick(), tensors).result == one.result


def test_the_order_of_sites_makes_no_difference() -> None:
    turned = dict(reversed(arrays().items()))
    for strategy in ("avgpush", "cwt"):
        assert (
            confrere.simulate(quick(strategy), turned).result
            == confrere.simulate(quick(strategy), arrays()).result
        )


def test_data_frames_need_a_schema_for_a_proven_guarantee() -> None:
    frames = {
        n: pd.DataFrame(x, columns=list("abcd")).assign(y=np.where(y == 1, "yes", "no"))
        for n, (x, y) in arrays().items()
    }
    drawn = confrere.simulate(quick(), frames)
    assert {s.privacy.proven for s in drawn.sites.values()} == {False}
    assert any("the schema was drawn from the records" in str(e.data.get("text")) for e in drawn.events)
    columns = {c: {"range": [-3.0, 3.0]} for c in "abcd"}
    schema = {"label": {"column": "y", "classes": ["no", "yes"]}, "columns": columns}
    run = confrere.simulate(quick(schema=schema), frames)
    assert {s.privacy.proven for s in run.sites.values()} == {True}
    with pytest.raises(DataError, match="column"):
        confrere.simulate(quick(schema=schema), {**frames, "site1": frames["site1"].drop(columns="y")})


def test_records_that_are_split_already_stay_so() -> None:
    def site(name: str, seed: int) -> confrere.SiteData:
        x, y = arrays(1, 80, seed)["site0"]
        parts = [
            confrere.Records(torch.as_tensor(x[s]), torch.as_tensor(y[s]))
            for s in (slice(50), slice(50, 65), slice(65, 80))
        ]
        return confrere.SiteData(name, parts[0], parts[1], parts[2], declared=60)

    run = confrere.simulate(quick(), {"b": site("b", 1), "a": site("a", 0)})
    assert [s.records for s in run.sites.values()] == [36, 36]  # the training share of what is declared


@pytest.mark.parametrize(
    ("site", "said"),
    [
        ((np.zeros((0, 4)), np.zeros(0, int)), '"site1" has no records'),
        ((np.zeros((5, 4)), np.zeros(4, int)), "each record needs both"),
        ((np.zeros((9, 4)), np.zeros(9, int)), "of one class"),
        ((np.full((9, 4), np.nan), np.arange(9) % 2), "NaN or infinite"),
        ((np.zeros((9, 4)), np.arange(9) - 3), "there is a negative one"),
        ((np.zeros((9, 4)), np.array(["a"] * 9)), "targets are class numbers or floating-point values"),
        ((np.zeros((9, 3)), np.arange(9) % 2), "shape"),
        ((np.zeros((9, 4)), np.arange(9) % 2, [1] * 8 + [None]), "1 records have no patient id"),
        ("a string of no file", "arrays, as DataFrames, as files, or as SiteData|no such file"),
        (3, "give all sites as"),
    ],
)
def test_records_that_cannot_be_used_are_named_with_their_site(site: Any, said: str) -> None:
    with pytest.raises((DataError, StudyError), match=said):
        confrere.simulate(quick(), {**arrays(), "site1": site})


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("rounds", "many", 'rounds must be a whole number, not "many"'),
        ("rounds", 2.5, "rounds must be a whole number, not 2.5"),
        ("privacy", {"epsilon": 3.0}, "privacy must be confrere.Privacy(…), not"),
        ("training", confrere.Training(epochs="3"), 'training.epochs must be a whole number, not "3"'),  # type: ignore[arg-type]
        ("models", "mlp", "models must be confrere.Models(…), not"),
        ("strategy", Path("fedavg"), "strategy must be text in quotes or a table"),
        ("churn", {"leave": {}}, "churn must be confrere.Churn(…), not"),
    ],
)
def test_a_study_in_python_is_as_strict_as_one_in_toml(field: str, value: Any, said: str) -> None:
    with pytest.raises(StudyError, match=re.escape(said)):
        quick(**{"strategy": "fedavg", field: value})


def test_numbers_of_numpy_are_numbers() -> None:
    assert quick(rounds=np.int64(3), patience=np.float64(2)).rounds == 3


def test_one_site_is_no_collaboration_and_none_is_none() -> None:
    with pytest.raises(StudyError, match="at least two"):
        confrere.simulate(quick(), arrays(1))
    with pytest.raises(StudyError, match="none was given"):
        confrere.simulate(quick(), {})
    with pytest.raises(StudyError, match="sites are given by name"):
        confrere.simulate(quick(), list(arrays().values()))  # type: ignore[arg-type]
    with pytest.raises(StudyError, match="names no records"):
        confrere.simulate(quick())


# -- one's own networks ---------------------------------------------------------------------------


def wide() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))


def narrow() -> nn.Module:
    return nn.Linear(4, 1)


def adapted() -> nn.Module:
    return confrere.Adapted(nn.Linear(4, 4), narrow(), nn.Linear(1, 1))


PROXYFL = {"name": "proxyfl", "private": "distil"}


@pytest.mark.parametrize("strategy", [PROXYFL, "proxyfl", "fml"], ids=["distil", "stack", "fml"])
def test_private_models_of_any_architecture_learn_in_one_federation(strategy: Any, tmp_path: Path) -> None:
    """One wraps the common proxy, one has BatchNorm: they never leave, so both may."""
    models = confrere.Models(
        private=wide,
        proxy=narrow,
        sites={"site1": {"private": {"name": "mlp", "hidden": [8]}}, "site2": {"private": adapted}},
    )
    study = quick(strategy, models=models)
    run = confrere.simulate(study, arrays(), out=tmp_path / "run")
    names = {n: m["private"].architecture.split("[")[0].split("(")[0] for n, m in run.models.items()}
    assert names == {"site0": "Sequential", "site1": "mlp", "site2": "Adapted"}
    assert len({m["proxy"].architecture for m in run.models.values()}) == 1
    for models_of in run.models.values():
        assert (models_of["private"].custody, models_of["proxy"].custody) == (
            Custody.PRIVATE,
            Custody.PROTECTED,
        )
    assert all(s.privacy.proven for s in run.sites.values())


def test_batch_norm_may_not_be_trained_privately_and_its_replacement_may(tmp_path: Path) -> None:
    study = quick(models=confrere.Models(narrow, wide))
    with pytest.raises(
        UnsafeModule, match=r"BatchNorm1d «1» mixes the records.*replace_unsafe\(model\).*GroupNorm"
    ):
        confrere.simulate(study, arrays(), out=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
    safe = quick(models=confrere.Models(narrow, lambda: replace_unsafe(wide())))
    assert confrere.simulate(safe, arrays()).sites["site0"].privacy.proven


class Whisper(nn.Linear):
    """Mixes records without a layer that says so."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(0))


def test_a_module_that_mixes_records_quietly_is_found_out_before_anything_is_charged(tmp_path: Path) -> None:
    events: list[str] = []
    with pytest.raises(UnsafeModule, match="changed other records' outputs"):
        confrere.simulate(
            quick(models=confrere.Models(narrow, lambda: Whisper(4, 1))),
            arrays(),
            listeners=(lambda e: events.append(e.kind),),
        )
    assert "charged" not in events


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (
            lambda: nn.Linear(4, 2),
            r"gives outputs of shape \(2, 2\) .* needs \(2, 1\) \(two classes take one output",
        ),
        (lambda: nn.Linear(5, 1), r"cannot be used for records of shape \(4,\)"),
        (lambda: nn.Flatten(), "no trainable weights"),
        (lambda: nn.LazyLinear(1), "has lazy layers"),
        (lambda: 3, "a network is a function that returns a module; this one returned 3"),
        (nn.Linear(4, 1), "models.proxy is a module; give a function that makes one"),
    ],
)
def test_a_network_that_does_not_fit_is_refused_before_a_file_is_written(
    build: Any, said: str, tmp_path: Path
) -> None:
    with pytest.raises(StudyError, match=said):
        confrere.simulate(quick(models=confrere.Models(narrow, build)), arrays(), out=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_proxies_that_differ_between_sites_are_refused() -> None:
    models = confrere.Models(wide, narrow, {"site1": {"proxy": adapted}})
    with pytest.raises(StudyError, match="the proxy is common to all sites"):
        confrere.simulate(quick("proxyfl", models=models), arrays())


def test_a_run_with_functions_resumes_when_they_are_given_again(tmp_path: Path) -> None:
    study = quick(PROXYFL, models=confrere.Models(wide, narrow), rounds=3)
    whole = confrere.simulate(study, arrays())

    def stop(event: Any) -> None:
        if event.kind == "trained" and event.round == 2:
            raise RuntimeError("the plug was pulled")

    with pytest.raises(RuntimeError, match="plug"):
        confrere.simulate(study, arrays(), out=tmp_path / "run", listeners=(stop,))
    with pytest.raises((StudyError, CheckpointError)):
        confrere.resume(tmp_path / "run", arrays())
    again = confrere.resume(tmp_path / "run", arrays(), study=study)
    assert (again.sites, again.mean) == (whole.sites, whole.mean)


# -- one's own strategy ---------------------------------------------------------------------------


@dataclass(frozen=True)
class State:
    model: confrere.Model


@dataclass(frozen=True)
class Shout:
    """Every site trains, and the loudest neighbour wins (nobody, 2026)."""

    loudness: float = 1.0
    deploys: ClassVar[tuple[str, ...]] = ("model",)
    topology: ClassVar[str] = "ring"

    def init(self, site: confrere.Site) -> State:
        return State(site.build("proxy"))

    async def round(self, state: State, site: confrere.Site, peers: confrere.Peers) -> State:
        objective = {"model": confrere.Supervised()}
        models = await site.train(objective, {"model": state.model}, protect=["model"])
        inbox = await peers.exchange(models["model"], loudness=confrere.public(self.loudness))
        heard = [p.model for p in inbox.current if p.model is not None and p.scalar("loudness").value > 0.5]
        return State(heard[0] if heard else models["model"])


class Point:
    """What an installed package declares under the group `confrere.strategies`."""

    name, thing = "shout", Shout

    def load(self) -> type:
        return self.thing


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Point:
    """As if a package with a strategy had just been installed."""
    point = Point()
    monkeypatch.setattr(
        "confrere.core.registry.entry_points", lambda group: [point] if "strateg" in group else []
    )
    monkeypatch.setattr(strategies, "_things", dict(strategies._things))
    monkeypatch.setattr(strategies, "_loaded", False)
    return point


@pytest.mark.usefixtures("installed")
def test_a_strategy_of_an_installed_package_is_one_like_any_other(tmp_path: Path) -> None:
    study = quick({"name": "shout", "loudness": 0.9}, rounds=3)
    run = confrere.simulate(study, arrays(), out=tmp_path / "run")
    assert all(s.privacy.proven and s.bytes_sent > 0 for s in run.sites.values())
    assert confrere.load(tmp_path / "run" / "study.toml").build_strategy() == Shout(0.9)
    with pytest.raises(StudyError, match='no option "loudnes"'):
        quick({"name": "shout", "loudnes": 1})


def test_a_package_that_cannot_be_loaded_is_named(installed: Point, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> type:
        raise ImportError("no module named «loud»")

    monkeypatch.setattr(installed, "load", broken)
    with pytest.raises(
        StudyError, match='strategy "shout" of an installed package cannot be loaded: no module'
    ):
        quick("shout")


def test_a_strategy_of_ones_own_is_registered_by_a_decorator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strategies, "_things", dict(strategies._things))
    confrere.strategy("whisper")(Shout)
    assert confrere.simulate(quick("whisper"), arrays()).sites["site0"].bytes_sent > 0


@dataclass(frozen=True)
class Leak(Shout):
    """Sends what it may not."""

    what: str = "model"

    async def round(self, state: State, site: confrere.Site, peers: confrere.Peers) -> State:
        models = await site.train({"model": confrere.Supervised()}, {"model": state.model})
        if self.what == "model":
            await peers.exchange(models["model"])
        elif self.what == "number":
            found = await site.evaluate({"model": models["model"]})
            await peers.exchange(None, loss=found["model"]["loss"])
        else:
            await peers.exchange(None, loss=0.5)  # type: ignore[arg-type]
        return State(models["model"])


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("model", "a private model may not leave the site"),
        ("number", 'private number ("loss")'),
        ("bare", "bare number"),
    ],
)
def test_a_strategy_cannot_send_what_is_private(
    what: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from confrere.core.errors import CustodyError

    monkeypatch.setattr(strategies, "_things", {**strategies._things, "leak": Leak})
    for privacy in (PRIVACY, None):
        with pytest.raises(CustodyError, match=said.replace("(", r"\(").replace(")", r"\)")):
            confrere.simulate(quick({"name": "leak", "what": what}, privacy=privacy), arrays())


def test_a_seed_is_a_seed() -> None:
    one, two = (confrere.simulate(replace(quick(), seed=s), arrays()).mean for s in (0, 1))
    assert one != two


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: confrere.simulate("study.toml", arrays()), "read it with confrere.load"),  # type: ignore[arg-type]
        (lambda: confrere.plan_for_sizes([], 100, 3.0), "records of each site"),
        (lambda: confrere.plan_for_sizes([100, 100], 100, 3.0, rounds=0), "--rounds is 0"),
        (
            lambda: confrere.epsilon(records=10.5, batch=1, epochs=1, noise_multiplier=1.0, delta=1e-5),  # type: ignore[arg-type]
            "--records must be a whole number, not 10.5",
        ),
    ],
)
def test_a_slip_in_a_call_is_a_message(call: Callable[[], object], message: str) -> None:
    with pytest.raises(confrere.ConfrereError, match=message):
        call()


def test_a_comparison_takes_one_name_and_a_number_of_seeds() -> None:
    found = confrere.compare(quick(), "fedavg", 2, arrays())
    assert found.result.seeds == (0, 1)
    assert repr(found) == "Comparison(local, fedavg over 2 seeds, folder=None)"
