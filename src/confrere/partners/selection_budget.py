"""The privacy budget of a search for partners: how it is divided, and the ledgers that are charged.

With `privacy.selection_share` noise is added to all releases, which together stay within that share of ε and δ:
four tenths pay for a gradient in every round, three for each peer's model, and one each for that model's loss on the
peer's own records, a profile of its records and a histogram of them. Without it nothing is protected, and the result is
for rehearsals only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from confrere.core.seeds import derive
from confrere.data.records import Federation
from confrere.privacy.accounting import calibrate
from confrere.privacy.budget import Budget
from confrere.privacy.charged_steps import OneRelease
from confrere.privacy.charges import Guarantee
from confrere.privacy.ledger import Ledger
from confrere.privacy.noise import Seeded
from confrere.simulation.simulation import Simulation
from confrere.site.assemble import own_ceiling
from confrere.site.participant import Participant
from confrere.study import Privacy, Study

GRADIENTS, MODELS, LOSSES, PROFILES, HISTOGRAMS = 0.4, 0.3, 0.1, 0.1, 0.1
"""How the share of the budget is divided."""

MARGIN = 1.01
"""A factor for slightly more noise than the sum needs, because accountants round up."""


class Selection:
    """The budget of one site's search: the records of all sites, and the ledgers in which its peers are charged."""

    def __init__(self, study: Study, federation: Federation, user: str) -> None:
        self.study, self.federation, self.user = study, federation, user
        privacy = study.privacy
        self.privacy: Privacy | None = (
            privacy if privacy is not None and privacy.selection_share > 0 else None
        )
        """The budget; None if nothing is protected."""
        accountant = privacy.accountant if privacy else "pld"
        self.ledgers = {name: Ledger(dataset=name, accountant=accountant) for name in federation.sites}

    @property
    def released(self) -> bool:
        """Whether what peers send is differentially private."""
        return self.privacy is not None

    @property
    def peers(self) -> list[str]:
        return sorted(n for n in self.federation.sites if n != self.user)

    def prepare(self, share: float, strategy: Mapping[str, Any]) -> Simulation:
        """A simulation of all sites that may spend this share of the budget; each site keeps one ledger for all shares."""
        steps = self.study.rounds * (self.privacy.steps or 1 if self.privacy else 1)
        study = replace(
            self.study,
            strategy=dict(strategy),
            topology=None,
            combiner=None,  # peers are looked at one by one, which masks would not allow
            masked=None,
            privacy=self.privacy_for(share, steps),
            partners=None,
        )
        simulation = Simulation(study, self.federation, trainer="one")
        simulation.prepare()
        for name, site in simulation.sites.items():
            site.ledger, site.run = self.ledgers[name], f"{site.run}-partners-{share:g}"
            if self.privacy is not None:
                whole = self.privacy.for_selection()
                assert whole.epsilon is not None
                site.budget = Budget(whole.epsilon, whole.delta, whole.unit)
        return simulation

    def privacy_for(self, share: float, steps: int) -> Privacy | None:
        """The privacy settings of `steps` steps on a share of the budget; None if nothing is protected.

        Full batches with plain noise compose exactly: shares of 1/noise² add up to the whole, which allows much less
        noise than shares of ε would. Any other mechanism gets its share of ε.
        """
        if self.privacy is None:
            return None
        whole = self.privacy.for_selection()
        assert whole.epsilon is not None  # a share is one of ε
        plain = whole.sampling == "full" and whole.clipper().fixed_noise
        if not plain:
            return replace(self.privacy.for_selection(share), noise_multiplier=None)
        once = calibrate(whole.epsilon, whole.delta, sample_rate=1, steps=1, accountant=whole.accountant)
        return replace(whole, noise_multiplier=MARGIN * once * math.sqrt(steps / share))

    def charge(self, site: Participant, share: float, what: str) -> OneRelease:
        """Charge a site for one release out of this share, before anything is drawn."""
        part = self.privacy_for(share, 1)
        assert part is not None  # nothing is released without privacy
        assert part.epsilon is not None  # a share is one of ε
        noise = part.noise_multiplier or calibrate(
            part.epsilon, part.delta, sample_rate=1, steps=1, accountant=part.accountant
        )
        source = site.randomness or Seeded(derive(self.study.seed, site.name, what, site.run))
        paid = OneRelease(what, noise, part.unit, source)
        site.ledger.spend(
            [paid.charge],
            key=f"{site.run}/{what}",
            budget=site.budget,
            records=site.fingerprint,
            replay_of="" if site.rehearsal else None,
        )
        return paid

    def guarantees(self) -> dict[str, Guarantee]:
        """The ε that each site has spent on the selection."""
        if self.privacy is None:
            return {}
        delta, unit = self.privacy.for_selection().delta, self.privacy.unit
        spent = {n: ledger.guarantee(delta, unit) for n, ledger in self.ledgers.items() if ledger.charges()}
        return {n: replace(g, ceiling=own_ceiling(self.study, n)) for n, g in spent.items()}
