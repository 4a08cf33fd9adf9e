#!/usr/bin/env python3
"""What the contract costs the prefill kernels: they beside the same kernels without its constraints, in one process.

    contract_price.py SHIM.so [--json FILE] [--head-dims 64,128,256] [--seconds-sustained S] [--also NAME=OTHER.so ...]

`one_chunk`, `free` and `free_exact_max` are variants of tests/sm90/bench/variants.cu. The price of a cell is the speed of
the faster one of the latter two over that of the contract's kernel, less 1. TFLOP/s as in prefill_bench.py. --also: the
contract's kernels of other builds, to compare with.
"""

import argparse
import datetime
import json
import math
import os
import sys

import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "bench"))
from gpu_timing import smi, spaced, sustained  # noqa: E402
from prefill_bench import FA3_OVER_CUDNN, Shim  # noqa: E402

FREE = ("free", "free_exact_max")
VARIANTS = ("one_chunk", *FREE)
# Of head dim 512, for which no peer has a kernel; `free` lifts the chunks only (variants_512.cu).
CELLS_512 = [(16384 // seqlen, seqlen, 8, 8, causal) for seqlen in (4096, 8192, 16384) for causal in (False, True)]


def price(speeds):
    return max(speeds[name] for name in FREE if name in speeds) / speeds["contract"] - 1


def sustained_both_ways(runs, seconds, flops):
    """TFLOP/s, clock and watts of each runner: back to back calls, all runners in turn and then in reverse."""
    found = [[] for _ in runs]
    for order in (range(len(runs)), reversed(range(len(runs)))):
        for i in order:
            found[i].append(sustained(runs[i], seconds / 2))
    return [{"tflops": round(flops * 1e-12 / (sum(x["seconds"] for x in both) / 2), 1),
             "sm_mhz": [x["sm_mhz"] for x in both], "watts": [x["watts"] for x in both]} for both in found]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shim")
    parser.add_argument("--json")
    parser.add_argument("--head-dims", default="64,128,256")
    parser.add_argument("--lengths", default="", help="only these sequence lengths")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--seconds-sustained", type=float, default=0.0, help="per kernel and cell")
    parser.add_argument("--also", action="append", default=[])
    options = parser.parse_args()
    torch.manual_seed(1)
    shims = {"contract": Shim(options.shim)}
    shims.update((name, Shim(path)) for name, path in (entry.split("=", 1) for entry in options.also))
    driver, limit, clock, most = smi("driver_version,power.limit,clocks.sm,clocks.max.sm")
    record = {"what": "prefill kernels and the same without the contract's constraints, TFLOP/s, bf16",
              "date": datetime.date.today().isoformat(), "commit": os.environ.get("TESSERA_COMMIT", ""),
              "gpu": torch.cuda.get_device_name(0), "driver": driver, "power_limit_w": limit, "sm_mhz_before": clock,
              "sm_mhz_max": most, "cuda": torch.version.cuda,
              "method": f"spaced: CUDA events around single calls, interleaved, median of {options.repeats}; sustained: "
                        f"{options.seconds_sustained} s back to back in two parts, clock and power read in each",
              "rows": [], "price": {}}
    print(record["gpu"], driver, f"{limit} W; {' '.join(shims)} {' '.join(VARIANTS)} (256: no one_chunk)")
    lengths = [int(length) for length in options.lengths.split(",") if length]
    logs = {}
    for dim in (int(d) for d in options.head_dims.split(",")):
        for batch, seqlen, heads_q, heads_kv, causal in CELLS_512 if dim == 512 else FA3_OVER_CUDNN[dim]:
            if seqlen > 16384 or (lengths and seqlen not in lengths):
                continue
            make = lambda heads: torch.randn(batch, seqlen, heads, dim, device="cuda", dtype=torch.bfloat16)
            q, k, v = make(heads_q), make(heads_kv), make(heads_kv)
            runs = [shim.runner("contract", q, k, v, causal) for shim in shims.values()]
            variants = [n for n in VARIANTS if shims["contract"].has(n, dim, True, causal)]
            runs += [shims["contract"].runner(name, q, k, v, causal) for name in variants]
            names = list(shims) + variants
            reference = runs[0]().float()
            off = max(((run().float() - reference).norm() / reference.norm()).item() for run in runs[1:])
            other_bits = [n for n, run in zip(names[1:len(shims)], runs[1:]) if not torch.equal(run().float(), reference)]
            flops = 4 * batch * heads_q * seqlen**2 * dim / (2 if causal else 1)
            speeds = {n: round(flops / t * 1e-12, 1) for n, t in zip(names, spaced(runs, options.repeats))}
            row = {"head_dim": dim, "batch": batch, "seqlen": seqlen, "heads_q": heads_q, "heads_kv": heads_kv,
                   "causal": causal, "largest_difference": round(off, 6), "tflops": speeds,
                   "price_percent": round(100 * price(speeds), 2)}
            mask = "causal" if causal else "full"
            logs.setdefault(("spaced", dim, mask), []).append({n: math.log(speeds[n] / speeds["contract"]) for n in names})
            text = f"d{dim} {batch:2d} x {seqlen:5d} {heads_q}/{heads_kv} {mask:6} | " + \
                   " ".join(f"{speeds[n]:6.1f}" for n in names) + f" | {row['price_percent']:5.1f} %"
            if options.seconds_sustained > 0:
                row["sustained"] = dict(zip(names, sustained_both_ways(runs, options.seconds_sustained, flops)))
                speeds = {n: row["sustained"][n]["tflops"] for n in names}
                row["sustained_price_percent"] = round(100 * price(speeds), 2)
                logs.setdefault(("sustained", dim, mask), []).append(
                    {n: math.log(speeds[n] / speeds["contract"]) for n in names})
                text += " | " + " ".join(f"{speeds[n]:6.1f}" for n in names) + f" | {row['sustained_price_percent']:5.1f} %"
            if off > 0.01 or other_bits:
                text += f" | difference {off:.1e}; other bits: {' '.join(other_bits) or 'none'}"
            print(text, flush=True)
            record["rows"].append(row)
            del q, k, v, runs, reference
            torch.cuda.empty_cache()
    for (method, dim, mask), cells in logs.items():
        names = list(cells[0])
        means = {n: math.exp(sum(cell[n] for cell in cells) / len(cells)) for n in names}
        best = math.exp(sum(max(cell[n] for n in FREE if n in cell) for cell in cells) / len(cells))
        key = f"{method} d{dim} {mask}"
        record["price"][key] = {"mean_percent": round(100 * (best - 1), 2), "speed_over_contract":
                                {n: round(means[n], 4) for n in names if n != "contract"}}
        print(f"{key}: price {100 * (best - 1):.2f} %; over the contract's: " +
              " ".join(f"{n} {means[n]:.3f}" for n in names if n != "contract"))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(record, file, indent=1)


if __name__ == "__main__":
    main()
