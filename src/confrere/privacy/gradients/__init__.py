"""Per-record gradients without writing them out.

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
    embedding,
    linear,
    normalisation,
    recurrent,
)
from confrere.privacy.gradients.forms import (
    Explicit,
    Groups,
    Metric,
    Outer,
    RecordGradients,
    Rows,
)
from confrere.privacy.gradients.layout import Layout
from confrere.privacy.gradients.recorded import Recorded
from confrere.privacy.gradients.recorder import Recorder
from confrere.privacy.gradients.registry import Tap, rewrite, rule

__all__ = [
    "Explicit",
    "Groups",
    "Layout",
    "Metric",
    "Outer",
    "RecordGradients",
    "Recorded",
    "Recorder",
    "Rows",
    "Tap",
    "rewrite",
    "rule",
]
