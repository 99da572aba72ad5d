"""What a node sends does not depend on its records: not whether, nor to whom, nor how much.

When it sends is not part of that promise. So these federations have networks with random delays and losses, and a
patience that no slow machine exceeds: a peer that is given up changes what the others send.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from confrere.core.custody import Custody
from confrere.core.errors import DataError, TrainingError
from confrere.node import roster
from confrere.node.config import NodeConfig
from confrere.node.node import Node
from confrere.node.service import read_node_config
from confrere.privacy.charges import gaussian
from confrere.privacy.ledger import Ledger
from confrere.privacy.patient_hashes import check_of, hashes, secret_beside
from confrere.simulation.backends import simulate
from confrere.study import load
from confrere.transport import wire
from confrere.transport.grpc.identity import enroll
from tests.conftest import write_study
from tests.system.test_node_faults import events, start, through
from tests.unit.node.test_ledger_of_the_institution import of_patients
from tests.unit.node.wires import Network

Lines = list[str]
"""The records of a file, without its header."""

NEIGHBOURS: dict[str, Callable[[Lines], Lines]] = {
    "one record more": lambda lines: [*lines, "0.3,0.1,-0.2,0.4,yes"],
    "one record less": lambda lines: lines[1:],
    "a row with an error": lambda lines: [*lines, "not known,0.1,-0.2,0.4,yes"],
    "a row out of range": lambda lines: [*lines, "99,0.1,-0.2,0.4,yes"],
    "an unknown class": lambda lines: [*lines, "0.3,0.1,-0.2,0.4,perhaps"],
    "no label": lambda lines: [*lines, "0.3,0.1,-0.2,0.4,"],
    "a field too many": lambda lines: [*lines, "0.3,0.1,-0.2,0.4,yes,7"],
    "a field too few": lambda lines: ["0.3,0.1", *lines],
    "a byte that is not UTF-8": lambda lines: [*lines, "0.3,0.1,-0.2,0.4,ye\udce9"],
    "one class": lambda lines: [line for line in lines if line.endswith("yes")],
    "a single record": lambda lines: lines[:1],
    "errors in all rows": lambda lines: [line.replace(".", "x") for line in lines],
    "no record": lambda lines: [],
}

BODY = """rounds = 3
patience = 3600.0
strategy = {strategy}
[training]
batch_size = 16
{training}
[privacy]
epsilon = 8.0
delta = 1e-4
{privacy}
"""

FAILS = "a private model that fails"
STUDIES = {
    "proxyfl": ('"proxyfl"', ""),
    "proxyfl, distilled": ('{ name = "proxyfl", private = "distil" }', "steps = 2"),
    "proxyfl, sampled": ('"proxyfl"', 'sampling = "poisson"\nbatch_size = 10'),
    "proxyfl, until spent": ('"proxyfl"', "noise_multiplier = 1.2\nsteps = 3"),
    "proxyfl, stops": ('"proxyfl"', "noise_multiplier = 1.2\nsteps = 3\n[stop]\nbudget = true"),
    FAILS: ('"proxyfl"', "[training.protected]\nlearning_rate = 0.5"),
    "proxyfl, balanced": ('{ name = "proxyfl", settle = 1 }', '[models]\nproxy = "centred-linear"'),
    "fedavg": ('"fedavg"', ""),
    "fml": ('"fml"', ""),
    "personal": ('{ name = "personal", how = "interpolate" }', ""),
    "afl": ('"afl"', ""),
    "weight_erosion": ('{ name = "weight_erosion", k_min = 2 }', ""),
    "swarm": ('"swarm"', ""),
    "coln": ('"coln"', ""),
    "cwt": ('"cwt"', ""),
}


def hospitals(folder: Path, study: str, change: Callable[[Lines], Lines]) -> dict[str, NodeConfig]:
    """Three sites as `confrere node` reads them from files; the file of the first is changed."""
    strategy, privacy = STUDIES[study]
    training = 'optimiser = "sgd"\nlearning_rate = 1e30' if study == FAILS else ""
    body = BODY.format(strategy=strategy, privacy=privacy, training=training)
    plan = write_study(folder, body, sites=3, records=40)
    header, *lines = (folder / "site0.csv").read_text("utf-8").splitlines()
    (folder / "site0.csv").write_text(
        "\n".join([header, *change(lines)]) + "\n", "utf-8", errors="surrogateescape"
    )
    names = ["site0", "site1", "site2"]
    identities = {n: enroll(n, f"{n}.example:7443", folder / n / "keys", declared=50) for n in names}
    members = roster.Roster({n: i.member for n, i in identities.items()})
    roster.save(members, folder / "roster.toml")
    for name in names:
        signed = roster.sign(members, load(plan).digest(), identities[name])
        roster.keep_signature(signed, folder / "roster.toml")
        text = f'data = "../{name}.csv"\nroster = "../roster.toml"\naccept_unproven_privacy = true\n'
        (folder / name / "site.toml").write_text(text, "utf-8")
    return {n: read_node_config(plan, folder / n / "site.toml") for n in names}


def played(*federations: dict[str, NodeConfig]) -> list[tuple[dict[str, Node], Network]]:
    """Several federations at the same time, each over a network of its own with other delays and losses."""

    async def story(seed: int, places: dict[str, NodeConfig]) -> tuple[dict[str, Node], Network]:
        network = Network(seed, lose=0.05, repeat=0.05, delay=0.05)
        nodes = start(places, network)
        await through(*nodes.values(), seconds=1200.0)
        return nodes, network

    async def stories() -> list[tuple[dict[str, Node], Network]]:
        return list(await asyncio.gather(*(story(seed, places) for seed, places in enumerate(federations))))

    return asyncio.run(stories())


def seen(network: Network) -> dict[tuple[str, str], list[Any]]:
    """The parcels of a run, by sender and receiver, in order; of protected numbers, their names.

    A parcel whose receipt is late or lost is sent again, as the same bytes: it counts once.
    """
    found: dict[tuple[str, str], list[Any]] = defaultdict(list)
    first: dict[tuple[str, str, int], bytes] = {}
    for sender, receiver, body in network.left:
        parcel = wire.decode(body)
        if first.setdefault(parcel.id, body) is not body:
            assert first[parcel.id] == body
            continue
        numbers = {
            name: number.value if number.custody == Custody.PUBLIC else "protected"
            for name, number in parcel.scalars.items()
        }
        noisy = [repr(n.value) for n in parcel.scalars.values() if n.custody != Custody.PUBLIC]
        model = None
        if parcel.model is not None:
            model = (parcel.model.architecture, parcel.model.custody, parcel.model.params.shapes)
        size = len(body) - sum(map(len, noisy))  # the digits of a number with noise vary
        found[sender, receiver].append((parcel.round, parcel.phase, parcel.sequence, numbers, model, size))
    return dict(found)


@pytest.mark.parametrize("study", STUDIES)
def test_neighbouring_records_send_the_same_parcels(tmp_path: Path, study: str) -> None:
    few = ("one record more", "a row with an error", "one class", "no record")
    chosen = {"as it is": list, **{n: c for n, c in NEIGHBOURS.items() if study == "proxyfl" or n in few}}
    federations = {}
    for name, change in chosen.items():
        (tmp_path / name).mkdir()
        federations[name] = hospitals(tmp_path / name, study, change)
    results = played(*federations.values())
    wanted = seen(results[0][1])
    assert len(wanted) >= 3
    for (name, places), (nodes, network) in zip(federations.items(), results, strict=True):
        assert len({node.done for node in nodes.values()}) == 1, name
        assert len({len(events(place, "charged")) for place in places.values()}) == 1, name
        assert not [e.data for place in places.values() for e in events(place, "missing")], name
        assert seen(network) == wanted, name


def test_a_file_that_does_not_fit_the_schema_stops_a_node_before_it_joins(tmp_path: Path) -> None:
    places = hospitals(tmp_path, "proxyfl", list)
    assert places["site0"].data.size == 30
    text = (tmp_path / "site0.csv").read_text("utf-8")
    for broken in (text.replace("a,b,c,d,y", "a,b,c,d,z", 1), ""):
        (tmp_path / "site0.csv").write_text(broken, "utf-8")
        with pytest.raises(DataError):
            read_node_config(tmp_path / "study.toml", tmp_path / "site0" / "site.toml")
    assert not (tmp_path / "site0" / "node").exists()


def test_rows_with_errors_are_named_in_the_sites_own_journal_only(tmp_path: Path) -> None:
    places = hospitals(tmp_path, "proxyfl", NEIGHBOURS["a row with an error"])
    played(places)
    told = [e for e in events(places["site0"], "notice") if "with an error" in e.data["text"]]
    assert [e.custody for e in told] == [Custody.PRIVATE]
    assert "1 record left out" in told[0].data["text"]
    for peer in ("site1", "site2"):
        assert "with an error" not in (places[peer].home / "journal.jsonl").read_text("utf-8")


def test_a_private_model_that_fails_does_not_stop_the_proxy(tmp_path: Path) -> None:
    places = hospitals(tmp_path, FAILS, list)
    [(nodes, _)] = played(places)
    assert {node.done for node in nodes.values()} == {3}
    for place in places.values():
        told = [e for e in events(place, "notice") if "finite number" in e.data["text"]]
        assert told
        assert {e.custody for e in told} == {Custody.PRIVATE}


def test_the_same_study_is_refused_in_a_rehearsal(tmp_path: Path) -> None:
    hospitals(tmp_path, FAILS, list)
    with pytest.raises(TrainingError, match="finite number"):
        simulate(load(tmp_path / "study.toml"))


def test_a_site_with_nothing_to_train_on_deploys_what_came_from_its_peers(tmp_path: Path) -> None:
    places = hospitals(tmp_path, "proxyfl", NEIGHBOURS["no record"])
    [(nodes, _)] = played(places)
    state = nodes["site0"].site_run.state
    assert state.private.params.norm() == 0
    assert state.weight.value == 1
    assert (places["site0"].home / "model" / "model.safetensors").exists()
    told = [e.data["text"] for e in events(places["site0"], "notice") if e.custody == Custody.PRIVATE]
    assert any("its predictions are those of its peers: there are no records to train on" in t for t in told)
    assert "no records" in (places["site0"].home / "model" / "card.md").read_text("utf-8")


@pytest.mark.parametrize("when_spent", ["relay", "leave"])
def test_a_patient_of_another_population_changes_nothing_outside(tmp_path: Path, when_spent: str) -> None:
    """That population has spent all that this study allows: to charge it too would silence the site."""
    federations = []
    for name, others in {"none shared": ["x", "z"], "one shared": ["x", "7"]}.items():
        folder = tmp_path / name
        folder.mkdir()
        places = hospitals(folder, "proxyfl", list)
        mine = of_patients(places["site0"], 0)
        privacy = replace(mine.study.privacy, when_spent=when_spent) if mine.study.privacy else None
        mine = replace(mine, population="maternity", study=mine.study.with_(privacy=privacy))
        secret = secret_beside(mine.ledger)
        with Ledger(mine.ledger, population="cardiology") as ledger:
            ids = [int(p) if p.isdigit() else -ord(p) for p in others]
            ledger.register(hashes(secret, ids), check_of(secret))
            ledger.spend([gaussian(0.7)], key="another study/0/proxy", budget=None)
        federations.append({**places, "site0": mine})
    (_, apart), (nodes, shared) = played(*federations)
    assert seen(apart) == seen(shared)
    assert nodes["site0"].site.data.all.patients == federations[1]["site0"].data.all.patients - 1
