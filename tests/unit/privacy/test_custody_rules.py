"""The rules that make a guarantee: each holds, and without it something leaks that its test would notice."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from confrere.core.custody import Custody, Scalar, private, public
from confrere.core.errors import (
    CustodyError,
    DataError,
    PrivacyError,
    StudyError,
    TrainingError,
    UnsafeModule,
)
from confrere.core.events import Event
from confrere.core.loss_inspection import LossContents, contents_of
from confrere.core.model import Model
from confrere.core.protocols import Objective
from confrere.data.records import Records, SiteData
from confrere.evaluate.study_check import check
from confrere.learning.local_training.one_site import Job, Trained, train_site
from confrere.learning.objectives import Distilled, Supervised, mutual, supervised_loss
from confrere.privacy import gate as gates
from confrere.privacy import lint
from confrere.privacy.budget import Budget
from confrere.privacy.gradients import recorder
from confrere.privacy.ledger import Ledger
from confrere.privacy.mechanism import Mechanism, Release
from confrere.simulation.backends import simulate
from confrere.simulation.simulation import Simulation
from confrere.site.assemble import SiteContext, mechanism_of, participant_of
from confrere.site.open_sites import open_sites
from confrere.site.participant import Participant
from confrere.site.site_round import SiteRound
from confrere.site.training import TrainingCall
from confrere.strategies.proxyfl import ProxyFL
from confrere.study import Models, Privacy, SiteConfig, Study, Training
from confrere.study.settings import Caps
from tests.conftest import arrays

Patch = pytest.MonkeyPatch
PROXYFL = {"name": "proxyfl", "private": "distil", "alpha": 0.5, "beta": 0.5}


def study(**changes: Any) -> Study:
    base = Study(
        name="rules",
        rounds=2,
        strategy=PROXYFL,
        training=Training(
            learning_rate=0.1, batch_size=32, weight_decay=0.0, tune=False, protected={"optimiser": "sgd"}
        ),
        privacy=Privacy(epsilon=2.0, delta=1e-4, steps=1),
    )
    return base.with_(**changes)


def prepared(plan: Study | None = None, sites: Mapping[str, Any] | None = None) -> Simulation:
    plan = plan or study()
    simulation = Simulation(plan, open_sites(plan, sites or arrays(2, 80)))
    simulation.prepare()
    return simulation


def site_of(plan: Study | None = None) -> Participant:
    return prepared(plan).sites["site0"]


def models(site: Participant, **custody: Custody) -> dict[str, Model]:
    return {r: site.build(r).held(custody.get(r, Custody.PUBLIC)) for r in ("private", "proxy")}


def train(site: Participant, objective: Objective, given: Mapping[str, Model] | None = None) -> Model:
    """The proxy after one round of training."""
    given = given or models(site, private=Custody.PRIVATE)
    return asyncio.run(SiteRound(site, 0).train(objective, given, protect=["proxy"]))["proxy"]


def send(plan: Study, model: Model, **scalars: Any) -> None:
    peers = prepared(plan).peers["site0"]
    peers.gate.admit(model, scalars)


def blind(loss: Any, given: Any) -> Custody:
    """Custody that does not look."""
    return Custody.PUBLIC


# What shapes a model decides who may see it


@dataclass(frozen=True)
class Weighted:
    """A loss with weights for the classes, as one would compute them from the records."""

    weights: tuple[Scalar, ...]
    reads: frozenset[str] = frozenset()

    def __call__(self, own: Tensor, others: Mapping[str, Tensor], targets: Tensor) -> Tensor:
        weights = torch.tensor([w.value for w in self.weights])
        return supervised_loss(own, targets) * weights[targets]


READING = {
    "a loss that reads a fresh model which learns beside it": mutual(public(0.5), public(0.5), "private"),
    "a loss that reads the private model": mutual(public(0.5), public(0.5), "private"),
    "a weight that was computed from records": mutual(public(0.5), private(0.5), "proxy"),
    "class weights that were counted in the records": {"proxy": Weighted((private(0.4), private(0.6)))},
}


@pytest.mark.parametrize("what", READING)
def test_what_a_loss_reads_decides_whether_its_model_may_leave(what: str, monkeypatch: Patch) -> None:
    custody = Custody.PUBLIC if "fresh" in what else Custody.PRIVATE
    site = site_of()
    proxy = train(site, READING[what], models(site, private=custody))
    assert proxy.custody == Custody.PRIVATE
    with pytest.raises(CustodyError, match="a private model may not leave the site"):
        send(study(), proxy)
    monkeypatch.setattr(LossContents, "custody", blind)  # without the rule it leaves as if it were safe
    leaked = train(site_of(), READING[what])
    assert leaked.custody == Custody.PROTECTED
    send(study(), leaked)


def test_a_loss_is_inspected_again_in_every_call(monkeypatch: Patch) -> None:
    site, loss = site_of(), Weighted((public(1), public(2)))
    assert train(site, {"proxy": loss}).custody == Custody.PROTECTED
    with monkeypatch.context() as changed:
        changed.setattr(Weighted, "kept", torch.ones(2), raising=False)
        with pytest.raises(StudyError, match="its custody is not known"):
            train(site, {"proxy": loss})
    with monkeypatch.context() as changed:
        changed.setitem(Weighted.__call__.__globals__, "supervised_loss", {"seen": torch.ones(2)})
        with pytest.raises(StudyError, match="its custody is not known"):
            train(site, {"proxy": loss})
    object.__setattr__(loss, "weights", (private(1), private(2)))
    assert train(site, {"proxy": loss}).custody == Custody.PRIVATE


def test_public_weights_and_received_teachers_leave_a_model_protected() -> None:
    site = site_of()
    teacher = replace(site.build("proxy"), custody=Custody.PROTECTED)
    given = {**models(site, private=Custody.PRIVATE), "teacher": teacher}
    assert train(site, mutual(private(0.9), public(0.5), "teacher"), given).custody == Custody.PROTECTED
    assert train(site_of(), {"proxy": Weighted((public(1), public(2)))}).custody == Custody.PROTECTED


def test_custody_is_found_however_deep_it_lies_in_a_loss() -> None:
    @dataclass(frozen=True)
    class Deep:
        options: Any
        reads: frozenset[str] = frozenset()

        def __call__(self, own: Tensor, others: Mapping[str, Tensor], targets: Tensor) -> Tensor:
            return supervised_loss(own, targets)

    assert contents_of(Deep({"a": [(public(1), private(2))]})).custody({}) == Custody.PRIVATE
    assert contents_of(Deep({"a": [(public(1), 3.0)]})).custody({}) == Custody.PUBLIC


@pytest.mark.parametrize("teacher", ["none", "private"])
def test_training_on_from_private_weights_gives_a_private_model_whatever_the_study_says(
    teacher: str, monkeypatch: Patch
) -> None:
    plan = study(strategy={**PROXYFL, "teacher": teacher})
    site = site_of(plan)
    tainted = models(site, proxy=Custody.PRIVATE)
    assert train(site, {"proxy": Supervised()}, tainted).custody == Custody.PRIVATE
    monkeypatch.setattr(Model, "held", lambda self, custody: self)  # weights whose custody was forgotten
    assert train(site_of(plan), {"proxy": Supervised()}, models(site, proxy=Custody.PRIVATE)).custody < 3


def test_what_an_optimiser_remembers_of_plain_training_does_not_reach_a_release(monkeypatch: Patch) -> None:
    """Momentum from gradients without noise would carry records into the next private step."""
    plan = study(
        training=Training(optimiser="sgd", momentum=0.9, protected={"optimiser": "sgd", "momentum": 0.9})
    )

    def release(plain_first: bool) -> Model:
        site = site_of(plan)
        given = models(site)
        if plain_first:  # the same role, trained for the site's own use
            asyncio.run(SiteRound(site, 0).train({"proxy": Supervised()}, given))
        out = asyncio.run(SiteRound(site, 1).train({"proxy": Supervised()}, given, protect=["proxy"]))[
            "proxy"
        ]
        assert out.custody == Custody.PROTECTED
        return out

    assert release(True).params.equals(release(False).params)
    monkeypatch.setattr(TrainingCall, "_custody", lambda *_: Custody.PROTECTED)  # one memory for all
    assert not release(True).params.equals(release(False).params)


def test_a_bare_number_cannot_be_sent(monkeypatch: Patch) -> None:
    plan = study()
    model = site_of(plan).build("proxy")
    with pytest.raises(CustodyError, match="a bare number cannot be sent"):
        send(plan, model, loss=0.5)
    with pytest.raises(CustodyError, match="private number"):
        send(plan, model, loss=public(1) * private(0.5))
    monkeypatch.setattr(gates, "RULES", ())
    send(plan, model, loss=0.5)


# What a site declares is all that its size may shape


def of_size(records: int, declared: int) -> dict[str, SiteData]:
    sites = {}
    for name, (x, y) in arrays(2, 400).items():
        some = Records(torch.as_tensor(x[:records]), torch.as_tensor(y[:records]))
        sites[name] = SiteData(name, some, some, some, declared=declared)
    return sites


def outside_of(plan: Study, sites: Mapping[str, SiteData]) -> list[Any]:
    """Everything about a run that the public sees, but for time and the hash of its journal."""
    run = simulate(plan, sites)
    seen = []
    for e in run.events:
        if e.custody == Custody.PUBLIC:
            data = {k: v for k, v in e.data.items() if k not in ("seconds", "hardware")}
            seen.append((e.kind, e.site, e.round, data))
    return seen


@pytest.mark.parametrize("sampling", ["full", "poisson"])
@pytest.mark.parametrize("strategy", ["proxyfl", "fedavg"])
def test_the_declared_count_sets_everything_and_the_true_one_nothing(sampling: Any, strategy: str) -> None:
    plan = study(
        strategy=PROXYFL if strategy == "proxyfl" else strategy,
        privacy=Privacy(noise_multiplier=2.0, delta=1e-4, sampling=sampling, batch_size=50),
    )
    assert outside_of(plan, of_size(160, 150)) == outside_of(plan, of_size(120, 150))
    # Declared as counted, the mass and (sampled) rate and steps would tell the sizes apart.
    assert outside_of(plan, of_size(160, 160)) != outside_of(plan, of_size(120, 120))


def test_rate_steps_batch_and_delta_follow_the_declared_count() -> None:
    privacy = Privacy(noise_multiplier=2.0, delta=1e-3, sampling="poisson", batch_size=50)
    mechanism, steps = mechanism_of(privacy, 200, rounds=1)
    assert (steps, float(mechanism.sampling.rate), mechanism.expected_batch) == (4, 0.25, 50)
    with pytest.raises(PrivacyError, match="1/n"):
        mechanism_of(privacy, 2000, rounds=1)
    assert site_of(study()).size == open_sites(study(), arrays(2, 80)).sites["site0"].size


# Rules of the step


def test_an_empty_batch_adds_noise_and_counts(monkeypatch: Patch) -> None:
    def nobody() -> tuple[Participant, Model, Model]:
        site = site_of()
        site.data = replace(site.data, train=site.data.train.select([]))
        given = models(site)
        return site, given["proxy"], train(site, {"proxy": Supervised()}, given)

    site, before, after = nobody()
    assert not after.params.equals(before.params)
    assert sum(c.count for c in site.ledger.charges()) == site.steps
    honest = Mechanism.release

    def lazy(self: Mechanism, clipped: Any, state: Any, randomness: Any) -> Release:
        if clipped.units == 0:
            return Release(torch.zeros_like(clipped.flat), state, 0)
        return honest(self, clipped, state, randomness)

    monkeypatch.setattr(Mechanism, "release", lazy)
    _, before, after = nobody()
    assert after.params.equals(before.params)  # and everybody sees that nobody was drawn


class Centred(nn.Module):
    """Looks harmless and mixes records: each is seen relative to the mean of its batch."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


