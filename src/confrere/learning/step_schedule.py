"""Default learning rate of private training, derived from noise, records and number of sites.

Noise adds up over the steps of private training, and the weights with it: what counts is the sum of the steps (the
learning rates, each over 1 − momentum), not how many there are. A long training drowns in its noise, a short one
learns little. The rule stops where the noise that has come into the mean of all sites' weights has about the length
1, if all sites are as large as this one. All that goes into it is public, and a site with few records, whose noise is
loud beside what it knows, walks more slowly than the others (docs/decisions/0005-do-no-harm.md).
"""

from __future__ import annotations

import math

from confrere.learning.optimisers import SGD

MOMENTUM = 0.5
LONGEST = 500.0
"""The sum of steps where there are enough records for noise not to matter."""

FURTHEST = 50_000.0
"""The same for records of norm 1, whose weights are that much larger."""


def time_for(
    *, noise_multiplier: float, steps: int, batch: float, clip: float, parameters: int, sites: int
) -> float:
    """The sum of the steps with which noise of the length 1 comes into the mean of the sites' weights.

    A step of the length t/steps adds noise with the standard deviation t/steps·noise·clip/batch to each weight.
    """
    loud = noise_multiplier * clip * math.sqrt(parameters / (steps * sites)) / batch
    return min(LONGEST, 1 / loud) if loud > 0 else LONGEST


def time_for_unit_records(
    *, noise_multiplier: float, steps: int, batch: float, clip: float, sites: int
) -> float:
    """The same for a proxy whose records all have norm 1: so far that the noise in a record's output is about 1.

    The noise of the weights comes into an output as far as the record reaches, however many weights there are.
    """
    loud = noise_multiplier * clip / (batch * math.sqrt(steps * sites))
    return min(FURTHEST, 1 / loud) if loud > 0 else FURTHEST


def slow_for_squares(time: float, steps: int, inputs: int) -> float:
    """At most `time`, but with steps that squared errors bear.

    The slope of a squared error grows with the error, so that steps which are too long swing further and further. Inputs
    lie about within ±1; a linear model of them and a constant has a curvature of at most 2·(inputs + 1).
    """
    return min(time, max(1, steps) / ((1 - MOMENTUM) * (inputs + 1)))


def paced(time: float, steps: int) -> SGD:
    """Gradient descent whose steps add up to `time`."""
    return SGD(time * (1 - MOMENTUM) / max(1, steps), MOMENTUM)
