"""What a study's proxy is expected to be worth, from what its sites would do."""

from __future__ import annotations

from confrere.exchange.topology import Nobody
from confrere.privacy.planning import Contributor, Forecast, noise_over_steps
from confrere.runtime.participant import Participant
from confrere.runtime.simulate import Simulation


def forecast_of(simulation: Simulation) -> Forecast | None:
    """The forecast of a study that was prepared; None if nothing is sent, or nothing of it has noise.

    The noise is that of the mechanisms: a site's own caps are heeded, and steps that its budget does not allow are left
    out, and with them a site that could not make a single one.
    """
    sites = list(simulation.sites.values())
    if simulation.pools or isinstance(simulation.study.graph(), Nobody):
        return None
    if any(site.mechanism is None for site in sites):
        return None
    found = tuple(c for site in sites if (c := _contributor(site)) is not None)
    role = getattr(simulation.strategy, "architecture", "proxy")
    return Forecast(trained_parameters(sites[0], role), found) if found else None


def trained_parameters(site: Participant, role: str = "proxy") -> int:
    """How many weights of the model that is sent are trained, and so get noise."""
    network = site.network(role, site.architecture(role).name)
    return int(network.flat.numel())


def _contributor(site: Participant) -> Contributor | None:
    mechanism, privacy = site.mechanism, site.study.privacy
    assert mechanism is not None
    assert privacy is not None
    steps = site.steps * site.study.rounds
    if privacy.noise_multiplier is not None and site.budget is not None:  # else the noise was made to last
        steps = min(steps, site.ledger.remaining(site.budget, mechanism.charge(1)))
    if steps < 1:
        return None
    noise = noise_over_steps(mechanism.noise_multiplier, float(mechanism.sampling.rate), steps)
    return Contributor(site.name, site.size, noise)
