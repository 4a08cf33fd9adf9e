#!/usr/bin/env python3
"""How far logits move when the inputs of matrix products are rounded to integers or to short floats.

    python activation_rounding.py MODEL.gguf TOKENS.json [--only NAME ...]

Prints one line per variant: the largest and the 99.9th-percentile absolute difference to the plain float32 forward
pass, the position of the largest one, and the number of positions whose most likely token changes. The engine's matrix
product contract rests on these figures (bar: 2e-3 over 512 positions).

Integer variants: each group of activations (32 consecutive k, or the whole row) is replaced by q * dx with
dx = float32(amax / L) and q = round-to-nearest-even(x * L / amax). Their products run in float64, so that only the
rounding under study shows; the rest of the pass stays float32.
"""

import argparse
import json
import sys

import numpy as np

from forward import Model

INT_LIMITS = {"int8": 127, "int16": 32639, "int24": 8355711}  # largest integer of 1, 2 and 3 signed byte planes


def integer_map(limit: int, group: int):
    """Rounds activations [T, K] to multiples of one scale per `group` consecutive k (0: the whole row)."""

    def apply(x: np.ndarray) -> np.ndarray:
        n_tokens, k = x.shape
        grouped = x.astype(np.float64).reshape(n_tokens, -1, group or k)
        amax = np.abs(grouped).max(axis=-1, keepdims=True)
        inverse = np.divide(limit, amax, out=np.zeros_like(amax), where=amax > 0)
        dx = (amax / limit).astype(np.float32).astype(np.float64)
        return (np.rint(grouped * inverse) * dx).reshape(n_tokens, k)

    return apply


def float16_map(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float16).astype(np.float64)


def float16_pair_map(x: np.ndarray) -> np.ndarray:
    """x as the sum of two float16 values, high part first."""
    x = x.astype(np.float64)
    high = x.astype(np.float16).astype(np.float64)
    return high + (x - high).astype(np.float16).astype(np.float64)


def bfloat16(x: np.ndarray) -> np.ndarray:
    """float32 rounded to the nearest bfloat16, ties to even; float64 result."""
    bits = x.astype(np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32).astype(np.float64)


def bfloat16_map(parts: int):
    """x as the sum of `parts` bfloat16 values."""

    def apply(x: np.ndarray) -> np.ndarray:
        rest = x.astype(np.float64)
        total = np.zeros_like(rest)
        for _ in range(parts):
            part = bfloat16(rest)
            total += part
            rest = rest - part
        return total

    return apply


VARIANTS = {
    "exact products": lambda x: x.astype(np.float64),
    "int8 / 32": integer_map(INT_LIMITS["int8"], 32),
    "int16 / 32": integer_map(INT_LIMITS["int16"], 32),
    "int16 / row": integer_map(INT_LIMITS["int16"], 0),
    "int24 / 32": integer_map(INT_LIMITS["int24"], 32),
    "int24 / row": integer_map(INT_LIMITS["int24"], 0),
    "float16": float16_map,
    "float16 pair": float16_pair_map,
    "bfloat16 pair": bfloat16_map(2),
    "bfloat16 triple": bfloat16_map(3),
}


def report(name: str, got: np.ndarray, want: np.ndarray) -> None:
    delta = np.abs(got.astype(np.float64) - want.astype(np.float64))
    position, token = np.unravel_index(delta.argmax(), delta.shape)
    per_position = delta.max(axis=1)
    flips = int((got.argmax(axis=1) != want.argmax(axis=1)).sum())
    print(
        f"{name:<24} max {delta.max():.3e} (position {position}, token {token})  "
        f"p99.9 {np.quantile(delta, 0.999):.3e}  rms {np.sqrt(np.mean(delta * delta)):.3e}  "
        f"median of per-position max {np.median(per_position):.3e}  top-1 changes {flips}/{len(per_position)}",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Effect of rounded matmul inputs on the logits.")
    parser.add_argument("model")
    parser.add_argument("tokens", help="JSON list of token ids")
    parser.add_argument("--only", nargs="+", choices=VARIANTS, help="variants to run; default all")
    args = parser.parse_args()

    with open(args.tokens, encoding="utf-8") as file:
        tokens = json.load(file)
    base = Model(args.model).logits(tokens)
    print(f"{len(tokens)} positions, {base.shape[1]} logits each, |logit| max {np.abs(base).max():.2f}")
    report("float32 vs float64", base, Model(args.model, dtype=np.float64).logits(tokens))
    model = Model(args.model, matmul_dtype=np.float64)
    for name in args.only or VARIANTS:
        model.activation_map = VARIANTS[name]
        report(name, model.logits(tokens), base)
    return 0


if __name__ == "__main__":
    sys.exit(main())
