#!/usr/bin/env python3
"""Times Tessera's decode attention beside its peers in one process: microseconds and GB/s of K and V.

    decode.py [--head-dims 128] [--dtype bfloat16] [--batches 1,8,64,256] [--lengths 128,1024,4096,32768,131072]
              [--cells 1x1024,64x4096,...] [--pages 0,1,16,64] [--peers cudnn,fa3] [--repeats 11] [--most-gb 40]
              [--json FILE]

32/8 heads, one query token (--tokens). Every call is replayed from a CUDA graph between two events, after a spin, all
runners interleaved, median. "cold": 256 MiB of other memory are read before the call; "warm": the same call ran just
before. `empty` is what this method says of a kernel that does nothing; nothing is subtracted from any figure.
Pages (0: none) are shuffled, and only Tessera's. "ragged": 64 sequences of 100 to about 10000 keys, lengths on the
device. Every runner's output is compared with Tessera's.
"""

import argparse
import importlib
import json
import os
import statistics
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "python"))

try:
    import torch
    from gpu_timing import graph_of
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError as missing:
    print(f"decode.py: got no torch ({missing}); allowed torch with CUDA; install it", file=sys.stderr)
    sys.exit(3)
try:
    import tessera
    from gpu_record import new_record
except (ImportError, OSError) as missing:
    print(f"decode.py: {missing}", file=sys.stderr)
    sys.exit(3)

HEADS_Q, HEADS_KV = 32, 8
RAGGED = [256 * (i % 32) + 37 * i + 100 for i in range(64)]
FLUSH_BYTES = 256 << 20
SPIN_CLOCKS = 300_000


def time_calls(runs, repeats, before):
    """Median microseconds of each runner; before(run) comes ahead of the first event."""
    times = [[] for _ in runs]
    for _ in range(repeats):
        events = []
        for run in runs:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(SPIN_CLOCKS)
            before(run)
            begin.record()
            run()
            end.record()
            events.append((begin, end))
        torch.cuda.synchronize()
        for i, (begin, end) in enumerate(events):
            times[i].append(begin.elapsed_time(end) * 1e3)
    return [statistics.median(t) for t in times]


def cudnn(q, k, v, lengths):
    if lengths is not None:
        return None
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))

    def run():
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True).transpose(1, 2)

    return run


def fa3(q, k, v, lengths):
    for name in ("flash_attn_interface", "fa3_fwd_interface"):
        try:
            module = importlib.import_module(name)
        except (ImportError, OSError):
            continue
        used = lengths if lengths is not None else torch.full((q.shape[0],), k.shape[1], device="cuda", dtype=torch.int32)
        return lambda: module.flash_attn_with_kvcache(q, k, v, cache_seqlens=used)
    return None


PEERS = {"cudnn": cudnn, "fa3": fa3}


def pages_of(rows, size, seed):
    """The rows (batch, tokens, heads, dim) scattered over a pool of shuffled pages, and the table."""
    batch, tokens = rows.shape[:2]
    per = (tokens + size - 1) // size
    order = torch.randperm(batch * per, generator=torch.Generator().manual_seed(seed)).to(device="cuda", dtype=torch.int32)
    pool = torch.empty(batch * per, size, *rows.shape[2:], device="cuda", dtype=rows.dtype)
    table = order.view(batch, per)
    for b in range(batch):
        padded = torch.nn.functional.pad(rows[b], (0, 0, 0, 0, 0, per * size - tokens))
        pool[table[b].long()] = padded.view(per, size, *rows.shape[2:])
    return pool, table


