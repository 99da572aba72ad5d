"""Weight Erosion by way of two servers: the same weights and model, and gradients that nobody sees."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from confrere.core.custody import Custody, Scalar, public
from confrere.core.distances import Distances
from confrere.core.errors import CustodyError, StudyError
from confrere.core.events import Journal
from confrere.core.model import Model
from confrere.core.params import Params
from confrere.evaluate.traffic import traffic
from confrere.exchange.erosion import NO_WEIGHTS, ReleasedGradient, Weights, eroded
from confrere.exchange.secure.two_servers import LONGEST
from confrere.privacy.gate import Gate
from confrere.privacy.noise import Secure
from confrere.simulation import collaboration
from confrere.simulation.backends import simulate
from confrere.simulation.finished_run import Run
from confrere.simulation.simulation import Simulation
from confrere.site import peers as site_peers
from confrere.site.open_sites import open_sites
from confrere.site.shared_distances import DIFFERENCES, HALVES, MEAN, PARTS, SharedDistances
from confrere.strategies.weight_erosion import State, WeightErosion
from confrere.study import Privacy, Study
from confrere.study.churn import Churn
from tests.conftest import arrays
from tests.unit.cli.command import Desk
from tests.unit.strategies.test_weight_erosion import PRIVACY, study, weights

BY_SERVERS = {"user": "site0", "distances": "two-servers"}
"""site1 and site2 are the servers, site3 is the dealer."""


def five() -> dict[str, Any]:
    """Four sites that follow one rule, and one whose labels are the other way round."""
    found = arrays(5, records=200)
    x, y = found["site4"]
    return {**found, "site4": (x, 1 - y)}


def by_servers(
    privacy: Privacy | None = None, rounds: int = 5, churn: Churn | None = None, **options: Any
) -> Study:
    return study(privacy, rounds, churn, **BY_SERVERS | options)


def notices(run: Run) -> list[str]:
    return [str(e.data["text"]) for e in run.events if e.kind == "notice"]


@pytest.mark.parametrize("privacy", [None, PRIVACY], ids=["plain", "private"])
def test_weights_and_model_are_those_of_the_plain_form(
    privacy: Privacy | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collaboration, "run_id", lambda study: "the same noise")
    hidden = simulate(by_servers(privacy, p_d=0.05), five())
    plain = simulate(study(privacy, 5, user="site0", p_d=0.05), five())
    assert weights(hidden, "site0") == [pytest.approx(w, abs=1e-5) for w in weights(plain, "site0")]
    assert weights(hidden, "site0")[-1]["site4"] < 0.8
    one, two = (run.models["site0"]["model"].params.flatten() for run in (hidden, plain))
    torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5)
    assert hidden.sites["site1"].privacy == plain.sites["site1"].privacy


def test_the_noise_of_both_gradients_is_subtracted_by_the_servers() -> None:
    def gradient(*numbers: float) -> Model:
        return Model(Params({"w": torch.tensor(numbers)}), "w", Custody.PROTECTED)

    own = ReleasedGradient(gradient(3.0, 4.0), public(0.5), public(1.0))
    peer = ReleasedGradient(gradient(0.0, 4.0), public(1.5), public(1.0))
    rule, site = WeightErosion(user="u", distances="two-servers", k_min=1), FakeSite()
    numbers = {"u": rule._numbers(own, "u"), "p": rule._numbers(peer, "p")}
    found = Distances({"p": Scalar(9.0, Custody.PROTECTED)}, numbers, {}, Custody.PROTECTED)
    hidden, mean = rule._weighed(State(gradient(0.0, 0.0)), site, found)  # type: ignore[arg-type]
    plain, _ = eroded(NO_WEIGHTS, own, {"p": peer}, rule.p_d, rule.p_s, rule.newcomer)
    assert hidden == plain
    assert mean.keys() == {"u", "p"}
    assert 1 - hidden.share["p"].value == pytest.approx(0.01 * np.sqrt((9 - 2) / (25 - 0.5)))


class FakeSite:
    name, rehearsal = "a", False


def test_every_message_goes_to_a_server_or_is_a_half_of_the_mean() -> None:
    run = simulate(by_servers(rounds=1), five())
    sent = {
        (e.data["phase"], e.site, e.data["to"]) for e in run.events if e.kind == "sent" and e.data["phase"]
    }
    servers = {"site1", "site2"}
    assert {(s, to) for phase, s, to in sent if phase == PARTS} == {
        (s, to) for s in run.sites for to in servers if s != to
    }
    for phase in (DIFFERENCES, HALVES):
        assert {(s, to) for p, s, to in sent if p == phase} == {("site1", "site2"), ("site2", "site1")}
    assert {(s, to) for p, s, to in sent if p == MEAN} == {("site1", "site0"), ("site2", "site0")}
    assert {e.data["custody"] for e in run.events if e.kind == "sent" and e.data["phase"]} == {"UNPROVEN"}


def test_no_message_holds_a_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither as numbers nor in fixed point: a part alone is uniform, so that not even one number is found."""
    gradients: list[np.ndarray[Any, Any]] = []
    messages: list[bytes] = []
    share_out, send = SharedDistances._share_out, site_peers.PeersRound.send_shared

    async def watched(self: Any, vector: Any, numbers: Any) -> None:
        gradients.append(vector)
        await share_out(self, vector, numbers)

    async def tapped(self: Any, to: str, phase: int, message: Model | None, scalars: Any) -> None:
        assert message is not None
        messages.append(next(iter(message.params.values())).numpy().tobytes())
        await send(self, to, phase, message, scalars)

    monkeypatch.setattr(SharedDistances, "_share_out", watched)
    monkeypatch.setattr(site_peers.PeersRound, "send_shared", tapped)
    simulate(by_servers(PRIVACY, rounds=2), five())
    assert len(gradients) == 10
    assert len(messages) == 2 * (3 * 2 + 2 + 2 + 2 + 2)
    for vector in gradients:
        for number in vector[vector != 0]:
            assert not any(number.tobytes() in message for message in messages)


