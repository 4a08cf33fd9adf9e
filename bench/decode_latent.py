#!/usr/bin/env python3
"""Times the kernels that take decode with one K/V head whose V lies in the rows of K, beside each other in one process.

    decode_latent.py [--heads 8,16,64,128] [--batches 1,8,32,128] [--keys 1024,4096,16384] [--head-dim 512] [--tokens 1]
                     [--kernels sm90_fmha_mqa_512,sm90_fmha_decode] [--dtype bfloat16] [--repeats 11] [--json FILE]

V is the first 512 dims of K's rows. Microseconds of a CUDA graph's replay between two events, after a spin, all kernels of
a cell interleaved, median, and TFLOP/s. "cold": 256 MiB of other memory are read before the call; "warm": the same call ran just
before. `chosen` is the kernel that the registry takes. Checked in each cell: all kernels give the same bytes.
"""

import argparse
import itertools
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "python"))

try:
    import torch
    from gpu_timing import between_events, graph_of
except ImportError as missing:
    print(f"decode_latent.py: got no torch ({missing}); allowed torch with CUDA; install it", file=sys.stderr)
    sys.exit(3)
try:
    import tessera
    from gpu_record import new_record
except (ImportError, OSError) as missing:
    print(f"decode_latent.py: {missing}", file=sys.stderr)
    sys.exit(3)

VALUE_DIM = 512
FLUSH_BYTES = 256 << 20


def measure(memory, cell, flush, options):
    heads, batch, keys = cell
    k = memory[: batch * keys * options.head_dim].view(batch, keys, 1, options.head_dim)
    q = torch.randn(batch, options.tokens, heads, options.head_dim, device="cuda", dtype=k.dtype)

    def call(kernel):
        return tessera.Attention(q, k, k[..., :VALUE_DIM], causal=options.tokens > 1, kernel=kernel)

    calls = {name: call(name) for name in options.kernels}
    runs = []
    for one in calls.values():
        one.run()
        runs.append(graph_of(one.run))
    first = next(iter(calls.values())).o
    row = {"heads": heads, "batch": batch, "keys": keys, "tokens": options.tokens, "head_dim": options.head_dim,
           "equal_bytes": all(torch.equal(first, one.o) for one in calls.values())}
    cold = between_events(runs, options.repeats, lambda run: flush())
    warm = between_events(runs, options.repeats, lambda run: run())
    row["us_cold"] = {name: round(us, 2) for name, us in zip(calls, cold)}
    row["us_warm"] = {name: round(us, 2) for name, us in zip(calls, warm)}
    work = 2 * batch * options.tokens * heads * keys * (options.head_dim + VALUE_DIM)
    row["tflops_cold"] = {name: round(work / us * 1e-6, 1) for name, us in row["us_cold"].items()}
    row["chosen"] = call(None).kernel
    return row


def line_of(row):
    times = " ".join(f"{us:9.1f}/{row['us_warm'][name]:9.1f}" for name, us in row["us_cold"].items())
    fastest = min(row["us_cold"], key=row["us_cold"].get)
    text = f"{row['heads']:>4} heads {row['batch']:>4} x {row['keys']:<7}{times} | {row['tflops_cold'][fastest]:6.1f} TFLOP/s"
    if row["chosen"] != fastest:
        text += f" | chosen takes {row['us_cold'].get(row['chosen'], float('nan')) / row['us_cold'][fastest]:.2f} of the fastest"
    return text + ("" if row["equal_bytes"] else " OTHER BYTES")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers = lambda text: [int(x) for x in text.split(",") if x]  # noqa: E731
    parser.add_argument("--heads", type=numbers, default=[8, 16, 64, 128])
    parser.add_argument("--batches", type=numbers, default=[1, 8, 32, 128])
    parser.add_argument("--keys", type=numbers, default=[1024, 4096, 16384])
    parser.add_argument("--head-dim", type=int, default=512, choices=[512, 576])
    parser.add_argument("--tokens", type=int, default=1)
    parser.add_argument("--kernels", type=lambda text: text.split(","), default=["sm90_fmha_mqa_512", "sm90_fmha_decode"])
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16"])
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--json", dest="out")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("decode_latent.py: got no CUDA device; allowed a Hopper GPU; run it on a machine that has one", file=sys.stderr)
        return 3
    torch.manual_seed(1)
    record = new_record(
        f"decode with one K/V head, {options.head_dim}/{VALUE_DIM} dims, V in K; CUDA graph replays between events, median of "
        f"{options.repeats}, kernels interleaved; cold: {FLUSH_BYTES >> 20} MiB of other memory read before", options.dtype)
    largest = max(options.batches) * max(options.keys) * options.head_dim
    memory = torch.empty(largest, device="cuda", dtype=getattr(torch, options.dtype)).normal_()
    cache = torch.empty(FLUSH_BYTES // 4, device="cuda", dtype=torch.float32)
    sink = torch.empty((), device="cuda")
    print("us cold/warm of " + ", ".join(options.kernels))
    for cell in itertools.product(options.heads, options.batches, options.keys):
        record["rows"].append(measure(memory, cell, lambda: torch.sum(cache, dim=0, out=sink), options))
        print(line_of(record["rows"][-1]), flush=True)
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            json.dump(record, file, indent=1)
            file.write("\n")
    return 0 if all(row["equal_bytes"] for row in record["rows"]) else 1


if __name__ == "__main__":
    sys.exit(main())
