"""Dishonest sites in a rehearsal: what they do is done, the honest go on, and figures are of the honest alone."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from confrere.core.errors import StudyError
from confrere.core.params import Params
from confrere.data.records import Records
from confrere.data.tasks import Task
from confrere.evaluate.compare import compare
from confrere.exchange.attacks import ALittle, HonestModels, attacks
from confrere.exchange.compression import numbers
from confrere.node.config import load_study
from confrere.simulation.backends import simulate
from confrere.simulation.finished_run import Run
from confrere.simulation.simulation import Simulation
from confrere.site.attackers import flipped
from confrere.site.open_sites import open_sites
from confrere.study import Privacy, Study, load
from confrere.study.masked_settings import Masked
from confrere.study.reading import attacked
from tests.conftest import arrays, write_study
from tests.unit.quick import quick

ROBUST = {"name": "trimmed-mean", "attackers": 2}


def under(attack: str | None, combiner: Any = None, sites: int = 6, **changes: Any) -> Run:
    plan = None if attack is None else {"name": attack, "attackers": 2}
    return simulate(quick(rounds=8, combiner=combiner, attack=plan, **changes), arrays(sites, 150))


def notices(run: Run, of: str) -> list[Any]:
    return [e for e in run.events if e.kind == "notice" and e.data.get("sender") == of]


@pytest.fixture(scope="module")
def honest() -> float:
    """What the robust combiner reaches where nobody attacks."""
    return under(None, ROBUST).mean["accuracy"]


@pytest.mark.parametrize("attack", attacks.names())
def test_a_robust_combiner_bears_every_attack(attack: str, honest: float) -> None:
    assert under(attack, ROBUST).mean["accuracy"] > honest - 0.1


def test_the_mean_does_not_bear_a_flipped_sign() -> None:
    assert under("signflip").mean["accuracy"] < 0.6


def test_the_last_sites_in_order_attack_and_do_not_count() -> None:
    run = under("signflip", ROBUST)
    attack = run.result.attack
    assert attack.attackers == ("site4", "site5")
    assert attack.honest == ("site0", "site1", "site2", "site3")
    assert tuple(n for n, s in run.sites.items() if s.attacker) == attack.attackers
    honest = [run.sites[n].metrics.accuracy for n in attack.honest]
    assert run.mean["accuracy"] == pytest.approx(statistics.fmean(honest))
    assert any("site4, site5 are dishonest" in e.data["text"] for e in run.events if e.kind == "notice")


def test_attackers_can_be_named() -> None:
    study = quick(attack={"name": "scaled", "attackers": ["site1"]})
    assert simulate(study, arrays()).result.attack.attackers == ("site1",)
    for wrong, text in ((["nobody"], "not a site of this study"), (3, "at least one site is honest")):
        with pytest.raises(StudyError, match=text):
            simulate(quick(attack={"name": "scaled", "attackers": wrong}), arrays())


@pytest.mark.parametrize("strategy", ["fedavg", "proxyfl", "cwt"])
def test_what_is_not_a_number_is_left_aside_with_its_sender_and_the_round_goes_on(strategy: str) -> None:
    study = quick(strategy, attack={"name": "nan", "attackers": ["site2"]}, topology="complete", rounds=3)
    run = simulate(study, arrays())
    assert {(e.site, e.round) for e in notices(run, "site2")} == {
        (n, r) for n in ("site0", "site1") for r in range(3)
    }
    for name in ("site0", "site1"):
        assert all(m.params.is_finite() for m in run.models[name].values())
    assert run.mean["accuracy"] > 0.7


@pytest.mark.parametrize("compression", [None, "float16", "int8", "top-k", "random-k"])
def test_not_a_number_is_noticed_in_every_form(compression: str | None) -> None:
    study = quick(
        "avgpush",
        attack={"name": "nan", "attackers": ["site2"]},
        compression=compression,
        topology="complete",
    )
    run = simulate(study, arrays())
    assert len(notices(run, "site2")) == 4


def test_workers_leave_it_aside_too_and_do_not_wait(tmp_path: Path) -> None:
    path = write_study(
        tmp_path, 'strategy = "fedavg"\nrounds = 3\nattack = { name = "nan" }\n[training]\ntune = false'
    )
    study = load(path)
    memory, began = simulate(study), time.monotonic()
    apart = simulate(study, out=tmp_path / "run", workers=2)
    assert time.monotonic() - began < study.patience
    assert {(e.site, e.round) for e in notices(apart, "site2")} == {
        (e.site, e.round) for e in notices(memory, "site2")
    }
    assert apart.mean == pytest.approx(memory.mean, abs=1e-6)


def test_an_attack_that_overhears_all_sites_needs_them_in_one_place(tmp_path: Path) -> None:
    study = load(write_study(tmp_path, 'strategy = "fedavg"\nattack = "little"'))
    with pytest.raises(StudyError, match="run it in memory"):
        simulate(study, workers=2)


def test_a_node_takes_no_part_in_an_attack(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text('strategy = "fedavg"\nattack = "signflip"\n', encoding="utf-8")
    with pytest.raises(StudyError, match="attack is for rehearsals"):
        load_study(path, "a", {"a": None, "b": None})  # type: ignore[dict-item]


def test_a_study_that_sends_nothing_cannot_be_attacked() -> None:
    for key, value in (("attack", "signflip"), ("compression", "int8")):
        with pytest.raises(StudyError, match="sends nothing"):
            quick("local", **{key: value})


@pytest.mark.parametrize("attackers", [0, -1, [], 1.5, "site1"])
def test_a_wrong_number_of_attackers_is_refused(attackers: Any) -> None:
    with pytest.raises(StudyError, match=r"attack\.attackers is a number of sites"):
        quick(attack={"name": "signflip", "attackers": attackers})


def test_labels_are_flipped_and_nothing_else() -> None:
    some = Records(torch.zeros(3, 2), torch.tensor([0, 1, 2]))
    assert flipped(some, Task("multiclass", ("a", "b", "c"), (2,))).targets.tolist() == [2, 1, 0]
    two = Records(torch.zeros(2, 2), torch.tensor([0, 1]))
    assert flipped(two, Task("binary", ("a", "b"), (2,))).targets.tolist() == [1, 0]
    study = quick(attack={"name": "labelflip", "attackers": 1})
    simulation = Simulation(study, open_sites(study, arrays()))
    simulation.prepare()
    for name, site in simulation.sites.items():
        before = simulation.federation.sites[name]
        assert torch.equal(site.data.train.targets, before.train.targets) == (name != "site2")
        assert torch.equal(site.data.test.targets, before.test.targets)


def test_the_forgeries_are_as_their_papers_have_them() -> None:
    chance = torch.Generator().manual_seed(0)
    start, model = torch.zeros(3).double(), torch.tensor([1.0, 2.0, 3.0]).double()
    rows = torch.stack([model, model + 1, model + 5])
    honest = HonestModels(rows, torch.ones(3, 3).double(), 2)

    def forged(name: str, **options: Any) -> torch.Tensor:
        return attacks[name](**options).forge(model, start, honest, chance)

    assert forged("signflip", strength=2.0).tolist() == [-2.0, -4.0, -6.0]
    assert forged("scaled", factor=10.0).tolist() == [10.0, 20.0, 30.0]
    assert forged("nan").isnan().all()
    torch.testing.assert_close(forged("little", deviations=1.5), rows.mean(0) - 1.5 * rows.std(0))
    torch.testing.assert_close(forged("innerproduct", strength=0.5), 1 - 0.5 * (rows.mean(0) - 1))
    assert float((forged("noise", strength=1e-9) - model).abs().max()) < 1e-7
    assert ALittle("auto").far(38, 12) == pytest.approx(0.336, abs=1e-3)  # n = 50, m = 12, as printed


def test_colluding_attackers_send_what_the_honest_sites_of_this_round_give_away() -> None:
    sent: dict[str, list[Params]] = {}
    study = quick(rounds=2, attack={"name": "innerproduct", "attackers": 2, "strength": 1.0}, privacy=None)
    simulation = Simulation(study, open_sites(study, arrays(5, 60)))
    simulation.prepare()
    for peers in simulation.peers.values():
        hook = peers.outgoing
        assert hook is not None
        leaving = hook.leaving

        async def tapped(model: Any, round: int, leaving: Any = leaving, name: str = peers.me) -> Any:
            found = await leaving(model, round)
            sent.setdefault(name, []).append(found.params)
            return found

        hook.leaving = tapped  # type: ignore[method-assign]
    import asyncio

    async def play() -> None:
        async with simulation.delivering():
            await simulation.round(0)

    asyncio.run(play())
    start = numbers(simulation.sites["site0"].build("proxy").params)
    honest = torch.stack([numbers(sent[f"site{k}"][0]) for k in range(3)]).mean(0)
    for name in ("site3", "site4"):
        torch.testing.assert_close(numbers(sent[name][0]), start - (honest - start), rtol=1e-5, atol=1e-6)


BOUNDS = [
    (
        {"name": "krum", "attackers": 2},
        6,
        "6 models are combined at a time, and among these krum tolerates 1 at most",
    ),
    ({"name": "trimmed-mean", "attackers": 3}, 6, "tolerates 2 at most"),
    ({"name": "multi-krum", "attackers": 0}, 2, "too few for multi-krum"),
    ({"name": "median", "attackers": 3}, 5, "tolerates 2 at most"),
]


@pytest.mark.parametrize(("combiner", "sites", "text"), BOUNDS, ids=[b[0]["name"] for b in BOUNDS])
def test_more_attackers_than_a_combiner_bears_are_refused_with_the_bound(
    combiner: dict[str, Any], sites: int, text: str
) -> None:
    study = quick(combiner=combiner)
    with pytest.raises(StudyError, match=text):
        Simulation(study, open_sites(study, arrays(sites, 40))).prepare()


def test_the_bound_counts_the_models_that_the_graph_brings_together() -> None:
    study = quick(
        combiner={"name": "median", "attackers": 1}, topology={"name": "random-regular", "degree": 1}
    )
    with pytest.raises(StudyError, match="2 models are combined at a time"):
        Simulation(study, open_sites(study, arrays(6, 40))).prepare()


def test_more_sites_may_not_attack_than_the_combiner_is_told_to_bear() -> None:
    for combiner, text in (
        (
            {"name": "trimmed-mean", "attackers": 1},
            r"3 sites attack, and trimmed-mean must tolerate 1.*combiner.attackers = 3",
        ),
        ("median", "3 sites attack, and median must tolerate 2"),
    ):
        sites = 7 if "trimmed" in text else 6
        study = quick(combiner=combiner, attack={"name": "signflip", "attackers": 3})
        with pytest.raises(StudyError, match=text):
            Simulation(study, open_sites(study, arrays(sites, 40))).prepare()


def test_a_combiner_for_a_strategy_that_has_none_is_refused() -> None:
    with pytest.raises(
        StudyError, match=r'"cwt" combines in a way that is the method itself; leave combiner out'
    ):
        quick("cwt", combiner="median")
    with pytest.raises(StudyError, match=r'"local" combines nothing'):
        quick("local", combiner="median")
    with pytest.raises(StudyError, match="mixes by gossip"):
        quick("proxyfl", combiner="krum")
    with pytest.raises(StudyError, match='did you mean "median"'):
        quick("fedavg", combiner="medien")


def test_with_too_few_models_a_site_keeps_its_own_where_the_study_says_so() -> None:
    from confrere.study.churn import Churn

    churn = Churn(absent={"site1": [1]})
    keep = {"name": "trimmed-mean", "attackers": 1, "too_few": "keep"}
    assert simulate(quick(combiner=keep, churn=churn), arrays()).mean["accuracy"] > 0.6
    with pytest.raises(StudyError, match="tolerates 1 attackers only among at least 3 models"):
        simulate(quick(combiner={**keep, "too_few": "refuse"}, churn=churn), arrays())


def test_gossip_with_self_centred_clipping_keeps_every_sites_mass_and_moves_no_further_than_the_radius() -> (
    None
):
    radius = 0.05
    study = quick("avgpush", rounds=4, combiner={"name": "self-centred-clip", "radius": radius}, topology="complete",
                  attack={"name": "scaled", "factor": 1e4})  # fmt: skip
    simulation = Simulation(study, open_sites(study, arrays(4, 60)))
    run = simulation.run()
    for name in run.result.attack.honest:
        state = simulation.runs[name].state
        assert state.mass.held == state.mass.start
        assert state.model.params.largest() < 20
    assert run.mean["accuracy"] > 0.7


def test_a_comparison_runs_each_way_with_and_without_and_looks_at_the_same_honest_sites() -> None:
    study = quick(
        rounds=2, attack={"name": "signflip", "attackers": 1}, variants={"robust": {"combiner": "median"}}
    )
    found = compare(study, ["fedavg", "robust"], [0, 1], arrays(4, 60)).result
    assert list(found.strategies) == ["local", "fedavg", "fedavg+signflip", "robust", "robust+signflip"]
    assert {tuple(s.sites) for s in found.strategies.values()} == {("site0", "site1", "site2")}
    assert found.attack == {"fedavg+signflip": ("site3",), "robust+signflip": ("site3",)}
    assert any("honest sites alone" in n and "site3" in n for n in found.notes)


def test_the_command_line_names_an_attack_and_its_attackers() -> None:
    study = Study(strategy="fedavg")
    assert attacked(study, "signflip", "2").attack == {"name": "signflip", "attackers": 2}
    assert attacked(study, "noise", "a, b").attack == {"name": "noise", "attackers": ["a", "b"]}
    assert attacked(study, None, None) is study
    tuned = study.with_(attack={"name": "noise", "strength": 3.0})
    assert attacked(tuned, None, "2").attack == {"name": "noise", "strength": 3.0, "attackers": 2}
    assert attacked(tuned, "nan", None).attack == {"name": "nan"}
    with pytest.raises(StudyError, match="say how as well"):
        attacked(study, None, "2")
    with pytest.raises(StudyError, match='did you mean "signflip"'):
        attacked(study, "singflip", None)
    assert attacked(study, "signflip", "1").hash() != study.hash()


# Masked sums


def masked_under(attack: Any) -> Run:
    study = quick(
        "fedavg", rounds=6, attack=attack, combiner="masked-sum", masked=Masked(1, 0), topology="complete",
        privacy=Privacy(epsilon=4.0, delta=1e-4),
    )  # fmt: skip
    return simulate(study, arrays(5, 150))


def discarded(run: Run) -> int:
    texts = [str(e.data.get("text")) for e in run.events if e.site == "site0"]
    return sum("is discarded" in text for text in texts)


def test_masks_hide_an_attacker_that_stays_within_what_honest_sites_add_up_to() -> None:
    """So a study chooses between masks and robust combiners; what a site deploys is guarded by its own records."""
    honest, attacked_run = masked_under(None), masked_under({"name": "signflip", "attackers": 1})
    assert discarded(attacked_run) == 0
    one, other = (run.models["site0"]["model"].params for run in (honest, attacked_run))
    assert one.distance(other) > 0.1
    first, *others = [m["model"].params for m in attacked_run.models.values()]
    assert all(first.equals(found) for found in others)


@pytest.mark.parametrize(
    "attack", [{"name": "scaled", "factor": 1e6}, {"name": "noise", "strength": 1e6}, "nan"]
)
def test_a_masked_sum_beyond_what_honest_sites_add_up_to_is_discarded_every_time(attack: Any) -> None:
    plan = {"name": attack} if isinstance(attack, str) else attack
    run = masked_under({**plan, "attackers": 1})
    assert discarded(run) == 6
    start = Simulation(run.study, open_sites(run.study, arrays(5, 150)))
    start.prepare()
    assert run.models["site0"]["model"].params.equals(start.sites["site0"].build("proxy").params)
    assert sum(e.kind == "charged" and e.site == "site0" for e in run.events) == 6, (
        "the budget is spent all the same"
    )


def test_an_attacker_under_masks_may_train_on_wrong_labels() -> None:
    assert discarded(masked_under({"name": "labelflip", "attackers": 1})) == 0
