#!/usr/bin/env python3
"""Fits the polynomials of the numeric contract (src/contract/exp2.h, log2.h, tanh.h) and prints their fp32 bits.

Method: weighted Remez exchange in 60-digit decimal arithmetic on a fixed grid, then every coefficient is rounded to
fp32. (Fitting the higher orders again after each rounding gains nothing: the rounding errors, at most 2^-25 relative,
are already below those of the fp32 evaluation.) Everything is deterministic and needs the standard library only. `python3 tools/fit_polynomials.py` prints, for every polynomial, the coefficients from order
0 upwards as hexadecimal fp32 bits, and the largest weighted error of the exact polynomial with these coefficients.
"""

import math
import struct
from decimal import Decimal, getcontext

getcontext().prec = 60
LN2 = Decimal(2).ln()
ONE = Decimal(1)


def to_f32(x: Decimal) -> Decimal:
    """Nearest fp32 value (through float: the double rounding is harmless for fitted coefficients)."""
    return Decimal(struct.unpack("<f", struct.pack("<f", float(x)))[0])


def f32_bits(x: Decimal) -> int:
    return struct.unpack("<I", struct.pack("<f", float(x)))[0]


def exp2(x: Decimal) -> Decimal:
    return (x * LN2).exp()


def solve(matrix, rhs):
    """Gaussian elimination with partial pivoting."""
    n = len(rhs)
    rows = [list(row) + [value] for row, value in zip(matrix, rhs)]
    for i in range(n):
        pivot = max(range(i, n), key=lambda r: abs(rows[r][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for r in range(i + 1, n):
            factor = rows[r][i] / rows[i][i]
            for c in range(i, n + 1):
                rows[r][c] -= factor * rows[i][c]
    x = [Decimal(0)] * n
    for i in reversed(range(n)):
        x[i] = (rows[i][n] - sum(rows[i][c] * x[c] for c in range(i + 1, n))) / rows[i][i]
    return x


def evaluate(coefficients, x):
    value = Decimal(0)
    for c in reversed(coefficients):
        value = value * x + c
    return value


def remez(target, weight, low, high, fixed, degree):
    """Coefficients of orders len(fixed)..degree that minimise max |weight * (fixed + free - target)| on [low, high].

    target and weight are lists of values on the grid that grid_points() returns.
    """
    points = grid_points(low, high)
    first = len(fixed)
    count = degree + 1 - first
    base = [evaluate(fixed, x) for x in points]
    # Start from Chebyshev extrema of the grid, leaving out points where the free terms vanish (x = 0).
    usable = [i for i, x in enumerate(points) if weight[i] != 0 and (first == 0 or x != 0)]
    picks = [usable[round((len(usable) - 1) * (1 - math.cos(math.pi * k / count)) / 2)] for k in range(count + 1)]
    free = []
    for _ in range(30):
        matrix, rhs = [], []
        for k, i in enumerate(picks):
            x = points[i]
            row = [x ** (first + p) if first + p else ONE for p in range(count)]
            # The free part x^first * polynomial changes sign with x^first, so the alternation is that of the quotient.
            sign = -1 if (k % 2) ^ (first % 2 == 1 and x < 0) else 1
            matrix.append(row + [Decimal(sign) / weight[i]])
            rhs.append(target[i] - base[i])
        *free, level = solve(matrix, rhs)
        errors = []
        for i in usable:
            x = points[i]
            e = weight[i] * (evaluate(list(fixed) + free, x) - target[i])
            errors.append(-e if first % 2 == 1 and x < 0 else e)
        # One extremum per run of equal sign.
        runs, start = [], 0
        for i in range(1, len(errors) + 1):
            if i == len(errors) or (errors[i] > 0) != (errors[start] > 0):
                runs.append(max(range(start, i), key=lambda j: abs(errors[j])))
                start = i
        while len(runs) > count + 1:
            runs.pop(0 if abs(errors[runs[0]]) < abs(errors[runs[-1]]) else -1)
        if len(runs) < count + 1:
            break
        picks = [usable[j] for j in runs]
        if max(abs(errors[j]) for j in runs) < abs(level) * Decimal("1.0005"):
            break
    return free


GRID = 1200


def grid_points(low, high):
    return [low + (high - low) * k / GRID for k in range(GRID + 1)]


def fit(name, function, weight_of, low, high, degree, fixed=()):
    points = grid_points(low, high)
    target = [function(x) for x in points]
    weight = [weight_of(x, t) for x, t in zip(points, target)]
    given = [Decimal(c) for c in fixed]
    coefficients = given + [to_f32(c) for c in remez(target, weight, low, high, given, degree)]
    worst = max(abs(w * (evaluate(coefficients, x) - t)) for x, t, w in zip(points, target, weight))
    bits = ", ".join(f"0x{f32_bits(c):08x}" for c in coefficients)
    print(f"{name}: degree {degree}, error {float(worst):.3e}\n  {bits}")


def log2_over_r(r):
    return ONE / LN2 if r == 0 else (ONE + r).ln() / (LN2 * r)


def tanh_tail(z):
    """(tanh(x) / x - 1) / x^2 as a function of z = x^2."""
    if z < Decimal("1e-12"):
        return Decimal(-1) / 3 + z * 2 / 15
    x = z.sqrt()
    e = (2 * x).exp()
    return ((e - 1) / (e + 1) / x - 1) / z


def main():
    half = Decimal("0.5")
    relative = lambda x, t: ONE / abs(t)
    fit("soft_exp2", exp2, relative, -half, half, 6, fixed=(1,))
    # log2(1 + r) = r * P(r) on [sqrt(1/2) - 1, sqrt(2) - 1], relative error.
    fit("soft_log2", log2_over_r, relative, half.sqrt() - 1, Decimal(2).sqrt() - 1, 10)
    # tanh(x) = x + x * z * Q(z), z = x^2, |x| <= 0.625; the weight turns the error of Q into that of tanh, relative.
    fit("soft_tanh", tanh_tail, lambda z, t: z / (ONE + z * t), Decimal(0), Decimal("0.390625"), 4)


if __name__ == "__main__":
    main()