def network(layer: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 3), layer(), nn.Linear(3, 1))


@pytest.mark.parametrize("layer", [lambda: nn.BatchNorm1d(3), Centred], ids=["BatchNorm", "quiet"])
def test_a_network_that_mixes_records_is_refused_before_anything_is_charged(
    layer: Callable[[], nn.Module],
) -> None:
    site = site_of(study(models=Models("linear", network(layer))))
    with pytest.raises(UnsafeModule):
        train(site, {"proxy": Supervised()})
    assert site.ledger.charges() == ()


def test_without_the_check_mixed_records_would_be_called_protected(monkeypatch: Patch) -> None:
    monkeypatch.setattr(lint, "check", lambda *_: None)
    site = site_of(study(models=Models("linear", network(Centred))))
    with pytest.raises(UnsafeModule, match="among copies of itself"):  # the step itself looks again
        train(site, {"proxy": Supervised()})
    monkeypatch.setattr(recorder.Recorder, "_probe_outputs", lambda *_: None)
    site = site_of(study(models=Models("linear", network(Centred))))
    with pytest.raises(UnsafeModule, match="on how many records there are"):  # with fewer records
        train(site, {"proxy": Supervised()})
    monkeypatch.setattr(recorder.Recorder, "_probe_places", lambda *_: None)
    site = site_of(study(models=Models("linear", network(Centred))))
    with pytest.raises(UnsafeModule, match="depends on other records"):  # at the outputs, and at the slopes
        train(site, {"proxy": Supervised()})
    monkeypatch.setattr(recorder, "_probe", lambda *_: True)
    site = site_of(study(models=Models("linear", network(Centred))))
    assert train(site, {"proxy": Supervised()}).custody == Custody.PROTECTED


