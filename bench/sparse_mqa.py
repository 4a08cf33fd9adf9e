#!/usr/bin/env python3
"""Times DeepSeek-V4-shaped attention: one K/V head whose V lies in the rows of K, a window, gathered keys and sinks, one launch.

    sparse_mqa.py [--heads 64,128] [--topk 0,512,1024,2048] [--tokens 4096] [--keys 32768] [--window 128] [--head-dim 512]
                  [--format dense|fp8] [--dtype bfloat16] [--repeats 9] [--seconds 0] [--json FILE]

Every query token sees the window of tokens up to its own and topk of `keys` keys, drawn at random without order (what sorts
them is part of the call); topk 0: the window alone. Milliseconds between two events behind a spin, median, tessera and
flash_mla by turns; with --seconds also of calls back to back for so long, with clock and power. TFLOP/s: 2 x tokens x heads
x (window + topk) x (head dim + 512), the first tokens counted as if their windows were whole. Where flash_mla can be imported and
takes the shape (head dim 576, or 512 in versions that have it), its sparse prefill runs beside it over the gathered keys alone.
"""

import argparse
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "python"))

try:
    import torch
    from gpu_timing import spaced, sustained
except ImportError as missing:
    print(f"sparse_mqa.py: got no torch ({missing}); allowed torch with CUDA; install it", file=sys.stderr)
    sys.exit(3)
try:
    import tessera
    from gpu_record import new_record
except (ImportError, OSError) as missing:
    print(f"sparse_mqa.py: {missing}", file=sys.stderr)
    sys.exit(3)
try:
    import flash_mla
except ImportError:
    flash_mla = None

VALUE_DIM = 512
FP8_PAGE_KEYS = 64


def lists_of(tokens, keys, topk):
    """(1, tokens, topk) different keys per token."""
    lists = torch.empty(1, tokens, topk, dtype=torch.int32, device="cuda")
    for begin in range(0, tokens, 256):
        scores = torch.rand(min(256, tokens - begin), keys, device="cuda")
        lists[0, begin : begin + 256] = scores.topk(topk, dim=1).indices.to(torch.int32)
    return lists


