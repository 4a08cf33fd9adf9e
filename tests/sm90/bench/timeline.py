#!/usr/bin/env python3
"""What the consumer warpgroups of one block do when: runs a prefill kernel with time stamps, writes JSON and a picture.

    timeline.py record SHIM.so OUT.json [--head-dim 128] [--batch 1 --seqlen 8192 --heads-q 16 --heads-kv 16] [--full] [--block 0]
    timeline.py draw RECORD.json OUT.svg [--from CLOCKS --to CLOCKS]

`record` needs an H200 or H100, torch and the shim (ninja tessera_prefill_shim); `draw` needs matplotlib. Clocks are the
multiprocessor's own, from the first stamp on. The stamps themselves cost the kernel a few percent.
"""

import argparse
import json
import os
import sys

EVENTS = ["tile taken", "query there", "scores issued", "scores done", "weights done", "output issued", "output done",
          "chunk done", "rows skipped", "tile done"]  # Event of timeline.cuh
# What a consumer was busy with when an event ends it: name, colour.
SPANS = {"query there": ("wait for Q", "#dddddd"), "scores issued": ("issue (until the tensor cores take it)", "#eeeeee"),
         "scores done": ("S = Q K^T (with its turn at the tensor cores)", "#0b6e4f"),
         "weights done": ("softmax", "#d98324"), "output issued": ("issue (until the tensor cores take it)", "#eeeeee"),
         "output done": ("P V (with its turn)", "#2f5d9b"), "chunk done": ("chain of chunks", "#a23b72"),
         "rows skipped": ("wait for the tile's other rows", "#bbbbbb"), "tile done": ("finish", "#7a9e3f"),
         "tile taken": ("wait for a tile", "#dddddd")}
STAMPS = 2048  # kTimelineStamps


def record(options):
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import torch
    from prefill_bench import Shim
    from gpu_timing import smi

    torch.manual_seed(1)
    shim = Shim(options.shim)
    dim = options.head_dim
    consumers = 2 if dim == 256 else 3
    make = lambda heads: torch.randn(options.batch, options.seqlen, heads, dim, device="cuda", dtype=torch.bfloat16)
    q, k, v = make(options.heads_q), make(options.heads_kv), make(options.heads_kv)
    stamps = torch.zeros(shim.sms, consumers, STAMPS, 2, device="cuda", dtype=torch.int32)
    run = shim.runner("timeline", q, k, v, not options.full, stamps)
    for _ in range(3):  # the last one counts: caches and clocks are warm
        stamps.zero_()
        run()
    torch.cuda.synchronize()
    block = (stamps[options.block].to(torch.int64) & 0xFFFFFFFF).tolist()
    first = min(lane[0][1] for lane in block)  # 32-bit clocks; a record is far shorter than their period
    lanes = []
    for lane in block:
        lanes.append([[EVENTS[event], (clock - first) & 0xFFFFFFFF] for i, (event, clock) in enumerate(lane)
                      if i == 0 or (event, clock) != (0, 0)])
    driver, clock = smi("driver_version,clocks.sm")
    with open(options.out, "w", encoding="utf-8") as file:
        json.dump({"gpu": torch.cuda.get_device_properties(0).name, "driver": driver, "sm_mhz_after": clock,
                   "commit": os.environ.get("TESSERA_COMMIT", "unknown"), "head_dim": dim, "dtype": "bfloat16",
                   "batch": options.batch, "seqlen": options.seqlen, "heads_q": options.heads_q,
                   "heads_kv": options.heads_kv, "causal": not options.full, "block": options.block, "consumers": lanes},
                  file)
    for w, lane in enumerate(lanes):
        spent = {}
        for (_, before), (event, after) in zip(lane, lane[1:]):
            spent[event] = spent.get(event, 0) + after - before
        total = lane[-1][1] - lane[0][1]
        granules = sum(event == "output done" for event, _ in lane)
        print(f"consumer {w}: {total} clocks, {granules} granules, {total / max(1, granules):.0f} each; until " +
              ", ".join(f"{event} {100 * clocks / total:.1f}% ({clocks / max(1, granules):.0f})" for event, clocks in spent.items()))


def draw(options):
    import matplotlib
    matplotlib.use("svg")
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch

    with open(options.record, encoding="utf-8") as file:
        data = json.load(file)
    figure, axis = plt.subplots(figsize=(15, 1.2 + 0.55 * len(data["consumers"])))
    for w, lane in enumerate(data["consumers"]):
        for (_, before), (event, after) in zip(lane, lane[1:]):
            if after >= options.begin and before <= options.end:
                axis.barh(-w, after - before, left=before, height=0.8, color=SPANS[event][1], linewidth=0)
        for event, clock in lane:
            if event == "tile taken" and options.begin <= clock <= options.end:
                axis.plot([clock, clock], [-w - 0.45, -w + 0.45], color="black", linewidth=1.2)
    axis.set_xlim(options.begin, options.end)
    axis.set_yticks([-w for w in range(len(data["consumers"]))], [f"consumer {w}" for w in range(len(data["consumers"]))])
    axis.set_xlabel("clocks of the multiprocessor")
    axis.spines[["top", "right", "left"]].set_visible(False)
    shown = {}
    for name, colour in SPANS.values():
        shown.setdefault(name, colour)
    axis.legend(handles=[Patch(color=c, label=n) for n, c in shown.items()], frameon=False, ncols=5, fontsize=7,
                loc="upper center", bbox_to_anchor=(0.5, -0.32))
    axis.set_title(f"One block of {data['gpu']}, head dim {data['head_dim']}, {'causal' if data['causal'] else 'full'}, "
                   f"{data['batch']} x {data['seqlen']}, {data['heads_q']}/{data['heads_kv']} heads; black: a tile begins",
                   fontsize=9)
    figure.tight_layout()
    figure.savefig(options.out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    sub = commands.add_parser("record")
    sub.set_defaults(run=record)
    sub.add_argument("shim")
    sub.add_argument("out")
    for name, value in (("head-dim", 128), ("batch", 1), ("seqlen", 8192), ("heads-q", 16), ("heads-kv", 16), ("block", 0)):
        sub.add_argument(f"--{name}", type=int, default=value)
    sub.add_argument("--full", action="store_true")
    sub = commands.add_parser("draw")
    sub.set_defaults(run=draw)
    sub.add_argument("record")
    sub.add_argument("out")
    sub.add_argument("--from", dest="begin", type=int, default=0)
    sub.add_argument("--to", dest="end", type=int, default=60000)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