def with_patients(visits: int) -> dict[str, SiteData]:
    """Sixty patients with one visit each and, at site0, one more with many visits."""
    sites = {}
    for name, (x, y) in arrays(2, 60).items():
        x, y = torch.as_tensor(x[:60]), torch.as_tensor(y[:60])
        units = torch.arange(60)
        if name == "site0" and visits:
            x = torch.cat([x, torch.full((visits, 4), 2.0)])
            y = torch.cat([y, torch.zeros(visits, dtype=y.dtype)])
            units = torch.cat([units, torch.full((visits,), 60)])
        part = Records(x, y, units)
        sites[name] = SiteData(name, part, part, part, declared=100)
    return sites


def test_privacy_per_patient_bounds_all_records_of_a_patient_together() -> None:
    """The same noise twice: what differs is what the patient did to the sum."""

    def moved(unit: Any) -> float:
        plan = study(privacy=Privacy(epsilon=2.0, delta=1e-4, steps=1, unit=unit, clipping={"name": "flat", "norm": 0.1}),
                     training=Training(protected={"optimiser": "sgd", "learning_rate": 1.0, "weight_decay": 0.0}))  # fmt: skip
        found = [
            train(prepared(plan, with_patients(visits)).sites["site0"], {"proxy": Supervised()}).params
            for visits in (0, 30)
        ]
        return 60 * found[0].distance(found[1])

    assert moved("patient") <= 0.1 + 1e-5
    assert moved("record") > 1.0  # a guarantee per record says nothing about a patient with thirty