def fp8_pool(rows, page_size):
    """The rows (keys, dim) in pages of the FP8 format of their dim, as a segment's arguments."""
    count, dim = rows.shape
    table = torch.arange(-(-count // page_size), dtype=torch.int32, device="cuda")[None]
    if dim == 512:
        # A page takes whole multiples of 576 bytes.
        pool = torch.zeros(table.numel(), -(-page_size * 584 // 576) * 576, dtype=torch.uint8, device="cuda")
        codes = pool[:, : page_size * 576].view(table.numel(), page_size, 576)
        codes[..., :448] = rows.view(-1, page_size, dim)[..., :448].to(torch.float8_e4m3fn).view(torch.uint8)
        codes[..., 448:] = rows.view(-1, page_size, dim)[..., 448:].contiguous().view(torch.uint8)
        pool[:, page_size * 576 : page_size * 584].view(table.numel(), page_size, 8)[..., :7] = 127  # scales of 1
        return {"k": pool, "format": "fp8_v4", "page_size": page_size, "page_table": table, "max_seqlen_k": count}
    pool = torch.zeros(table.numel(), page_size, 656, dtype=torch.uint8, device="cuda")
    pool[..., :512] = rows.view(-1, page_size, dim)[..., :512].to(torch.float8_e4m3fn).view(torch.uint8)
    pool[..., 512:528] = torch.ones(table.numel(), page_size, 4, device="cuda").view(torch.uint8)
    pool[..., 528:] = rows.view(-1, page_size, dim)[..., 512:].contiguous().view(torch.uint8)
    return {"k": pool, "format": "fp8_v32", "page_table": table, "max_seqlen_k": count}


def beside(q, gathered, lists, scale):
    """A runner of flash_mla's sparse prefill over the gathered keys, or None where it refuses."""
    if flash_mla is None:
        return None

    def run():
        flash_mla.flash_mla_sparse_fwd(q[0], gathered[0], lists[0][:, None], scale, VALUE_DIM)

    try:
        run()
        torch.cuda.synchronize()
    except (RuntimeError, AttributeError, TypeError) as error:
        print(f"flash_mla: {str(error).splitlines()[0]}")
        return None
    return run


def measure(options, heads, topk, local, gathered):
    dim = options.head_dim
    q = torch.randn(1, options.tokens, heads, dim, device="cuda", dtype=local.dtype)
    segments = [tessera.Segment(local, causal=True, window=(options.window - 1, -1))]
    lists = None
    if topk != 0:
        lists = lists_of(options.tokens, options.keys, topk)
        source = {"k": gathered} if options.format == "dense" else fp8_pool(gathered[0, :, 0], FP8_PAGE_KEYS)
        segments.append(tessera.Segment(source.pop("k"), indices=lists, **source))
    sinks = torch.zeros(heads, device="cuda")
    call = tessera.SegmentedAttention(q, segments, sinks=sinks, head_dim_v=VALUE_DIM, softmax_scale=dim**-0.5, out_dtype=options.dtype)
    call.run()
    torch.cuda.synchronize()
    runs = {"tessera": call.run}
    peer = beside(q, gathered, lists, dim**-0.5) if topk != 0 and options.format == "dense" else None
    if peer is not None:
        runs["flash_mla"] = peer
    seconds = dict(zip(runs, spaced(list(runs.values()), options.repeats)))
    work = {"tessera": options.window + topk, "flash_mla": topk}
    pairs = 2 * options.tokens * heads * (dim + VALUE_DIM)
    row = {"heads": heads, "topk": topk, "kernel": call.kernel}
    row["ms"] = {name: round(value * 1e3, 4) for name, value in seconds.items()}
    row["tflops"] = {name: round(pairs * work[name] / value * 1e-12, 1) for name, value in seconds.items()}
    if options.seconds > 0:
        row["sustained"] = sustained(call.run, options.seconds)
        row["sustained"]["tflops"] = round(pairs * work["tessera"] / row["sustained"]["seconds"] * 1e-12, 1)
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers = lambda text: [int(x) for x in text.split(",") if x]  # noqa: E731
    parser.add_argument("--heads", type=numbers, default=[64, 128])
    parser.add_argument("--topk", type=numbers, default=[0, 512, 1024, 2048])
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--keys", type=int, default=32768)
    parser.add_argument("--window", type=int, default=128)
    parser.add_argument("--head-dim", type=int, default=512, choices=[512, 576])
    parser.add_argument("--format", default="dense", choices=["dense", "fp8"])
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16"])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--json", dest="out")
    options = parser.parse_args()
    if min(options.topk) < 0 or max(options.topk) > options.keys or options.keys % FP8_PAGE_KEYS != 0:
        parser.error(f"--topk, --keys: got {options.topk} of {options.keys}; allowed 0 to --keys, a multiple of {FP8_PAGE_KEYS}; change them")
    if not torch.cuda.is_available():
        print("sparse_mqa.py: got no CUDA device; allowed a Hopper GPU; run it on a machine that has one", file=sys.stderr)
        return 3
    torch.manual_seed(1)
    record = new_record(
        f"window of {options.window} and gathered keys out of {options.keys} ({options.format}), {options.tokens} query tokens, one K/V head, "
        f"{options.head_dim}/{VALUE_DIM} dims, V in K, sinks; single calls behind a spin, median of {options.repeats}", options.dtype)
    dtype = getattr(torch, options.dtype)
    local = torch.randn(1, options.tokens, 1, options.head_dim, device="cuda", dtype=dtype)
    gathered = torch.randn(1, options.keys, 1, options.head_dim, device="cuda", dtype=dtype)
    for heads in options.heads:
        for topk in options.topk:
            row = measure(options, heads, topk, local, gathered)
            record["rows"].append(row)
            texts = [f"{name} {row['ms'][name]:.3f} ms {row['tflops'][name]:.0f} TFLOP/s" for name in row["ms"]]
            if "sustained" in row:
                texts.append(f"sustained {row['sustained']['tflops']:.0f} TFLOP/s at {row['sustained']['sm_mhz']} MHz, {row['sustained']['watts']} W")
            print(f"{heads:>4} heads, window + {topk:<5}{' | '.join(texts)}", flush=True)
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            json.dump(record, file, indent=1)
            file.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
