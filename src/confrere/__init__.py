"""Confrère: institutions that may not share records learn together.

>>> import confrere
>>> study = confrere.Study(name="mine", strategy="fedavg", rounds=5)
>>> # run = confrere.simulate(study, {"a": (inputs_a, labels_a), "b": (inputs_b, labels_b)}, out="runs/mine")
>>> # run.mean, run.sites["a"], run.report()
"""

from confrere.core.custody import Custody, Scalar, private, public
from confrere.core.errors import ConfrereError
from confrere.core.model import Model
from confrere.core.protocols import Peers, Site
from confrere.core.registry import strategy
from confrere.data.records import Records, SiteData
from confrere.learning.nets import Adapted, network
from confrere.learning.objectives import Supervised
from confrere.runtime.churn import Churn
from confrere.runtime.compare import Comparison, compare
from confrere.runtime.run import Run
from confrere.runtime.simulate import resume, simulate
from confrere.study import Data, Evaluation, Models, Privacy, Split, Study, Training, load
from confrere.version import __version__

__all__ = [
    "Adapted",
    "Churn",
    "Comparison",
    "ConfrereError",
    "Custody",
    "Data",
    "Evaluation",
    "Model",
    "Models",
    "Peers",
    "Privacy",
    "Records",
    "Run",
    "Scalar",
    "Site",
    "SiteData",
    "Split",
    "Study",
    "Supervised",
    "Training",
    "__version__",
    "compare",
    "load",
    "network",
    "private",
    "public",
    "resume",
    "simulate",
    "strategy",
]
