"""Losses record by record, distillation in both directions, and who is read."""

from __future__ import annotations

import math

import pytest
import torch

from confrere.core.custody import Custody, private, public
from confrere.core.loss_inspection import contents_of
from confrere.core.model import Model
from confrere.core.params import Params
from confrere.learning.objectives import (
    Distilled,
    Near,
    Supervised,
    divergence,
    log_probabilities,
    mutual,
    supervised_loss,
)

CLASS = torch.tensor([0])


def outputs(*shares: float) -> torch.Tensor:
    return torch.tensor([[math.log(s) for s in shares]])


def kl(p: tuple[float, ...], q: tuple[float, ...]) -> float:
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


def test_the_usual_direction_is_from_the_teacher_to_the_student() -> None:
    student, teacher = (0.7, 0.2, 0.1), (0.1, 0.3, 0.6)
    both = outputs(*student), outputs(*teacher)
    assert float(divergence(*both, "teacher-student", CLASS)) == pytest.approx(kl(teacher, student), rel=1e-5)
    assert float(divergence(*both, "student-teacher", CLASS)) == pytest.approx(kl(student, teacher), rel=1e-5)
    assert kl(teacher, student) != pytest.approx(kl(student, teacher), rel=0.05)


def test_a_single_logit_diverges_like_its_two_classes() -> None:
    ours, theirs = math.log(0.8 / 0.2), math.log(0.3 / 0.7)
    found = divergence(torch.tensor([[ours]]), torch.tensor([[theirs]]), "teacher-student", CLASS)
    assert float(found) == pytest.approx(kl((0.7, 0.3), (0.2, 0.8)), rel=1e-5)


@pytest.mark.parametrize("direction", ["teacher-student", "student-teacher"])
def test_who_agrees_does_not_diverge(direction: str) -> None:
    same = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    assert divergence(same, same, direction, CLASS.expand(6)).abs().max() < 1e-6  # type: ignore[arg-type]


def test_numbers_diverge_by_their_squared_distance() -> None:
    found = divergence(
        torch.tensor([[1.0], [2.0]]), torch.tensor([[0.0], [4.0]]), "teacher-student", torch.ones(2)
    )
    assert found.tolist() == [1.0, 4.0]


def test_several_labels_diverge_each_as_yes_and_no() -> None:
    ours, theirs = torch.tensor([[0.5, -2.0]]), torch.tensor([[1.5, 0.3]])
    for direction in ("teacher-student", "student-teacher"):
        alone = [divergence(ours[:, [c]], theirs[:, [c]], direction, CLASS) for c in range(2)]  # type: ignore[arg-type]
        both = divergence(ours, theirs, direction, torch.ones(1, 2))  # type: ignore[arg-type]
        assert float(both) == pytest.approx(sum(float(a) for a in alone), rel=1e-5)


def test_each_task_has_its_loss_per_record() -> None:
    binary = supervised_loss(torch.tensor([[0.0], [math.log(3)]]), torch.tensor([1, 0]))
    assert binary.tolist() == pytest.approx([math.log(2), math.log(4)])
    several = supervised_loss(outputs(0.5, 0.3, 0.2), torch.tensor([2]))
    assert several.tolist() == pytest.approx([-math.log(0.2)])
    regression = supervised_loss(torch.tensor([[1.0], [2.0]]), torch.tensor([3.0, 2.0]))
    assert regression.tolist() == [4.0, 0.0]
    labels = supervised_loss(torch.zeros(1, 3), torch.tensor([[0.0, 1.0, 1.0]]))
    assert labels.tolist() == pytest.approx([3 * math.log(2)])


def test_log_probabilities_of_a_logit_are_those_of_its_two_classes() -> None:
    found = log_probabilities(torch.tensor([[math.log(4)]])).exp()
    assert found.tolist() == [pytest.approx([0.2, 0.8])]


def test_distillation_weighs_labels_against_the_teacher() -> None:
    own, teacher = outputs(0.7, 0.3), outputs(0.2, 0.8)
    loss = Distilled("proxy", public(0.25))
    expected = 0.75 * -math.log(0.7) + 0.25 * kl((0.2, 0.8), (0.7, 0.3))
    assert float(loss(own, {"proxy": teacher}, CLASS)) == pytest.approx(expected, rel=1e-5)
    assert float(Distilled("proxy", public(0.0))(own, {}, CLASS)) == pytest.approx(-math.log(0.7), rel=1e-5)


def test_losses_say_whom_they_read() -> None:
    assert Supervised().reads == frozenset()
    assert Near("start", 0.1).reads == {"start"}
    assert Distilled("teacher", public(0.5)).reads == {"teacher"}
    both = mutual(public(0.5), public(0.5), "teacher")
    assert (both["private"].reads, both["proxy"].reads) == (frozenset(["proxy"]), frozenset(["teacher"]))
    assert mutual(public(0.5), public(0.5), None)["proxy"].reads == frozenset()


@pytest.mark.parametrize(
    ("weight", "teacher", "expected"),
    [
        (public(0.5), Custody.PROTECTED, Custody.PROTECTED),
        (public(0.5), Custody.PRIVATE, Custody.PRIVATE),
        (private(0.5), Custody.PROTECTED, Custody.PRIVATE),
        (public(0.5), Custody.UNPROVEN, Custody.UNPROVEN),
    ],
)
def test_a_loss_is_held_as_closely_as_what_it_reads(
    weight: object, teacher: Custody, expected: Custody
) -> None:
    models = {"teacher": Model(Params({}), "any", teacher)}
    assert contents_of(Distilled("teacher", weight)).custody(models) == expected  # type: ignore[arg-type]
