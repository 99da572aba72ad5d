"""Metrics against values worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from confrere.core.errors import StudyError
from confrere.core.metrics import FLOOR, area
from confrere.core.params import Params
from confrere.data.records import Records
from confrere.learning.evaluation import (
    knowing_nothing,
    loss_metrics,
    measure,
    predict,
)
from confrere.learning.networks.architectures import architecture
from confrere.learning.networks.network import Network


def auc(scores: torch.Tensor, positive: torch.Tensor) -> float:
    """The area of plain records, each counted once."""
    return float(area(scores.double().numpy(), positive.numpy(), np.ones((1, len(scores))))[0])


def logit(p: float) -> float:
    return math.log(p / (1 - p))


def test_macro_accuracy_is_the_mean_of_the_classes_own_accuracies() -> None:
    outputs = torch.tensor([[2.0, 0, 0], [2.0, 0, 0], [2.0, 0, 0], [0, 2.0, 0], [0, 0, 2.0], [0, 2.0, 0]])
    found = measure(outputs, torch.tensor([0, 0, 0, 0, 2, 2]))
    assert found["accuracy"] == pytest.approx(4 / 6)
    assert found["macro_accuracy"] == pytest.approx((3 / 4 + 1 / 2) / 2)  # class 1 has no record, so no say


def test_a_single_output_is_the_logit_of_class_one() -> None:
    outputs = torch.tensor([[logit(0.8)], [logit(0.3)], [logit(0.6)], [logit(0.1)]])
    found = measure(outputs, torch.tensor([1, 1, 0, 0]))
    assert found["accuracy"] == 0.5
    expected = -(math.log(0.8) + math.log(0.3) + math.log(0.4) + math.log(0.9)) / 4
    assert found["log_loss"] == pytest.approx(expected, rel=1e-6)
    assert found["auc"] == pytest.approx(3 / 4)  # of four pairs only (0.3, 0.6) stands the wrong way


@pytest.mark.parametrize(
    ("scores", "positive", "expected"),
    [
        ([1.0, 2.0, 3.0, 4.0], [0, 0, 1, 1], 1.0),
        ([4.0, 3.0, 2.0, 1.0], [0, 0, 1, 1], 0.0),
        ([1.0, 1.0, 1.0], [0, 1, 1], 0.5),
        ([1.0, 2.0, 2.0, 3.0], [0, 0, 1, 1], 3.5 / 4),
        ([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1], 3 / 4),
    ],
)
def test_auc_counts_pairs_and_a_tie_as_half(
    scores: list[float], positive: list[int], expected: float
) -> None:
    assert auc(torch.tensor(scores), torch.tensor(positive).bool()) == pytest.approx(expected)


def test_auc_agrees_with_counting_all_pairs() -> None:
    source = torch.Generator().manual_seed(0)
    scores = torch.randint(0, 8, (60,), generator=source).double()
    positive = torch.rand(60, generator=source) < 0.4
    pairs = [(float(a > b) + 0.5 * float(a == b)) for a in scores[positive] for b in scores[~positive]]
    assert auc(scores, positive) == pytest.approx(sum(pairs) / len(pairs))


def test_auc_of_several_classes_is_the_mean_of_one_against_the_rest() -> None:
    outputs = torch.log_softmax(torch.randn(30, 3, generator=torch.Generator().manual_seed(1)), 1)
    truth = torch.arange(30) % 3
    expected = sum(auc(outputs[:, c], truth == c) for c in range(3)) / 3
    assert measure(outputs, truth)["auc"] == pytest.approx(expected)


def test_a_metric_that_the_records_do_not_define_is_left_out() -> None:
    assert "auc" not in measure(torch.tensor([[1.0], [2.0]]), torch.tensor([1, 1]))
    assert "r2" not in measure(torch.tensor([[1.0], [2.0]]), torch.tensor([3.0, 3.0]))
    assert measure(torch.zeros(0, 1), torch.zeros(0, dtype=torch.int64)) == {}


def test_regression_by_hand() -> None:
    found = measure(torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([1.0, 3.0, 5.0]))
    assert set(found) == {"rmse", "r2"}
    assert found["rmse"] == pytest.approx(math.sqrt(2 / 3))
    assert found["r2"] == pytest.approx(1 - 2 / 8)


@pytest.mark.parametrize("shape", [(3,), (3, 1)])
def test_predicting_the_mean_explains_nothing(shape: tuple[int, ...]) -> None:
    targets = torch.tensor([1.0, 2.0, 6.0]).reshape(shape)
    assert measure(torch.full((3, 1), 3.0), targets)["r2"] == pytest.approx(0.0)


def test_multilabel_by_hand() -> None:
    outputs = torch.tensor([[logit(0.9), logit(0.2)], [logit(0.4), logit(0.7)]])
    found = measure(outputs, torch.tensor([[1.0, 0.0], [1.0, 1.0]]))
    assert found["accuracy"] == 0.75
    expected = -(math.log(0.9) + math.log(0.8) + math.log(0.4) + math.log(0.7)) / 4
    assert found["log_loss"] == pytest.approx(expected, rel=1e-6)
    assert found["auc"] == 1.0  # only the second label has both kinds
    assert found["macro_accuracy"] == 0.75  # (1/2) of the first label's positives; both kinds of the second
    assert found["f1"] == pytest.approx((2 / 3 + 1) / 2)


def test_saying_no_to_a_rare_label_is_accurate_and_still_worth_nothing() -> None:
    targets = torch.zeros(100, 2)
    targets[:5] = 1.0
    found = measure(torch.full((100, 2), -3.0), targets)
    assert found["accuracy"] == 0.95
    assert found["macro_accuracy"] == 0.5
    assert found["f1"] == 0.0
    assert found["auc"] == 0.5


def test_the_error_of_a_number_is_in_the_unit_of_its_column() -> None:
    outputs, targets = torch.tensor([[0.5], [0.0]]), torch.tensor([0.0, 0.0])
    assert measure(outputs, targets, spread=40.0)["rmse"] == pytest.approx(
        40 * measure(outputs, targets)["rmse"]
    )


def test_one_absurd_prediction_does_not_decide_the_log_loss() -> None:
    found = measure(torch.tensor([[-1e6], [0.0]]), torch.tensor([1, 1]))
    assert found["log_loss"] == pytest.approx((-FLOOR + math.log(2)) / 2)


def test_knowing_nothing_is_the_loss_of_the_class_shares() -> None:
    reference = torch.tensor([0, 0, 0, 1])  # smoothed by one record each: 4/6 and 2/6
    expected = -(math.log(4 / 6) + math.log(2 / 6)) / 2
    assert knowing_nothing(torch.tensor([0, 1]), reference) == pytest.approx(expected)
    assert knowing_nothing(torch.tensor([1.0, 5.0]), torch.tensor([2.0, 4.0])) == pytest.approx(4.0)
    labels = torch.tensor([[1.0, 0.0], [1.0, 1.0]])  # smoothed by one of each kind: 3/4 and 2/4
    assert knowing_nothing(labels[:1], labels) == pytest.approx(-math.log(3 / 4) - math.log(2 / 4))


def test_prediction_is_in_evaluation_mode_and_leaves_the_mode_as_it_was() -> None:
    module = nn.Sequential(nn.Dropout(0.9), nn.Linear(2, 1)).train()
    inputs = torch.ones(5, 2)
    assert torch.equal(predict(module, inputs), predict(module, inputs, batch=2))
    assert module.training


def test_a_model_that_says_half_is_worth_what_knowing_nothing_is() -> None:
    records = Records(torch.zeros(4, 2), torch.tensor([0, 1, 0, 1]))
    found = loss_metrics(torch.zeros(4, 1), records, records)
    assert found["loss"] == pytest.approx(math.log(2), rel=1e-6)
    assert found["baseline_loss"] == pytest.approx(math.log(2), rel=1e-6)


def test_weights_are_loaded_in_one_piece_or_by_name() -> None:
    made = architecture({"name": "mlp", "hidden": [5]}, (3,), 2)
    one, other = Network(made, seed=3), Network(made, seed=4)
    other.load(one.params())
    assert other.params().equals(one.params())
    assert torch.equal(other.flat, one.flat)
    with pytest.raises(StudyError, match="another architecture"):
        other.load(Params({"w": torch.zeros(3)}))


def test_weights_that_do_not_fit_are_refused_and_other_formats_converted() -> None:
    network = Network(architecture({"name": "mlp", "hidden": [5]}, (3,), 2))
    params = network.params()
    assert network.fits(params)
    others = [{**params, "z": torch.ones(2)}, {f"0{n}": t for n, t in params.items()}]
    for other in others:
        assert not network.fits(Params(other))
        with pytest.raises(StudyError, match="another architecture"):
            network.load(Params(other))
    double = Params({n: t.double() for n, t in params.items()})
    assert not network.fits(double)
    network.load(double)
    assert network.params().equals(params)
