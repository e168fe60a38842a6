"""GGUF's blocks of 256: for every run of 16 or 32 numbers the scale, and least value, of least squared error."""

from __future__ import annotations

import numpy as np

from headway.checkpoint.dtypes import Bytes, Floats
from headway.quant.blocks import Halves, extreme, half_up, inverse, packed

# Steps that are tried: the range over (levels + each of these), which lets the ends be cut by less than a step.
_SHIFTS = (-0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75)


def q4_k(blocks: Floats) -> Bytes:
    """w = q d s - dmin m, runs of 32: [N, 256] to [N, 144]."""
    d, least, s, m, q = _pairs(blocks, 15)
    return np.concatenate([_bytes(d), _bytes(least), _six_bit_pairs(s, m), packed(q, 32, 4)], axis=1)


def q5_k(blocks: Floats) -> Bytes:
    """w = q d s - dmin m, runs of 32: [N, 256] to [N, 176]."""
    d, least, s, m, q = _pairs(blocks, 31)
    high, low = packed(q >> np.uint8(4), 32, 1), packed(q & np.uint8(15), 32, 4)
    return np.concatenate([_bytes(d), _bytes(least), _six_bit_pairs(s, m), high, low], axis=1)


def q6_k(blocks: Floats) -> Bytes:
    """w = (q - 32) d s, runs of 16: [N, 256] to [N, 210]."""
    runs = blocks.reshape(-1, 16, 16)
    scale = _fitted_scale(runs)
    d = half_up(np.abs(scale).max(1) / np.float32(127))
    step = d.astype(np.float32)[:, None]
    s = _nonzero(np.rint(scale * inverse(step)), runs, np.where(scale < 0, -1, 1))
    best = np.full(s.shape, np.inf, np.float32)
    chosen, codes = s.copy(), np.zeros(runs.shape, np.float32)
    for shift in (0, -1, 1):
        tried = np.clip(s + shift, -127, 127)
        width = tried * step
        q = np.clip(np.rint(runs * inverse(width)), -32, 31)
        _keep_better(best, _error(runs - q * width), (chosen, tried), (codes, q))
    q = (codes + 32).astype(np.uint8).reshape(len(blocks), 256)
    scales = chosen[..., 0].astype(np.int8).view(np.uint8)
    return np.concatenate([packed(q & np.uint8(15), 64, 4), packed(q >> np.uint8(4), 32, 2), scales, _bytes(d)], axis=1)


def _fitted_scale(runs: Floats) -> Floats:
    """The scale of least squared error of each run, N 16 1, for codes from -32 to 31."""
    top = extreme(runs)
    best = np.full(top.shape, np.inf, np.float32)
    scale = np.zeros(top.shape, np.float32)
    for shift in _SHIFTS:
        q = np.clip(np.rint(runs * (inverse(top) * np.float32(-32 - shift))), -32, 31)
        tried = _dot(runs, q) * inverse(_dot(q, q))
        _keep_better(best, _error(runs - tried * q), (scale, tried))
    return scale


def _pairs(blocks: Floats, levels: int) -> tuple[Halves, Halves, Bytes, Bytes, Bytes]:
    """d, dmin [N, 1], six-bit s and m [N, 8], and codes [N, 256] from 0 to `levels`."""
    runs = blocks.reshape(-1, 8, 32)
    scale, least = _fitted_pair(runs, levels)
    d, dmin = (half_up(each.max(1) / np.float32(63)) for each in (scale, least))
    step, base = d.astype(np.float32)[:, None], dmin.astype(np.float32)[:, None]
    s = _nonzero(np.rint(scale * inverse(step)), runs, np.float32(1))
    m = np.rint(least * inverse(base))
    best = np.full(s.shape, np.inf, np.float32)
    kept_s, kept_m, codes = s.copy(), m.copy(), np.zeros(runs.shape, np.float32)
    for shift in (0, -1, 1):
        tried = np.clip(s + shift, 0, 63)
        width, by, below = tried * step, inverse(tried * step), m
        for _ in range(2):  # once with the least value that was found, once with the best for these codes
            q = np.clip(np.rint((runs + below * base) * by), 0, levels)
            made = q * width
            _keep_better(best, _error(runs - made + below * base), (kept_s, tried), (kept_m, below), (codes, q))
            below = np.clip(np.rint((made - runs).mean(-1, keepdims=True) * inverse(base)), 0, 63)
    six = [each[..., 0].astype(np.uint8) for each in (kept_s, kept_m)]
    return d, dmin, six[0], six[1], codes.astype(np.uint8).reshape(len(blocks), 256)


def _fitted_pair(runs: Floats, levels: int) -> tuple[Floats, Floats]:
    """Scale a and least value b, neither negative, of least squared error in w = a q - b: N 8 1 each."""
    low = np.minimum(runs.min(-1, keepdims=True), 0)
    above = runs - low
    by = inverse(above.max(-1, keepdims=True))
    count, total = np.float32(runs.shape[-1]), runs.sum(-1, keepdims=True)
    best = np.full(low.shape, np.inf, np.float32)
    scale, least = np.zeros_like(low), -low
    for shift in _SHIFTS:
        q = np.clip(np.rint(above * (by * np.float32(levels + shift))), 0, levels)
        of_q, of_qq, of_wq = q.sum(-1, keepdims=True), _dot(q, q), _dot(runs, q)
        a = (count * of_wq - of_q * total) * inverse(count * of_qq - of_q * of_q)
        b = (a * of_q - total) / count
        alone = b < 0  # the best least value would lie above 0, which the format cannot say
        a = np.maximum(np.where(alone, of_wq * inverse(of_qq), a), 0)
        b = np.where(alone, np.float32(0), np.maximum((a * of_q - total) / count, 0))
        _keep_better(best, _error(runs - a * q + b), (scale, a), (least, b))
    return scale, least


def _nonzero(codes: Floats, runs: Floats, unit: Floats | np.float32) -> Floats:
    """Scales in whole units; of a run that is not all 0 at least one unit, lest all of it be lost."""
    return np.where((codes == 0) & runs.any(-1, keepdims=True), unit, codes).astype(np.float32)


def _keep_better(best: Floats, error: Floats, *pairs: tuple[Floats, Floats]) -> None:
    """Where `error` is less than `best`, put it and what was tried in place of what is kept."""
    better = error < best
    np.copyto(best, error, where=better)
    for kept, tried in pairs:
        np.copyto(kept, tried, where=better)


def _dot(a: Floats, b: Floats) -> Floats:
    return np.einsum("nri,nri->nr", a, b)[..., None]


def _error(rest: Floats) -> Floats:
    return _dot(rest, rest)


def _six_bit_pairs(s: Bytes, m: Bytes) -> Bytes:
    """Eight scales and eight least values of six bits in 12 bytes."""
    low = (s[:, :4] & 63) | (s[:, 4:] >> 4 << 6)
    mid = (m[:, :4] & 63) | (m[:, 4:] >> 4 << 6)
    return np.concatenate([low, mid, (s[:, 4:] & 15) | (m[:, 4:] & 15) << 4], axis=1)


def _bytes(halves: Halves) -> Bytes:
    return np.ascontiguousarray(halves).view(np.uint8)
