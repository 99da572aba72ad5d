"""A site's caps hold whatever a study says or leaves out."""

from __future__ import annotations

from pathlib import Path

import pytest

from confrere.core.errors import PrivacyError, StudyError
from confrere.privacy.accounting import epsilon
from confrere.simulation.backends import simulate
from confrere.simulation.simulation import Simulation
from confrere.site.assemble import own_caps
from confrere.site.open_sites import open_sites
from confrere.study import Caps, Privacy, SiteConfig, load
from tests.conftest import arrays, write_study
from tests.unit.quick import quick


def test_a_study_without_noise_is_refused_by_a_site_that_caps_its_epsilon() -> None:
    plan = quick("fedavg", privacy=None, sites={"site0": SiteConfig(caps=Caps(epsilon=1.0))})
    with pytest.raises(PrivacyError, match=r"site0.*no \[privacy\]"):
        simulate(plan, arrays(2, 60))


def test_training_alone_sends_nothing_so_a_cap_does_not_stop_it() -> None:
    plan = quick("local", privacy=None, sites={"site0": SiteConfig(caps=Caps(epsilon=1.0))})
    assert simulate(plan, arrays(2, 60)).mean


def test_a_cap_on_delta_alone_counts() -> None:
    plan = quick("fedavg", sites={"site0": SiteConfig(caps=Caps(delta=1e-8))})
    assert plan.privacy is not None
    simulation = Simulation(plan, open_sites(plan, arrays(2, 60)))
    simulation.prepare()
    capped, free = simulation.sites["site0"], simulation.sites["site1"]
    assert capped.mechanism is not None
    assert free.mechanism is not None
    assert capped.mechanism.noise_multiplier > free.mechanism.noise_multiplier
    planned = [capped.mechanism.charge(capped.steps * plan.rounds)]
    assert epsilon(planned, 1e-8) <= 8.0


def test_a_cap_on_delta_alone_needs_an_epsilon_to_go_with() -> None:
    plan = quick(
        privacy=Privacy(noise_multiplier=2.0, delta=1e-4), sites={"site0": SiteConfig(caps=Caps(delta=1e-8))}
    )
    with pytest.raises(PrivacyError, match=r"caps\.epsilon"):
        own_caps(plan, "site0")


def test_caps_beside_a_configuration_of_its_own_are_not_dropped_in_silence(tmp_path: Path) -> None:
    path = write_study(tmp_path, 'rounds = 2\nstrategy = "fedavg"\n', records=60)
    (tmp_path / "site.toml").write_text('data = "site1.csv"\n', encoding="utf-8")
    text = path.read_text(encoding="utf-8")
    both = text.replace('data = "site1.csv"', 'config = "site.toml"\ncaps = { epsilon = 1.0 }')
    path.write_text(both, encoding="utf-8")
    with pytest.raises(StudyError, match=r"site1.*caps"):
        load(path)