def measure(dim, batch, seqlen, lengths, options):
    dtype = getattr(torch, options.dtype)
    make = lambda tokens, heads: torch.randn(batch, tokens, heads, dim, device="cuda", dtype=dtype)  # noqa: E731
    q, k, v = make(options.tokens, HEADS_Q), make(seqlen, HEADS_KV), make(seqlen, HEADS_KV)
    used = None if lengths is None else torch.tensor(lengths, device="cuda", dtype=torch.int32)
    keys = batch * seqlen if lengths is None else sum(lengths)
    gigabytes = keys * HEADS_KV * dim * 4e-9
    row = {"head_dim": dim, "tokens": options.tokens, "batch": batch, "keys": seqlen if lengths is None else "ragged", "gigabytes": round(gigabytes, 4)}
    causal = options.tokens > 1
    calls = {"tessera": tessera.Attention(q, k, v, seqlens_k=used, causal=causal)}
    row["kernel"] = calls["tessera"].kernel
    for size in options.pages:
        if size > 0 and size <= seqlen and gigabytes < options.most_gb / 3:
            (k_pool, table), (v_pool, _) = pages_of(k, size, 1), pages_of(v, size, 1)
            calls[f"tessera page {size}"] = tessera.Attention(
                q, k_pool, v_pool, page_table=table, seqlens_k=used, max_seqlen_k=seqlen, causal=causal
            )
    runs = {"empty": graph_of(lambda: torch.cuda._sleep(0))}
    runs.update((name, graph_of(call.run)) for name, call in calls.items())
    calls["tessera"].run()
    want = calls["tessera"].o.float()
    row["equal_bytes"] = all(torch.equal(call.o, calls["tessera"].o) for call in calls.values())
    row["difference"] = {}
    for name in options.peers if not causal else []:
        try:
            run = PEERS[name](q, k, v, used)
            if run is None:
                continue
            got = run()
            got = got[0] if isinstance(got, tuple) else got
            row["difference"][name] = float((got.float() - want).norm() / want.norm())
            runs[name] = graph_of(run)
        except (RuntimeError, NotImplementedError) as refusal:
            row.setdefault("refused", {})[name] = str(refusal).split("\n", maxsplit=1)[0]
    cache = torch.empty(FLUSH_BYTES // 4, device="cuda", dtype=torch.float32)
    sink = torch.empty((), device="cuda")
    cold = time_calls(list(runs.values()), options.repeats, lambda run: torch.sum(cache, dim=0, out=sink))
    warm = time_calls(list(runs.values()), options.repeats, lambda run: run())
    row["us_cold"] = {n: round(t, 2) for n, t in zip(runs, cold)}
    row["us_warm"] = {n: round(t, 2) for n, t in zip(runs, warm)}
    row["gb_per_s_cold"] = {n: round(gigabytes / t * 1e6) for n, t in row["us_cold"].items() if n != "empty"}
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers = lambda text: [int(x) for x in text.split(",") if x]  # noqa: E731
    parser.add_argument("--head-dims", type=numbers, default=[128])
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16"])
    parser.add_argument("--tokens", type=int, default=1)
    parser.add_argument("--batches", type=numbers, default=[1, 8, 64, 256])
    parser.add_argument("--lengths", type=numbers, default=[128, 1024, 4096, 32768, 131072])
    parser.add_argument("--cells", help="these instead of all batches and lengths")
    parser.add_argument("--pages", type=numbers, default=[0, 1, 16, 64])
    parser.add_argument("--peers", type=lambda text: [p for p in text.split(",") if p], default=["cudnn", "fa3"])
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--most-gb", type=float, default=40.0, help="larger cells are left out")
    parser.add_argument("--no-ragged", action="store_true")
    parser.add_argument("--json", dest="out")
    options = parser.parse_args()
    if any(p not in PEERS for p in options.peers):
        parser.error(f"allowed peers: {', '.join(PEERS)}")
    if not torch.cuda.is_available():
        print("decode.py: got no CUDA device; allowed a Hopper GPU; run it on a machine that has one", file=sys.stderr)
        return 3
    torch.manual_seed(1)
    record = new_record(
        f"decode attention, {HEADS_Q}/{HEADS_KV} heads; CUDA graph replays between events, median of {options.repeats}, runners interleaved; cold: {FLUSH_BYTES >> 20} MiB of other memory read before",
        options.dtype)
    pairs = [(b, s) for b in options.batches for s in options.lengths]
    if options.cells:
        pairs = [tuple(numbers(cell.replace("x", ","))) for cell in options.cells.split(",")]
    cells = [(d, b, s, None) for d in options.head_dims for b, s in pairs]
    if not options.no_ragged:
        cells += [(d, len(RAGGED), max(RAGGED), RAGGED) for d in options.head_dims]
    for dim, batch, seqlen, lengths in cells:
        name = f"d{dim} {batch} x {'ragged' if lengths else seqlen}"
        if batch * seqlen * HEADS_KV * dim * 4e-9 > options.most_gb:
            record["rows"].append({"head_dim": dim, "batch": batch, "keys": seqlen, "left_out": "memory"})
            continue
        row = measure(dim, batch, seqlen, lengths, options)
        record["rows"].append(row)
        print(f"{name:18s} {'' if row['equal_bytes'] else 'OTHER BYTES '}" + " ".join(
            f"{n.replace('tessera ', '')} {t:.1f}/{row['us_warm'][n]:.1f}" + (f" ({row['gb_per_s_cold'][n]})" if n != "empty" else "")
            for n, t in row["us_cold"].items()), flush=True)
        torch.cuda.empty_cache()
        if options.out:
            with open(options.out, "w", encoding="utf-8") as file:
                json.dump(record, file, indent=1)
                file.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
