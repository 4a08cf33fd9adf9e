#!/usr/bin/env python3
"""Writes src/contract/data/ex2_sm90.bin from a measured table of ex2.approx.ftz.f32.

Input: the mantissa table T[f], f in [0, 2^23): the fp32 significand (2^23 <= T < 2^24) of ex2(f / 2^23) on sm_90, as
raw little-endian uint32 (tessera_probe_vectors --dump-ex2 writes it).

The unit evaluates one quadratic in each of 64 equal segments, so a quadratic in exact integers predicts about 98 % of
the table and never misses by more than 1; the file holds the coefficients and the misses. Layout, little-endian:

  64 records of 28 bytes: base (u32), c0 (i64), c1 (i64), c2 (i64); with x = f mod 2^17,
      T0[f] = base + floor((c0 + c1 x + c2 x^2) / 2^44)
  then bytes: n < 254: step over n >> 1 entries, then correct the next entry by +1 (n odd) or -1 (n even) and step over
  it; 254: step over 127 entries; 255: end.
"""

import argparse
import struct
import sys

import numpy as np

SEGMENTS = 64
SIZE = 1 << 23
WIDTH = SIZE // SEGMENTS
SHIFT = 44
LONGEST_STEP = 127


def fit_segment(values):
    """Integer coefficients whose floor agrees with most of `values` (relative to the first)."""
    x = np.arange(WIDTH, dtype=np.float64) / WIDTH
    a = np.stack([np.ones(WIDTH), x, x * x], axis=1)
    y = (values - values[0]).astype(np.float64)
    fit = np.linalg.lstsq(a, y + 0.5, rcond=None)[0]
    # Entries that the floor misses pull the curve toward them; a few rounds are enough.
    for _ in range(12):
        error = a @ fit - y
        pull = np.where(error < 0, -error, np.where(error >= 1, 1 - error, 0.0))
        fit = fit + np.linalg.lstsq(a, 8 * pull, rcond=None)[0]
    c0, c1, c2 = fit * 2.0**SHIFT
    return round(c0), round(c1 / WIDTH), round(c2 / WIDTH**2)


def encode(table):
    header, steps = bytearray(), bytearray()
    run = 0
    x = np.arange(WIDTH, dtype=np.int64)
    missed = 0
    for s in range(SEGMENTS):
        values = table[s * WIDTH : (s + 1) * WIDTH].astype(np.int64)
        c0, c1, c2 = fit_segment(values)
        header += struct.pack("<Iqqq", int(values[0]), c0, c1, c2)
        predicted = values[0] + ((c0 + c1 * x + c2 * x * x) >> SHIFT)
        miss = values - predicted
        if np.abs(miss).max() > 1:
            sys.exit(f"segment {s}: the quadratic misses by more than 1; the table is not an sm_90 ex2 table")
        missed += np.count_nonzero(miss)
        position = 0
        for at in np.flatnonzero(miss):
            run += int(at) - position
            while run >= LONGEST_STEP:
                steps.append(254)
                run -= LONGEST_STEP
            steps.append(run * 2 + (1 if miss[at] > 0 else 0))
            run = 0
            position = int(at) + 1
        run += WIDTH - position
    steps.append(255)
    print(f"{missed} of {SIZE} entries corrected, {len(header) + len(steps)} bytes")
    return bytes(header + steps)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", help="2^23 raw uint32 significands")
    parser.add_argument("output")
    args = parser.parse_args()
    table = np.fromfile(args.table, dtype="<u4")
    if table.size != SIZE:
        sys.exit(f"{args.table}: got {table.size} entries; allowed {SIZE}")
    with open(args.output, "wb") as f:
        f.write(encode(table))


if __name__ == "__main__":
    main()
