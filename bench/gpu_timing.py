"""How the GPU benchmarks take times: single calls with a spin between them, graphs of one, or back to back; clocks from nvidia-smi."""

import statistics
import subprocess

import torch


def spaced(runs, repeats):
    """Median seconds per call of each runner, calls of all runners interleaved."""
    for run in runs:
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    events = [[] for _ in runs]
    for _ in range(repeats):
        for i, run in enumerate(runs):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(400_000)
            begin.record()
            run()
            end.record()
            events[i].append((begin, end))
        torch.cuda.synchronize()
    return [statistics.median(b.elapsed_time(e) for b, e in pairs) * 1e-3 for pairs in events]


def between_events(runs, repeats, before):
    """Median microseconds of each runner, calls of all runners interleaved; before(run) comes ahead of the first event."""
    times = [[] for _ in runs]
    for _ in range(repeats):
        events = []
        for run in runs:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(500_000)
            before(run)
            begin.record()
            run()
            end.record()
            events.append((begin, end))
        torch.cuda.synchronize()
        for i, (begin, end) in enumerate(events):
            times[i].append(begin.elapsed_time(end) * 1e3)
    return [statistics.median(t) for t in times]


def graph_of(call):
    """One call as a CUDA graph: what it returns replays it."""
    torch.cuda.synchronize()  # the inputs are there before another stream reads them
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        call()
    return graph.replay


def smi(fields):
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    try:
        lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip().split("\n")
    except FileNotFoundError:
        return ["unknown"] * len(fields.split(","))
    return [item.strip() for item in lines[0].split(",")]


def sustained(run, seconds):
    """Seconds per call, SM MHz and watts of back-to-back calls; clock and power are read while the second half runs."""
    torch.cuda.synchronize()
    begin, middle, end = (torch.cuda.Event(enable_timing=True) for _ in range(3))
    begin.record()
    for _ in range(10):
        run()
    end.record()
    torch.cuda.synchronize()
    half = max(5, int(seconds / (begin.elapsed_time(end) * 1e-4)) // 2)
    begin.record()
    for _ in range(half):
        run()
    middle.record()
    for _ in range(half):
        run()
    end.record()
    middle.synchronize()
    clock, power = smi("clocks.sm,power.draw")
    torch.cuda.synchronize()
    return {"seconds": begin.elapsed_time(end) * 1e-3 / (2 * half), "sm_mhz": clock, "watts": power}