def test_a_private_gradient_may_not_be_shared_out() -> None:
    @dataclasses.dataclass(frozen=True)
    class Careless(WeightErosion):
        async def _by_servers(
            self, state: Any, site: Any, peers: Any, rate: Any, own: Any, asked: Any
        ) -> Any:
            held = dataclasses.replace(own, gradient=own.gradient.held(Custody.PRIVATE))
            return await super()._by_servers(state, site, peers, rate, held, asked)

    simulation = Simulation(by_servers(PRIVACY), open_sites(by_servers(PRIVACY), five()))
    simulation.strategy = Careless(user="site0", distances="two-servers")
    simulation.prepare(journal := Journal(None))
    with pytest.raises(CustodyError, match="a private model may not leave"):
        simulation.run_rounds(journal, None, False)
    assert not [e for e in journal.events if e.kind == "sent" and e.data["phase"] >= PARTS]


def test_what_is_made_of_unproven_values_leaves_only_with_consent() -> None:
    Gate(accept_unproven=True).admit_derived("message", Custody.UNPROVEN)
    Gate().admit_derived("message", Custody.PROTECTED)
    for custody in (Custody.UNPROVEN, Custody.PRIVATE):
        with pytest.raises(CustodyError):
            Gate().admit_derived("message", custody)


@pytest.mark.parametrize("missing", ["site1", "site2", "site3"])
def test_without_a_server_or_the_dealer_the_user_goes_on_alone_for_a_round(missing: str) -> None:
    run = simulate(by_servers(churn=Churn(absent={missing: [1]}), p_d=0.05), five())
    notes = [e.data["note"] for e in run.events if e.kind == "weighed"]
    assert notes == ["", "no servers", "", "", ""]
    course = weights(run, "site0")
    assert course[0] == course[1] != course[2]


