"""The public names of the package, in one place: `import confrere` finds them here when they are first used.

Everything that a command of `confrere` does is a function here; both call the same code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from confrere.core.custody import Custody, Scalar, private, public
from confrere.core.errors import ConfrereError, StudyError
from confrere.core.model import Model, mix
from confrere.core.protocols import Peers, Site
from confrere.core.registry import nearest, strategy
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
from confrere.data.records import Federation, Records, SiteData
from confrere.evaluate.audit import Audit, AuditEffort, audit
from confrere.evaluate.compare import Comparison, compare
from confrere.evaluate.plan import Plan, plan, plan_for_sizes
from confrere.evaluate.privacy_cost import PrivacyCost, calibrate, epsilon
from confrere.evaluate.study_check import StudyCheck, check
from confrere.evaluate.traffic import Traffic, traffic
from confrere.learning.networks.architectures import network
from confrere.learning.networks.tables import Adapted
from confrere.learning.objectives import Supervised
from confrere.partners.ranking import METHODS
from confrere.partners.search import Found as PartnerSearch
from confrere.partners.search import find_partners as search_partners
from confrere.report.page import write_report as write_page
from confrere.simulation.simulation import resume, simulate
from confrere.site.open_sites import Source, open_sites
from confrere.site.run_folder import Run
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
from confrere.version import __version__

if TYPE_CHECKING:
    import pandas as pd


def find_partners(
    study: Study,
    site: str,
    sites: Mapping[str, Source] | Federation | None = None,
    *,
    by: str = "influence",
    top: int | None = None,
    z: float = 1.0,
    groups: int = 2,
    listener: Callable[[str], None] = lambda text: None,
) -> PartnerSearch:
    """Rank the other sites as partners of `site` by every method, and choose by one of them.

    `sites` are your own records, as in `simulate`. A peer is chosen where its worth exceeds `z` standard errors; with
    `top`, the first `top` are. `groups` is the number of clusters; `listener` receives what is being done, in words.

    >>> found = confrere.find_partners(study, "site0", sites)
    >>> found.site, set(found.chosen) <= {"site1", "site2"}
    ('site0', True)
    """
    method = next((m for m in METHODS if m == by), None)
    if method is None:
        raise StudyError(f'--by "{by}"{nearest(by, list(METHODS))}: there are {", ".join(METHODS)}')
    everyone = study.with_(partners=None)
    return search_partners(
        everyone, open_sites(everyone, sites), site, by=method, top=top, z=z, groups=groups, listener=listener
    )


def predict(model: str | Path, data: str | Path) -> pd.DataFrame:
    """Predict a file of records with a site's model: a row for each record, with how sure the model is.

    `model` is a model.safetensors or its folder; `data` has the columns of the study's schema.

    >>> list(confrere.predict(folder / "sites" / "site0" / "model", folder / "site0.csv").columns)
    ['record', 'prediction', 'probability of no', 'probability of yes']
    """
    from confrere.node.predict import SavedModel, predictions

    return predictions(SavedModel(Path(model)), Path(data))


def write_report(folder: str | Path, out: str | Path | None = None) -> Path:
    """Write the report of a run or of a comparison: one HTML file that needs no network.

    `folder` is the one that `simulate` or `compare` wrote; `out` is report.html in it unless stated.

    >>> confrere.write_report(folder).name
    'report.html'
    """
    return write_page(Path(folder), Path(out) if out else None)


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
    "Evaluation",
    "Measured",
    "Metrics",
    "Model",
    "Models",
    "PartnerSearch",
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
    "StrategyResult",
    "Study",
    "StudyCheck",
    "Supervised",
    "Traffic",
    "Training",
    "__version__",
    "audit",
    "calibrate",
    "check",
    "compare",
    "epsilon",
    "find_partners",
    "load",
    "mix",
    "network",
    "padded",
    "plan",
    "plan_for_sizes",
    "predict",
    "private",
    "public",
    "resume",
    "simulate",
    "strategy",
    "traffic",
    "write_report",
]
