"""Linear regression of a number, fitted exactly: the counterpart of `logistic.py` for squared errors.

For a network whose last layer alone is trainable, one solution of linear equations replaces hundreds of steps by gradients.
"""

from __future__ import annotations

import numpy as np

from confrere.learning.logistic import Matrix, Vector


def ridge(features: Matrix, values: Vector, prior: float, under: Vector) -> Vector:
    """The weights that make the summed squared error of `features @ weights + under`, and prior/2·‖weights‖², least.

    The constant (last) is not pulled to zero.
    """
    pull = np.full(features.shape[1], prior / 2)
    pull[-1] = 1e-6
    curve = features.T @ features
    curve[np.diag_indices_from(curve)] += pull + 1e-9
    return np.asarray(np.linalg.solve(curve, features.T @ (values - under)))


def without_echo_of_squares(
    features: Matrix, weights: Vector, values: Vector, clip: float, prior: float, records: float
) -> Vector:
    """What each record would be told by a linear model that had not learned from it; see `echo.py`."""
    said = features @ weights
    error = 2 * (said - values)
    norm = np.abs(error) * np.linalg.norm(features, axis=1)
    clipped = np.minimum(1.0, clip / np.maximum(norm, 1e-12))
    curve = (features * (2 * clipped)[:, None]).T @ features / len(values)
    curve[np.diag_indices_from(curve)] += prior
    reach = np.einsum("ij,ij->i", features, np.linalg.solve(curve, features.T).T) / records
    return np.asarray(said + reach * error * clipped)
