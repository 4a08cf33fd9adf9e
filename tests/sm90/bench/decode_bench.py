#!/usr/bin/env python3
"""Times the decode kernels beside torch's cuDNN attention in one process: microseconds and GB/s of K and V.

    decode_bench.py SHIM.so [--json FILE] [--variants 0,1,...] [--shapes 1x1024,...] [--repeats N]

One query token, 32/8 heads, head dim 128, bf16. Each kernel runs from a CUDA graph. Cold: 256 MiB of other memory are
read before every call; warm: the calls follow each other. `empty` is what the same method says of a kernel that does
nothing, `read only` of one that reads K and V and does nothing else. A variant is a number of decode_variants.cu's list.
"""

import argparse
import ctypes
import json
import os
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "bench"))
from gpu_timing import between_events, graph_of, smi  # noqa: E402

HEADS_Q, HEADS_KV, DIM = 32, 8, 128
RAGGED = [256 * (i % 32) + 37 * i + 100 for i in range(64)]  # 64 lengths of 100 to about 10 k


class Shim:
    def __init__(self, path):
        library = ctypes.CDLL(path)
        self.call = library.tessera_bench_decode
        self.scratch_bytes = library.tessera_bench_decode_scratch
        self.scratch_bytes.restype = ctypes.c_size_t
        self.read = library.tessera_bench_read
        self.resident = library.tessera_bench_decode_resident
        self.name = library.tessera_bench_decode_name
        self.name.restype = ctypes.c_char_p

    def runner(self, variant, q, k, v, lengths):
        batch, seqlen = k.shape[:2]
        shape = (batch, seqlen, HEADS_Q, HEADS_KV)
        out = torch.full_like(q, float("nan"))
        scratch = torch.zeros(self.scratch_bytes(variant, *shape), device="cuda", dtype=torch.uint8)
        pointer = lambda t: ctypes.c_void_p(0 if t is None else t.data_ptr())

        def call():
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            if self.call(variant, *shape, pointer(q), pointer(k), pointer(v), pointer(out), pointer(lengths),
                         pointer(scratch), stream) != 0:
                raise RuntimeError(variant)

        return graph_of(call), (out, scratch)


    def read_call(self, k, v, sink):
        pointer = lambda t: ctypes.c_void_p(t.data_ptr())

        def call():
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            if self.read(pointer(k), pointer(v), ctypes.c_int64(k.numel() * 2), pointer(sink), stream) != 0:
                raise RuntimeError("read")

        return call


def cudnn_call(q, k, v):
    out = [None]
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))

    def call():
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            out[0] = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    return call, out


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("shim")
    parser.add_argument("--json")
    parser.add_argument("--variants", default="0,1,2")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--commit", default="")
    parser.add_argument("--shapes", default="1x1024,1x2048,1x4096,1x32768,8x4096,64x4096,8x32768,ragged")
    options = parser.parse_args()
    torch.manual_seed(1)
    shim = Shim(options.shim)
    variants = [int(c) for c in options.variants.split(",")]
    driver, limit, clock = smi("driver_version,power.limit,clocks.sm")
    record = {"gpu": torch.cuda.get_device_name(0), "driver": driver, "power_limit_w": limit, "sm_mhz": clock,
              "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(), "commit": options.commit,
              "method": f"CUDA graph replays between events, median of {options.repeats}, all kernels interleaved",
              "resident": {shim.name(n).decode(): shim.resident(n) for n in variants}, "rows": []}
    print(record)
    cache = torch.empty(64 << 20, device="cuda", dtype=torch.float32)
    sink = torch.empty((), device="cuda")
    flush = lambda: torch.sum(cache, dim=0, out=sink)
    empty = graph_of(lambda: torch.cuda._sleep(0))
    for shape in options.shapes.split(","):
        ragged = shape == "ragged"
        batch, seqlen = (len(RAGGED), max(RAGGED)) if ragged else (int(x) for x in shape.split("x"))
        make = lambda tokens, heads: torch.randn(batch, tokens, heads, DIM, device="cuda", dtype=torch.bfloat16)
        q, k, v = make(1, HEADS_Q), make(seqlen, HEADS_KV), make(seqlen, HEADS_KV)
        lengths = torch.tensor(RAGGED, device="cuda", dtype=torch.int32) if ragged else None
        keys = sum(RAGGED) if ragged else batch * seqlen
        gigabytes = keys * HEADS_KV * DIM * 4 * 1e-9
        names, runs, keep = ["empty"], [empty], []
        reference = None
        if not ragged:
            names.append("read only")
            runs.append(graph_of(shim.read_call(k, v, sink)))
        if not ragged:
            call, out = cudnn_call(q, k, v)
            names.append("cudnn")
            runs.append(graph_of(call))
            call()
            reference = out[0].transpose(1, 2).float()
        errors = []
        for variant in variants:
            replay, owned = shim.runner(variant, q, k, v, lengths)
            names.append(shim.name(variant).decode())
            runs.append(replay)
            keep.append(owned)
            if reference is not None:
                replay()
                errors.append(((owned[0].float() - reference).norm() / reference.norm()).item())
        cold = between_events(runs, options.repeats, lambda run: flush())
        warm = between_events(runs, options.repeats, lambda run: run())
        print(f"{shape}: {gigabytes * 1e3:.1f} MB, largest difference to cuDNN {max(errors, default=0):.1e}")
        for name, us, hot in zip(names, cold, warm):
            print(f"  {name:13s} cold {us:8.2f} us {gigabytes / us * 1e6:7.0f} GB/s   warm {hot:8.2f} us")
            record["rows"].append({"shape": shape, "kernel": name, "cold_us": round(us, 2), "warm_us": round(hot, 2),
                                   "cold_gb_per_s": round(gigabytes / us * 1e6)})
        sys.stdout.flush()
        del q, k, v, runs, keep, reference
        torch.cuda.empty_cache()
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(record, file, indent=1)


if __name__ == "__main__":
    main()
