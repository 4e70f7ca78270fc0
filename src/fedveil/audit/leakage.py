r"""Read rows of data from a gradient, in closed form.

A layer of linear scores $z = W x$ has the gradient $s\,x^\top$ for one record, $s$ the slopes of its loss: a matrix of
rank one that contains the row. If a public constant stands in the row (an intercept, or a bias), scale and sign are
known too. For softmax, $s = p - e_y$ has one negative entry, that of the label [ZMB20]. A batch adds up such matrices,
$\sum_i s_i x_i^\top$. In general its rows cannot be separated, but if the slopes are public (at a starting model of
zeros they are $1/K - e_y$) the sum of each class can be computed, and a record that is alone in its class is revealed
completely. Theory page: gradient-leakage.md.

References:
    [PMK18] Phong, Aono, Hayashi, Wang, Moriai. Privacy-Preserving Deep Learning via Additively Homomorphic Encryption.
        IEEE TIFS 13(5), 2018: the ratio of a layer's two gradients.
    [ZMB20] Zhao, Mopuri, Bilen. iDLG: Improved Deep Leakage from Gradients. 2020: the label from the signs.
"""

from dataclasses import dataclass

import numpy as np

from fedveil.core.errors import require
from fedveil.core.values import Vector


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reading:
    """What was read: the row (without its constant), the label if the signs show it, and how near to rank one it was.

    ``rank_one`` is the share of the largest singular value in the squares: 1 for a single record, less for mixtures and
    noise. ``scaled``: whether the row's scale and sign were known, or only its direction.
    """

    row: Vector
    label: int | None
    rank_one: float
    scaled: bool


def read_layer(weight: Vector, bias: Vector) -> Reading:
    """Read one record from the gradients of a layer with a bias.

    ``weight`` is outputs by inputs, ``bias`` one per output.

    weight = s x' and bias = s, so x = weight' s / |s|^2, which uses every output and so averages noise [PMK18].

    >>> found = read_layer(np.outer([0.5, -0.5], [3.0, 4.0]), np.array([0.5, -0.5]))
    >>> found.row.tolist(), found.label, found.scaled
    ([3.0, 4.0], 1, True)
    """
    _check_matrix(weight)
    fits = bias.shape == weight.shape[:1]
    require(fits, "bias", f"have one entry an output, {weight.shape[0]}", bias.shape)
    size = float(bias @ bias)
    if not size > 0:  # without a bias gradient only the direction of the input is known
        return read_outer(weight)
    row = weight.T @ bias / size
    return Reading(row=row, label=label_of(bias), rank_one=rank_one_share(weight), scaled=True)


def read_outer(weight: Vector) -> Reading:
    """Read one record from the gradient of a layer without a bias: the direction of its row, up to sign."""
    _check_matrix(weight)
    _, sizes, rows = np.linalg.svd(weight, full_matrices=False)
    return Reading(row=sizes[0] * rows[0], label=None, rank_one=rank_one_share(weight), scaled=False)


def label_of(slopes: Vector) -> int | None:
    """Return the label of one record, or None.

    It is the only class whose slope is negative, or under noise the most negative one [ZMB20].
    """
    if slopes.size < 2 or not float(slopes.min()) < 0:
        return None
    return int(slopes.argmin())


def rank_one_share(weight: Vector) -> float:
    """Return how much of the matrix, in squares, one outer product explains; 0 for a matrix of zeros."""
    sizes = np.linalg.svd(weight, compute_uv=False)
    total = float(np.sum(sizes * sizes))
    return float(sizes[0] ** 2 / total) if total > 0 else 0.0


def read_linear(gradient: Vector, features: int, outputs: int, constant: float) -> Reading:
    """Read one record from the flat gradient of a linear model, features by outputs.

    ``constant``: the public number that stands last in every row; 0 if there is none.

    >>> x, slopes = np.array([0.6, 0.8, 2.0]), np.array([0.25, -0.75, 0.5])
    >>> found = read_linear(np.outer(x, slopes).ravel(), 3, 3, constant=2.0)
    >>> found.row.round(12).tolist(), found.label
    ([0.6, 0.8], 1)
    """
    matrix = _as_matrix(gradient, features, outputs)
    if constant == 0:
        result = read_outer(matrix.T)
        return result if outputs == 1 else _with_label(result, matrix)
    result = read_layer(matrix[:-1].T, matrix[-1] / constant)
    if outputs > 1:
        return result
    label = int(matrix[-1, 0] * constant < 0)  # a margin loss decreases towards class 1
    return Reading(row=result.row, label=label, rank_one=result.rank_one, scaled=result.scaled)


def read_classes(gradient: Vector, features: int, outputs: int, records: float, constant: float) -> dict[int, Vector]:
    """Return the sum of the rows of each class, from a sum over several records taken at a model of zeros.

    ``gradient``: the sum of softmax gradients, sum over i of x_i (1/K - e_{y_i})'. Column c is (all rows)/K minus the
    rows of class c. If some class is absent, its column is (all rows)/K, and the sums of the others follow exactly;
    which classes are absent is read from the constant feature. Without one, or if no class is absent, the result is
    each class's sum minus 1/K of all rows. One output (two classes): the sum over class 1 minus that over class 0, for
    both.
    """
    matrix = _as_matrix(gradient, features, outputs)
    rows = matrix if constant == 0 else matrix[:-1]
    if outputs == 1:
        return {0: rows[:, 0], 1: -rows[:, 0]}
    all_rows = np.zeros(rows.shape[0])
    if constant != 0:
        counts = np.rint(records / outputs - matrix[-1] / constant)
        absent = counts <= 0
        if absent.any() and not absent.all():
            all_rows = rows[:, absent].mean(axis=1)
    return {label: all_rows - rows[:, label] for label in range(outputs)}


def _with_label(found: Reading, matrix: Vector) -> Reading:
    """Add the label if there is no constant.

    Rows of pictures are non-negative, so the signs of the slopes show in the sums.
    """
    return Reading(row=found.row, label=label_of(matrix.sum(axis=0)), rank_one=found.rank_one, scaled=False)


def _as_matrix(gradient: Vector, features: int, outputs: int) -> Vector:
    fits = gradient.shape == (features * outputs,)
    require(fits, "gradient", f"hold {features} times {outputs} numbers", gradient.shape)
    matrix = gradient.reshape(features, outputs)
    _check_matrix(matrix)
    return matrix


def _check_matrix(matrix: Vector) -> None:
    require(matrix.ndim == 2 and matrix.size > 0, "gradient", "be a matrix", matrix.shape)
    require(bool(np.isfinite(matrix).all()), "gradient", "be finite", "NaN or infinity")
