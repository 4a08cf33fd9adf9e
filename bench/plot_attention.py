#!/usr/bin/env python3
"""Draws a record of attention.py: bars of TFLOP/s per head dim, and a roofline.  plot_attention.py RECORD.json OUT_DIR

Writes OUT_DIR/attention_d<head_dim>.svg and OUT_DIR/attention_roofline.svg. Needs matplotlib.
"""

import os
import sys

try:
    import matplotlib
except ImportError as missing:
    print(f"plot_attention.py: {missing}; install matplotlib with pip", file=sys.stderr)
    sys.exit(3)
matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402
import plot_record  # noqa: E402

COLORS = {"tessera": "#0b6e4f", "cudnn": "#7a9e3f", "fa2": "#c9c9c9", "fa3": "#d98324"}
# Dense 16-bit multiply-adds: 4096 FLOP per clock and multiprocessor, 132 of them; DRAM read rate as measured on an H200.
FLOP_PER_CLOCK = 4096 * 132
CLOCKS_GHZ = (1.5, 1.755)
DRAM_TBYTE_PER_S = 4.37


def label(row):
    return f"{row['batch']}×{row['seqlen'] // 1024}k {row['heads_q']}/{row['heads_kv']}"


def bars(record, dim, path):
    figure, axes = plt.subplots(1, 2, figsize=(13, 4.2), sharey=True)
    for axis, causal in zip(axes, (False, True)):
        rows = [r for r in record["rows"] if r["tflops"] and r["head_dim"] == dim and r["causal"] == causal]
        names = [n for n in COLORS if any(n in r["tflops"] for r in rows)]
        width = 0.8 / max(1, len(names))
        for i, name in enumerate(names):
            at = [x + (i - (len(names) - 1) / 2) * width for x in range(len(rows))]
            values = [r["tflops"].get(name, 0) for r in rows]
            axis.bar(at, values, width, color=COLORS[name], label=name)
            if name == "tessera":
                for x, value in zip(at, values):
                    axis.text(x, value + 6, f"{value:.0f}", ha="center", fontsize=7)
        axis.set_xticks(range(len(rows)), [label(r) for r in rows], rotation=40, ha="right", fontsize=8)
        axis.set_title(f"head dim {dim}, {'causal' if causal else 'full'}")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("TFLOP/s")
    axes[1].legend(frameon=False, ncols=4, loc="upper left", fontsize=8)
    axes[0].set_ylim(top=axes[0].get_ylim()[1] * 1.12)
    figure.suptitle(f"{record['gpu']}, {record['dtype']}, {record['date']}, cuDNN {record['cudnn']}", fontsize=9)
    figure.tight_layout()
    figure.savefig(path)


def roofline(record, path):
    figure, axis = plt.subplots(figsize=(8, 5))
    intensity = [2**i for i in range(5, 15)]
    for clock, style in zip(CLOCKS_GHZ, ("--", "-")):
        peak = FLOP_PER_CLOCK * clock * 1e-3
        axis.plot(intensity, [min(peak, x * DRAM_TBYTE_PER_S) for x in intensity], style, color="#333333", linewidth=1,
                  label=f"tensor cores at {clock} GHz: {peak:.0f}, DRAM {DRAM_TBYTE_PER_S} TB/s")
    for dim, marker in ((64, "o"), (128, "s"), (256, "^")):
        rows = [r for r in record["rows"] if r["tflops"] and r["head_dim"] == dim]
        for name in ("cudnn", "tessera"):
            points = []
            for r in rows:
                flops = 4 * r["batch"] * r["heads_q"] * r["seqlen"] ** 2 * dim / (2 if r["causal"] else 1)
                tensors = 2 * r["batch"] * r["seqlen"] * dim * 2 * (r["heads_q"] + r["heads_kv"])  # Q, O and K, V once each
                if name in r["tflops"]:
                    points.append((flops / tensors, r["tflops"][name]))
            if points:
                axis.scatter(*zip(*points), marker=marker, s=26, facecolor=COLORS[name] if name == "tessera" else "none",
                             edgecolor=COLORS[name], label=f"{name}, head dim {dim}")
    axis.set_xscale("log", base=2)
    axis.set_yscale("log", base=2)
    axis.set_xlabel("FLOP per byte of Q, K, V, O")
    axis.set_ylabel("TFLOP/s")
    axis.set_title(f"{record['gpu']}, {record['dtype']}: attention forward", fontsize=10)
    axis.legend(frameon=False, fontsize=7, loc="lower right")
    axis.grid(alpha=0.25)
    figure.tight_layout()
    figure.savefig(path)


def pictures(record, folder):
    for dim in sorted({r["head_dim"] for r in record["rows"] if r["tflops"]}):
        bars(record, dim, os.path.join(folder, f"attention_d{dim}.svg"))
    roofline(record, os.path.join(folder, "attention_roofline.svg"))


if __name__ == "__main__":
    sys.exit(plot_record.main(__doc__, pictures))
