#!/usr/bin/env python3
"""How far attention's results are from float64, beside cuDNN and FlashAttention-2 on the same inputs, on a GPU.

    attention_accuracy.py [--json FILE]

Per head dim, dtype and number of keys: the relative error of O (Frobenius norm) and the largest absolute error, over the
same 64 query tokens; for Tessera also the smallest cosine of a row with the exact one and the largest error of LSE. Values
are drawn with a mean, as real V have one: a one-sided error of long sums shows there. What a library refuses is null.
"""

import argparse
import datetime
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "python"))

try:
    import torch
    from gpu_timing import smi
    from torch.nn.attention import SDPBackend, sdpa_kernel

    import tessera
except (ImportError, OSError) as missing:
    print(f"attention_accuracy.py: {missing}", file=sys.stderr)
    sys.exit(3)

TOKENS, HEADS = 64, 4
DIMS = (64, 128, 256, 512)
KEYS = (128, 1024, 4096, 16384, 65536)


def exact(q, k, v):
    """O (batch, tokens, heads, dim) and LSE (batch, heads, tokens) in float64."""
    q, k, v = (t.double().transpose(1, 2) for t in (q, k, v))
    scores = q @ k.transpose(2, 3) * q.shape[-1] ** -0.5
    return (torch.softmax(scores, dim=-1) @ v).transpose(1, 2), torch.logsumexp(scores, dim=-1)


def sdpa(backend, q, k, v):
    """O, or None where the backend does not take the shapes."""
    try:
        with sdpa_kernel(backend):
            o = torch.nn.functional.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)))
    except RuntimeError:
        return None
    return o.transpose(1, 2)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", dest="out")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("attention_accuracy.py: got no CUDA device; allowed a Hopper GPU; run it on a machine that has one", file=sys.stderr)
        return 3
    driver, clock, most = smi("driver_version,clocks.sm,clocks.max.sm")
    commit = os.environ.get("TESSERA_COMMIT") or "unknown"
    machine = {"gpu": torch.cuda.get_device_name(0), "driver": driver, "sm_mhz_before": clock, "sm_mhz_max": most, "commit": commit}
    record = {**machine, "date": datetime.date.today().isoformat(), "cudnn": torch.backends.cudnn.version(), "tokens": TOKENS, "heads": HEADS, "rows": []}
    print("relative error of O against float64; of Tessera also the smallest cosine, as 1 - cosine, and the largest error of LSE")
    for dim in DIMS:
        for dtype in (torch.bfloat16, torch.float16):
            for keys in KEYS:
                torch.manual_seed(keys + dim)
                q = torch.randn(1, TOKENS, HEADS, dim, device="cuda").to(dtype)
                k = torch.randn(1, keys, HEADS, dim, device="cuda").to(dtype)
                v = (torch.randn(1, keys, HEADS, dim, device="cuda") * 0.25 + 1.0).to(dtype)
                want, want_lse = exact(q, k, v)
                call = tessera.Attention(q, k, v, return_lse=True)
                call.run()
                results = {
                    "tessera": call.o,
                    "cudnn": sdpa(SDPBackend.CUDNN_ATTENTION, q, k, v),
                    "fa2": sdpa(SDPBackend.FLASH_ATTENTION, q, k, v),
                }
                row = {"head_dim": dim, "dtype": str(dtype).removeprefix("torch."), "keys": keys, "kernel": call.kernel}
                cosine = torch.nn.functional.cosine_similarity(call.o.double(), want, dim=-1)
                row["one_minus_cosine"] = float(1 - cosine.min())
                row["lse"] = float((call.lse.double() - want_lse).abs().max())
                row["relative"], row["largest"] = {}, {}
                for name, o in results.items():
                    error = None if o is None else o.double() - want
                    row["relative"][name] = None if o is None else float(error.norm() / want.norm())
                    row["largest"][name] = None if o is None else float(error.abs().max())
                record["rows"].append(row)
                errors = ", ".join(f"{n} -" if e is None else f"{n} {e:.2e}" for n, e in row["relative"].items())
                print(f"d{dim:<4} {row['dtype']:<9} {keys:>6} keys  {errors}, 1 - cos {row['one_minus_cosine']:.1e}, lse {row['lse']:.1e}")
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            json.dump(record, file, indent=1)
            file.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
