#!/usr/bin/env python3
"""The Python binding on the CPU kernels.  binding_test.py LIBTESSERA ABI_TOOL"""

import ctypes
import os
import subprocess
import sys
import unittest

LIBRARY, ABI_TOOL = sys.argv[1:3]
os.environ["TESSERA_LIBRARY"] = LIBRARY
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python"))
try:
    import numpy as np
except ImportError as missing:
    print(f"SKIPPED: {missing}; tools/setup test installs what is missing")
    sys.exit(77)
import tessera
from tessera import _abi

STRUCTURES = {
    "tessera_fmha_params": _abi.FmhaParams,
    "tessera_output_rope": _abi.OutputRope,
    "tessera_kv_segment": _abi.Segment,
    "tessera_bit_mask": _abi.BitMask,
    "tessera_tensor": _abi.Tensor,
    "tessera_row_scalars": _abi.RowScalars,
    "tessera_error": _abi.Error,
    "tessera_stream": _abi.Stream,
    "tessera_kernel_info": _abi.KernelInfo,
}


def reference(q, k, v, causal, scale, left=-1):
    """Attention in float64 over (batch, tokens, heads, dim): O and the natural log-sum-exp (batch, heads, tokens)."""
    group = q.shape[2] // k.shape[2]
    k, v = (np.repeat(t.astype(np.float64), group, axis=2) for t in (k, v))
    scores = np.einsum("bihd,bjhd->bhij", q.astype(np.float64), k) * scale
    position = np.arange(q.shape[1])[:, None] + k.shape[1] - q.shape[1]
    key = np.arange(k.shape[1])[None, :]
    hidden = np.zeros(scores.shape[2:], bool)
    if causal:
        hidden |= key > position
    if left >= 0:
        hidden |= key < position - left
    scores[:, :, hidden] = -np.inf
    peak = scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores - peak)
    total = weights.sum(axis=-1, keepdims=True)
    return np.einsum("bhij,bjhd->bihd", weights / total, v), (peak + np.log(total))[..., 0]


