"""A comparison tries each peer's model, trained alone, on the test patients of every other site."""

from __future__ import annotations

import numpy as np
import pytest

import confrere
from confrere.core.results import ComparisonResult
from confrere.evaluate import peer_trials
from confrere.site.predictions import RecordPredictions
from confrere.study import Study


def sites() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Two sites that follow one rule, of which one is small, and a site that follows the opposite rule."""
    draw = np.random.default_rng(0)

    def records(count: int, sign: float) -> tuple[np.ndarray, np.ndarray]:
        x = draw.normal(size=(count, 8)).astype("float32")
        return x, (sign * x.sum(axis=1) + draw.normal(size=count) > 0).astype(int)

    return {"small": records(60, 1.0), "friend": records(400, 1.0), "opposite": records(400, -1.0)}


def test_the_peer_that_fits_is_told_from_the_one_that_does_not() -> None:
    study = Study(name="trials", rounds=1)
    found = confrere.compare(study, ["fedavg"], range(4), sites())
    gains = found.result.trials["small"]
    assert set(gains) == {"friend", "opposite"}
    for gain in gains.values():
        assert gain.interval is not None
        assert gain.interval[0] < gain.mean < gain.interval[1]
    assert gains["friend"].interval is not None
    assert gains["opposite"].interval is not None
    assert gains["friend"].interval[1] > 0 > gains["opposite"].interval[1]
    assert gains["friend"].mean > gains["opposite"].mean
    assert gains["opposite"].word == "worse"
    again = ComparisonResult.from_json(found.result.as_json())
    assert again.trials["small"]["friend"].mean == pytest.approx(gains["friend"].mean)
    assert not again.public


def test_many_sites_are_not_tried_on_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_trials, "MOST_SITES", 2)
    found = confrere.compare(Study(name="trials", rounds=1), ["fedavg"], range(2), sites())
    assert found.result.trials == {}


def test_the_trials_are_corrected_for_the_number_of_pairs() -> None:
    """Sixteen sites whose models differ by chance: uncorrected, several of 240 pairs would exclude 0."""
    draw = np.random.default_rng(3)
    names = [f"S{n}" for n in range(16)]
    labels = {name: (np.arange(60) % 2).astype(np.int64) for name in names}

    def tried(name: str) -> RecordPredictions:
        marks = np.array([f"{name}-{n}" for n in range(60)])
        return RecordPredictions(draw.normal(size=(60, 2)).astype(np.float32), labels[name], marks, 1.0)

    seeds = [
        {way: {name: tried(name) for name in names} for way in (peer_trials.OWN, *names)} for _ in range(4)
    ]
    gains = [
        gain for by_peer in peer_trials.peer_gains(seeds, "log_loss").values() for gain in by_peer.values()
    ]
    assert len(gains) == 240
    assert {gain.word for gain in gains} == {"no clear difference"}
