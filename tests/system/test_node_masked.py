"""Masked sums between nodes in one process: they are opened, one site may be missing, and a node may die at any step."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest

from confrere.core.errors import CheckpointError, LedgerRolledBack
from confrere.core.parcel import Parcel
from confrere.core.sum_terms import SumTerms
from confrere.exchange.secure.agreement import Agreement
from confrere.exchange.secure.attempt import VECTOR, VOTE, AttemptMember
from confrere.exchange.secure.in_process import GivenVector, simulated_members
from confrere.exchange.secure.member_site import MemberSite, MemoryFacts
from confrere.exchange.secure.messages import (
    AttemptId,
    KeyAnnouncement,
    MaskedVector,
    Message,
    OpenedShares,
    Proposal,
    SumResult,
    encode,
)
from confrere.exchange.secure.summing import SummingSite
from confrere.node import node_sums, sum_messages
from confrere.node.failpoints import MASKED_POINTS
from confrere.node.node import Node
from confrere.node.status import resting_status, status_of
from confrere.privacy.ledger import Ledger
from confrere.site.masked_call import Turn
from confrere.site.masked_member import MemberTurn
from confrere.study import Caps, SiteConfig, Study
from confrere.study.churn import Churn
from confrere.study.masked_settings import Masked
from tests.masked_nodes import Plug, World, all_finished, check_common, masked_study, states, sum_books
from tests.unit.node.sites import settings

PATIENT = 600.0
"""So long that no step of a sum fails because the machine is slow."""


def world(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    plug: Plug,
    study: Study | None = None,
    rehearsal: bool = False,
) -> World:
    places = settings(folder, study or masked_study(), sites=4, rehearsal=rehearsal)
    return World(places, plug.install(monkeypatch)).watch(monkeypatch)


def test_without_any_fault_every_sum_is_opened_by_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = world(tmp_path, monkeypatch, Plug(), masked_study(patience=PATIENT)).run()
    assert found.check() == 3
    versions = {state.common.version for state in states(found).values()}
    assert len(versions) == 1
    assert all(state.common.steps == 3 for state in states(found).values())
    check_common(found)
    books = sum_books({name: place.ledger for name, place in found.places.items()})
    assert (books.charges, books.vectors, books.votes) == (12, 12, 12)
    assert set(MASKED_POINTS) <= set(found.plug.passed)


@pytest.mark.parametrize("point", MASKED_POINTS)
def test_a_node_that_dies_there_opens_nothing_twice(
    point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What holds wherever it dies, whether or not the sum is opened after all."""
    found = world(tmp_path, monkeypatch, Plug(point, 2)).run()
    assert len(found.plug.deaths) <= 1
    found.check()
    check_common(found)


def test_no_member_stops_the_others_by_messages_of_an_attempt_that_has_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Turn.handover

    def handover(turn: Turn) -> list[Message]:
        hostile = turn.call.at.me == "site3" != turn.leader
        return [KeyAnnouncement(b"x", "site3", b"", b"", b"")] if hostile else real(turn)

    monkeypatch.setattr(Turn, "handover", handover)
    found = world(tmp_path, monkeypatch, Plug(), masked_study(patience=PATIENT)).run()
    assert found.check() == 3
    assert all(state.common.steps == 3 for state in states(found).values())


@pytest.mark.slow
def test_a_site_that_is_missing_is_left_out_of_the_sums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = world(tmp_path, monkeypatch, Plug(), masked_study(patience=20.0))
    del (places := dict(found.places))["site3"]
    found.places = places
    found.run(over=lambda w: len(w.nodes) == 3 and all(n.doing == "finished" for n in w.nodes.values()))
    assert found.check() == 3
    assert {len(m.certificate.survivors) for _, _, m in found.messages() if isinstance(m, SumResult)} == {3}
    assert len({state.common.version for state in states(found).values()}) == 1


