#!/usr/bin/env python3
"""Times the prefill kernels beside torch's cuDNN attention in one process and prints TFLOP/s.

    prefill_bench.py SHIM.so [--json FILE] [--variants a,b] [--seconds-sustained S] [--grid small|full]

TFLOP/s = 4 b h s^2 d (halved for causal) / time; CUDA events around single calls after a short spin ("spaced"), median.
The `FA3/cuDNN` column of the table is not measured here: it is the ratio recorded earlier on the same model of GPU.
"""

import argparse
import ctypes
import json
import os
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "bench"))
from gpu_timing import smi, spaced, sustained  # noqa: E402

# Head dim -> (batch, seqlen, heads_q, heads_kv, causal): FA3 over cuDNN as recorded on an H200 with cuDNN 9.19.
FA3_OVER_CUDNN = {128: {
    (16, 1024, 16, 16, False): 0.85, (16, 1024, 16, 16, True): 1.14, (8, 2048, 16, 16, False): 1.07,
    (8, 2048, 16, 16, True): 1.20, (4, 4096, 16, 16, False): 1.07, (4, 4096, 16, 16, True): 1.21,
    (2, 8192, 16, 16, False): 1.09, (2, 8192, 16, 16, True): 1.20, (1, 16384, 16, 16, False): 1.15,
    (1, 16384, 16, 16, True): 1.21, (1, 32768, 16, 16, False): 1.13, (1, 32768, 16, 16, True): 1.07,
    (16, 1024, 32, 8, False): 1.04, (16, 1024, 32, 8, True): 1.14, (8, 2048, 32, 8, False): 1.06,
    (8, 2048, 32, 8, True): 1.17, (4, 4096, 32, 8, False): 1.07, (4, 4096, 32, 8, True): 1.18,
    (2, 8192, 32, 8, False): 1.05, (2, 8192, 32, 8, True): 1.15, (1, 16384, 32, 8, False): 1.12,
    (1, 16384, 32, 8, True): 1.17, (1, 32768, 32, 8, False): 1.11, (1, 32768, 32, 8, True): 1.12,
}, 64: {
    (16, 1024, 32, 32, False): 0.85, (16, 1024, 32, 32, True): 0.90, (8, 2048, 32, 32, False): 1.08,
    (8, 2048, 32, 32, True): 1.07, (4, 4096, 32, 32, False): 1.10, (4, 4096, 32, 32, True): 1.12,
    (2, 8192, 32, 32, False): 1.21, (2, 8192, 32, 32, True): 1.20, (1, 16384, 32, 32, False): 1.11,
    (1, 16384, 32, 32, True): 1.19,
}, 256: {
    (16, 1024, 8, 8, False): 1.08, (16, 1024, 8, 8, True): 1.08, (8, 2048, 8, 8, False): 1.08,
    (8, 2048, 8, 8, True): 1.15, (4, 4096, 8, 8, False): 1.07, (4, 4096, 8, 8, True): 1.20,
    (2, 8192, 8, 8, False): 1.08, (2, 8192, 8, 8, True): 1.24, (1, 16384, 8, 8, False): 1.13,
    (1, 16384, 8, 8, True): 1.23,
}}


def small(key):
    """The cells of the short grid."""
    _, seqlen, _, heads_kv, _ = key
    return 2048 <= seqlen <= 16384 and (heads_kv != 8 or seqlen in (2048, 8192))


class Shim:
    def __init__(self, path):
        library = ctypes.CDLL(path)
        self.call = library.tessera_bench_prefill
        self.scratch_bytes = library.tessera_bench_scratch_bytes
        self.scratch_bytes.restype = ctypes.c_size_t
        self.has = lambda name, dim, bf16, causal: library.tessera_bench_has_variant(
            name.encode(), dim, int(bf16), int(causal)) == 1
        self.sms = torch.cuda.get_device_properties(0).multi_processor_count

    def runner(self, variant, q, k, v, causal, extra=None):
        batch, seqlen, heads, dim = q.shape
        wide = variant in ("general_wide", "general_states")
        out = torch.full_like(q, float("nan"), dtype=torch.float32 if wide else q.dtype)
        if variant in ("general_sinks", "general_states"):
            extra = torch.zeros(2, batch, heads, seqlen, device="cuda", dtype=torch.float32)
        lse = torch.empty(batch, heads, seqlen, device="cuda", dtype=torch.float32)
        scratch = torch.zeros(self.scratch_bytes(k.shape[1], dim, self.sms), device="cuda", dtype=torch.uint8)
        owned = (q, k, v, out, lse, scratch, extra)  # the kernel only has their addresses
        pointer = lambda t: ctypes.c_void_p(t.data_ptr())
        arguments = (variant.encode(), int(q.dtype == torch.bfloat16), int(causal), batch, seqlen, k.shape[1], heads,
                     k.shape[2], dim, pointer(q), pointer(k), pointer(v), pointer(out), pointer(lse), pointer(scratch),
                     ctypes.c_float(dim**-0.5), self.sms, pointer(extra) if extra is not None else None)

        def run():
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            if self.call(*arguments, stream) != 0:
                raise RuntimeError(variant)
            return owned[3]

        return run


