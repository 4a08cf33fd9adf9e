#!/usr/bin/env python3
"""Times windows, packed sequences and paged K/V beside the dense call that does the same work, all in one process.

    attention_ragged.py [--head-dims 64,128,256] [--dtype bfloat16] [--kernel sm90_fmha_ragged] [--compare sm80_fmha] [--fa3] [--repeats 15] [--json FILE]

TFLOP/s = 4 head_dim heads (visible (row, key) pairs, keys rounded to whole granules) / time, for the dense calls too; CUDA
events around single calls after a short spin, calls interleaved, median; FA3's calls follow ours. The ratio is that to the
dense call named in the row, which has as many rows and as many keys per row, or nearly so (a window of w: causal, 2 w keys;
mixed lengths: see equal_rate).
--kernel: the one that is timed on all problems but the dense ones, --compare: another one beside it.
"""

import argparse
import importlib
import json
import math
import os
import sys
from typing import Callable, NamedTuple, Optional

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "python"))

try:
    import torch
    from gpu_timing import spaced
except ImportError as missing:
    print(f"attention_ragged.py: got no torch ({missing}); allowed torch with CUDA; install it", file=sys.stderr)
    sys.exit(3)
try:
    import tessera
    from gpu_record import new_record
except (ImportError, OSError) as missing:
    print(f"attention_ragged.py: {missing}", file=sys.stderr)
    sys.exit(3)

HEADS = {64: (32, 32), 128: (16, 16), 256: (8, 8)}
MIXED = [5000, 3001, 2222, 1500, 1400, 1024, 777, 512, 300, 250, 200, 100, 64, 30, 3, 1]  # 16384 tokens


MIXTURE = "dense at these lengths, "


