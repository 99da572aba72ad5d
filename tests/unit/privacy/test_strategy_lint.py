"""Lines of a custom strategy by which something could leave with a looser custody are shown to the owner of the records."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest

from confrere import Model, Supervised, public, strategy
from confrere.core.custody import Custody, Scalar, strictest
from confrere.core.errors import CustodyError
from confrere.core.model import mix
from confrere.evaluate.audit.observed_simulation import ObservedSimulation
from confrere.evaluate.study_check import check
from confrere.privacy import gate as gates
from confrere.privacy.strategy_lint import findings_in, is_written_out, numbers_named_in, strategy_findings
from confrere.simulation.backends import simulate
from confrere.site.open_sites import open_sites
from confrere.strategies import discover, strategies
from tests.conftest import arrays
from tests.unit.quick import quick

discover()


SEEN = 0.0


def told(site: Any, metrics: Any) -> Any:
    return public(float(metrics["loss"].value))


class Careless:
    def by_value(self, metrics: Any) -> Any:
        return public(metrics["loss"].value)

    def by_function(self, site: Any, metrics: Any) -> Any:
        return told(site, metrics)

    def by_item(self, tensor: Any) -> Any:
        return Scalar(tensor.sum().item(), Custody.PROTECTED)

    def by_hand(self, model: Model) -> Any:
        return Model(model.params, model.architecture, Custody.PROTECTED)

    def by_replacing(self, model: Model) -> Any:
        return replace(model, custody=Custody.PUBLIC)

    def in_place(self, model: Model) -> None:
        model.params["w"].copy_(model.params["w"])

    def by_data(self, model: Model) -> None:
        model.params["w"].data[0] = 1.0

    def by_numpy(self, model: Model) -> None:
        model.params["w"].numpy()[0] = 1.0

    def by_global(self, metrics: Any) -> None:
        global SEEN
        SEEN = float(metrics["loss"])

    def by_class(self, metrics: Any) -> None:
        Careful.seen = float(metrics["loss"])  # type: ignore[attr-defined]


class Careful:
    def mixed(self, site: Any, metrics: Any, model: Model) -> Any:
        return mix([(metrics["loss"], model), (public(site.size), model)])

    def derived(self, model: Model, other: Model) -> Any:
        return Model(model.params, model.architecture, strictest([model.custody, other.custody]))

    def plain(self, value: float) -> Any:
        return public(value), replace(self, other=1)  # type: ignore[type-var]


def test_each_way_around_custody_is_found_once_with_its_line() -> None:
    found = strategy_findings(Careless)
    lines = {int(text.split("line ")[1].split(":")[0]) for text in found}
    methods = [n for n in vars(Careless) if n.startswith(("by_", "in_"))]
    assert len(lines) == len(methods) == len(found)
    assert all(text.startswith(__name__) for text in found)


def test_a_careful_strategy_and_those_of_the_package_are_clean() -> None:
    assert strategy_findings(Careful) == []
    ours = [s for s in strategies.values() if s.__module__.startswith("confrere.")]
    assert len(ours) > 10
    assert [text for s in ours for text in findings_in(s)] == []


def test_check_and_a_run_show_the_findings() -> None:
    @strategy("careless-test")
    @dataclass(frozen=True)
    class Loose:
        deploys: ClassVar[tuple[str, ...]] = ("model",)
        topology: ClassVar[str] = "complete"

        def init(self, site: Any) -> Any:
            raise AssertionError

        async def round(self, state: Any, site: Any, peers: Any) -> Any:
            models = await site.train({"model": Supervised()}, {"model": state.model}, protect=["model"])
            found = await site.evaluate(models)
            await peers.exchange(models["model"], loss=public(found["model"]["loss"].value))
            return state

    warnings = check(quick("careless-test"), arrays()).warnings
    assert any("public is given a number that was read out" in text for text in warnings)


@dataclass(frozen=True)
class OneModel:
    model: Model


@strategy("names-test")
@dataclass(frozen=True)
class Names:
    """Sends a number whose name is written out or, with `made_up`, is made from a metric."""

    made_up: bool = False
    deploys: ClassVar[tuple[str, ...]] = ("model",)
    topology: ClassVar[str] = "complete"

    def init(self, site: Any) -> OneModel:
        return OneModel(site.build("proxy"))

    async def round(self, state: OneModel, site: Any, peers: Any) -> OneModel:
        models = await site.train({"model": Supervised()}, {"model": state.model}, protect=["model"])
        found = await site.evaluate(models)
        name = f"loss_{float(found['model']['loss'].value):.6f}" if self.made_up else "a number"
        await peers.exchange(models["model"], plain_name=public(1.0), **{name: public(1.0)})
        return OneModel(models["model"])


def test_a_name_that_is_made_up_during_a_run_does_not_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(quick("names-test"), arrays())
    made_up = quick({"name": "names-test", "made_up": True})
    with pytest.raises(CustodyError, match="name of a number is not written out"):
        simulate(made_up, arrays())
    with pytest.raises(CustodyError, match="name of a number is not written out"):
        ObservedSimulation(made_up, open_sites(made_up, arrays()), "site0").run_once(0)
    monkeypatch.setattr(gates, "RULES", tuple(r for r in gates.RULES if r.__name__ != "known_names"))
    simulate(made_up, arrays())


def test_names_are_those_that_a_strategy_writes_out_and_those_of_the_package() -> None:
    names = numbers_named_in(Names)
    assert names is not None
    known = ("plain_name", "a number", "weight", "sum of weight", "sum of plain_name", "in 0 3")
    assert all(is_written_out(name, names) for name in known)
    unknown = [f"plain_name_{5}", f"in {31} {415926}", f"loss_{0.5}", f"weight{7}"]
    assert not any(is_written_out(name, names) for name in unknown)
    assert {numbers_named_in(s) for s in strategies.values() if s.__module__.startswith("confrere.")} == {
        None
    }
