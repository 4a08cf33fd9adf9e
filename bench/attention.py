#!/usr/bin/env python3
"""Times Tessera's attention on a GPU beside its peers, all in one process: TFLOP/s, ratios, clocks and watts.

    attention.py [--head-dims 64,128,256] [--dtype bfloat16] [--grid small|full] [--peers cudnn,fa2,fa3,torch]
                 [--sustained SECONDS] [--repeats 15] [--json FILE]

TFLOP/s = 4 batch heads seqlen^2 head_dim (halved under a causal mask) / time. "spaced": CUDA events around single calls
after a short spin, calls of all runners interleaved, median. "sustained": back to back for SECONDS, with the clock and
the power at the end: the card is power-limited, so the two differ. Every runner's output is compared with Tessera's.
Peers: cuDNN and FlashAttention-2 through torch's scaled_dot_product_attention, FlashAttention-3 if a package is there.
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
    from gpu_timing import spaced, sustained
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError as missing:
    print(f"attention.py: got no torch ({missing}); allowed torch with CUDA; install it", file=sys.stderr)
    sys.exit(3)
try:
    import tessera
    from gpu_record import new_record
except (ImportError, OSError) as missing:
    print(f"attention.py: {missing}", file=sys.stderr)
    sys.exit(3)

TOKENS_AND_HEADS = {64: [(32, 32)], 128: [(16, 16), (32, 8)], 256: [(8, 8)], 512: [(8, 8)]}  # head_dim -> (heads_q, heads_kv)
LENGTHS = {"small": (1024, 4096, 16384), "full": (1024, 2048, 4096, 8192, 16384)}


def cells(head_dims, grid):
    for dim in head_dims:
        for heads_q, heads_kv in TOKENS_AND_HEADS[dim]:
            for seqlen in LENGTHS[grid]:
                for causal in (False, True):
                    yield dim, heads_q, heads_kv, 16384 // seqlen, seqlen, causal


def sdpa_runner(backend, q, k, v, causal):
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))

    def run():
        with sdpa_kernel(backend):
            o = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])
        return o.transpose(1, 2)

    return run


def fa3_runner(q, k, v, causal):
    for name in ("flash_attn_interface", "fa3_fwd_interface"):  # built from its repository, or the package fa3-fwd
        try:
            function = importlib.import_module(name).flash_attn_func
        except (ImportError, OSError):
            continue

        def run():
            o = function(q, k, v, causal=causal)
            return o[0] if isinstance(o, tuple) else o

        return run
    return None


PEERS = {
    "cudnn": lambda *call: sdpa_runner(SDPBackend.CUDNN_ATTENTION, *call),
    "fa2": lambda *call: sdpa_runner(SDPBackend.FLASH_ATTENTION, *call),
    "fa3": fa3_runner,
    # What torch falls back to where these have no kernel, as at head dim 512.
    "torch": lambda *call: sdpa_runner([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH], *call),
}


def measure(cell, options):
    dim, heads_q, heads_kv, batch, seqlen, causal = cell
    dtype = getattr(torch, options.dtype)
    q, k, v = (torch.randn(batch, seqlen, heads, dim, device="cuda", dtype=dtype) for heads in (heads_q, heads_kv, heads_kv))
    row = {"head_dim": dim, "heads_q": heads_q, "heads_kv": heads_kv, "batch": batch, "seqlen": seqlen, "causal": causal}
    call = tessera.Attention(q, k, v, causal=causal, kernel=options.kernel)
    row["kernel"] = call.kernel

    def ours():
        call.run()
        return call.o

    runs = {"tessera": ours}
    for name in options.peers:
        run = PEERS[name](q, k, v, causal)
        if run is None:
            continue
        try:
            run()
        except (RuntimeError, NotImplementedError) as refusal:  # a backend without a kernel for this cell
            row.setdefault("refused", {})[name] = str(refusal).split("\n", maxsplit=1)[0]
            continue
        runs[name] = run
    want = ours().float()
    row["difference"] = {n: float((r().float() - want).norm() / want.norm()) for n, r in runs.items() if n != "tessera"}
    flops = 4 * batch * heads_q * seqlen**2 * dim / (2 if causal else 1)
    row["tflops"] = {n: round(flops / t * 1e-12, 1) for n, t in zip(runs, spaced(list(runs.values()), options.repeats))}
    if options.sustained > 0:
        row["sustained"] = {}
        for name, run in runs.items():
            result = sustained(run, options.sustained)
            row["sustained"][name] = {"tflops": round(flops / result.pop("seconds") * 1e-12, 1), **result}
    return row


def geometric_mean(values):
    return statistics.geometric_mean(values) if values else float("nan")


def summary(rows):
    table = {}
    for row in rows:
        for peer, tflops in row["tflops"].items():
            if peer != "tessera":
                key = f"d{row['head_dim']} {'causal' if row['causal'] else 'full'} / {peer}"
                table.setdefault(key, []).append(row["tflops"]["tessera"] / tflops)
    return {key: round(geometric_mean(values), 3) for key, values in table.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--head-dims", default="64,128,256")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16"])
    parser.add_argument("--grid", default="full", choices=list(LENGTHS))
    parser.add_argument("--peers", default="cudnn,fa2,fa3")
    parser.add_argument("--kernel", help="force one kernel by name")
    parser.add_argument("--sustained", type=float, default=0.0)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", dest="out")
    options = parser.parse_args()
    options.peers = [p for p in options.peers.split(",") if p]
    dims = [int(d) for d in options.head_dims.split(",")]
    if any(p not in PEERS for p in options.peers) or any(d not in TOKENS_AND_HEADS for d in dims):
        parser.error(f"allowed peers: {', '.join(PEERS)}; head dims: {', '.join(map(str, TOKENS_AND_HEADS))}")
    if not torch.cuda.is_available():
        print("attention.py: got no CUDA device; allowed a Hopper GPU; run it on a machine that has one", file=sys.stderr)
        return 3
    torch.manual_seed(1)
    record = new_record(
        "attention forward, TFLOP/s; " + f"spaced: median of {options.repeats} single calls, runners interleaved",
        options.dtype)
    for cell in cells(dims, options.grid):
        try:
            row = measure(cell, options)
        except tessera.TesseraError as refusal:
            print(f"d{cell[0]:<4} {cell[1]}/{cell[2]} {cell[3]} x {cell[4]}: {refusal}")
            record["rows"].append({"head_dim": cell[0], "refused": {"tessera": str(refusal)}, "tflops": {}})
            continue
        record["rows"].append(row)
        speeds = row["tflops"]
        text = f"d{cell[0]:<4} {cell[1]:>2}/{cell[2]:<2} {cell[3]:>2} x {cell[4]:<6} {'causal' if cell[5] else 'full':<7}"
        text += " ".join(f"{n} {s:6.1f}" + ("" if n == "tessera" else f" ({speeds['tessera'] / s:.3f})") for n, s in speeds.items())
        for name, result in row.get("sustained", {}).items():
            text += f" | {name} {result['tflops']:.0f} at {result['sm_mhz']} MHz, {result['watts']} W"
        print(text, flush=True)
        if options.out:
            with open(options.out, "w", encoding="utf-8") as file:
                json.dump(record, file, indent=1)
    rows = [row for row in record["rows"] if row["tflops"]]
    record["geometric_mean_ratio"] = summary(rows)
    print("\n".join(f"{key}: {value}" for key, value in record["geometric_mean_ratio"].items()))
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            json.dump(record, file, indent=1)
            file.write("\n")
    return 0 if rows else 1


if __name__ == "__main__":
    sys.exit(main())
