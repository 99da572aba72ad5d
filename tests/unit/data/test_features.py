"""Features of pictures: fixed, one picture at a time, of norm 1."""

from __future__ import annotations

import pytest
import torch

from confrere.core.errors import StudyError
from confrere.data.encode.image_features import encode, features, gradients, with_features
from confrere.data.records import Federation, Records, SiteData
from confrere.data.tasks import Task


def pictures(count: int, *shape: int) -> torch.Tensor:
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 8, 8)])
def test_no_record_contributes_more_than_norm_one(shape: tuple[int, ...]) -> None:
    norms = gradients(pictures(20, *shape)).norm(dim=1)
    assert float(norms.max()) <= 1 + 1e-5
    assert float(norms.min()) > 0.9


def test_the_features_of_a_picture_depend_on_it_alone() -> None:
    many = pictures(30, 1, 28, 28)
    together, alone = gradients(many), torch.cat([gradients(one[None]) for one in many])
    assert torch.allclose(together, alone, atol=1e-6)


def test_an_empty_picture_gives_numbers() -> None:
    assert bool(gradients(torch.zeros(2, 1, 28, 28)).isfinite().all())


def test_brighter_light_does_not_change_what_a_picture_shows() -> None:
    picture = pictures(5, 1, 28, 28)
    assert torch.allclose(gradients(picture), gradients(0.5 * picture), atol=1e-4)


def test_an_edge_is_told_from_the_same_edge_turned() -> None:
    upright = torch.zeros(1, 1, 28, 28)
    upright[..., 14:] = 1
    assert float((gradients(upright) * gradients(upright.transpose(2, 3))).sum()) < 0.5


def test_many_pictures_are_encoded_as_few_are() -> None:
    many = pictures(1100, 1, 8, 8)
    assert torch.allclose(encode(many, gradients)[1050:], gradients(many[1050:]), atol=1e-6)
    assert encode(many[:0], gradients).shape == (0, gradients(many[:1]).shape[1])


def federation(*shape: int) -> Federation:
    def some(count: int) -> Records:
        return Records(pictures(count, *shape), torch.arange(count) % 3)

    shared = some(6)
    sites = {n: SiteData(n, some(9), some(3), some(4), common_test=shared) for n in ("a", "b")}
    return Federation("f", Task("multiclass", ("x", "y", "z"), shape), sites)


def test_all_parts_of_a_federation_get_features_and_its_task_says_so() -> None:
    found = with_features(federation(1, 16, 16), "gradients")
    for site in found.sites.values():
        assert site.common_test is not None
        for part in (site.train, site.validation, site.test, site.common_test):
            assert part.inputs.shape[1:] == found.task.inputs
    assert found.sites["a"].common_test is found.sites["b"].common_test


def test_features_of_records_that_are_no_pictures_are_refused() -> None:
    with pytest.raises(StudyError, match="needs pictures of at least 8 × 8"):
        with_features(federation(12), "gradients")
    with pytest.raises(StudyError, match='did you mean "gradients"'):
        with_features(federation(1, 16, 16), "gradient")
    assert features.names() == ["gradients"]
