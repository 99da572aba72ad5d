"""A ledger belongs to the patients whose records it was charged for, not to a file, a path, a site or a study."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from confrere.core.errors import BudgetExhausted, PrivacyError
from confrere.core.parcel import LedgerMark
from confrere.privacy import ledger as ledgers
from confrere.privacy.budget import Budget
from confrere.privacy.charges import Charge, gaussian
from confrere.privacy.ledger import Ledger
from confrere.privacy.ledger_storage import charges_in
from confrere.privacy.patient_hashes import check_of, fingerprint, hashes, secret_beside

STEP = gaussian(20.0)
BUDGET = Budget(1.0, 1e-5)  # 28 such steps fit
OLD = Path(__file__).parent / "data" / "ledger-0.1.sql"


def opened(path: Path, patients: range | None, population: str = "") -> Ledger:
    """The ledger of a site whose records are of these patients."""
    found = Ledger(path, population=population)
    secret = secret_beside(path)
    found.register(None if patients is None else hashes(secret, patients), check_of(secret))
    return found


def spend(ledger: Ledger, steps: int, key: str = "a study/0/proxy") -> None:
    ledger.spend([STEP * steps], key=key, budget=BUDGET)


def old_file(path: Path) -> Path:
    database = sqlite3.connect(path)
    database.executescript(OLD.read_text(encoding="utf-8"))
    database.close()
    path.chmod(0o600)
    return path


# -- which ledger is continued ---------------------------------------------------------------------


@pytest.mark.parametrize("patients", [range(100), range(50, 150), range(500, 600), None])
def test_records_of_an_institution_continue_its_ledger_whatever_they_are(
    tmp_path: Path, patients: range | None
) -> None:
    """Which ledger is shown to peers must not depend on who is in the records."""
    path = tmp_path / "ledger.sqlite"
    with opened(path, range(100)) as first:
        spend(first, 28)
        id, counter = first.id, first.counter
    with opened(path, patients) as later:
        assert (later.id, later.counter) == (id, counter)
        with pytest.raises(BudgetExhausted):
            spend(later, 1, "another study/0/proxy")


def test_another_population_has_a_ledger_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with opened(path, range(100)) as adults, opened(path, range(100, 200), "maternity") as mothers:
        spend(adults, 28)
        assert mothers.id != adults.id
        assert (mothers.counter, mothers.charges(), mothers.also) == (0, (), ())
        spend(mothers, 28)
        assert (adults.counter, mothers.counter) == (1, 1)


def elsewhere(path: Path, patients: range, population: str) -> set[int]:
    """The patients of a data set who are left out, because they belong to another population."""
    secret = secret_beside(path)
    with Ledger(path, population=population) as found:
        gone = found.register(hashes(secret, patients), check_of(secret))
        assert found.also == ()
    return {patient for patient in patients if hashes(secret, [patient]) <= gone}


@pytest.mark.parametrize("patients", [range(99, 200), range(100), range(100, 200)])
def test_a_patient_of_another_population_is_left_out_and_nothing_else_changes(
    tmp_path: Path, patients: range
) -> None:
    """Which ledgers are charged, and what they have left, does not depend on who is in the records."""
    path = tmp_path / "ledger.sqlite"
    with opened(path, range(100)) as adults:
        spend(adults, 20)
    assert elsewhere(path, patients, "maternity") == set(patients) & set(range(100))
    with opened(path, patients, "maternity") as mothers:
        assert (mothers.counter, mothers.remaining(BUDGET, STEP)) == (0, 28)
        spend(mothers, 28)
    with Ledger(path) as adults:
        assert adults.charges() == (STEP * 20,)


def test_a_population_of_unknown_patients_is_charged_to_every_ledger(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with opened(path, range(100)) as adults, opened(path, None, "maternity") as mothers:
        spend(adults, 20)
        assert mothers.remaining(BUDGET, STEP) == 8
        spend(mothers, 8)
        assert mothers.epsilon(1e-5) == adults.epsilon(1e-5)
        assert adults.charges() == (STEP * 28,)
        for ledger in (adults, mothers):
            with pytest.raises(BudgetExhausted):
                spend(ledger, 1)
        assert mothers.charges() == (STEP * 8,)  # a refusal by the one leaves nothing in the other


def test_everything_spent_on_a_patient_is_in_one_ledger_whatever_the_overlaps(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    spent: dict[int, int] = {}
    home: dict[int, str] = {}
    plan = [
        ("a", range(10)),
        ("b", range(20, 30)),
        ("c", range(5, 25)),
        ("a", range(10, 20)),
        ("b", range(3)),
    ]
    for population, patients in plan:
        gone = elsewhere(path, patients, population)
        for patient in set(patients) - gone:
            assert home.setdefault(patient, population) == population
            spent[patient] = spent.get(patient, 0) + 3
        with opened(path, patients, population) as ledger:
            spend(ledger, 3)
            counts = sum(charge.count for charge in ledger.charges())
        assert all(counts >= spent[p] for p, of in home.items() if of == population)
    assert set(home) == set(range(30))
    assert {home[p] for p in range(10, 20)} == {"c"}


def test_a_ledger_that_was_charged_for_unknown_patients_overlaps_with_every_population(
    tmp_path: Path,
) -> None:
    path = tmp_path / "ledger.sqlite"
    with Ledger(path) as unregistered:
        spend(unregistered, 28)
    with opened(path, range(5), "maternity") as ledger, pytest.raises(BudgetExhausted):
        spend(ledger, 1)


# -- what is kept, and who may read it ------------------------------------------------------------


def test_patients_are_kept_as_hashes_that_only_the_secret_can_repeat(tmp_path: Path) -> None:
    one, other = tmp_path / "one.sqlite", tmp_path / "other.sqlite"
    kept = []
    for path in (one, other):
        opened(path, range(50)).close()
        kept.append({row[0] for row in sqlite3.connect(path).execute("SELECT hash FROM patients")})
        assert {len(patient) for patient in kept[-1]} == {32}
    assert len(kept[0]) == len(kept[1]) == 50
    assert not kept[0] & kept[1]
    assert fingerprint(secret_beside(one), "records") != fingerprint(secret_beside(other), "records")


def test_a_lost_or_foreign_secret_is_refused_since_it_would_recognise_nobody(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    opened(path, range(5)).close()
    (tmp_path / "ledger.key").unlink()
    with pytest.raises(PrivacyError, match=r"put back the ledger\.key"):
        opened(path, range(5))
    (tmp_path / "ledger.key").write_bytes(b"short")
    with pytest.raises(PrivacyError, match="damaged"):
        opened(path, range(5))


def test_only_the_owner_can_read_a_ledger_and_its_secret(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    before = os.umask(0)
    try:
        with opened(path, range(5)) as ledger:
            spend(ledger, 1)
            modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in tmp_path.iterdir()}
    finally:
        os.umask(before)
    assert set(modes.values()) == {0o600}, modes


@pytest.mark.parametrize("name", ["ledger.sqlite", "ledger.key"])
def test_a_ledger_that_others_can_read_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "ledger.sqlite"
    opened(path, range(5)).close()
    (tmp_path / name).chmod(0o640)
    with pytest.raises(PrivacyError, match=f"chmod 600 .*{name}"):
        opened(path, range(5))


def test_a_ledger_that_others_can_replace_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    opened(path, range(5)).close()
    tmp_path.chmod(0o777)
    with pytest.raises(PrivacyError, match="chmod go-w"):
        opened(path, range(5))


# -- the head that peers see ----------------------------------------------------------------------


def test_a_ledger_begins_with_a_random_number(tmp_path: Path) -> None:
    found = []
    for name in ("one", "other"):
        with opened(tmp_path / f"{name}.sqlite", range(5)) as ledger:
            found += [ledger.id, ledger.head]
    assert len(set(found)) == 4
    assert {len(bytes.fromhex(number)) for number in found} == {32}


def test_a_head_tells_nothing_about_the_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same random beginning and the same clock, neighbouring data sets have the same heads and counters."""
    monkeypatch.setattr("confrere.privacy.ledger_storage.secrets.token_hex", lambda size: "7f" * size)
    clock = ledgers.datetime(2026, 1, 1, tzinfo=ledgers.UTC)
    monkeypatch.setattr("confrere.privacy.ledger.datetime", type("Clock", (), {"now": lambda _: clock}))
    seen = []
    for name, patients in (("one", range(100)), ("neighbour", range(99))):
        path = tmp_path / f"{name}.sqlite"
        with opened(path, patients) as ledger:
            for number in range(3):
                records = fingerprint(secret_beside(path), name)
                ledger.spend([STEP], key=f"run/{number}/proxy", budget=BUDGET, records=records)
            seen.append((ledger.id, ledger.counter, ledger.head))
            assert {entry["records"] for entry in ledger.entries()} == {records}
    assert seen[0] == seen[1]


