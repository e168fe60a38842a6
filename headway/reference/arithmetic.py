"""The arithmetic of the papers on plain lists: products, softmax, losses, norms, activations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import mul

Vector = list[float]
Matrix = list[Vector]


def dot(a: Sequence[float], b: Sequence[float]) -> float:
    """The sum of a_i * b_i."""
    return float(sum(map(mul, a, b)))


def add(a: Sequence[float], b: Sequence[float]) -> Vector:
    """The vector of a_i + b_i."""
    return [x + y for x, y in zip(a, b, strict=True)]


def times(factor: float, x: Sequence[float]) -> Vector:
    """The vector of factor * x_i."""
    return [factor * value for value in x]


def affine(weight: Sequence[Sequence[float]], x: Sequence[float], bias: Sequence[float] | None = None) -> Vector:
    """W x + b for W [out, in] and x [in]: entry i is the dot product of row i with x."""
    y = [sum(map(mul, row, x)) for row in weight]
    return y if bias is None else add(y, bias)


def weighted_sum(weights: Sequence[float], rows: Sequence[Sequence[float]]) -> Vector:
    """The sum of weights_s * rows_s, for weights [S] and rows [S][E]."""
    return [sum(map(mul, weights, column)) for column in zip(*rows, strict=True)]


def softmax(x: Sequence[float]) -> Vector:
    """exp(x_i) / sum over j of exp(x_j).

    The largest entry is subtracted first: it changes nothing (both sides of the fraction share the factor) and
    keeps exp from overflowing. An entry of minus infinity gets weight 0.
    """
    largest = max(x)
    powers = [math.exp(value - largest) for value in x]
    total = sum(powers)
    return [power / total for power in powers]


def log_softmax(x: Sequence[float]) -> Vector:
    """x_i - log(sum over j of exp(x_j)), the logarithm of `softmax` without losing its small entries."""
    largest = max(x)
    log_total = largest + math.log(sum(math.exp(value - largest) for value in x))
    return [value - log_total for value in x]


def cross_entropy(
    logits: Sequence[Sequence[float]], targets: Sequence[int], weights: Sequence[float] | None = None
) -> tuple[float, float]:
    """Sum over tokens of weight * -log p(target) in nats, and the sum of the weights, for logits [T][V].

    The mean is their quotient; sums of several batches add up before the one division. A weight is 1 unless
    given, and a target of weight 0 is not looked at.
    """
    each = [1.0] * len(targets) if weights is None else weights
    rows = zip(logits, targets, each, strict=True)
    total = sum(-weight * log_softmax(row)[target] for row, target, weight in rows if weight)
    return total, float(sum(each))


def standardize(x: Sequence[float], eps: float) -> Vector:
    """(x - mean) / sqrt(variance + eps): LayerNorm before weight and bias (arXiv 1607.06450, equation 4)."""
    mean = sum(x) / len(x)
    variance = sum((value - mean) ** 2 for value in x) / len(x)
    return [(value - mean) / math.sqrt(variance + eps) for value in x]


def rms_normalize(x: Sequence[float], eps: float) -> Vector:
    """x / sqrt(mean of x^2 + eps): RMSNorm before its weight (arXiv 1910.07467, equation 4)."""
    return times(1 / math.sqrt(dot(x, x) / len(x) + eps), x)


def softcap(x: float, cap: float) -> float:
    """cap * tanh(x / cap), which stays between -cap and cap (Gemma 2, arXiv 2408.00118, section 2); cap 0 is none."""
    return cap * math.tanh(x / cap) if cap else x


def sigmoid(x: float) -> float:
    """1 / (1 + exp(-x)), written so that exp never overflows."""
    if x >= 0:
        return 1 / (1 + math.exp(-x))
    return math.exp(x) / (1 + math.exp(x))


def relu(x: float) -> float:
    """max(0, x)."""
    return max(0.0, x)


def gelu(x: float) -> float:
    """x times the probability that a standard normal number lies below x (arXiv 1606.08415, section 2)."""
    return x * 0.5 * (1 + math.erf(x / math.sqrt(2)))


def gelu_tanh(x: float) -> float:
    """GELU approximated by a tanh (arXiv 1606.08415, section 2)."""
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def gelu_quick(x: float) -> float:
    """GELU approximated by x * sigmoid(1.702 x) (arXiv 1606.08415, section 2)."""
    return x * sigmoid(1.702 * x)


def silu(x: float) -> float:
    """x * sigmoid(x), also called swish (arXiv 1710.05941)."""
    return x * sigmoid(x)


ACTIVATIONS: dict[str, Callable[[float], float]] = {
    "relu": relu,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "gelu_quick": gelu_quick,
    "silu": silu,
    "sigmoid": sigmoid,
    "tanh": math.tanh,
}
