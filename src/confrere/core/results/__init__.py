"""Typed results of runs and comparisons, and their JSON form.

`as_json` is the document that `--json` prints and a run folder keeps; `from_json` reads it back, and accepts documents
of earlier versions, which state less.
"""

from confrere.core.results.comparison import (
    ALONE,
    POOLED,
    CommonResult,
    ComparisonResult,
    Gap,
    MeanGain,
    SiteRecords,
    StrategyResult,
    featured,
    is_collaboration,
)
from confrere.core.results.document import Document, Figure, Metrics
from confrere.core.results.privacy import PrivacyMeaning, PrivacySpent, TradeOffCurve
from confrere.core.results.run import (
    Attacked,
    AtThreshold,
    Group,
    InPatients,
    Measured,
    ModelVerdict,
    RunResult,
    SiteResult,
    Stopped,
    Tested,
)

__all__ = [
    "ALONE",
    "POOLED",
    "AtThreshold",
    "Attacked",
    "CommonResult",
    "ComparisonResult",
    "Document",
    "Figure",
    "Gap",
    "Group",
    "InPatients",
    "MeanGain",
    "Measured",
    "Metrics",
    "ModelVerdict",
    "PrivacyMeaning",
    "PrivacySpent",
    "RunResult",
    "SiteRecords",
    "SiteResult",
    "Stopped",
    "StrategyResult",
    "Tested",
    "TradeOffCurve",
    "featured",
    "is_collaboration",
]