def test_privacy_per_patient_needs_patients() -> None:
    with pytest.raises(DataError, match="name no patient"):
        prepared(study(privacy=Privacy(epsilon=2.0, delta=1e-4, unit="patient")))


# Charges come first


class Breaks:
    """A trainer that the power fails."""

    async def run(self, job: Job) -> Trained:
        raise RuntimeError("the power failed")


def test_a_crash_in_training_leaves_the_charge(monkeypatch: Patch) -> None:
    def crashed() -> Participant:
        site = site_of()
        site.trainer = Breaks()
        with pytest.raises(RuntimeError, match="power"):
            train(site, {"proxy": Supervised()})
        return site

    site = crashed()
    assert sum(c.count for c in site.ledger.charges()) == site.steps
    monkeypatch.setattr(TrainingCall, "_charge", lambda *_: True)  # charged later, it would be free
    assert crashed().ledger.charges() == ()


def test_a_replay_with_changed_records_is_charged() -> None:
    """Seeded noise on other records is another release: the difference of the two has no noise at all."""
    site = site_of()
    given = models(site)

    def release() -> None:
        site.trainings.clear()  # as after a restart
        asyncio.run(SiteRound(site, 0).train({"proxy": Supervised()}, given, protect=["proxy"]))

    release()
    release()
    assert sum(c.count for c in site.ledger.charges()) == site.steps
    before = site.data
    site.data = replace(before, train=before.train.select(range(1, len(before.train))))
    release()
    assert sum(c.count for c in site.ledger.charges()) == 2 * site.steps
    site.data = before
    release()
    assert sum(c.count for c in site.ledger.charges()) == 2 * site.steps


def test_a_second_training_of_a_round_costs_again_and_draws_other_noise(monkeypatch: Patch) -> None:
    def twice() -> tuple[Participant, float]:
        site = site_of()
        site.data = replace(site.data, train=site.data.train.select([]))  # noise alone
        given, here = models(site), SiteRound(site, 0)
        releases = [
            asyncio.run(here.train({"proxy": Supervised()}, given, protect=["proxy"]))["proxy"].params
            for _ in range(2)
        ]
        return site, releases[0].distance(releases[1])

    site, apart = twice()
    assert sum(c.count for c in site.ledger.charges()) == 2 * site.steps
    assert apart > 0
    monkeypatch.setattr(SiteRound, "_count", lambda self: ())
    site, apart = twice()
    assert sum(c.count for c in site.ledger.charges()) == site.steps
    assert apart == 0  # the difference of the two releases would have had no noise at all