class Binding(unittest.TestCase):
    def setUp(self):
        self.random = np.random.default_rng(7)

    def normal(self, *shape, dtype=np.float32):
        return self.random.standard_normal(shape).astype(dtype)

    def test_structures_are_laid_out_as_the_c_compiler_does(self):
        seen = 0
        for line in subprocess.run([ABI_TOOL], check=True, capture_output=True, text=True).stdout.splitlines():
            structure, *field, number = line.split()
            mirror = STRUCTURES[structure]
            found = getattr(mirror, field[0]).offset if field else ctypes.sizeof(mirror)
            self.assertEqual(found, int(number), line)
            seen += 1
        self.assertEqual(seen, sum(1 + len(s._fields_) for s in STRUCTURES.values()))

    def test_attention_and_lse_against_float64(self):
        for causal, left, dtype, tolerance in ((False, -1, np.float32, 2e-6), (True, -1, np.float16, 2e-3), (True, 20, np.float32, 2e-6)):
            q, k, v = self.normal(2, 33, 6, 64, dtype=dtype), self.normal(2, 70, 2, 64, dtype=dtype), self.normal(2, 70, 2, 48, dtype=dtype)
            o, lse = tessera.fmha(q, k, v, causal=causal, window=(left, -1), softmax_scale=0.1, return_lse=True)
            want, want_lse = reference(q, k, v, causal, np.float64(np.float32(0.1)), left)
            self.assertEqual((o.dtype, o.shape), (q.dtype, (2, 33, 6, 48)))
            np.testing.assert_allclose(o, want, atol=tolerance, rtol=tolerance)
            np.testing.assert_allclose(lse, want_lse, atol=1e-5, rtol=0)

    def test_layouts_give_the_same_bytes(self):
        q, k, v = self.normal(2, 5, 4, 32), self.normal(2, 48, 4, 32), self.normal(2, 48, 4, 32)
        o = tessera.fmha(q, k, v, causal=True)
        heads_first = [np.ascontiguousarray(t.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3) for t in (q, k, v)]
        self.assertEqual(o.tobytes(), tessera.fmha(*heads_first, causal=True).tobytes())

        flat = [t.reshape(-1, 4, 32) for t in (q, k, v)]
        cu_q, cu_k = (np.array([0, n, 2 * n], np.int32) for n in (5, 48))
        packed = tessera.fmha(*flat, causal=True, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, max_seqlen_q=5, max_seqlen_k=48)
        self.assertEqual(o.tobytes(), packed.tobytes())

        order = np.array([3, 0, 5, 1, 4, 2], np.int32)  # page i of the sequences stands at order[i] of the pools
        pools = [np.empty((6, 16, 4, 32), np.float32) for _ in range(2)]
        for pool, source in zip(pools, (k, v)):
            pool[order] = source.reshape(6, 16, 4, 32)
        paged = tessera.fmha(q, *pools, causal=True, page_table=order.reshape(2, 3), seqlens_k=np.array([48, 48], np.int32))
        self.assertEqual(o.tobytes(), paged.tobytes())

    def test_a_prepared_call_follows_its_buffers(self):
        q, k, v = (self.normal(1, 4, 2, 16) for _ in range(3))
        call = tessera.Attention(q, k, v)
        self.assertIn("cpu-fma32/f32/d16", call.contract_id)
        self.assertTrue(call.kernel.startswith("cpu_fmha_"))
        call.run()
        first = call.o.copy()
        q *= 2
        call.run()
        self.assertNotEqual(first.tobytes(), call.o.tobytes())
        self.assertEqual(call.o.tobytes(), tessera.fmha(q, k, v).tobytes())

    def test_segments_of_one_kind_have_the_bytes_of_a_plain_call(self):
        q, k, v = self.normal(2, 5, 4, 32), self.normal(2, 60, 2, 32), self.normal(2, 60, 2, 32)
        plain, lse = tessera.fmha(q, k, v, causal=True, window=(20, -1), return_lse=True)
        call = tessera.SegmentedAttention(q, [tessera.Segment(k, v, causal=True, window=(20, -1))], return_lse=True)
        call.run()
        self.assertEqual((call.o.tobytes(), call.lse.tobytes()), (plain.tobytes(), lse.tobytes()))

        every = np.broadcast_to(np.random.default_rng(1).permutation(60).astype(np.int32), (2, 5, 60)).copy()
        listed = tessera.SegmentedAttention(q, [tessera.Segment(k, v, indices=every, causal=True)])
        listed.run()
        self.assertEqual(listed.o.tobytes(), tessera.fmha(q, k, v, causal=True).tobytes())

    def test_v_may_be_the_first_dims_of_k(self):
        q, k = self.normal(1, 3, 4, 48), self.normal(1, 30, 1, 48)
        call = tessera.SegmentedAttention(q, [tessera.Segment(k)], head_dim_v=32)
        call.run()
        self.assertEqual(call.o.tobytes(), tessera.fmha(q, k, np.ascontiguousarray(k[..., :32])).tobytes())

    def test_fp8_rows_are_made_and_read(self):
        rows = (self.normal(10, 576).view(np.uint32) >> 16).astype(np.uint16)
        cache = np.zeros(10 * 656 + 16, np.uint8)
        cache = cache[-cache.ctypes.data % 16 :][: 10 * 656].reshape(1, 10, 656)
        tessera.kv_to_fp8(rows, "fp8_v32", cache)
        q = rows[None, :3, None].copy()
        coded = tessera.SegmentedAttention(q, [tessera.Segment(cache, format="fp8_v32")], head_dim_v=512, dtype="bfloat16")
        coded.run()
        dense = tessera.SegmentedAttention(q, [tessera.Segment(rows[None, :, None])], head_dim_v=512, dtype="bfloat16")
        dense.run()
        self.assertLess(np.abs(coded.o - dense.o).max(), 0.3)
        self.assertGreater(np.abs(coded.o - dense.o).max(), 0)
        self.assertIn("cpu-fma32/bf16/d576", coded.contract_id)

    def test_wrong_segments_are_refused_with_a_sentence(self):
        q, k = self.normal(1, 3, 4, 48), self.normal(1, 30, 1, 48)
        for mention, make in (
            ("format", lambda: tessera.Segment(k, format="int4")),
            ("page_table", lambda: tessera.Segment(k, format="fp8_v4")),
            ("segments", lambda: tessera.SegmentedAttention(q, [])),
            ("dtype", lambda: tessera.SegmentedAttention(q, [tessera.Segment(k)], dtype="uint16")),
            ("indices", lambda: tessera.SegmentedAttention(q, [tessera.Segment(k, indices=np.zeros((1, 3, 2)))])),
        ):
            with self.subTest(mention=mention), self.assertRaises(tessera.TesseraError) as caught:
                make()
            self.assertIn(mention, str(caught.exception))

    def test_wrong_input_is_refused_with_a_sentence(self):
        q, k, v = self.normal(1, 4, 4, 16), self.normal(1, 4, 2, 16), self.normal(1, 4, 2, 16)
        refusals = [
            ("INVALID_ARGUMENT", "num_heads_kv", (q, self.normal(1, 4, 3, 16), self.normal(1, 4, 3, 16)), {}),
            ("INVALID_ARGUMENT", "q, k, v", (q, k.astype(np.float16), v), {}),
            ("INVALID_ARGUMENT", "q, k, v", (q.astype(np.float64), k, v), {}),
            ("INVALID_ARGUMENT", "batch", (q, self.normal(2, 4, 2, 16), self.normal(2, 4, 2, 16)), {}),
            ("INVALID_ARGUMENT", "dimensions", (q[0], k, v), {}),
            ("INVALID_ARGUMENT", "k, v", (q, self.normal(1, 4, 2, 8), v), {}),
            ("INVALID_ARGUMENT", "sinks", (q, k, v), {"sinks": np.zeros(4, np.float64)}),
            ("INVALID_ARGUMENT", "max_seqlen_q", (q[0], k, v), {"cu_seqlens_q": np.array([0, 4], np.int32)}),
            ("INVALID_ARGUMENT", "softmax_scale", (q, k, v), {"softmax_scale": float("nan")}),
            ("INVALID_ARGUMENT", "no_such_kernel", (q, k, v), {"kernel": "no_such_kernel"}),
        ]
        for code, mention, arrays, options in refusals:
            with self.subTest(mention=mention), self.assertRaises(tessera.TesseraError) as caught:
                tessera.fmha(*arrays, **options)
            self.assertEqual(caught.exception.code, code)
            self.assertIn(mention, str(caught.exception))

    def test_kernels_are_listed(self):
        rows = tessera.kernels()
        self.assertTrue(any(row["available"] for row in rows))
        self.assertTrue(all(row["available"] or row["reason"] for row in rows))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
