"""Step schedule of private training: its default learning rate, from noise, records and number of sites.

Private training adds noise to the weights in every step. What matters is the sum of the learning rates (each divided
by 1 − momentum), not the number of steps: with a large sum, noise dominates; with a small one, little is learned. The
sum is chosen so that the noise in the mean of all sites' weights has a length of about 1, if all sites are as large as
this one. Only public values are used. A site with few records, relative to which its noise is large, learns more slowly
than the others (docs/decisions/0005-do-no-harm.md).
"""

from __future__ import annotations

import math

from confrere.learning.optimisers import SGD

MOMENTUM = 0.5
LONGEST = 500.0
"""The largest sum of steps, used if there are enough records that noise does not matter."""

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
    """At most `time`, with steps short enough for squared errors.

    The gradient of a squared error grows with the error, so steps that are too long diverge. Inputs are roughly within
    ±1; a linear model of them with a constant has a curvature of at most 2·(inputs + 1).
    """
    return min(time, max(1, steps) / ((1 - MOMENTUM) * (inputs + 1)))


def paced(time: float, steps: int) -> SGD:
    """Gradient descent whose steps add up to `time`."""
    return SGD(time * (1 - MOMENTUM) / max(1, steps), MOMENTUM)
