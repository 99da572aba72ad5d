"""What combiners and compressions promise, in every runtime: one row for each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from confrere.core.custody import Custody
from confrere.core.errors import StudyError
from confrere.evaluate.traffic import planned_parcels
from confrere.privacy.gate import Gate
from confrere.simulation.backends import resume, simulate
from confrere.site.faults import Fault
from confrere.site.open_sites import open_sites
from confrere.strategies import strategies
from confrere.study import Study, load
from confrere.study.churn import Churn
from tests.conformance.table import ROWS, Row
from tests.conformance.test_strategies import SIGNATURE, in_memory, same_models, sent, study
from tests.conftest import arrays, write_study
from tests.nodes import nodes_in_process

KEEP = {"attackers": 0, "too_few": "keep"}
COMBINERS = (
    "median",
    "trimmed-mean",
    "krum",
    "multi-krum",
    "geometric-median",
    "centred-clip",
    "self-centred-clip",
)
ROUNDED: dict[str, Any] = {"float16": "float16", "int8": "int8"}
SPARSE: dict[str, Any] = {
    "top-k": {"name": "top-k", "share": 0.4},
    "random-k": {"name": "random-k", "share": 0.4},
}


@dataclass(frozen=True)
class Way:
    """A strategy with what its study says about models on their way."""

    strategy: str
    key: str
    value: Any
    label: str

    def study(self, **changes: Any) -> Study:
        return study(Row(self.strategy), **{self.key: self.value, **changes})


WAYS = [
    *(Way("fedavg", "combiner", {"name": c, **KEEP}, f"fedavg-{c}") for c in COMBINERS),
    Way("personal", "combiner", {"name": "median", **KEEP}, "personal-median"),
    Way("proxyfl", "combiner", {"name": "self-centred-clip", **KEEP}, "proxyfl-self-centred-clip"),
    *(
        Way(s, "compression", v, f"{s}-{n}")
        for s, kinds in (("fedavg", ROUNDED), ("cwt", SPARSE), ("proxyfl", ROUNDED | SPARSE))
        for n, v in kinds.items()
    ),
]
EACH = pytest.mark.parametrize("way", WAYS, ids=lambda w: w.label)
PACKED = pytest.mark.parametrize("way", [w for w in WAYS if w.key == "compression"], ids=lambda w: w.label)
CHURN = Churn(absent={"site0": [1]}, join={"site2": 1})


@EACH
def test_it_learns(way: Way) -> None:
    run = simulate(way.study(rounds=12), arrays(records=400))
    assert run.mean["accuracy"] > 0.75


@EACH
def test_a_lost_peer_and_an_absent_one_stop_nobody(way: Way) -> None:
    run = simulate(way.study(churn=CHURN), arrays(), faults=(Fault("site1", 2, "mid-exchange", False),))
    assert {e.site for e in run.events if e.kind == "trained" and e.round == 5} == {"site0", "site1", "site2"}


@EACH
def test_an_interrupted_run_ends_as_if_nothing_had_happened(way: Way, tmp_path: Path) -> None:
    whole = simulate(way.study(churn=CHURN), arrays())

    def stop(event: Any) -> None:
        if event.kind in ("sent", "trained") and event.round == 3:
            raise RuntimeError("the plug was pulled")

    with pytest.raises(RuntimeError, match="plug"):
        simulate(way.study(churn=CHURN), arrays(), out=tmp_path / "part", listeners=(stop,))
    same_models(whole, resume(tmp_path / "part", arrays()))


@EACH
def test_trained_together_or_one_at_a_time(way: Way) -> None:
    together, alone = (
        simulate(way.study(rounds=3, churn=CHURN), arrays(), trainer=t) for t in ("cohort", "one")
    )
    # a number next to a rounding edge may fall on either side of it
    same_models(together, alone, 2e-2 if "int8" in way.label or "float16" in way.label else 1e-3)
    assert {n: s.bytes_sent for n, s in together.sites.items()} == {
        n: s.bytes_sent for n, s in alone.sites.items()
    }


@EACH
def test_spread_over_workers_it_is_the_same(way: Way) -> None:
    if way.strategy == "fedavg" and way.label not in ("fedavg-krum", "fedavg-int8"):
        pytest.skip("the same code as the rows that are tried")
    one, two = (simulate(way.study(rounds=3, churn=CHURN), arrays(), workers=w) for w in (None, 2))
    same_models(one, two, 1e-6)


ON_NODES = ("fedavg-int8", "proxyfl-top-k")


@pytest.mark.parametrize("way", [w for w in WAYS if w.label in ON_NODES], ids=lambda w: w.label)
def test_nodes_give_the_same_models_and_bytes(way: Way, tmp_path: Path) -> None:
    loaded = load(write_study(tmp_path, records=60, sites=2))
    found = way.study(rounds=3, sites=loaded.sites, schema=loaded.schema, churn=Churn(absent={"site0": [1]}))
    memory, nodes = simulate(found), nodes_in_process(found, tmp_path / "run")
    same_models(memory, nodes, 1e-6)
    assert sent(nodes, SIGNATURE) == sent(memory)


@EACH
def test_privacy_is_what_it_was(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything here happens to what has passed the gate: it costs nothing and hides nothing."""
    through = Gate.admit

    def tapped(self: Gate, model: Any, scalars: Any = None, **more: Any) -> Any:
        found = through(self, model, scalars, **more)
        assert found[0] is None or found[0].custody <= Custody.PROTECTED
        return found

    monkeypatch.setattr(Gate, "admit", tapped)
    plain = in_memory(way.strategy)
    run = simulate(way.study(), arrays())
    for name, site in run.sites.items():
        assert site.privacy == plain.sites[name].privacy
        assert site.privacy.proven is True
    sent = [e.data["custody"] for e in run.events if e.kind == "sent" and e.data["model"]]
    assert set(sent) == {"PROTECTED"}


WITH_A_COMMON_MODEL = pytest.mark.parametrize(
    "row", [r for r in ROWS if hasattr(strategies[r.name], "common")], ids=lambda r: r.id
)


@WITH_A_COMMON_MODEL
def test_a_strategy_with_a_common_model_ends_with_the_same_one_at_every_site(row: Row) -> None:
    run = simulate(study(row, rounds=4), arrays())
    first, *others = (models[strategies[row.name].common].params for models in run.models.values())  # type: ignore[attr-defined]
    assert others
    assert all(first.equals(other) for other in others)


@WITH_A_COMMON_MODEL
@pytest.mark.parametrize("kind", SPARSE)
def test_a_compression_that_leaves_weights_out_is_refused_where_sites_have_a_common_model(
    row: Row, kind: str
) -> None:
    with pytest.raises(StudyError, match=f'"{kind}" leaves weights out.*"{row.name}".*"int8".*proxyfl'):
        study(row, compression=SPARSE[kind])


@PACKED
def test_the_bytes_foretold_are_the_bytes_sent(way: Way) -> None:
    found = way.study(rounds=3)
    told = planned_parcels(found, open_sites(found, arrays()))
    sent = [e for e in simulate(found, arrays()).events if e.kind == "sent"]
    assert sorted((p.round, p.sender, p.receiver) for p in told) == sorted(
        (e.round or 0, e.site or "", e.data["to"]) for e in sent
    )
    # a mass that follows from training may be written with more or fewer digits
    assert sum(p.bytes for p in told) == pytest.approx(sum(e.data["bytes"] for e in sent), rel=0.02)


@PACKED
def test_the_study_says_it_and_its_hash_knows_it(way: Way) -> None:
    assert way.study().hash() != study(Row(way.strategy)).hash()
