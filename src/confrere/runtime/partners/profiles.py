"""Each peer's profile of its records; with noise, where the study pays for it."""

from __future__ import annotations

from torch import Tensor

from confrere.core.custody import Custody
from confrere.core.model import Model
from confrere.core.params import Params
from confrere.core.seeds import derive
from confrere.personalize.profiles import Profile, features
from confrere.runtime.participant import Participant
from confrere.runtime.partners.budget import PROFILES, Selection
from confrere.runtime.partners.models import own_records


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
        released, noise, count = _released(selection, simulation.sites[name], rows(name))
        admitted, _ = simulation.offices[name].gate.admit(released)
        assert admitted is not None
        found[name] = Profile(admitted.params["profile"].numpy() / count, count, noise)
    return own, found


def _released(selection: Selection, site: Participant, rows: Tensor) -> tuple[Model, float, float]:
    """The sum of the features with noise, the noise in its mean, and the public number it is divided by."""
    paid, split = selection.pay(site, PROFILES, "profile"), selection.study.data.split
    total = rows.sum(0)
    noisy = paid.source.perturb(total, paid.noise, 1.0)
    count = site.size * (1 - split.test) / (1 - split.validation - split.test)
    model = Model(Params({"profile": noisy}), "profile", Custody.PROTECTED)
    return model, len(total) * (paid.noise / count) ** 2, count