def test_a_server_that_missed_a_round_catches_up_with_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """site1 does not receive the other's halves in round 2, so that only site2 has the weights of that round."""
    take = site_peers.PeersRound.take_shared

    async def lossy(self: Any, phase: int, senders: Any) -> Any:
        found = await take(self, phase, senders)
        return [] if (self.me, self.round, phase) == ("site1", 1, HALVES) else found

    whole = simulate(by_servers(p_d=0.05), five())
    monkeypatch.setattr(site_peers.PeersRound, "take_shared", lossy)
    run = simulate(by_servers(p_d=0.05), five())
    notes = [e.data["note"] for e in run.events if e.kind == "weighed"]
    assert notes == ["", "no servers", "", "", ""]
    course = weights(run, "site0")
    assert course[1] == course[0]  # nothing was opened
    assert course[2]["site4"] < weights(whole, "site0")[1]["site4"]  # what site2 had computed was not lost
    assert not any("do not agree" in text for text in notices(run))


def test_servers_that_disagree_open_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    weighed = WeightErosion._weighed

    def dishonest(self: Any, state: Any, site: Any, found: Any) -> Any:
        kept, mean = weighed(self, state, site, found)
        return kept, (mean | {"site4": public(0.5)} if site.name == "site2" else mean)

    monkeypatch.setattr(WeightErosion, "_weighed", dishonest)
    run = simulate(by_servers(rounds=2), five())
    assert {e.data["note"] for e in run.events if e.kind == "weighed"} == {"no servers"}
    assert any("do not belong together" in text for text in notices(run))


def test_an_absent_peer_keeps_its_weight() -> None:
    run = simulate(by_servers(churn=Churn(absent={"site4": [1, 2]}), p_d=0.05), five())
    course = [found["site4"] for found in weights(run, "site0")]
    assert course[0] == course[1] == course[2] > course[3]


def test_a_user_whose_gradient_is_too_long_is_told_that_it_was_shortened() -> None:
    long = {"site0": (np.full((60, 4), 3.0, np.float32) * 1e4, np.tile([0, 1], 30))}
    run = simulate(by_servers(rounds=1), {**five(), **long})
    assert any(f"to {LONGEST:.4g} to be shared out" in text for text in notices(run))


def on_nodes(**options: Any) -> Run:
    """A run whose sites draw their noise from the secure source, as nodes do."""
    found = by_servers(PRIVACY, **options)
    simulation = Simulation(found, open_sites(found, arrays(4)))
    simulation.prepare(journal := Journal(None))
    for site in simulation.sites.values():
        site.randomness = Secure()
    return simulation.run_rounds(journal, None, False)


def test_servers_open_no_mean_of_fewer_peers_than_k_min() -> None:
    notes = {e.data["note"] for e in on_nodes(k_min=3).events if e.kind == "weighed"}
    assert notes <= {"", "hidden by noise"}  # three peers are enough
    run = on_nodes(k_min=4)
    assert [e.data["note"] for e in run.events if e.kind == "weighed"] == ["alone"] * 5
    sent = [e for e in run.events if e.kind == "sent" and e.data["model"]]
    assert {e.round for e in sent} == {0}  # it asks no more


def test_a_spent_budget_silences_a_site_and_stops_nobody() -> None:
    privacy = Privacy(epsilon=1.0, delta=1e-4, noise_multiplier=12.0)
    run = simulate(by_servers(privacy, rounds=30), five())
    assert any(e.kind == "budget-spent" for e in run.events)
    assert all(s.privacy.epsilon <= 1.0 for s in run.sites.values())
    last = [e for e in run.events if e.kind == "weighed"][-1]
    assert last.round == 29


