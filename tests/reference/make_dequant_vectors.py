"""Writes tests/vectors/dequant/dequant.json: blocks of every tensor type and their values by the gguf package.

Run from the repository root with the packages of tests/requirements.txt:
    python tests/reference/make_dequant_vectors.py

The gguf package (numpy) is an implementation independent of ours. Code and scale bytes are random over their whole
range; the f16 scales are finite and include zeros of both signs, subnormals and the extremes. Values are stored as the
hexadecimal bits of f32, so the comparison is exact. All values are finite.
"""

import json
import pathlib

import gguf
import numpy as np

OUT = pathlib.Path(__file__).parent.parent / "vectors" / "dequant" / "dequant.json"

# type -> (blocks, byte offsets of the f16 fields of a block)
TYPES = {
    "F32": (32, []),
    "F16": (64, [0]),
    "BF16": (64, []),
    "Q4_0": (8, [0]),
    "Q4_1": (8, [0, 2]),
    "Q5_0": (8, [0]),
    "Q5_1": (8, [0, 2]),
    "Q8_0": (8, [0]),
    "Q4_K": (4, [0, 2]),
    "Q5_K": (4, [0, 2]),
    "Q6_K": (4, [208]),
}

# One 0, both subnormal extremes, the smallest and largest normals, and -0.
SPECIAL_F16 = [0x0000, 0x8001, 0x03FF, 0x0400, 0xFBFF, 0x8000, 0x7BFF]


def random_f16(rng, count):
    """Finite f16 bit patterns: about a quarter special, the rest of usual scale size (2^-14 .. 2)."""
    usual = (rng.integers(0, 2, count) << 15) | (rng.integers(1, 16, count) << 10) | rng.integers(0, 1024, count)
    special = rng.choice(SPECIAL_F16, count)
    return np.where(rng.random(count) < 0.25, special, usual).astype("<u2")


def main():
    rng = np.random.default_rng(20240611)
    cases = []
    for name, (blocks, f16_fields) in TYPES.items():
        qtype = gguf.GGMLQuantizationType[name]
        elements, size = gguf.GGML_QUANT_SIZES[qtype]
        data = rng.integers(0, 256, (blocks, size), dtype=np.uint8)
        for field in f16_fields:
            data[:, field : field + 2] = random_f16(rng, blocks).view(np.uint8).reshape(blocks, 2)
        if name == "BF16":
            data[:, 1] &= 0xBF  # an exponent below 128: no infinities and NaNs
        if name == "F32":
            data[:, 3] &= 0xBF
        values = gguf.quants.dequantize(data.reshape(-1), qtype) if name != "F32" else data.view("<f4")
        values = np.ascontiguousarray(values.reshape(-1), dtype="<f4")
        assert values.size == blocks * elements and np.isfinite(values).all(), name
        cases.append(
            {
                "type": name,
                "blocks": blocks,
                "bytes": data.tobytes().hex(),
                "f32": values.astype("<f4").byteswap().tobytes().hex(),
            }
        )
    comment = "Made by tests/reference/make_dequant_vectors.py. bytes: blocks as stored; f32: big-endian bits."
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps({"_comment": comment, "cases": cases}, indent=0) + "\n")


if __name__ == "__main__":
    main()
