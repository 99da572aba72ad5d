"""Try the model that each site trained alone on the test patients of every other site: whose records help whom.

What one peer brings to a collaboration cannot be read from a run, because the models of all peers are mixed. A rehearsal
holds the models that sites train alone, without noise, so it can try them one at a time: the transfer loss of
`confrere partners`, at the cost of a few predictions. It says which peer's records fit a site's patients, not how much of
that passes through the noise of a collaboration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from confrere.core.results import Measured
from confrere.simulation.simulation import Simulation
from confrere.site.predictions import RecordPredictions, marks_of
from confrere.statistics.contributions import effects
from confrere.statistics.verdict import judge_all

MOST_SITES = 16
"""With more, models are not tried: every site's model on every other site's patients."""
OWN = ""
"""The way of learning in which each site uses its own model."""

Tried = Mapping[str, Mapping[str, RecordPredictions]]
"""Of one seed, by peer, or `OWN`: what that model predicts for the test records of each site. PRIVATE."""


def try_models(simulation: Simulation) -> Tried:
    """Each site's model on the test records of every other site, after the sites have trained alone."""
    names = [n for n, run in simulation.runs.items() if run.state is not None and n in simulation.sites]
    tested = [n for n in names if len(simulation.sites[n].data.test)]
    if len(names) > MOST_SITES:
        return {}

    def predictions(peer: str, name: str) -> RecordPredictions:
        site, test = simulation.sites[name], simulation.sites[name].data.test
        outputs = site.own_mix(site.predicted(simulation.runs[peer].predictor(), test))
        return RecordPredictions(
            outputs.float().cpu().numpy(), test.targets.numpy(), marks_of(test, name), site.task.spread
        )

    own = {name: predictions(name, name) for name in tested}
    by_peer = {
        peer: {name: predictions(peer, name) if name != peer else own[name] for name in tested}
        for peer in names
    }
    return {OWN: own, **by_peer}


def peer_gains(seeds: Sequence[Tried], metric: str | None) -> dict[str, dict[str, Measured]]:
    """By site and peer, how much better the peer's model predicts the site's patients than its own.

    The words are those of the one rule. They are a family of their own: the correction covers every pair of sites.
    """
    if metric is None or not seeds or not all(seeds):
        return {}
    peers = [peer for peer in seeds[0] if peer != OWN and all(peer in seed for seed in seeds)]
    ways = {way: [seed[way] for seed in seeds] for way in (OWN, *peers)}
    pairs = {
        (site, peer): by_metric[metric]
        for peer, tried in effects(ways, OWN, only=metric).items()
        for site, by_metric in tried.sites.items()
        if site != peer and metric in by_metric
    }
    found: dict[str, dict[str, Measured]] = {}
    for (site, peer), gain in judge_all(pairs).items():
        ends = None if gain.low is None or gain.high is None else (gain.low, gain.high)
        values = pairs[site, peer].values
        found.setdefault(site, {})[peer] = Measured(gain.mean, gain.std, values, ends, gain.stated)
    return found