def test_traffic_counts_the_messages_between_servers() -> None:
    found = traffic(by_servers(PRIVACY, rounds=1), five())
    assert found.sites["site1"].bytes_sent > 2 * found.sites["site4"].bytes_sent > 0


def test_an_attacker_attacks_what_it_shares_out() -> None:
    options = {**BY_SERVERS, "p_d": 0.05}
    base = study(None, 5, **options)
    run = simulate(base.with_(attack={"name": "signflip", "attackers": 1}), arrays(5, 200))
    honest = simulate(base, arrays(5, 200))
    assert weights(run, "site0")[-1]["site4"] < 0.9 * weights(honest, "site0")[-1]["site4"]


@pytest.mark.parametrize(
    ("members", "options", "expected"),
    [
        ("abcd", {"user": "a"}, ("a", ("b", "c"), "d")),
        ("dcba", {"user": "c"}, ("c", ("a", "b"), "d")),
        ("abcde", {"user": "a", "servers": ["e", "c"]}, ("a", ("e", "c"), "b")),
        ("abcde", {"user": "a", "dealer": "b"}, ("a", ("c", "d"), "b")),
        ("abcde", {"user": "e", "servers": ["d", "c"], "dealer": "b"}, ("e", ("d", "c"), "b")),
    ],
)
def test_roles_are_named_or_follow_from_the_sorted_names(
    members: str, options: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    found = WeightErosion(distances="two-servers", **options).roles(list(members))
    assert found is not None
    assert (found.user, found.servers, found.dealer) == expected


def test_without_all_roles_there_are_no_servers() -> None:
    rule = WeightErosion(distances="two-servers", user="a", servers=("b", "c"))
    assert rule.roles("abc") is None
    assert rule.roles("abde") is None
    assert rule.roles("abcd") is not None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"user": ""}, "name it as strategy.user"),
        ({"servers": ["site1"]}, "names two sites, not 1"),
        ({"servers": ["site1", "site1"]}, "must be different sites"),
        ({"servers": ["site0", "site1"]}, "must be different sites"),
        ({"servers": ["site1", "site2"], "dealer": "site2"}, "must be different sites"),
        ({"dealer": "site0"}, "must be different sites"),
        ({"distances": "plain", "dealer": "site1"}, 'belong to distances = "two-servers"'),
        ({"distances": "three-servers"}, "distances"),
    ],
)
def test_wrong_roles_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(StudyError, match=words):
        by_servers(**options)


def test_too_few_sites_and_unknown_ones_are_refused() -> None:
    with pytest.raises(StudyError, match=r"at least four sites .* and the study has 3"):
        simulate(by_servers(), arrays(3))
    with pytest.raises(StudyError, match=r'strategy.servers is "site9".*did you mean "site'):
        simulate(by_servers(servers=["site1", "site9"]), five())
    with pytest.raises(StudyError, match=r'strategy.dealer is "siteX"'):
        simulate(by_servers(dealer="siteX"), five())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("", "takes at least four sites"),
        (', servers = ["site1", "site0"]', "must be different sites"),
        (", servers = 3", "servers"),
    ],
)
def test_the_command_says_so_in_one_line_and_ends_with_2(
    options: str,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    desk = Desk(tmp_path, monkeypatch, capsys)
    body = f'strategy = {{ name = "weight_erosion", user = "site0", distances = "two-servers"{options} }}\nrounds = 2\n'
    answer = desk.confrere("simulate", desk.study(body))
    assert answer.code == 2
    assert words in answer.said
    assert "Traceback" not in answer.err
    assert desk.left() == set()


def test_tables_that_are_no_weights_are_left_out() -> None:
    rows = {"a": (0.5, 3.0), "b": (1.5, 1.0), "c": (0.5, 1.5), "d": (0.5,), "e": (0.5, -1.0)}
    found = Weights.of_table(rows, Custody.PROTECTED)
    assert found.table == {"a": (0.5, 3.0)}
    assert found.share["a"].custody is Custody.PROTECTED
