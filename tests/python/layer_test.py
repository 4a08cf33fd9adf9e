#!/usr/bin/env python3
"""The worked example of a DeepSeek-V4 layer: every kind of layer stays within its limits, and faults would not.

layer_test.py LIBTESSERA
"""

import os
import subprocess
import sys
import unittest

os.environ["TESSERA_LIBRARY"] = sys.argv[1]
EXAMPLES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples")
sys.path.insert(0, EXAMPLES)
try:
    import numpy as np
except ImportError as missing:
    print(f"SKIPPED: {missing}; tools/setup test installs what is missing")
    sys.exit(77)
import deepseek_v4_layer as example


def errors(ratio, cache, spoil=None):
    """Relative errors of attention and of the layer; spoil(attention) changes what attention is given."""
    random = np.random.default_rng(5)
    shape = example.Shape(ratio, 200, heads=4, groups=2)
    weights = example.random_weights(shape, random)
    x = random.standard_normal((shape.tokens, shape.hidden))
    want, lists = example.layer(x, weights, shape, lambda *rows: example.exact_attention(*rows, weights["sinks"], shape))
    attention = example.Attention(shape, weights["sinks"], cache, "cpu", random)
    sinks = attention.sinks.astype(np.float64)
    if spoil is not None:
        spoil(attention)
    got, _ = example.layer(x.astype(np.float32), weights, shape, attention, lists)
    exact = example.exact_attention(*attention.stored(), lists, sinks, shape)
    return example.relative(attention.o, exact), example.relative(got, want)


class Layer(unittest.TestCase):
    def test_every_kind_of_layer_is_within_its_limits(self):
        for ratio in (0, 4, 128):
            for cache in ("bf16", "fp8"):
                with self.subTest(ratio=ratio, cache=cache):
                    command = [sys.executable, os.path.join(EXAMPLES, "deepseek_v4_layer.py")]
                    options = ["--ratio", str(ratio), "--cache", cache, "--tokens", "260", "--heads", "4"]
                    done = subprocess.run(command + options, capture_output=True, text=True, timeout=120, check=False)
                    self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                    self.assertIn("the same bytes", done.stdout)

    def test_a_fault_is_far_outside_of_them(self):
        def no_sinks(attention):
            attention.sinks = np.full_like(attention.sinks, -np.inf)

        def window_of_127(attention):
            attention.shape = example.Shape(4, 200, heads=4, groups=2, window=127)

        sound = errors(4, "fp8")
        self.assertLess(sound[0], 1e-6)
        self.assertLess(sound[1], 5e-2)
        for spoil in (no_sinks, window_of_127):
            self.assertGreater(errors(4, "fp8", spoil)[0], 1e-3, spoil.__name__)

    def test_compressed_rows_matter(self):
        def every_row_is_the_first(attention):
            sound = attention.run

            def run(begin, end):
                attention.lists = np.where(attention.lists >= 0, 0, -1).astype(np.int32)
                return sound(begin, end)

            attention.run = run

        # attention.lists is only what the call gets: the exact one keeps the lists of the layer
        self.assertGreater(errors(4, "bf16", every_row_is_the_first)[0], 1e-2)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
