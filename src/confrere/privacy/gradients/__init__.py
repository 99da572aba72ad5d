"""Per-record gradients without materialising them.

    recorder = Recorder(model)
    outputs = recorder.forward(batch)               # one forward pass
    recorded = recorder.backward(losses)            # one backward pass; losses: one per record
    clipped = Flat(norm=1.0).sum(recorded, {})      # see privacy.clipping

Layers have rules (`@rule`); a layer without one goes through a general, slower way, which
`recorder.notices` names. A parameter that nothing covers is refused.
"""

from confrere.privacy.gradients import (  # noqa: F401 (each registers its rules)
    attention,
    convolution,
    layers,
    recurrent,
)
from confrere.privacy.gradients.batch_gradients import ClippedSum, Layout, Recorded
from confrere.privacy.gradients.per_record import (
    Explicit,
    Groups,
    Outer,
    RecordGradients,
    TableRows,
    WeightedNorm,
)
from confrere.privacy.gradients.recorder import Recorder
from confrere.privacy.gradients.rules import GradientTap, rewrite, rule

__all__ = [
    "ClippedSum",
    "Explicit",
    "GradientTap",
    "Groups",
    "Layout",
    "Outer",
    "RecordGradients",
    "Recorded",
    "Recorder",
    "TableRows",
    "WeightedNorm",
    "rewrite",
    "rule",
]
