#!/usr/bin/env python3
"""Times windows, packed sequences and paged K/V beside the dense call that does the same work, all in one process.

    attention_ragged.py [--head-dims 64,128,256] [--dtype bfloat16] [--kernel sm90_fmha_ragged] [--compare sm80_fmha] [--repeats 15] [--json FILE]

TFLOP/s = 4 head_dim heads (visible (row, key) pairs, keys rounded to whole granules) / time, for the dense calls too; CUDA
events around single calls after a short spin, calls interleaved, median. The ratio is that to the dense call named in the
row. --kernel: the one that is timed on all problems but the dense ones, --compare: another one beside it.
"""

import argparse
import datetime
import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "python"))

try:
    import torch
    from gpu_timing import smi, spaced
except ImportError as missing:
    print(f"attention_ragged.py: got no torch ({missing}); allowed torch with CUDA; install it", file=sys.stderr)
    sys.exit(3)
try:
    import tessera
except (ImportError, OSError) as missing:
    print(f"attention_ragged.py: {missing}", file=sys.stderr)
    sys.exit(3)

HEADS = {64: (32, 32), 128: (16, 16), 256: (8, 8)}
MIXED = [5000, 3001, 2222, 1500, 1400, 1024, 777, 512, 300, 250, 200, 100, 64, 30, 3, 1]  # 16384 tokens


def granule(dim):
    return 128 if dim <= 128 else 64