def test_a_summing_site_that_is_lost_has_a_successor_that_opens_the_same_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is cut off when all vectors are made and before it has all of them; no second charge is needed."""
    found = world(tmp_path, monkeypatch, Plug(), masked_study(rounds=1, patience=PATIENT))
    others = {"site1", "site2", "site3"}

    def pull(point: str) -> None:
        found.plug.passed[point] += 1
        if point == "sum-vector-sent" and found.plug.passed[point] == 3:
            found.network.cut |= {frozenset(("site0", name)) for name in others}

    monkeypatch.setattr(node_sums, "reach", pull)
    found.run(over=lambda w: all(w.nodes[n].doing == "finished" for n in others if n in w.nodes))
    assert found.check() == 1
    results = [m for _, _, m in found.messages() if isinstance(m, SumResult)]
    assert {(m.site, m.certificate.survivors) for m in results} == {("site1", ("site1", "site2", "site3"))}
    assert {state.common.steps for name, state in states(found).items() if name in others} == {1}
    assert sum_books({name: found.places[name].ledger for name in others}).charges == 3
    assert any("does not answer" in str(e.data.get("text")) for e in found.events["site2"])


def test_an_attempt_that_loses_too_many_is_charged_and_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no dropouts allowed one restart ends the attempt; the second one has its own keys, noise and charge."""
    monkeypatch.setattr(sum_messages, "LONGEST_GRACE", 100.0)  # however long the restart takes
    study = masked_study(rounds=1, patience=PATIENT, masked=Masked(1, 0))
    found = world(tmp_path, monkeypatch, Plug("sum-recorded", 4), study).run()
    assert len(found.plug.deaths) == 1
    assert found.check() == 1
    books = sum_books({name: place.ledger for name, place in found.places.items()})
    assert books.charges == 8
    assert {state.common.steps for state in states(found).values()} == {1}
    contexts = {m.context for _, _, m in found.messages() if isinstance(m, MaskedVector)}
    assert len(contexts) == 2


def test_a_summing_site_that_names_different_survivors_to_different_nodes_opens_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It proposes one list to two members and a shorter one to the third; no list gets enough signatures that differ."""
    real = SummingSite._propose

    def two_lists(summing: SummingSite) -> list[tuple[str, Message]]:
        out = []
        for to, message in real(summing):
            if isinstance(message, Proposal) and to == "site3":
                message = replace(message, headers=tuple(h for h in message.headers if h.site != "site1"))
            out.append((to, message))
        return out

    monkeypatch.setattr(SummingSite, "_propose", two_lists)
    study = masked_study(rounds=1, patience=PATIENT, masked=Masked(2, 0))
    places = settings(tmp_path, study, sites=4, rehearsal=False)
    found = World(places, Plug().install(monkeypatch)).watch(monkeypatch).run()
    assert found.check() == 0
    assert not [m for _, _, m in found.messages() if isinstance(m, OpenedShares)]
    assert all(state.common.steps == 0 for state in states(found).values())


def test_a_restored_folder_opens_nothing_of_an_attempt_that_the_ledger_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger says that a vector left: a member with that ledger, whatever folder it has, sends and signs nothing."""
    found = world(tmp_path, monkeypatch, Plug(), masked_study(rounds=1, patience=PATIENT)).run()
    (attempt,) = {m.context for _, _, m in found.messages() if isinstance(m, MaskedVector)}
    place = found.places["site2"]
    with Ledger(place.ledger) as ledger:
        subjects = {
            str(e["key"]).split("/", 1)[1].rsplit("/", 1)[0] for e in ledger.entries() if "fact/" in e["key"]
        }
        (subject,) = {unquote(subject) for subject in subjects}
        assert subject.endswith(attempt.hex()[:16])
        assert ledger.written(subject, VECTOR) is not None
        assert ledger.written(subject, VOTE) is not None
        assert ledger.write_once(subject, VOTE, "another list") != "another list"
    shutil.rmtree(place.home / "parcels")
    (place.home / "node.sqlite").unlink()
    with pytest.raises(CheckpointError, match="is an old copy, or a new folder"):
        Node(place, connect=found.network.connect)


def test_a_member_that_leaves_begins_an_epoch_with_other_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = masked_study(rounds=2, patience=PATIENT, churn=Churn(leave={"site4": 1}), masked=Masked(1, 1))
    places = settings(tmp_path, study, sites=5, rehearsal=False)
    found = World(places, Plug().install(monkeypatch)).watch(monkeypatch).run()
    assert found.check() == 2
    charged = {e.round: e.data for e in found.events["site0"] if e.kind == "charged"}
    assert "other 4 sites" in charged[0]["condition"]
    with Ledger(places["site0"].ledger) as ledger:
        events = {charge.event for charge in ledger.charges()}
    assert len(events) == 2  # of five members, and of four


def test_the_rounds_end_when_too_few_members_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = masked_study(rounds=2, patience=PATIENT, churn=Churn(leave={"site3": 1}), masked=Masked(1, 1))
    found = world(tmp_path, monkeypatch, Plug(), study).run()
    assert found.check() == 1
    texts = [str(e.data.get("text")) for e in found.events["site0"]]
    assert any("from round 2 on" in t and "at most 0 may drop out" in t and "end here" in t for t in texts)