class Counts:
    """A trainer that notes what it is asked to train."""

    def __init__(self) -> None:
        self.protected: list[str] = []

    async def run(self, job: Job) -> Trained:
        self.protected += [f"{job.site}/{role}" for role in job.private.mechanisms]
        return train_site(job)


def test_a_spent_budget_refuses_before_anything_is_computed_and_the_site_relays(monkeypatch: Patch) -> None:
    plan = study(rounds=4, privacy=Privacy(epsilon=1.0, delta=1e-4, noise_multiplier=4.0, steps=1))

    def run() -> tuple[Any, Counts]:
        trainer = Counts()
        return simulate(plan, arrays(2, 80), trainer=trainer), trainer

    found, trainer = run()
    trained = trainer.protected.count("site0/proxy")
    assert 0 < trained < plan.rounds
    assert found.sites["site0"].privacy.epsilon <= 1.0
    spent = [e for e in found.events if e.kind == "budget-spent" and e.site == "site0"]
    assert len(spent) == 1
    assert spent[0].data["relays"]
    assert spent[0].round == trained
    sent = {e.round for e in found.events if e.kind == "sent" and e.site == "site0" and e.data["model"]}
    assert max(sent) == plan.rounds - 1  # what arrives goes on
    monkeypatch.setattr(Ledger, "_refuse_overspending", lambda *_: None)
    found, trainer = run()
    assert trainer.protected.count("site0/proxy") == plan.rounds
    assert found.sites["site0"].privacy.epsilon > 1.0


def test_a_sites_own_caps_win_in_both_numbers() -> None:
    federation = open_sites(study(), arrays(2, 80))
    plan = study(sites={"site0": SiteConfig(caps=Caps(epsilon=1.5, delta=1e-6))})
    context = SiteContext("r", prepared().sites["site0"].journal, Counts())
    site = participant_of(plan, plan.build_strategy(), federation.sites["site0"], federation.task, context)
    assert site.budget == Budget(1.5, 1e-6)


# As published, not proven


def published(**changes: Any) -> Study:
    return study(strategy={**PROXYFL, "teacher": "private"}, **changes)


def test_a_proxy_that_learns_from_the_private_model_is_nowhere_shown_as_a_guarantee(tmp_path: Path) -> None:
    run = simulate(published(), arrays(2, 80), out=tmp_path / "run")
    assert all(m["proxy"].custody == Custody.UNPROVEN for m in run.models.values())
    assert {e.data["custody"] for e in run.events if e.kind == "sent"} == {"UNPROVEN"}
    for site in run.sites.values():
        assert site.privacy.proven is False
    assert all(not e.data["proven"] for e in run.events if e.kind == "charged")
    page = run.report().read_text(encoding="utf-8")
    assert "as published, not proven" in page
    sound = simulate(study(), arrays(2, 80), out=tmp_path / "sound")
    assert "as published, not proven" not in sound.report().read_text(encoding="utf-8")


def test_check_says_as_published_not_proven() -> None:
    sites = arrays(2, 80)
    facts = check(published(), sites)
    assert all("as published, not proven" in s.guarantee for s in facts.sites.values())
    assert any("no proven guarantee" in w for w in facts.warnings)
    assert not any("proven" in s.guarantee for s in check(study(), sites).sites.values())


def test_without_consent_what_is_unproven_does_not_leave(monkeypatch: Patch) -> None:
    monkeypatch.setattr(ProxyFL, "unproven", None)  # a strategy that does not own up to it
    with pytest.raises(CustodyError, match="a private model may not leave"):
        simulate(published(), arrays(2, 80))


# What stays inside


def test_metrics_losses_and_dropped_counts_are_private_events() -> None:
    sites = arrays(2, 80)
    inputs = sites["site0"][0].copy()
    inputs[:, 0] = 3e38  # finite, but its gradient is not
    broken = {**sites, "site0": (inputs, sites["site0"][1])}
    declared = {name: SiteConfig(declared=80) for name in sites}  # other records are split otherwise
    plan = study(strategy="fedavg", models=Models(proxy={"name": "mlp", "hidden": [8]}), sites=declared)
    run = simulate(plan, broken)
    trained = [e for e in run.events if e.kind == "trained" and e.site == "site0"]
    assert sum(e.data["dropped"] for e in trained) > 0
    telling = ("losses", "dropped", "validation", "test", "metrics", "not finite")
    for event in run.events:
        if event.custody < Custody.PRIVATE:
            assert not any(word in str(dict(event.data)) for word in telling), event.kind
    public_before = [public_part(e) for e in simulate(plan, sites).events if e.custody == Custody.PUBLIC]
    assert [public_part(e) for e in run.events if e.custody == Custody.PUBLIC] == public_before