def pairs(seqlen_q, seqlen_k, causal, left, size):
    """(row, key) pairs of one sequence and head, keys in whole granules."""
    position = torch.arange(seqlen_q, dtype=torch.int64) + seqlen_k - seqlen_q
    end = position + 1 if causal else torch.full_like(position, seqlen_k)
    begin = (position - left).clamp(min=0) if left >= 0 else torch.zeros_like(position)
    return int((((end + size - 1) // size - begin // size) * size).sum())


class Case:
    """Inputs of one shape in all the layouts."""

    def __init__(self, dim, dtype, lengths):
        self.dim, self.lengths = dim, lengths
        self.heads, self.heads_kv = HEADS[dim]
        make = lambda heads: torch.randn(sum(lengths), heads, dim, device="cuda", dtype=dtype)  # noqa: E731
        self.q, self.k, self.v = make(self.heads), make(self.heads_kv), make(self.heads_kv)

    def work(self, causal, left=-1):
        size = granule(self.dim)
        return 4 * self.dim * self.heads * sum(pairs(n, n, causal, left, size) for n in self.lengths)

    def dense(self, **options):
        batch = len(self.lengths)
        return tessera.Attention(*(t.view(batch, -1, t.shape[1], self.dim) for t in (self.q, self.k, self.v)), **options)

    def cumulative(self):
        return torch.tensor([0, *self.lengths], device="cuda", dtype=torch.int64).cumsum(0).to(torch.int32)

    def packed(self, **options):
        cu, longest = self.cumulative(), max(self.lengths)
        return tessera.Attention(self.q, self.k, self.v, cu_seqlens_q=cu, cu_seqlens_k=cu, max_seqlen_q=longest, max_seqlen_k=longest, **options)

    def paged(self, page, **options):
        batch, length = len(self.lengths), self.lengths[0]
        table = torch.randperm(batch * length // page, device="cuda").to(torch.int32).view(batch, -1)
        pools = []
        for t in (self.k, self.v):
            pool = torch.empty(table.numel(), page, t.shape[1], self.dim, device="cuda", dtype=t.dtype)
            pool[table.flatten().long()] = t.view(-1, page, t.shape[1], self.dim)
            pools.append(pool)
        return tessera.Attention(self.q.view(batch, length, self.heads, self.dim), *pools, page_table=table, **options)


def cells(dim, dtype):
    """(name, work, call of a kernel, name of the dense cell to compare with)."""
    long, mid, short = Case(dim, dtype, [8192] * 2), Case(dim, dtype, [4096] * 4), Case(dim, dtype, [1024] * 16)
    mixed = Case(dim, dtype, MIXED)
    for case, name in ((long, "2 x 8192"), (mid, "4 x 4096"), (short, "16 x 1024")):
        for causal in (False, True):
            mask = "causal" if causal else "full"
            yield f"dense {mask} {name}", case.work(causal), lambda k, c=case, m=causal: c.dense(causal=m, kernel=k), None
    for left in (4095, 1023, 255):
        yield f"window {left + 1} causal 2 x 8192", long.work(True, left), lambda k, w=left: long.dense(causal=True, window=(w, -1), kernel=k), "dense causal 2 x 8192"
    for case, name in ((mid, "4 x 4096"), (short, "16 x 1024")):
        for causal in (False, True):
            mask = "causal" if causal else "full"
            yield f"packed {mask} {name}", case.work(causal), lambda k, c=case, m=causal: c.packed(causal=m, kernel=k), f"dense {mask} {name}"
    for causal in (False, True):
        mask = "causal" if causal else "full"
        yield f"packed {mask} 16 lengths, 1 to 5000", mixed.work(causal), lambda k, m=causal: mixed.packed(causal=m, kernel=k), f"dense {mask} 4 x 4096"
    for page in (256, 128, 64, 16):
        for causal in (False, True):
            mask = "causal" if causal else "full"
            yield f"pages of {page} {mask} 4 x 4096", mid.work(causal), lambda k, p=page, m=causal: mid.paged(p, causal=m, kernel=k), f"dense {mask} 4 x 4096"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--head-dims", default="64,128,256")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16"])
    parser.add_argument("--kernel", default="sm90_fmha_ragged", help="the one to time; empty: the registry's choice")
    parser.add_argument("--compare", help="time this kernel on the same problems")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", dest="out")
    options = parser.parse_args()
    dims = [int(d) for d in options.head_dims.split(",")]
    if any(d not in HEADS for d in dims):
        parser.error(f"allowed head dims: {', '.join(map(str, HEADS))}")
    if not torch.cuda.is_available():
        print("attention_ragged.py: got no CUDA device; allowed a Hopper GPU; run it on a machine that has one", file=sys.stderr)
        return 3
    torch.manual_seed(1)
    driver, limit, clock, most = smi("driver_version,power.limit,clocks.sm,clocks.max.sm")
    commit = subprocess.run(["git", "-C", HERE, "rev-parse", "HEAD"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    record = {
        "what": "windows, packed and paged attention beside dense calls, TFLOP/s of visible pairs in whole granules; "
        + f"median of {options.repeats} single calls, interleaved",
        "date": datetime.date.today().isoformat(),
        "commit": os.environ.get("TESSERA_COMMIT") or commit.stdout.strip() or "unknown",
        "gpu": torch.cuda.get_device_name(0),
        "driver": driver,
        "power_limit_watts": limit,
        "sm_mhz_before": clock,
        "sm_mhz_max": most,
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "tessera": tessera.version(),
        "contract": tessera.contract_version(),
        "dtype": options.dtype,
        "rows": [],
    }
    print(f"{record['gpu']}, driver {driver}, {limit} W, {options.dtype}")
    for dim in dims:
        names, works, calls, dense_of, others = [], [], [], [], []
        for name, work, make, dense in cells(dim, getattr(torch, options.dtype)):
            call = make(options.kernel if dense and options.kernel else None)
            names, works, calls, dense_of = names + [name], works + [work], calls + [call], dense_of + [dense]
            others.append(make(options.compare) if options.compare else None)
        seconds = spaced([c.run for c in calls], options.repeats)
        compared = spaced([c.run for c in others], 3) if options.compare else [None] * len(calls)
        tflops = {n: w / t * 1e-12 for n, w, t in zip(names, works, seconds)}
        for name, work, call, dense, other in zip(names, works, calls, dense_of, compared):
            row = {"head_dim": dim, "heads_q": HEADS[dim][0], "heads_kv": HEADS[dim][1], "case": name, "kernel": call.kernel, "tflops": round(tflops[name], 1)}
            text = f"d{dim:<4} {name:<34} {call.kernel:<18} {tflops[name]:6.1f}"
            if dense:
                row["dense"], row["ratio"] = dense, round(tflops[name] / tflops[dense], 3)
                text += f"  {row['ratio']:.3f} of {dense}"
            if other:
                row["tflops_" + options.compare] = round(work / other * 1e-12, 1)
                text += f" | {options.compare} {work / other * 1e-12:.1f}"
            record["rows"].append(row)
            print(text, flush=True)
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            json.dump(record, file, indent=1)
            file.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
