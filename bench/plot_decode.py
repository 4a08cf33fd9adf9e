#!/usr/bin/env python3
"""Draws a record of decode.py: time over keys, one column per batch.  plot_decode.py RECORD.json OUT_DIR

Writes OUT_DIR/decode_d<head_dim>.svg for each head dim: microseconds above, multiples of the time of a kernel that reads
K and V once and does nothing below. Needs matplotlib.
"""

import os
import sys

try:
    import matplotlib
except ImportError as missing:
    print(f"plot_decode.py: {missing}; install matplotlib with pip", file=sys.stderr)
    sys.exit(3)
matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402
import plot_record  # noqa: E402

LINES = {  # runner -> colour, dashes, marker
    "fa3": ("#d98324", "-", "^"),
    "fa2": ("#c9c9c9", "-", "v"),
    "cudnn": ("#7a9e3f", "-", "s"),
    "tessera page 1": ("#0b6e4f", ":", None),
    "tessera page 16": ("#0b6e4f", "--", None),
    "tessera": ("#0b6e4f", "-", "o"),
}
NAMES = {"tessera page 1": "tessera, pages of 1", "tessera page 16": "tessera, pages of 16"}


def short(keys):
    return f"{keys // 1024}k" if keys >= 1024 else str(keys)


def microseconds(t):
    return f"{t:.1f}" if t < 100 else f"{t:.0f}" if t < 10000 else f"{t / 1000:.1f} ms"


def draw(axis, rows, value, with_floor):
    """The runners' lines; value(row, runner) is the height."""
    keys = [r["keys"] for r in rows]
    if with_floor and all("read only" in r["us_cold"] for r in rows):
        axis.fill_between(keys, [value(r, "read only") for r in rows], 0.01, color="#dddddd", linewidth=0, label="read K and V, do nothing")
    for name, (color, dashes, marker) in LINES.items():
        line = [(r["keys"], value(r, name)) for r in rows if name in r["us_cold"]]
        if line:
            axis.plot(*zip(*line), dashes, color=color, marker=marker, markersize=4, linewidth=1.4, label=NAMES.get(name, name))
    axis.set_xscale("log", base=2)
    axis.set_xticks(keys, [short(k) for k in keys])
    axis.minorticks_off()
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.25)


def picture(record, dim, path):
    even = [r for r in record["rows"] if r["head_dim"] == dim and isinstance(r["keys"], int) and "us_cold" in r]
    batches = sorted({r["batch"] for r in even})
    figure, axes = plt.subplots(2, len(batches), figsize=(3.4 * len(batches), 6.4), sharey="row", squeeze=False)
    for above, below, batch in zip(*axes, batches):
        rows = sorted((r for r in even if r["batch"] == batch), key=lambda r: r["keys"])
        draw(above, rows, lambda r, name: r["us_cold"][name], True)
        above.set_yscale("log")
        above.minorticks_off()
        for r in rows:
            above.annotate(microseconds(r["us_cold"]["tessera"]), (r["keys"], r["us_cold"]["tessera"]), textcoords="offset points",
                           xytext=(0, -11), ha="center", fontsize=7, color="#0b6e4f")
        above.set_title(f"{batch} sequence{'s' if batch > 1 else ''}", fontsize=10)
        with_floor = [r for r in rows if "read only" in r["us_cold"]]
        if with_floor:
            draw(below, with_floor, lambda r, name: r["us_cold"][name] / r["us_cold"]["read only"], True)
        below.set_xlabel("keys of each")
    times = [t for r in even for n, t in r["us_cold"].items() if n != "empty"]
    axes[0][0].set_ylim(bottom=0.6 * min(times), top=1.6 * max(times))
    axes[1][0].set_ylim(bottom=0.9, top=3.5)
    axes[0][0].set_ylabel("µs, L2 cold, CUDA graph")
    axes[1][0].set_ylabel("times the kernel that only reads")
    axes[0][0].legend(frameon=False, fontsize=7, loc="upper left")
    cudnn = f"{record['cudnn'] // 10000}.{record['cudnn'] // 100 % 100}"
    figure.suptitle(f"decode, head dim {dim}, 32/8 heads, one query token; {record['gpu']}, {record['dtype']}, "
                    f"{record['date']}, cuDNN {cudnn}", fontsize=9)
    figure.tight_layout()
    figure.savefig(path)


def pictures(record, folder):
    for dim in sorted({r["head_dim"] for r in record["rows"] if "us_cold" in r}):
        picture(record, dim, os.path.join(folder, f"decode_d{dim}.svg"))


if __name__ == "__main__":
    sys.exit(plot_record.main(__doc__, pictures))
