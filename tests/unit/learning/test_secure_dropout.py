"""Where chance is secure, dropout is too: a study's seed does not tell which weights a record met."""

from __future__ import annotations

import torch
from torch import nn

from confrere.core.model import Architecture
from confrere.core.params import Params
from confrere.data.records import Records
from confrere.learning.local_training.one_site import Job, train_site
from confrere.learning.networks.network import Network
from confrere.learning.objectives import Supervised
from confrere.learning.optimisers import SGD
from confrere.privacy.charged_steps import UNPROTECTED
from confrere.privacy.noise import Randomness, Secure

LINE = Architecture("line", lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(40, 1)))
RECORDS = Records(torch.ones(20, 40), torch.arange(20) % 2)


def trained(randomness: Randomness | None) -> Params:
    job = Job(
        site="a", records=RECORDS, objective={"model": Supervised()}, networks={"model": Network(LINE)},
        anchors={}, private=UNPROTECTED, optimisers={"model": SGD(0.5)}, memory={}, batch_size=20, epochs=1,
        seed=5, randomness=randomness,
    )  # fmt: skip
    return train_site(job).params["model"]


def test_dropout_follows_the_seed_in_a_simulation() -> None:
    assert trained(None).equals(trained(None))


def test_dropout_does_not_follow_the_seed_where_chance_is_secure() -> None:
    one, two = trained(Secure()), trained(Secure())
    assert not one.equals(two)
    assert not one.equals(trained(None))
