#!/usr/bin/env python3
"""Times Tessera's decode attention beside its peers and beside a kernel that only reads, all in one process.

    decode.py [--grid full|small] [--head-dims 64,128,256] [--dtype bfloat16] [--cells 1x1024,64x4096,...] [--tokens 1]
              [--pages 1,16,64] [--peers cudnn,fa2,fa3] [--no-ragged] [--repeats 11] [--json FILE]

Microseconds, and GB/s of K and V. 32/8 heads, one query token (--tokens: several, causal; peers then sit out). full: 1, 8,
64, 256 sequences by 128 to 131072 keys. Each call is replayed from a CUDA graph between two events, after a spin, all
runners of a cell interleaved, median. "cold": 256 MiB of other memory are read
before the call; "warm": the same call ran just before. `empty` is what this method says of a kernel that does nothing;
nothing is subtracted from any figure. `read only` loads K and V once and does nothing with them: no attention is faster.
Pages are shuffled, and only Tessera's. Ragged batches ("linear": 64 lengths evenly from 1 to 32768, "log": evenly in the
logarithm) stand beside a batch of 64 equal lengths with as many keys in all.
Checked in each cell: one sequence, gathered from its pages and run alone, has the bytes that it has in the batch; peers
differ from Tessera by `difference`.
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
    from gpu_timing import between_events, graph_of
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
try:
    from read_only import read_only
except ImportError:
    read_only = None  # needs Triton

HEADS_Q, HEADS_KV = 32, 8
BATCHES, LENGTHS = (1, 8, 64, 256), (128, 1024, 4096, 32768, 131072)
SMALL = ((1, 1024), (1, 4096), (1, 32768), (8, 4096), (8, 32768), (64, 1024), (64, 4096))
LONGEST, SEQUENCES = 32768, 64  # of ragged batches
RAGGED = {
    "linear": [1 + (LONGEST - 1) * i // (SEQUENCES - 1) for i in range(SEQUENCES)],
    "log": [round(LONGEST ** (i / (SEQUENCES - 1))) for i in range(SEQUENCES)],
}
FLUSH_BYTES = 256 << 20
MOST_OF_MEMORY = 0.9


class Memory:
    """K and V of the largest cell, filled once: every cell is a view of their beginnings."""

    def __init__(self, elements, dtype):
        self.k, self.v = (torch.empty(elements, device="cuda", dtype=dtype).normal_() for _ in range(2))

    def view(self, *shape):
        size = torch.Size(shape).numel()
        return [t[:size].view(shape) for t in (self.k, self.v)]


def sdpa(backend):
    def runner(q, k, v, lengths):
        if lengths is not None:
            return None
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))

        def run():
            with sdpa_kernel(backend):
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True).transpose(1, 2)

        return run

    return runner


def fa3(q, k, v, lengths):
    for name in ("flash_attn_interface", "fa3_fwd_interface"):  # built from its repository, or the package fa3-fwd
        try:
            module = importlib.import_module(name)
        except (ImportError, OSError):
            continue
        used = lengths if lengths is not None else torch.full((q.shape[0],), k.shape[1], device="cuda", dtype=torch.int32)
        return lambda: module.flash_attn_with_kvcache(q, k, v, cache_seqlens=used)
    return None


PEERS = {"cudnn": sdpa(SDPBackend.CUDNN_ATTENTION), "fa2": sdpa(SDPBackend.FLASH_ATTENTION), "fa3": fa3}


class Cell:
    """The calls of one cell: Tessera's over contiguous rows and over pages, in the same memory."""

    def __init__(self, memory, dim, batch, seqlen, lengths, options):
        self.shape, self.seqlen = (batch, seqlen, HEADS_KV, dim), seqlen
        self.causal = options.tokens > 1
        self.q = torch.randn(batch, options.tokens, HEADS_Q, dim, device="cuda", dtype=memory.k.dtype)
        self.memory = memory
        self.used = None if lengths is None else torch.tensor(lengths, device="cuda", dtype=torch.int32)
        self.calls = {"tessera": self.attention(self.q, *memory.view(*self.shape), self.used)}
        self.equal_bytes = self.row_alone("tessera", None, 0)
        for size in options.pages:
            if seqlen % size != 0:
                continue
            table = torch.randperm(batch * seqlen // size, device="cuda", dtype=torch.int32).view(batch, -1)
            name = f"tessera page {size}"
            self.calls[name] = self.attention(self.q, *self.pools(size), self.used, page_table=table, max_seqlen_k=seqlen)
            self.equal_bytes &= self.row_alone(name, table, size)

    def attention(self, q, k, v, used, **options):
        return tessera.Attention(q, k, v, seqlens_k=used, causal=self.causal, **options)

    def pools(self, size):
        batch, seqlen, *row = self.shape
        return self.memory.view(batch * seqlen // size, size, *row)

    def row_alone(self, name, table, size):
        """Whether the last sequence alone, its rows contiguous, has the bytes that the call of this name gives it."""
        call = self.calls[name]
        call.run()
        if table is None:
            k, v = (t[-1:] for t in self.memory.view(*self.shape))
        else:
            k, v = (t[table[-1].long()].view(1, *self.shape[1:]) for t in self.pools(size))
        one = self.attention(self.q[-1:], k, v, None if self.used is None else self.used[-1:])
        one.run()
        return torch.equal(one.o, call.o[-1:])


def measure(memory, cell, options):
    dim, batch, seqlen, kind = cell
    lengths = RAGGED.get(kind)
    work = Cell(memory, dim, batch, seqlen, lengths, options)
    keys = batch * seqlen if lengths is None else sum(lengths)
    gigabytes = keys * HEADS_KV * dim * 4e-9
    row = {"head_dim": dim, "tokens": options.tokens, "batch": batch, "keys": seqlen if lengths is None else f"ragged {kind}",
           "gigabytes": round(gigabytes, 4), "kernel": work.calls["tessera"].kernel, "equal_bytes": work.equal_bytes}
    runs = {"empty": graph_of(lambda: torch.cuda._sleep(0))}
    if read_only is not None:
        runs["read only"] = graph_of(read_only(memory.k, memory.v, keys * HEADS_KV * dim))
    runs.update((name, graph_of(call.run)) for name, call in work.calls.items())
    if lengths is not None:
        uniform = Cell(memory, dim, batch, keys // batch, None, argparse.Namespace(tokens=options.tokens, pages=[]))
        runs["tessera uniform"] = graph_of(uniform.calls["tessera"].run)
    work.calls["tessera"].run()
    want = work.calls["tessera"].o.float()
    row["difference"] = {}
    for name in options.peers if not work.causal else []:
        try:
            run = PEERS[name](work.q, *memory.view(*work.shape), work.used)
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
    repeats = options.repeats if gigabytes < 2 else min(options.repeats, 5)
    cold = between_events(list(runs.values()), repeats, lambda run: torch.sum(cache, dim=0, out=sink))
    warm = between_events(list(runs.values()), repeats, lambda run: run())
    row["us_cold"] = {n: round(t, 2) for n, t in zip(runs, cold)}
    row["us_warm"] = {n: round(t, 2) for n, t in zip(runs, warm)}
    row["gb_per_s_cold"] = {n: round(gigabytes / t * 1e6) for n, t in row["us_cold"].items() if n != "empty"}
    if lengths is not None:
        row["rate_of_uniform"] = round(row["us_cold"]["tessera uniform"] / row["us_cold"]["tessera"], 3)
    return row


def best_peer(row):
    times = [row["us_cold"][name] for name in PEERS if name in row["us_cold"]]
    return min(times) if times else None


def summary(rows):
    """What the rows say in a few numbers: ratios above 1 are in Tessera's favour, costs are of pages."""
    table = {}
    for dim in sorted({r["head_dim"] for r in rows}):
        mine = [r for r in rows if r["head_dim"] == dim]
        even = [r for r in mine if isinstance(r["keys"], int)]
        peers = [(r, best_peer(r) / r["us_cold"]["tessera"]) for r in even if best_peer(r)]
        for name, chosen in (("all", peers), ("32k keys and more", [p for p in peers if p[0]["keys"] >= 32768])):
            if chosen:
                ratios = [ratio for _, ratio in chosen]
                table[f"d{dim} best peer / tessera, {name}"] = {
                    "geometric mean": round(statistics.geometric_mean(ratios), 3), "least": round(min(ratios), 3)}
        floors = [r["us_cold"]["read only"] / r["us_cold"]["tessera"] for r in even if "read only" in r["us_cold"]]
        if floors:
            table[f"d{dim} read only / tessera"] = {"geometric mean": round(statistics.geometric_mean(floors), 3), "least": round(min(floors), 3)}
        for name in sorted({n for r in even for n in r["us_cold"] if n.startswith("tessera page")}):
            costs = [r["us_cold"][name] / r["us_cold"]["tessera"] for r in even if name in r["us_cold"] and r["gigabytes"] >= 1]
            if costs:
                table[f"d{dim} {name}, cost from 1 GB on"] = {"geometric mean": round(statistics.geometric_mean(costs), 3), "most": round(max(costs), 3)}
        for r in mine:
            if "rate_of_uniform" in r:
                table[f"d{dim} {r['keys']} / uniform rate"] = r["rate_of_uniform"]
    return table


def chosen_cells(options):
    """(head_dim, batch, keys, ragged kind or None) of the run."""
    numbers = [tuple(int(x) for x in cell.split("x")) for cell in options.cells.split(",")] if options.cells else None
    for dim in options.head_dims:
        pairs = numbers or ([(b, n) for b in BATCHES for n in LENGTHS] if options.grid == "full" else SMALL)
        yield from ((dim, batch, keys, None) for batch, keys in pairs)
        if not options.no_ragged:
            yield from ((dim, SEQUENCES, LONGEST, kind) for kind in RAGGED)


def line_of(row):
    short = lambda name: name.replace("tessera page ", "p").replace("tessera uniform", "uniform")  # noqa: E731
    text = f"d{row['head_dim']:<4}{row['batch']:>3} x {row['keys']:<15}"
    text += " ".join(f"{short(n)} {t:.1f}/{row['us_warm'][n]:.1f}" for n, t in row["us_cold"].items())
    text += f" | {row['gb_per_s_cold']['tessera']} GB/s"
    return text + ("" if row["equal_bytes"] else " OTHER BYTES ALONE")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers = lambda text: [int(x) for x in text.split(",") if x]  # noqa: E731
    parser.add_argument("--grid", default="full", choices=["full", "small"])
    parser.add_argument("--head-dims", type=numbers, default=[64, 128, 256])
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16"])
    parser.add_argument("--tokens", type=int, default=1)
    parser.add_argument("--cells", help="these, batch x keys, instead of the grid's")
    parser.add_argument("--pages", type=numbers, default=[1, 16, 64])
    parser.add_argument("--peers", type=lambda text: [p for p in text.split(",") if p], default=["cudnn", "fa3"])
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--no-ragged", action="store_true")
    parser.add_argument("--json", dest="out")
    options = parser.parse_args()
    if any(p not in PEERS for p in options.peers):
        parser.error(f"allowed peers: {', '.join(PEERS)}")
    if any(size < 1 for size in options.pages):
        parser.error(f"--pages: got {options.pages}; allowed sizes from 1 on (contiguous K and V are always there)")
    if not torch.cuda.is_available():
        print("decode.py: got no CUDA device; allowed a Hopper GPU; run it on a machine that has one", file=sys.stderr)
        return 3
    torch.manual_seed(1)
    record = new_record(
        f"decode attention, {HEADS_Q}/{HEADS_KV} heads; CUDA graph replays between events, median of {options.repeats} "
        f"(5 from 2 GB on), runners interleaved; cold: {FLUSH_BYTES >> 20} MiB of other memory read before", options.dtype)
    if read_only is None:
        print("no Triton: the column `read only` is missing")
    free = torch.cuda.mem_get_info()[0]
    fitting = []
    for cell in chosen_cells(options):
        dim, batch, keys, kind = cell
        needed = batch * keys * HEADS_KV * dim * 4
        if needed > MOST_OF_MEMORY * free:
            reason = f"K and V take {needed >> 30} GiB, the device has {free >> 30} GiB free"
            record["rows"].append({"head_dim": dim, "batch": batch, "keys": keys, "left_out": reason})
            print(f"d{dim:<4}{batch:>3} x {keys:<15}left out: {reason}")
        else:
            fitting.append(cell)
    memory = Memory(max((b * n * HEADS_KV * d for d, b, n, _ in fitting), default=0), getattr(torch, options.dtype))
    print("us cold/warm; p: pages of so many keys")
    for cell in fitting:
        record["rows"].append(measure(memory, cell, options))
        print(line_of(record["rows"][-1]), flush=True)
        save(record, options.out)
    rows = [row for row in record["rows"] if "us_cold" in row]
    record["summary"] = summary(rows)
    print("\n".join(f"{key}: {value}" for key, value in record["summary"].items()))
    save(record, options.out)
    return 0 if rows and all(row["equal_bytes"] for row in rows) else 1


def save(record, path):
    if path:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(record, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    sys.exit(main())
