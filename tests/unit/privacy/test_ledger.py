"""Nothing is spent twice for free, nothing is overspent, and nobody edits the past unnoticed."""

from __future__ import annotations

import json
import math
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from confrere.core.errors import BudgetExhausted, LedgerRolledBack, PrivacyError
from confrere.core.parcel import LedgerMark
from confrere.core.sum_terms import SumTerms
from confrere.privacy.accounting import calibrate, epsilon
from confrere.privacy.budget import Budget, strictest
from confrere.privacy.charges import Charge, gaussian, masked
from confrere.privacy.ledger import Ledger
from confrere.privacy.ledger_storage import Entry

STEP = gaussian(20.0)
BUDGET = Budget(1.0, 1e-5)  # 28 such steps fit
FITS = 28


@pytest.fixture(params=["memory", "file"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ledger]:
    """A ledger of a rehearsal, and one of a node: they keep the same promises."""
    with Ledger(tmp_path / "kept.db" if request.param == "file" else None) as made:
        yield made


def test_both_kinds_of_ledger_chain_the_same_entries(tmp_path: Path) -> None:
    with Ledger(dataset="d") as one, Ledger(tmp_path / "ledger.db") as other:
        for ledger in (one, other):
            ledger.spend([STEP * 2], key="round 0", budget=BUDGET)
            ledger.spend([STEP, gaussian(30.0)], key="round 1", budget=BUDGET)
        timeless = [{**e, "at": "", "previous": "", "hash": ""} for e in other.entries()]
        assert [{**e, "previous": "", "hash": ""} for e in one.entries()] == timeless
        assert (one.charges(), one.counter) == (other.charges(), other.counter)
        for ledger in (one, other):
            first, second = ledger.entries()
            assert (second["previous"], second["hash"]) == (first["hash"], ledger.head)
        assert Ledger.restore(one.entries(), dataset="d").head == one.head


def test_what_fails_on_the_way_leaves_no_entry(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.spend([STEP], key="round 0", budget=BUDGET)
    append = ledger._storage.append

    def broken(entry: Entry) -> None:
        append(entry)
        raise RuntimeError("the lights went out")

    monkeypatch.setattr(ledger._storage, "append", broken)
    with pytest.raises(RuntimeError):
        ledger.spend([STEP], key="round 1", budget=BUDGET)
    monkeypatch.undo()
    assert (ledger.counter, len(ledger.entries()), ledger.charges()) == (1, 1, (STEP,))
    assert ledger.spend([STEP], key="round 1", budget=BUDGET, replay_of="").counter == 2


def test_a_ledger_that_peers_saw_further_on_is_refused(ledger: Ledger) -> None:
    ledger.spend([STEP], key="round 0", budget=BUDGET)
    seen = ledger.mark()
    ledger.refuse_older_than(seen)
    ledger.spend([STEP], key="round 1", budget=BUDGET)
    ledger.refuse_older_than(seen)
    with pytest.raises(LedgerRolledBack, match="rolled back"):
        ledger.refuse_rollback(3)
    with pytest.raises(LedgerRolledBack, match="rolled back"):
        ledger.refuse_older_than(replace(seen, counter=3))
    with pytest.raises(LedgerRolledBack, match="rewritten"):
        ledger.refuse_older_than(replace(seen, counter=2))
    with pytest.raises(LedgerRolledBack, match="another one than this site has used"):
        ledger.refuse_older_than(replace(seen, ledger="ab" * 32))


def test_a_spend_is_there_after_reopening(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.db") as ledger:
        entry = ledger.spend([STEP * 3], key="study/round 0", budget=BUDGET)
        assert (entry.counter, ledger.counter, ledger.head) == (1, 1, entry.hash)
    with Ledger(tmp_path / "ledger.db") as again:
        assert again.charges() == (STEP * 3,)
        assert again.head == entry.hash
        assert again.epsilon(1e-5) == epsilon([STEP * 3], 1e-5)


def test_the_file_is_for_the_owner_only_and_every_commit_reaches_the_disk(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.db") as ledger:
        assert (tmp_path / "ledger.db").stat().st_mode & 0o077 == 0
        assert ledger._storage.database.execute("PRAGMA synchronous").fetchone() == (2,)
        assert ledger._storage.database.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_the_step_that_would_overspend_is_refused_and_not_written(ledger: Ledger) -> None:
    assert ledger.remaining(BUDGET, STEP) == FITS
    for step in range(FITS):
        ledger.spend([STEP], key=f"step {step}", budget=BUDGET)
    assert ledger.remaining(BUDGET, STEP) == 0
    before = ledger.head
    with pytest.raises(BudgetExhausted, match=r"spent ε = 0\.98\d of 1 .*would bring it to ε = 1\.01"):
        ledger.spend([STEP], key="one more", budget=BUDGET)
    assert (ledger.counter, ledger.head) == (FITS, before)
    assert ledger.epsilon(1e-5) <= 1.0


def test_a_whole_round_is_refused_if_only_part_of_it_fits(ledger: Ledger) -> None:
    ledger.spend([STEP * 20], key="round 0", budget=BUDGET)
    assert ledger.remaining(BUDGET, STEP * 8) == 1
    assert ledger.remaining(BUDGET, STEP * 9) == 0
    with pytest.raises(BudgetExhausted):
        ledger.spend([STEP * 9], key="round 1", budget=BUDGET)


def test_a_plan_that_was_calibrated_to_the_budget_can_be_carried_out_to_its_last_step(ledger: Ledger) -> None:
    noise = calibrate(2.0, 1e-6, sample_rate=Fraction(1, 10), steps=30)
    a_round = gaussian(noise, Fraction(1, 10), 10)
    for r in range(3):
        ledger.spend([a_round], key=f"round {r}", budget=Budget(2.0, 1e-6))


def test_all_studies_on_a_data_set_compose(ledger: Ledger) -> None:
    ledger.spend([STEP * 20], key="study a", budget=None)
    ledger.spend([gaussian(30.0) * 5], key="study b", budget=BUDGET)
    assert ledger.epsilon(1e-5) == epsilon([STEP * 20, gaussian(30.0) * 5], 1e-5)
    with pytest.raises(BudgetExhausted):
        ledger.spend([gaussian(30.0) * 30, STEP], key="study b, again", budget=BUDGET)
    assert ledger.counter == 2


def test_the_sites_own_cap_wins_over_the_study() -> None:
    assert strictest(Budget(8, 1e-6), Budget(3, 1e-5)) == Budget(3, 1e-6)
    assert strictest(None, Budget(3, 1e-5)) == Budget(3, 1e-5)
    assert strictest(None, None) is None


def test_spending_again_under_the_same_key_is_charged_again(ledger: Ledger) -> None:
    for _ in range(2):
        ledger.spend([STEP], key="round 0", budget=BUDGET)
    assert ledger.charges() == (STEP * 2,)


def test_only_an_identical_replay_is_free(ledger: Ledger) -> None:
    first = ledger.spend([STEP], key="round 0", budget=BUDGET)
    assert ledger.spend([STEP], key="round 0", budget=BUDGET, replay_of="") == first
    assert ledger.counter == 1
    with pytest.raises(PrivacyError, match="not a replay"):
        ledger.spend([STEP * 2], key="round 0", budget=BUDGET, replay_of="")
    assert ledger.spend([STEP], key="round 1", budget=BUDGET, replay_of="").counter == 2


def test_a_step_without_noise_keeps_to_no_budget(ledger: Ledger) -> None:
    with pytest.raises(PrivacyError, match="no noise"):
        ledger.spend([gaussian(0)], key="round 0", budget=BUDGET)
    ledger.spend([gaussian(0)], key="round 0", budget=None)
    assert ledger.epsilon(1e-5) == float("inf")


def test_on_a_mixed_ledger_each_unit_has_its_own_epsilon_at_its_own_sensitivity(ledger: Ledger) -> None:
    ledger.spend([gaussian(20, 1, 40, unit="patient")], key="a", budget=None)
    ledger.spend([gaussian(50, 1, 10)], key="b", budget=None)
    assert ledger.units() == ("record", "patient")
    exact = epsilon([gaussian(10, 1, 40), gaussian(50, 1, 10)], 1e-5)
    assert ledger.guarantee(1e-5, "record").epsilon == pytest.approx(exact)
    assert ledger.epsilon(1e-5) == pytest.approx(exact)
    assert ledger.guarantee(1e-5).unit == "record"
    per_patient = ledger.guarantee(1e-5, "patient")
    assert (per_patient.unit, per_patient.epsilon) == ("patient", math.inf)


def test_a_budget_per_record_counts_what_patient_steps_cost_a_record(ledger: Ledger) -> None:
    """Read at unchanged cost, twice as much would fit."""
    budget = Budget(3.0, 1e-5, "record")
    ledger.spend([gaussian(20, 1, 40, unit="patient")], key="patients", budget=None)
    assert ledger.epsilon(1e-5, "patient") < 1.3 < 2.5 < ledger.epsilon(1e-5, "record") < 3.0
    step = gaussian(20)
    fits = ledger.remaining(budget, step)
    alike = Ledger()
    alike.spend([gaussian(10, 1, 40)], key="records", budget=None)
    assert fits == alike.remaining(budget, step)
    with pytest.raises(BudgetExhausted, match="per record"):
        ledger.spend([step * (fits + 1)], key="too many", budget=budget)
    ledger.spend([step * fits], key="just enough", budget=budget)
    assert ledger.epsilon(1e-5) <= 3.0
    # a patient step, too, is counted at what it costs a record
    other = Ledger()
    assert other.remaining(budget, gaussian(20, unit="patient")) == other.remaining(budget, gaussian(10))


def test_a_budget_per_patient_cannot_be_kept_where_records_were_drawn(ledger: Ledger) -> None:
    budget, step = Budget(3.0, 1e-5, "patient"), gaussian(20, unit="patient")
    assert ledger.remaining(budget, step) > 0
    ledger.spend([gaussian(500)], key="records", budget=None)
    assert ledger.remaining(budget, step) == 0
    with pytest.raises(PrivacyError, match="how many records a patient has"):
        ledger.spend([step], key="patients", budget=budget)
    with pytest.raises(PrivacyError, match="one unit"):
        strictest(budget, Budget(3.0, 1e-5))


def test_the_weakest_unit_and_claim_name_the_guarantee(ledger: Ledger) -> None:
    ledger.spend([gaussian(20, unit="patient")], key="a", budget=None)
    assert (ledger.guarantee(1e-5).unit, ledger.guarantee(1e-5).proven) == ("patient", True)
    ledger.spend([gaussian(20, proven=False)], key="b", budget=None)
    assert (ledger.guarantee(1e-5).unit, ledger.guarantee(1e-5).proven) == ("record", False)
    assert "not proven" in str(ledger.guarantee(1e-5))


@pytest.mark.parametrize(
    "edit",
    [
        "UPDATE entries SET charges = replace(charges, ', 3]', ', 1]') WHERE counter = 2",
        "UPDATE entries SET key = 'other' WHERE counter = 1",
        "DELETE FROM entries WHERE counter = 3",
        "DELETE FROM entries WHERE counter = 1",
        "DELETE FROM entries",
        "DELETE FROM ledgers",
        "UPDATE ledgers SET head = 'x'",
        "INSERT INTO entries SELECT ledger, 4, key, charges, at, previous, hash, records FROM entries WHERE counter = 3",
    ],
)
def test_an_edited_ledger_is_refused(tmp_path: Path, edit: str) -> None:
    path = tmp_path / "ledger.db"
    with Ledger(path) as ledger:
        for step in range(3):
            ledger.spend([STEP * 3], key=f"step {step}", budget=None)
    vandal = sqlite3.connect(path)
    vandal.executescript("DROP TRIGGER entries_stay; DROP TRIGGER entries_are_final;")
    assert vandal.execute(edit).rowcount
    vandal.commit()
    vandal.close()
    with pytest.raises(PrivacyError, match="edited"):
        Ledger(path)


def test_the_database_itself_refuses_to_change_an_entry(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.db") as ledger:
        ledger.spend([STEP], key="step", budget=None)
        for change in ("DELETE FROM entries", "UPDATE entries SET key = 'x'"):
            with pytest.raises(sqlite3.IntegrityError, match="never"):
                ledger._storage.database.execute(change)


@pytest.mark.parametrize("content", [b"this is not a database, but it is long enough to be one" * 40])
def test_a_file_that_is_no_ledger_is_refused_in_plain_words(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "ledger.db").write_bytes(content)
    (tmp_path / "ledger.db").chmod(0o600)
    with pytest.raises(PrivacyError, match="cannot be read"):
        Ledger(tmp_path / "ledger.db")
    with pytest.raises(PrivacyError, match="cannot be read"):
        Ledger(tmp_path / "no such folder" / "ledger.db")


def test_a_rolled_back_ledger_is_refused_by_what_peers_saw(tmp_path: Path) -> None:
    path, copy = tmp_path / "ledger.db", tmp_path / "backup.db"
    with Ledger(path) as ledger:
        ledger.spend([STEP], key="step 0", budget=None)
        ledger._storage.database.execute("VACUUM INTO ?", (str(copy),))
        copy.chmod(0o600)
        ledger.spend([STEP], key="step 1", budget=None)
        seen = ledger.mark()
        ledger.refuse_older_than(seen)
        ledger.refuse_rollback(1)
        ledger.refuse_rollback(0)
    with Ledger(copy) as old:
        with pytest.raises(PrivacyError, match="rolled back"):
            old.refuse_older_than(seen)
        old.spend([STEP * 2], key="another step 1", budget=None)
        old.refuse_rollback(seen.counter)  # the counter alone has caught up; the head has not
        with pytest.raises(PrivacyError, match="rewritten"):
            old.refuse_older_than(seen)


def test_a_checkpoint_restores_the_ledger_and_an_edited_checkpoint_is_refused() -> None:
    ledger = Ledger(dataset="site a")
    ledger.spend([STEP * 2], key="round 0", budget=BUDGET)
    ledger.spend([STEP], key="round 1", budget=BUDGET)
    saved = json.loads(json.dumps(ledger.entries()))
    again = Ledger.restore(saved, dataset="site a")
    assert (again.head, again.charges()) == (ledger.head, ledger.charges())
    assert again.spend([STEP], key="round 1", budget=BUDGET, replay_of="").counter == 2
    again.spend([STEP], key="round 2", budget=BUDGET)
    with pytest.raises(PrivacyError, match="other data"):
        Ledger.restore(saved, dataset="site b")
    saved[0]["charges"][0][1] = 1
    with pytest.raises(PrivacyError, match="edited"):
        Ledger.restore(saved, dataset="site a")
    with pytest.raises(PrivacyError, match="cannot be read"):
        Ledger.restore([{"counter": 1}], dataset="site a")


def test_threads_share_a_ledger_without_losing_count(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.db") as ledger:
        work = [
            threading.Thread(
                target=lambda i=i: [ledger.spend([STEP], key=f"{i}", budget=None) for _ in range(10)]
            )
            for i in range(4)
        ]
        for thread in work:
            thread.start()
        for thread in work:
            thread.join()
        assert (ledger.counter, ledger.charges()) == (40, (STEP * 40,))
    assert Ledger(tmp_path / "ledger.db").counter == 40


SPENDER = """
import sys
from confrere.core.errors import BudgetExhausted
from confrere.privacy.charges import gaussian
from confrere.privacy.budget import Budget
from confrere.privacy.ledger import Ledger
ledger = Ledger(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
won = 0
try:
    while True:
        ledger.spend([gaussian(20.0)], key=sys.argv[2], budget=Budget(1.0, 1e-5))
        won += 1
        print("spent", flush=True)
except BudgetExhausted:
    print("refused", won, flush=True)
"""


def spender(path: Path, name: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SPENDER, str(path), name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def test_two_processes_never_both_take_the_last_step(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    pair = [spender(path, name) for name in "ab"]
    for process in pair:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    won = []
    for process in pair:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in pair:
        won.append(int(process.communicate(timeout=60)[0].split()[-1]))
    with Ledger(path) as ledger:
        assert sum(won) == ledger.counter == FITS
        assert ledger.epsilon(1e-5) <= 1.0


def test_a_killed_process_over_counts_and_never_under_counts(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    process = spender(path, "victim")
    assert process.stdout is not None
    assert process.stdin is not None
    process.stdout.readline()
    process.stdin.write("\n")
    process.stdin.flush()
    used = 0
    while used < 5:
        used += process.stdout.readline() == "spent\n"
    os.kill(process.pid, signal.SIGKILL)
    used += process.stdout.read().count("spent")  # `communicate` would forget lines that were read ahead
    process.wait()
    with Ledger(path) as ledger:  # opens, and its chain is whole
        assert used <= ledger.counter <= used + 1
        assert ledger.charges() == (Charge(STEP.event, ledger.counter),)


def test_a_spend_that_cannot_be_written_is_an_error_and_spends_nothing(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.db") as ledger:
        ledger._storage.database.execute("PRAGMA query_only = 1")
        with pytest.raises(PrivacyError, match="nothing was spent"):
            ledger.spend([STEP], key="step", budget=None)
        assert ledger.counter == 0
    with pytest.raises(PrivacyError, match="at least one step"):
        Ledger().spend([], key="step", budget=None)


def test_a_budget_must_make_sense() -> None:
    for numbers in [(0, 1e-6), (-1, 1e-6), (1, 0), (1, 1), (float("nan"), 1e-6)]:
        with pytest.raises(PrivacyError):
            Budget(*numbers)


def test_a_ledger_in_memory_can_be_read_while_it_is_written() -> None:
    ledger, done = Ledger(dataset="d"), threading.Event()

    def read() -> None:
        while not done.is_set():
            assert len(ledger.head) == 64

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for number in range(500):
        ledger.spend([STEP], key=f"round {number}", budget=None)
    done.set()
    for reader in readers:
        reader.join()
    assert Ledger.restore(ledger.entries(), dataset="d").head == ledger.head


def test_the_chain_in_memory_is_that_of_a_ledger_that_was_asked_after_every_entry() -> None:
    asked, not_asked = Ledger(dataset="d"), Ledger(dataset="d")
    for number in range(4):
        for ledger in (asked, not_asked):
            ledger.spend([STEP], key=f"round {number % 3}", budget=None)
        assert asked.head == asked.entries()[-1]["hash"]
    assert not_asked.head == asked.head
    assert not_asked.entries() == asked.entries()
    not_asked.refuse_older_than(LedgerMark(asked.id, 2, asked.entries()[1]["hash"]))


@pytest.mark.parametrize("where", ["memory", "file"])
def test_a_fact_is_written_once_for_good_and_without_a_charge(where: str, tmp_path: Path) -> None:
    path = tmp_path / "ledger" if where == "file" else None
    ledger = Ledger(path)
    assert ledger.written("run/3/proxy", "vote") is None
    assert ledger.write_once("run/3/proxy", "vote", "one") == "one"
    assert ledger.write_once("run/3/proxy", "vote", "two") == "one"
    assert ledger.write_once("run/3/proxy", "vote=", "three") == "three"
    assert ledger.write_once("run/3", "proxy/vote", "four") == "four"
    assert ledger.counter == 3
    assert ledger.charges() == ()
    if path is not None:
        again = Ledger(path)
        assert again.written("run/3/proxy", "vote") == "one"
        assert again.write_once("run/3/proxy", "vote", "two") == "one"
        assert ledger.counter == 3


def test_a_fact_raises_the_counter_that_peers_remember(tmp_path: Path) -> None:
    ledger, noted = Ledger(tmp_path / "ledger"), []
    ledger.noted = lambda id, counter: noted.append(counter)
    ledger.write_once("run/3/proxy", "vote", "one")
    ledger.write_once("run/3/proxy", "vote", "one")
    assert noted == [1]


def test_a_fact_before_the_patients_are_known_does_not_make_a_ledger_one_of_anyones(tmp_path: Path) -> None:
    """Otherwise every other population of the file would be charged to it too."""
    first = Ledger(tmp_path / "ledger", population="first")
    first.write_once("run/3/proxy", "vote", "one")
    second = Ledger(tmp_path / "ledger", population="second")
    second.register([b"patient"], "check")
    assert second.also == ()
    first.spend([STEP], key="round 0", budget=None)
    second.register([b"patient"], "check")
    assert len(second.also) == 1


def test_a_charge_of_a_masked_sum_is_never_used_again(tmp_path: Path) -> None:
    share = masked(SumTerms(8, 1, 1, noise_std=2.0, clip=1.0, size=10))
    for charge, expected in ((STEP, 1), (share, 2)):
        path = tmp_path / str(expected)
        for _ in range(2):  # two processes, one after the other
            with Ledger(path) as ledger:
                ledger.spend([charge], key="run/round 0", budget=None, records="r", reuse=True)
                assert ledger.released("run/round 0", "r") is None
        with Ledger(path) as ledger:
            assert sum(c.count for c in ledger.charges()) == expected * charge.count
