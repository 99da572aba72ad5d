"""Rules that bear attackers: they agree with the textbook, and attackers cannot move them far."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from confrere.core.custody import Custody, public
from confrere.core.errors import StudyError
from confrere.core.model import Model
from confrere.core.params import Params
from confrere.core.parcel import Parcel
from confrere.exchange import robust
from confrere.exchange.combine import combiners, mean

HONEST = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
ALL: dict[str, dict[str, Any]] = {
    "median": {"attackers": 2},
    "trimmed-mean": {"attackers": 2},
    "krum": {"attackers": 2},
    "multi-krum": {"attackers": 2},
    "geometric-median": {"attackers": 2},
    "centred-clip": {"attackers": 2},
    "self-centred-clip": {"attackers": 2},
}
NEEDS = {"krum": 7, "multi-krum": 7}


def model(numbers: Any, custody: Custody = Custody.PROTECTED) -> Model:
    weights = {"w": torch.as_tensor(numbers, dtype=torch.float32), "steps": torch.tensor(3)}
    return Model(Params(weights), "t", custody)


def parcels(rows: Any, **scalars: float) -> list[Parcel]:
    tagged = {k: public(v) for k, v in scalars.items()}
    return [Parcel("r", 0, 0, 0, f"s{i}", "me", 0, model(row), tagged) for i, row in enumerate(rows)]


def combined(name: str, own: Any, rows: Any, **options: Any) -> torch.Tensor:
    return combiners[name](**options)(model(own), 1.0, parcels(rows)).params["w"]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("attack", [1e6, -1e6, 1e30, 3.0])
@pytest.mark.parametrize("spare", [0, 1, 2])
def test_attackers_within_the_bound_cannot_take_it_out_of_the_honest_crowd(
    name: str, attack: float, spare: int
) -> None:
    honest = HONEST[: NEEDS.get(name, 5) - 2 + spare]
    rows = [*honest[1:], torch.full((5,), attack), torch.full((5,), attack)]
    centre = honest.mean(0)
    spread = (honest - centre).norm(dim=1).max()
    assert (combined(name, honest[0], rows, **ALL[name]) - centre).norm() <= 2 * spread
    if abs(attack) > 100:
        assert (mean(model(honest[0]), public(1.0), parcels(rows)).params["w"] - centre).norm() > 100


@pytest.mark.parametrize("name", ALL)
def test_when_all_agree_so_does_the_result(name: str) -> None:
    assert torch.allclose(combined(name, HONEST[0], [HONEST[0]] * 6, **ALL[name]), HONEST[0])


@pytest.mark.parametrize("name", ALL)
def test_too_many_attackers_for_the_models_are_refused_with_the_bound(name: str) -> None:
    needs = NEEDS.get(name, 5)
    combined(name, HONEST[0], HONEST[1:needs], **ALL[name])
    with pytest.raises(
        StudyError, match=f"2 attackers only among at least {needs} models.*here are {needs - 1}"
    ):
        combined(name, HONEST[0], HONEST[1 : needs - 1], **ALL[name])


@pytest.mark.parametrize("name", ALL)
def test_too_few_models_may_also_mean_ones_own(name: str) -> None:
    assert torch.equal(combined(name, HONEST[0], HONEST[1:3], too_few="keep", **ALL[name]), HONEST[0])


@pytest.mark.parametrize("name", ALL)
def test_a_site_that_received_nothing_goes_on_with_its_own(name: str) -> None:
    own = model(HONEST[0])
    assert combiners[name](**ALL[name])(own, public(1.0), []) is own


@pytest.mark.parametrize("name", ALL)
def test_what_does_not_fit_or_is_not_finite_is_left_aside(name: str) -> None:
    inbox = parcels(HONEST[1:])
    odd = [
        Parcel("r", 0, 0, 0, "x1", "me", 0, model([float("nan")] * 5)),
        Parcel("r", 0, 0, 0, "x2", "me", 0, model([float("inf")] * 5)),
        Parcel("r", 0, 0, 0, "x3", "me", 0, model([1.0])),
        Parcel("r", 0, 0, 0, "x4", "me", 0, Model(model([0.0] * 5).params, "other", Custody.PUBLIC)),
        Parcel("r", 0, 0, 0, "x5", "me", 0, None),
    ]
    own, rule = model(HONEST[0]), combiners[name](**ALL[name])
    for found, left in ((1, 1), (2, 0), (5, 0)):  # who gave itself away need not be borne any more
        calm = combiners[name](**{**ALL[name], "attackers": left})
        assert rule(own, public(1.0), [*odd[:found], *inbox]).params.equals(
            calm(own, public(1.0), inbox).params
        )


@pytest.mark.parametrize("name", ALL)
def test_attackers_that_send_nonsense_cannot_stop_a_round(name: str) -> None:
    honest = parcels(HONEST[1 : NEEDS.get(name, 5) - 2])
    odd = [Parcel("r", 0, 0, 0, f"x{n}", "me", 0, model([float("nan")] * 5)) for n in range(2)]
    found = combiners[name](**ALL[name])(model(HONEST[0]), public(1.0), [*honest, *odd])
    assert found.params.is_finite()
    with pytest.raises(StudyError, match="tolerates 2 attackers only"):
        combiners[name](**ALL[name])(model(HONEST[0]), public(1.0), parcels(HONEST[1:2]))


@pytest.mark.parametrize("name", ALL)
def test_the_bound_is_the_most_that_a_rule_bears(name: str) -> None:
    for attackers in range(4):
        bound = combiners[name](attackers=attackers).bound
        assert bound.most(bound.needs) == attackers
        assert bound.most(bound.needs - 1) == attackers - 1
        assert bound.most(bound.needs + bound.each) == attackers + 1


@pytest.mark.parametrize("name", ALL)
def test_a_sender_has_one_voice_and_its_declared_weight_does_not_count(name: str) -> None:
    rule = combiners[name](**ALL[name])
    own, inbox = model(HONEST[0]), parcels(HONEST[1:])
    loud = parcels(HONEST[1:], weight=1e6)
    assert rule(own, public(1.0), loud).params.equals(rule(own, public(1.0), inbox).params)
    older = [Parcel("r", 0, 0, 0, "s0", "me", -1 - i, model([1e6] * 5)) for i in range(20)]
    assert rule(own, public(1.0), inbox + older).params.equals(rule(own, public(1.0), inbox).params)


@pytest.mark.parametrize("name", ALL)
def test_the_result_is_held_as_closely_as_whatever_was_looked_at(name: str) -> None:
    inbox = parcels(HONEST[1:])
    inbox[3] = Parcel("r", 0, 0, 0, "s3", "me", 0, model(HONEST[4], Custody.UNPROVEN))
    result = combiners[name](**ALL[name])(model(HONEST[0]), public(1.0), inbox)
    assert result.custody == Custody.UNPROVEN
    assert int(result.params["steps"]) == 3
    assert result.params.shapes == model(HONEST[0]).params.shapes


@pytest.mark.parametrize("name", ALL)
def test_the_order_of_arrival_makes_no_difference(name: str) -> None:
    rule = combiners[name](**ALL[name])
    inbox = parcels(HONEST[1:])
    assert rule(model(HONEST[0]), public(1.0), inbox).params.equals(
        rule(model(HONEST[0]), public(1.0), inbox[::-1]).params
    )


def test_the_median_of_an_even_number_is_between_the_middle_two() -> None:
    assert combined("median", [0.0], [[1.0], [2.0], [100.0]]).tolist() == [1.5]


def test_the_trimmed_mean_leaves_out_both_ends() -> None:
    assert combined("trimmed-mean", [0.0], [[1.0], [2.0], [6.0], [100.0]], attackers=1).tolist() == [3.0]


def test_krum_picks_one_of_the_crowd_and_multi_krum_averages_several() -> None:
    crowd = [[0.0], [0.1], [0.2], [50.0]]
    picked = combined("krum", [0.1], crowd, attackers=1)
    assert picked.tolist() == pytest.approx([0.1])
    assert combined("multi-krum", [0.1], crowd, attackers=1).tolist() == pytest.approx([0.1])
    assert combined("multi-krum", [0.1], crowd, attackers=1, chosen=9).tolist() == pytest.approx([0.1])


def test_the_geometric_median_minimises_the_sum_of_distances() -> None:
    found = combined("geometric-median", HONEST[0], HONEST[1:])

    def cost(x: torch.Tensor) -> float:
        return float((HONEST.double() - x.double()).norm(dim=1).sum())

    for direction in torch.cat([torch.eye(5), -torch.eye(5)]):
        assert cost(found) <= cost(found + 1e-3 * direction)


def test_the_geometric_median_does_not_stop_at_a_model_that_it_happens_to_hit() -> None:
    # the coordinate median, where the iteration starts, is the model at the origin; the optimum is elsewhere
    rows = torch.tensor([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [1.2, 0, 0], [0, 1.2, 0], [0, 0, 1.2]])
    assert torch.equal(rows.median(0).values, rows[0])
    found = combined("geometric-median", rows[0], rows[1:])
    assert (rows - found).norm(dim=1).sum() < rows.norm(dim=1).sum() - 0.01


def test_the_geometric_median_of_points_on_a_line_is_the_middle_one() -> None:
    found = combined("geometric-median", [0.0, 0.0], [[1.0, 1.0], [9.0, 9.0]])
    assert found.tolist() == pytest.approx([1.0, 1.0], abs=1e-6)


def test_centred_clipping_with_a_wide_radius_is_the_mean() -> None:
    for name in ("centred-clip", "self-centred-clip"):
        found = combined(name, HONEST[0], HONEST[1:], radius=1e6)
        assert torch.allclose(found, HONEST.mean(0), atol=1e-6)


def test_self_centred_clipping_moves_by_less_than_its_radius_whoever_attacks() -> None:
    own = HONEST[0]
    found = combined("self-centred-clip", own, [[1e9] * 5] * 40, radius=0.5, attackers=40)
    assert 0 < (found - own).norm() < 0.5


def test_options_that_make_no_sense_are_refused() -> None:
    with pytest.raises(StudyError, match="radius"):
        robust.CentredClip(radius=-1.0)
    with pytest.raises(StudyError, match="radius"):
        robust.SelfCentredClip(radius="wide")  # type: ignore[arg-type]
    with pytest.raises(StudyError, match="chosen"):
        robust.MultiKrum(chosen=0)
    with pytest.raises(StudyError, match="attackers"):
        combined("median", HONEST[0], HONEST[1:], attackers=-1)
