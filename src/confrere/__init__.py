"""Confrère: institutions that may not share records learn together.

    study = confrere.load("studies/quickstart.toml")
    run = confrere.simulate(study, out="runs/quickstart")
    run.mean.auc, run.sites["SVI"].privacy.epsilon, run.report()

Run       simulate, resume, compare, demo, write_report, check, find_partners, traffic
Describe  Study with Data, Encoder, Split, Models, Training, Privacy, Evaluation, Churn, Stop, Caps; load
Look up   list_strategies, list_datasets, open_dataset, profile_dataset, fetch_dataset, draft_schema, check_schema
Privacy   plan, plan_for_sizes, epsilon, calibrate, masked_epsilon, masked_calibrate, audit
On nodes  rehearse, enroll, renew_certificate, load_roster, add_to_roster, sign_roster, signed_studies, verify_roster,
          remove_from_roster, leave_roster, upgrade_roster, run_node, command_node, node_status, verify_journal, predict
Extend    strategy, network, Site, Peers, Model, Custody, Scalar, public, private, mix, Supervised, Adapted, padded

Each has an example: help(confrere.simulate). The names are those of `confrere.api`. They are loaded on first use, so that
`confrere --version` does not wait for PyTorch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from confrere.api import *  # noqa: F403


def __getattr__(name: str) -> Any:
    api = import_module("confrere.api")
    try:
        return getattr(api, name)
    except AttributeError:
        raise AttributeError(f"module 'confrere' has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return sorted(import_module("confrere.api").__all__)