def equal_rate(equal, tflops):
    """TFLOP/s of dense calls that do the same work; for mixed lengths each length's share at its own rate, between the
    dense cells' lengths linearly in the logarithm."""
    if not equal.startswith(MIXTURE):
        return tflops[equal]
    mask = equal[len(MIXTURE):]
    known = sorted((int(name.split()[-1]), rate) for name, rate in tflops.items() if name.startswith(f"dense {mask} "))
    work = seconds = 0.0
    for length in MIXED:
        x = min(max(length, known[0][0]), known[-1][0])
        (n0, r0), (n1, r1) = next((a, b) for a, b in zip(known, known[1:]) if x <= b[0])
        rate = r0 + (r1 - r0) * math.log(x / n0) / math.log(n1 / n0)
        work, seconds = work + length * length, seconds + length * length / rate
    return work / seconds


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

    def pools(self, page):
        batch, length = len(self.lengths), self.lengths[0]
        table = torch.randperm(batch * length // page, device="cuda").to(torch.int32).view(batch, -1)
        pools = []
        for t in (self.k, self.v):
            pool = torch.empty(table.numel(), page, t.shape[1], self.dim, device="cuda", dtype=t.dtype)
            pool[table.flatten().long()] = t.view(-1, page, t.shape[1], self.dim)
            pools.append(pool)
        return self.q.view(batch, length, self.heads, self.dim), pools, table

    def paged(self, page, **options):
        q, pools, table = self.pools(page)
        return tessera.Attention(q, *pools, page_table=table, **options)

    def fa3_dense(self, module, **options):
        batch = len(self.lengths)
        q, k, v = (t.view(batch, -1, t.shape[1], self.dim) for t in (self.q, self.k, self.v))
        return lambda: module.flash_attn_func(q, k, v, **options)

    def fa3_packed(self, module, **options):
        cu, longest = self.cumulative(), max(self.lengths)
        return lambda: module.flash_attn_varlen_func(self.q, self.k, self.v, cu, cu, longest, longest, **options)

    def fa3_paged(self, module, page, **options):
        q, (k, v), table = self.pools(page)
        used = torch.tensor(self.lengths, device="cuda", dtype=torch.int32)
        return lambda: module.flash_attn_with_kvcache(q, k, v, cache_seqlens=used, page_table=table, **options)


class Cell(NamedTuple):
    name: str
    work: int  # pairs(), as floating-point operations
    make: Callable  # kernel name or None -> tessera.Attention
    equal: Optional[str] = None  # the dense cell of equal work: as many rows, and as many keys per row; or MIXTURE + mask
    fa3: Optional[Callable] = None  # FA3's module -> one call of it


def cells(dim, dtype):
    shapes = {f"{n} x {length}": Case(dim, dtype, [length] * n) for n, length in ((2, 8192), (4, 4096), (8, 2048), (16, 1024), (32, 512))}
    long, mid = shapes["2 x 8192"], shapes["4 x 4096"]
    mixed = Case(dim, dtype, MIXED)
    for name, case in shapes.items():
        for mask in ("full", "causal"):
            causal = mask == "causal"
            yield Cell(f"dense {mask} {name}", case.work(causal), lambda k, c=case, m=causal: c.dense(causal=m, kernel=k),
                       fa3=lambda m, c=case, causal=causal: c.fa3_dense(m, causal=causal))
    for left, equal in ((4095, "2 x 8192"), (1023, "8 x 2048"), (255, "32 x 512")):
        yield Cell(f"window {left + 1} causal 2 x 8192", long.work(True, left), lambda k, w=left: long.dense(causal=True, window=(w, -1), kernel=k),
                   f"dense causal {equal}", lambda m, w=left: long.fa3_dense(m, causal=True, window_size=(w, 0)))
    for case, name, equal in ((mid, "4 x 4096", "4 x 4096"), (shapes["16 x 1024"], "16 x 1024", "16 x 1024"), (mixed, "16 lengths, 1 to 5000", None)):
        for mask in ("full", "causal"):
            causal = mask == "causal"
            yield Cell(f"packed {mask} {name}", case.work(causal), lambda k, c=case, m=causal: c.packed(causal=m, kernel=k), f"dense {mask} {equal}" if equal else MIXTURE + mask,
                       lambda m, c=case, causal=causal: c.fa3_packed(m, causal=causal))
    for page in (256, 128, 64, 16):
        for mask in ("full", "causal"):
            causal = mask == "causal"
            yield Cell(f"pages of {page} {mask} 4 x 4096", mid.work(causal), lambda k, p=page, m=causal: mid.paged(p, causal=m, kernel=k),
                       f"dense {mask} 4 x 4096", lambda m, p=page, causal=causal: mid.fa3_paged(m, p, causal=causal))


def find_fa3():
    for name in ("flash_attn_interface", "fa3_fwd_interface"):  # built from its repository, or the package fa3-fwd
        try:
            return importlib.import_module(name)
        except ImportError:
            pass
    return None


def runs(call) -> bool:
    try:
        call()
        return True
    except (RuntimeError, TypeError) as error:
        print(f"FA3 does not take this: {str(error).splitlines()[0]}")
        return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--head-dims", default="64,128,256")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16"])
    parser.add_argument("--kernel", default="sm90_fmha_ragged", help="the one to time; empty: the registry's choice")
    parser.add_argument("--compare", help="time this kernel on the same problems")
    parser.add_argument("--fa3", action="store_true", help="time FA3 on the same problems, if it is installed")
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
    record = new_record(
        "windows, packed and paged attention beside dense calls, TFLOP/s of visible pairs in whole granules; "
        + f"median of {options.repeats} single calls, interleaved",
        options.dtype)
    fa3 = find_fa3() if options.fa3 else None
    for dim in dims:
        table = list(cells(dim, getattr(torch, options.dtype)))
        calls = [c.make(options.kernel if c.equal and options.kernel else None) for c in table]
        seconds = spaced([c.run for c in calls], options.repeats)
        peers = [c.fa3(fa3) if fa3 and c.fa3 else None for c in table]
        # Once each by itself, so that what FA3 does not take costs its own figure only.
        peers = [p if p and runs(p) else None for p in peers]
        peer_seconds = iter(spaced([p for p in peers if p], options.repeats) if fa3 else [])
        compared = spaced([c.make(options.compare).run for c in table], 3) if options.compare else None
        tflops = {c.name: c.work / t * 1e-12 for c, t in zip(table, seconds)}
        for i, (cell, call, peer) in enumerate(zip(table, calls, peers)):
            row = {"head_dim": dim, "heads_q": HEADS[dim][0], "heads_kv": HEADS[dim][1], "case": cell.name, "kernel": call.kernel, "tflops": round(tflops[cell.name], 1)}
            text = f"d{dim:<4} {cell.name:<36} {call.kernel:<18} {tflops[cell.name]:6.1f}"
            if peer:
                row["tflops_fa3"] = round(cell.work / next(peer_seconds) * 1e-12, 1)
                text += f"  fa3 {row['tflops_fa3']:6.1f} = {tflops[cell.name] / row['tflops_fa3']:.3f}"
            if cell.equal:
                row["equal_work"], row["ratio"] = cell.equal, round(tflops[cell.name] / equal_rate(cell.equal, tflops), 3)
                text += f"  {row['ratio']:.3f} of {cell.equal}"
            if compared:
                row["tflops_" + options.compare] = round(cell.work / compared[i] * 1e-12, 1)
                text += f" | {options.compare} {row['tflops_' + options.compare]:.1f}"
            record["rows"].append(row)
            print(text, flush=True)
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            json.dump(record, file, indent=1)
            file.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