# -- replays --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", ["memory", "file"])
def test_a_replay_with_other_records_is_charged(tmp_path: Path, kept: str) -> None:
    with Ledger(tmp_path / "ledger.sqlite" if kept == "file" else None) as ledger:
        for records, counter in (("these", 1), ("these", 1), ("others", 2), ("these", 1), ("others", 2)):
            entry = ledger.spend([STEP], key="run/0/proxy", budget=None, replay_of="", records=records)
            assert entry.counter == counter
        assert ledger.charges() == (STEP * 2,)


def test_a_checkpoint_remembers_whose_replays_are_free() -> None:
    ledger = Ledger(dataset="a")
    ledger.spend([STEP], key="run/0/proxy", budget=None, records="these")
    again = Ledger.restore(ledger.entries(), dataset="a")
    again.spend([STEP], key="run/0/proxy", budget=None, replay_of="", records="these")
    assert again.counter == 1
    again.spend([STEP], key="run/0/proxy", budget=None, replay_of="", records="others")
    assert again.counter == 2


# -- version 0.1 ----------------------------------------------------------------------------------


def test_a_ledger_of_version_0_1_is_continued_with_every_charge(tmp_path: Path) -> None:
    path = old_file(tmp_path / "ledger.sqlite")
    before = charges_in(path, but="study-2")
    assert before == [(STEP * 3, STEP * 3)]
    with opened(path, range(5)) as ledger:
        assert [e["key"] for e in ledger.entries()][:3] == [
            "study-1/0/proxy",
            "study-1/1/proxy",
            "study-2/0/proxy",
        ]
        assert sum(c.count for c in ledger.charges()) == 46
        assert ledger.epsilon(1e-5) == pytest.approx(0.46236635122218056)
        seen = "684e166ed7fb87f21528c7f2625cbedf2cd165110f77d5050649b407bcb2427c"  # by peers
        ledger.refuse_older_than(LedgerMark(ledger.id, 3, seen))
        id, counter, head = ledger.id, ledger.counter, ledger.head
        assert counter == 4  # its chain goes on from a random number
    with opened(path, range(5)) as again:
        assert (again.id, again.counter, again.head) == (id, counter, head)
        spend(again, 1)
    assert charges_in(path, but="study-2") == [(*before[0], STEP)]


