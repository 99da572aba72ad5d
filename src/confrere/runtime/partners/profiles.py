"""Each peer's profile and histogram of its records; with noise, where the study pays for it."""

from __future__ import annotations

from torch import Tensor

from confrere.core.custody import Custody
from confrere.core.model import Model
from confrere.core.params import Params
from confrere.core.seeds import derive
from confrere.personalize.histograms import Histogram, columns_of, histogram, placed
from confrere.personalize.profiles import Profile, features
from confrere.runtime.partners.budget import HISTOGRAMS, PROFILES, Selection
from confrere.runtime.partners.models import own_records
from confrere.runtime.simulate import Simulation


def profiles(selection: Selection) -> tuple[Profile, dict[str, Profile]]:
    """The user's own profile, which stays with it, and those of its peers."""
    task, seed = selection.federation.task, derive(selection.study.seed, "profiles")

    def rows(name: str) -> Tensor:
        return features(own_records(selection.federation.sites[name]), len(task.classes), seed)

    mine = rows(selection.user)
    own = Profile(mine.mean(0).numpy(), len(mine))
    if not selection.released:
        return own, {n: Profile(r.mean(0).numpy(), len(r)) for n in selection.peers for r in [rows(n)]}
    simulation = selection.sites(PROFILES, {"name": "local"})
    found = {}
    for name in selection.peers:
        total, noise, count = _released(selection, simulation, name, rows(name).sum(0), PROFILES, "profile")
        found[name] = Profile(total.numpy() / count, count, len(total) * (noise / count) ** 2)
    return own, found


def histograms(selection: Selection) -> tuple[Histogram, dict[str, Histogram]]:
    """The user's own histogram, which stays with it, and those of its peers."""
    task, seed = selection.federation.task, derive(selection.study.seed, "profiles")
    columns = columns_of(task.inputs)

    def rows(name: str) -> tuple[Tensor, int]:
        return placed(own_records(selection.federation.sites[name]), len(task.classes), seed)

    own = histogram(*rows(selection.user), columns)
    if not selection.released:
        return own, {n: histogram(*rows(n), columns) for n in selection.peers}
    simulation = selection.sites(HISTOGRAMS, {"name": "local"})
    found = {}
    for name in selection.peers:
        total, noise, count = _released(selection, simulation, name, rows(name)[0], HISTOGRAMS, "histogram")
        # what is declared are records; how many patients there are, the histogram itself must tell
        by_patient = selection.federation.sites[name].train.units is not None
        found[name] = histogram(total, 0.0 if by_patient else count, columns, noise)
    return own, found


def _released(
    selection: Selection, simulation: Simulation, name: str, total: Tensor, share: float, what: str
) -> tuple[Tensor, float, float]:
    """A sum of rows of length 1 at most, with noise, as it left through the gate, the noise, and a public number of records."""
    site, split = simulation.sites[name], selection.study.data.split
    paid = selection.pay(site, share, what)
    noisy = paid.source.perturb(total, paid.noise, 1.0)
    released = Model(Params({what: noisy}), what, Custody.PROTECTED)
    admitted, _ = simulation.offices[name].gate.admit(released)
    assert admitted is not None
    count = site.size * (1 - split.test) / (1 - split.validation - split.test)
    return admitted.params[what], paid.noise, count