def cudnn_runner(q, k, v, causal):
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))

    def run():
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])

    return run


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("shim")
    parser.add_argument("--json")
    parser.add_argument("--variants", default="")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--grid", default="small")
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--lengths", default="", help="only these sequence lengths")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--seconds-sustained", type=float, default=0.0)
    options = parser.parse_args()
    torch.manual_seed(1)
    shim = Shim(options.shim)
    variants = [name for name in options.variants.split(",") if name]
    properties = torch.cuda.get_device_properties(0)
    driver = "{}, {} W".format(*smi("driver_version,power.limit"))
    record = {"gpu": properties.name, "driver_and_power_limit": driver, "cuda": torch.version.cuda,
              "cudnn": torch.backends.cudnn.version(), "dtype": options.dtype, "head_dim": options.head_dim,
              "method": f"CUDA events, median of {options.repeats}, interleaved, short spin between", "rows": []}
    print(record["gpu"], driver, "cudnn", record["cudnn"])
    print("b s h/hkv mask | contract cudnn ratio ~FA3 | " + " ".join(variants))
    dim = options.head_dim
    lengths = [int(length) for length in options.lengths.split(",") if length]
    for key, fa3_over_cudnn in FA3_OVER_CUDNN[dim].items():
        if (options.grid == "small" and not small(key)) or (lengths and key[1] not in lengths):
            continue
        batch, seqlen, heads_q, heads_kv, causal = key
        make = lambda heads: torch.randn(batch, seqlen, heads, dim, device="cuda", dtype=getattr(torch, options.dtype))
        q, k, v = make(heads_q), make(heads_kv), make(heads_kv)
        runs = [shim.runner("contract", q, k, v, causal), cudnn_runner(q, k, v, causal)]
        error = (runs[0]().float() - runs[1]().transpose(1, 2).float()).norm() / runs[1]().float().norm()
        built = [name for name in variants if shim.has(name, dim, options.dtype == "bfloat16", causal)]
        runs += [shim.runner(name, q, k, v, causal) for name in built]
        flops = 4 * batch * heads_q * seqlen**2 * dim / (2 if causal else 1)
        tflops = [flops / t * 1e-12 for t in spaced(runs, options.repeats)]
        row = {"batch": batch, "seqlen": seqlen, "heads_q": heads_q, "heads_kv": heads_kv, "causal": causal,
               "tflops": dict(zip(["contract", "cudnn"] + built, [round(x, 1) for x in tflops])),
               "fa3_over_cudnn_recorded": fa3_over_cudnn}
        text = f"{batch:2d} {seqlen:5d} {heads_q}/{heads_kv} {'causal' if causal else 'full  '} | " \
               f"{tflops[0]:6.1f} {tflops[1]:6.1f} {tflops[0] / tflops[1]:.3f} " \
               f"{tflops[0] / tflops[1] / fa3_over_cudnn:.3f} | " + " ".join(f"{n} {x:.1f}" for n, x in zip(built, tflops[2:]))
        if options.seconds_sustained > 0:
            for name, run in zip(["contract", "cudnn"] + built, runs):
                result = sustained(run, options.seconds_sustained)
                speed = flops / result.pop("seconds") * 1e-12
                row[f"sustained_{name}"] = {"tflops": round(speed, 1), **result}
                text += f" | {name} {speed:.0f} @{result['sm_mhz']}MHz {result['watts']}W"
        print(text + f" | diff to cudnn {error:.1e}", flush=True)
        record["rows"].append(row)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(record, file, indent=1)


if __name__ == "__main__":
    main()