def test_status_and_journal_state_the_condition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def over(found: World) -> bool:
        if "site0" in found.nodes:
            seen.update(status_of(found.nodes["site0"]))
        return all_finished(found)

    found = world(tmp_path, monkeypatch, Plug(), masked_study(rounds=1, patience=PATIENT)).run(over=over)
    condition = "if at most 1 of the other 3 sites pool what they see or depart from the protocol"
    assert seen["privacy"]["condition"] == condition
    assert resting_status(found.places["site0"].home)["privacy"]["condition"] == condition
    assert condition in (found.places["site0"].home / "model" / "card.md").read_text()
    texts = [str(e.data.get("text")) for e in found.events["site0"]]
    assert any("masked sums of 4 sites (n), of which 1 may collude (t) and 1" in text for text in texts)


def test_a_further_attempt_does_not_pass_the_ceiling_of_a_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ceiling leaves room for one charge. A summing site that wastes the first attempt gets noise alone in the second."""
    attempts: dict[SummingSite, int] = {}
    begin, vote = SummingSite.__init__, SummingSite._on_vote

    def remember(self: SummingSite, agreement: Any, attempt: Any, *rest: Any) -> None:
        begin(self, agreement, attempt, *rest)
        attempts[self] = attempt.attempt

    def waste(self: SummingSite, message: Any) -> Any:
        return self._give_up("hostile") if attempts[self] == 0 else vote(self, message)

    monkeypatch.setattr(SummingSite, "__init__", remember)
    monkeypatch.setattr(SummingSite, "_on_vote", waste)
    ceiling = 0.5
    sites = {
        f"site{k}": SiteConfig(accept_unproven_privacy=k != 3, caps=Caps(ceiling=ceiling if k == 3 else 10.0))
        for k in range(4)
    }
    study = masked_study(rounds=1, patience=PATIENT, sites=sites)
    found = world(tmp_path, monkeypatch, Plug(), study).run()
    with Ledger(found.places["site3"].ledger) as ledger:
        assert 0 < ledger.epsilon(1e-4) <= ceiling
    with Ledger(found.places["site0"].ledger) as ledger:
        assert ledger.epsilon(1e-4) > ceiling
    assert any("ceiling of ε = 0.5 is reached" in str(e.data.get("text")) for e in found.events["site3"])
    assert len({m.context for _, _, m in found.messages() if isinstance(m, MaskedVector)}) == 2


def test_a_sum_with_a_vector_that_the_ledger_does_not_know_shows_an_old_copy() -> None:
    members, keys = simulated_members({f"site{k}": 10 for k in range(4)})
    agreement = Agreement(members, SumTerms(4, 1, 0, noise_std=3.0, clip=1.0, size=2))
    attempt = AttemptId("run", 0, "model@0", 0, 0, 0)
    results: list[SumResult] = []
    sites = {name: MemberSite(name, key, MemoryFacts()) for name, key in keys.items()}
    summing = SummingSite(agreement, attempt, "site0", keys["site0"])
    source = GivenVector(np.zeros(2, dtype=np.int64))
    taking_part = {name: AttemptMember(agreement, attempt, site, source) for name, site in sites.items()}
    queue = [(name, m) for name, member in taking_part.items() for m in member.start()]
    while queue:
        name, message = queue.pop(0)
        for to, answer in summing.receive(name, message) or ([] if queue else summing.advance()):
            results += [answer] if isinstance(answer, SumResult) else []
            queue += [(to, reply) for reply in taking_part[to].receive("site0", answer)]
    parcel = Parcel("run", 0, 0, 0, "site0", "site1", 1, None)

    def late(facts: MemoryFacts) -> Any:
        call = SimpleNamespace(
            agreement=agreement, attempt_id=lambda attempt_number: attempt, at=SimpleNamespace(me="site1", round=0),
            masks=SimpleNamespace(member_site=lambda name: replace(sites[name], facts=facts)),
            summing_sites_of=lambda attempt_number: ["site0"], outcome=lambda *found: "taken",
        )  # fmt: skip
        turn: Any = SimpleNamespace(call=call)
        return MemberTurn(turn)._late(parcel, encode(results[0]), 0)

    known = sites["site1"].facts
    assert isinstance(known, MemoryFacts)
    assert late(known) == "taken"
    with pytest.raises(LedgerRolledBack, match="the ledger is an old copy"):
        late(MemoryFacts())