def public_part(event: Event) -> Any:
    return (event.kind, event.site, event.round, {k: v for k, v in event.data.items() if k != "hardware"})


@pytest.mark.parametrize("options", [{"alpha": "auto"}, {"private": "stack"}], ids=["auto", "stack"])
def test_what_held_out_records_say_reaches_the_private_model_alone(
    options: dict[str, Any], monkeypatch: Patch
) -> None:
    plan = study(
        strategy={**PROXYFL, "teacher": "peers", **options},
        rounds=4,
        training=Training(tune=False, protected={"optimiser": "sgd", "learning_rate": 1.0}),
        privacy=Privacy(epsilon=8.0, delta=1e-4, steps=2),
    )

    def both() -> tuple[Any, Any]:
        sites = dict(open_sites(plan, arrays(2, 200)).sites)
        other = sites["site0"].validation
        sites["site0"] = replace(
            sites["site0"], validation=Records(other.inputs, 1 - other.targets, other.units)
        )
        return simulate(plan, arrays(2, 200)), simulate(plan, sites)

    one, two = both()
    for name in ("site0", "site1"):
        assert one.models[name]["proxy"].params.equals(two.models[name]["proxy"].params)
    assert not one.models["site0"]["private"].params.equals(two.models["site0"]["private"].params)
    # Let the proxy read the same number, and look away: what leaves now depends on validation records.
    honest = SiteRound.train

    async def careless(self: SiteRound, objective: Objective, given: Any, *, protect: Any = ()) -> Any:
        weight = getattr(objective["private"], "weight", private(0.5))
        return await honest(
            self, {**objective, "proxy": Distilled("proxy", weight), "private": objective["private"]},
            given, protect=protect,
        )  # fmt: skip

    monkeypatch.setattr(SiteRound, "train", careless)
    with pytest.raises(CustodyError):
        both()
    monkeypatch.setattr(LossContents, "custody", blind)
    one, two = both()
    assert not one.models["site0"]["proxy"].params.equals(two.models["site0"]["proxy"].params)


# Bad input


BAD: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "ε of 0": (lambda: study(privacy=Privacy(epsilon=0.0)), StudyError, "epsilon"),
    "ε below 0": (lambda: study(privacy=Privacy(epsilon=-1.0)), StudyError, "epsilon"),
    "δ above 1/n": (lambda: prepared(study(privacy=Privacy(epsilon=1.0, delta=0.5))), PrivacyError, "1/n"),
    "no noise, yet a budget": (
        lambda: study(privacy=Privacy(epsilon=1.0, noise_multiplier=0.0)),
        StudyError,
        "above 0",
    ),
    "nothing to train": (
        lambda: prepared(study(models=Models("linear", lambda: nn.Flatten()))),
        StudyError,
        "no trainable",
    ),
    "patients without ids": (
        lambda: prepared(None, {n: (*s, [None, *range(len(s[1]) - 1)]) for n, s in arrays(2, 80).items()}),
        DataError,
        "no patient id",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_refused_in_words(what: str) -> None:
    call, error, words = BAD[what]
    with pytest.raises(error, match=words):
        call()


def test_a_plain_loss_that_is_no_number_ends_the_run_in_words() -> None:
    site = site_of()
    site.data = replace(
        site.data, train=replace(site.data.train, inputs=torch.full_like(site.data.train.inputs, math.inf))
    )
    with pytest.raises(TrainingError, match="not a finite number"):
        asyncio.run(SiteRound(site, 0).train({"private": Supervised()}, models(site)))


def test_every_trap_in_the_docs_names_tests_that_exist() -> None:
    root = Path(__file__).parents[3]
    named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", (root / "docs" / "sharp-edges.md").read_text("utf-8"))
    assert len(named) > 25
    for file, test in named:
        assert any(f"def {test}(" in p.read_text("utf-8") for p in (root / "tests").rglob(file)), test
