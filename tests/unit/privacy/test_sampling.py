"""Each unit is drawn at the accounted rate, alone, and from the declared size."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from confrere.core.errors import ConfrereError, DataError, StudyError
from confrere.privacy.noise import Secure, Seeded
from confrere.privacy.sampling import FullBatch, Patients, Poisson, epoch


@pytest.mark.parametrize(
    ("declared", "batch", "steps"), [(2338, 32, 74), (100, 100, 1), (100, 99, 2), (1, 1, 1)]
)
def test_an_epoch_follows_from_the_declared_size(declared: int, batch: int, steps: int) -> None:
    assert epoch(declared, batch) == (steps, Fraction(1, steps))


@pytest.mark.parametrize(("declared", "batch"), [(0, 1), (10, 0), (10, 11), (-5, 1)])
def test_an_impossible_epoch_is_refused(declared: int, batch: int) -> None:
    with pytest.raises(StudyError):
        epoch(declared, batch)


@pytest.mark.parametrize("randomness", [Seeded(3), Secure()])
def test_records_are_drawn_at_the_rate_and_independently(randomness) -> None:  # type: ignore[no-untyped-def]
    sampling, n, steps = Poisson(Fraction(1, 8)), 2000, 60
    drawn = torch.zeros(steps, n)
    for step in range(steps):
        indices = sampling.draw(n, randomness)
        assert indices.dtype == torch.int64
        assert len(set(indices.tolist())) == len(indices)
        drawn[step, indices] = 1
    rate = 1 / 8
    spread = (rate * (1 - rate)) ** 0.5
    assert abs(float(drawn.mean()) - rate) < 5 * spread / (steps * n) ** 0.5
    sizes = drawn.sum(1)
    assert 0.5 * spread * n**0.5 < float(sizes.std()) < 1.6 * spread * n**0.5  # Poisson, not fixed batches
    both = float((drawn[:-1] * drawn[1:]).mean())
    assert abs(both - rate**2) < 5 * rate / ((steps - 1) * n) ** 0.5


def test_a_batch_may_be_empty() -> None:
    assert len(Poisson(Fraction(1, 1000)).draw(3, Seeded(0))) == 0


def test_a_drawn_patient_comes_with_all_records_and_no_other() -> None:
    patients = Patients(["a", "b", "a", "c", "b", "a"])
    seen = set()
    randomness = Seeded(5)
    for _ in range(60):
        indices = Poisson(Fraction(1, 2), unit="patient").draw(patients, randomness)
        names = {int(patients.number[i]) for i in indices}
        assert indices.tolist() == [i for i in range(6) if int(patients.number[i]) in names]
        seen.add(frozenset(names))
    assert len(seen) == 8  # every set of patients occurs, so they are drawn independently
    assert (len(patients), patients.most_records) == (3, 3)
    assert patients.of(torch.tensor([1, 3, 4])).tolist() == [0, 1, 0]


@pytest.mark.parametrize("missing", [None, "", "  ", float("nan")])
def test_a_record_without_a_patient_is_refused(missing: object) -> None:
    with pytest.raises(DataError, match="record 2 has no patient id"):
        Patients(["a", missing])


def test_protecting_patients_needs_to_know_them() -> None:
    with pytest.raises(DataError, match="which patient"):
        Poisson(Fraction(1, 2), unit="patient").draw(10, Seeded(0))
    with pytest.raises(DataError, match="which patient"):
        FullBatch(unit="patient").draw(10, Seeded(0))


def test_the_full_batch_is_everybody() -> None:
    assert FullBatch().draw(4, Seeded(0)).tolist() == [0, 1, 2, 3]
    assert FullBatch(unit="patient").draw(Patients(["a", "a", "b"]), Seeded(0)).tolist() == [0, 1, 2]
    assert FullBatch().rate == 1


@pytest.mark.parametrize("rate", [0, 1.5, -0.1])
def test_an_impossible_rate_is_refused(rate: float) -> None:
    with pytest.raises(ConfrereError, match="rate"):
        Poisson(rate)  # type: ignore[arg-type]