def test_heads_after_a_migration_cannot_be_foretold(tmp_path: Path) -> None:
    heads = set()
    for name in ("one", "other"):
        with Ledger(old_file(tmp_path / f"{name}.sqlite")) as ledger:
            heads.add(ledger.head)
    assert len(heads) == 2


def test_patients_of_version_0_1_are_unknown_so_every_population_is_charged_to_its_ledger(
    tmp_path: Path,
) -> None:
    path = old_file(tmp_path / "ledger.sqlite")
    with opened(path, range(5), "maternity") as ledger:
        assert ledger.epsilon(1e-5) == pytest.approx(0.46236635122218056)


@pytest.mark.parametrize(
    "edit",
    [
        "DELETE FROM ledger",
        "UPDATE ledger SET dataset = 'another'",
        "UPDATE ledger SET counter = 2",
        "UPDATE entries SET charges = '[]' WHERE counter = 2",
        "DELETE FROM entries WHERE counter = 1",
    ],
)
def test_an_edited_ledger_of_version_0_1_is_refused(tmp_path: Path, edit: str) -> None:
    path = old_file(tmp_path / "ledger.sqlite")
    vandal = sqlite3.connect(path)
    vandal.executescript(f"DROP TRIGGER entries_stay; DROP TRIGGER entries_are_final; {edit};")
    vandal.close()
    with pytest.raises(PrivacyError, match="edited"):
        Ledger(path)


# -- two processes --------------------------------------------------------------------------------

SPENDER = """
import sys
from pathlib import Path
from confrere.core.errors import BudgetExhausted
from tests.unit.privacy.test_populations import BUDGET, opened, spend
first = int(sys.argv[2])
ledger = opened(Path(sys.argv[1]), range(first, first + 10))
print("ready", flush=True)
sys.stdin.readline()
won = 0
try:
    while True:
        spend(ledger, 1)
        won += 1
except BudgetExhausted:
    print(won, flush=True)
"""


@pytest.mark.parametrize("start", [0, 5])
def test_two_processes_with_overlapping_records_cannot_both_take_the_last_step(
    tmp_path: Path, start: int
) -> None:
    path = tmp_path / "ledger.sqlite"
    opened(path, range(10)).close()
    pair = [
        subprocess.Popen(
            [sys.executable, "-c", SPENDER, str(path), str(first)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3],
        )
        for first in (0, start)
    ]  # fmt: skip
    for process in pair:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in pair:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    won = [int(process.communicate(timeout=120)[0]) for process in pair]
    with Ledger(path) as ledger:
        assert sum(won) <= ledger.counter <= 28
        assert ledger.charges() == (Charge(STEP.event, 28),)
        assert ledger.epsilon(1e-5) <= 1.0


def test_a_guarantee_over_several_ledgers_is_proven_only_if_all_of_them_are(tmp_path: Path) -> None:
    """The ledger with the largest ε is proven here; the other one is as published."""
    path = tmp_path / "ledger.sqlite"
    with Ledger(path, population="a") as first:
        first.spend([gaussian(10.0, proven=False)], key="x/0/p", budget=None)
    with Ledger(path, population="b") as ledger:
        ledger.register({b"1" * 32}, "c" * 64)
        assert len(ledger.also) == 1
        ledger._spend((gaussian(2.0),), "y/0/p", None, "", None)
        own, other = ledger._own_guarantee(1e-5, None), ledger.also[0]._own_guarantee(1e-5, None)
        assert own.epsilon > other.epsilon
        assert (own.proven, other.proven) == (True, False)
        found = ledger.guarantee(1e-5)
    assert (found.epsilon, found.proven) == (own.epsilon, False)
    assert "as published, not proven" in str(found)
