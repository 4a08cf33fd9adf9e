#!/usr/bin/env python3
"""Times the sm_80 attention kernels beside torch's flash backend in one process and prints TFLOP/s.

    sm80_bench.py SHIM.so [--variants a,b] [--repeats N] [--dtype f16] [--problems q3314h32/8d128 ..] [--json FILE]

TFLOP/s = 4 b h s^2 d (halved for causal) / time; CUDA events around single calls after a short spin, median, calls of
all candidates interleaved. Decode rows print GB/s of K and V instead.
"""

import argparse
import ctypes
import json
import os
import re
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "bench"))
from gpu_timing import spaced  # noqa: E402

# (batch, seqlen_q, seqlen_k, heads_q, heads_kv, dim, causal)
PREFILL = [(4, 4096, 4096, 16, 16, dim, causal) for dim in (64, 128, 256) for causal in (False, True)]
# One sequence, causal: tokens, query and K/V heads, head dim.
def problem(text):
    tokens, heads_q, heads_kv, dim = (int(x) for x in re.fullmatch(r"q(\d+)h(\d+)/(\d+)d(\d+)", text).groups())
    return (1, tokens, tokens, heads_q, heads_kv, dim, True)


DECODE = [(64, 1, 4096, 32, 8, 128, False), (8, 1, 16384, 32, 8, 128, False)]


def runner(library, name, tensors, causal, page_size=0):
    q, k, v = tensors
    pages = torch.arange(k.shape[0] * k.shape[1] // max(page_size, 1), device="cuda", dtype=torch.int32)
    out = torch.full_like(q, float("nan"))
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    batch, seqlen_q, heads_q, dim = q.shape
    pointer = lambda t: ctypes.c_void_p(t.data_ptr())
    fixed = (name.encode(), int(q.dtype == torch.bfloat16), int(causal), ctypes.c_int64(batch), ctypes.c_int64(seqlen_q),
             ctypes.c_int64(k.shape[1]), heads_q, k.shape[2], dim, pointer(q), pointer(k), pointer(v), pointer(out),
             ctypes.c_float(dim**-0.5), page_size, pointer(pages))
    size = library(*fixed, None, sms, None)
    if size < 0:
        return None
    workspace = torch.full((size + 64,), 255, device="cuda", dtype=torch.uint8)
    owned = (q, k, v, out, workspace, pages)  # the kernel only has their addresses

    def run():
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        if library(*fixed, pointer(owned[4]), sms, stream) != 0:
            raise RuntimeError(name)
        return owned[3]

    return run


def flash_runner(tensors, causal):
    q, k, v = (t.transpose(1, 2) for t in tensors)

    def run():
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal,
                                                                    enable_gqa=q.shape[1] != k.shape[1])

    return run


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("shim")
    parser.add_argument("--variants", default="")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--dtype", choices=("bf16", "f16"), default="bf16")
    parser.add_argument("--problems", nargs="+", type=problem, default=PREFILL + DECODE)
    parser.add_argument("--json")
    options = parser.parse_args()
    torch.manual_seed(1)
    library = ctypes.CDLL(options.shim).tessera_bench_sm80
    library.restype = ctypes.c_int64
    rows = []
    dtype = torch.bfloat16 if options.dtype == "bf16" else torch.float16
    print(torch.cuda.get_device_name(0), "torch", torch.__version__)
    for batch, seqlen_q, seqlen_k, heads_q, heads_kv, dim, causal in options.problems:
        make = lambda tokens, heads: torch.randn(batch, tokens, heads, dim, device="cuda", dtype=dtype)
        tensors = (make(seqlen_q, heads_q), make(seqlen_k, heads_kv), make(seqlen_k, heads_kv))
        runs = {"library": runner(library, "library", tensors, causal), "flash": flash_runner(tensors, causal)}
        for name in options.variants.split(","):
            run = runner(library, name, tensors, causal)
            if run is not None:
                runs[name] = run
        if seqlen_q == 1:
            for page_size in (16, 64):
                runs[f"page{page_size}"] = runner(library, "library", tensors, causal, page_size)
        got, want = runs["library"]().float(), runs["flash"]().transpose(1, 2).float()
        error = float((got - want).norm() / want.norm())
        for name, run in runs.items():
            if name != "flash" and not torch.equal(run().view(torch.int16), runs["library"]().view(torch.int16)):
                raise SystemExit(f"{name}: other bytes than the library's")
        seconds = spaced(list(runs.values()), options.repeats)
        if seqlen_q > 1:
            unit, work = "TFLOP/s", 4 * batch * heads_q * seqlen_q * seqlen_k * dim / (2 if causal else 1) * 1e-12
        else:
            unit, work = "GB/s", 4 * batch * heads_kv * seqlen_k * dim * 1e-9
        rates = {name: round(work / t, 1) for name, t in zip(runs, seconds)}
        rows.append({"batch": batch, "seqlen_q": seqlen_q, "seqlen_k": seqlen_k, "heads_q": heads_q,
                     "heads_kv": heads_kv, "head_dim": dim, "dtype": options.dtype, "causal": causal, "unit": unit, "rates": rates,
                     "difference_to_flash": error})
        print(f"b{batch} q{seqlen_q} k{seqlen_k} h{heads_q}/{heads_kv} d{dim} {'causal' if causal else 'full'} {unit}:",
              " ".join(f"{name} {rate}" for name, rate in rates.items()), f"| difference {error:.1e}", flush=True)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
