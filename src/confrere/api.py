"""The public API: the names that `import confrere` finds here on first use, and the functions `predict` and `write_report`.

Everything that a command of `confrere` does is a function here; both call the same code.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from confrere.core.custody import Custody, Scalar, private, public
from confrere.core.errors import ConfrereError
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
from confrere.data.records import Records, SiteData
from confrere.evaluate.audit import Audit, AuditEffort, audit
from confrere.evaluate.compare import Comparison, compare
from confrere.evaluate.plan import Plan, plan, plan_for_sizes
from confrere.evaluate.privacy_cost import PrivacyCost, calibrate, epsilon
from confrere.evaluate.study_check import StudyCheck, check
from confrere.evaluate.traffic import Traffic, traffic
from confrere.learning.networks.architectures import network
from confrere.learning.networks.tables import Adapted
from confrere.learning.objectives import Supervised
from confrere.partners.search import PartnerSearch, find_partners
from confrere.report.page import write_report as write_page
from confrere.simulation.backends import resume, simulate
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


def predict(model: str | Path, data: str | Path) -> pd.DataFrame:
    """Predict a file of records with a site's model: a row for each record, with how sure the model is.

    `model` is a model.safetensors or its folder; `data` has the columns of the study's schema.

    >>> list(confrere.predict(folder / "sites" / "site0" / "model", folder / "site0.csv").columns)
    ['record', 'prediction', 'probability of no', 'probability of yes']
    """
    from confrere.site.saved_model import SavedModel, predictions

    return predictions(SavedModel(Path(model)), Path(data))


def write_report(folder: str | Path, out: str | Path | None = None, *, site: str | None = None) -> Path:
    """Write the report of a run or of a comparison: one HTML file that needs no network.

    `folder` is the one that `simulate` or `compare` wrote; `out` is report.html in it unless stated. With `site`, the report of
    a comparison speaks to that site and shows no other.

    >>> confrere.write_report(folder).name
    'report.html'
    """
    return write_page(Path(folder), Path(out) if out else None, site)


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
