#!/usr/bin/env python3
"""The engine beside llama.cpp on the same GGUF file, alternating in one run (ABBA), and writes a record.

    compare_llama_cpp.py BUILD_BIN MODEL.gguf OUT.json [--threads 2] [--rounds 6] [--peer-python PYTHON]

The ratio of each round is taken between neighbours in time; what is reported is the median ratio with the smallest and the
largest. PYTHON must be able to import llama_cpp (bench/peers/README.md); BUILD_BIN holds bench_engine and tessera.
"""

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def run_json(command: list[str]) -> dict:
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def ours(args: argparse.Namespace) -> dict:
    command = [os.path.join(args.bin, "bench_engine"), args.model, "--threads", str(args.threads), "--repetitions", "2"]
    out = run_json([*command, "--kv-type", args.kv_type])
    return {
        "pp": statistics.median(out["pp_tok_s"]),
        "tg": statistics.median(out["tg_tok_s"]),
        "peak_rss_bytes": out["peak_rss_bytes"],
    }


def peer(args: argparse.Namespace) -> dict:
    script = os.path.join(HERE, "peers", "llama_cpp_peer.py")
    out = run_json([args.peer_python, script, args.model, "--threads", str(args.threads), "--repetitions", "2"])
    return {
        "pp": statistics.median(out["pp_tok_per_s"]["samples"]),
        "tg": statistics.median(out["tg_tok_per_s"]["samples"]),
        "peak_rss_bytes": 1024 * (out["vm_hwm_kib"] - out["vm_hwm_before_load_kib"]),
        "package": out["package"],
        "system_info": out["system_info"],
    }


def generation_memory(args: argparse.Namespace) -> int:
    """Peak resident bytes of the command line tool answering a prompt."""
    command = [os.path.join(args.bin, "tessera"), "run", "-m", args.model, "-t", str(args.threads), "-n", "80"]
    command += ["-p", "What is the capital of France, and what is it known for?", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"{command[0]} ended with {process.returncode}")
    return usage.ru_maxrss * 1024


def ratio(rounds: list[dict], key: str) -> dict:
    values = sorted(r["tessera"][key] / r["llama.cpp"][key] for r in rounds)
    return {"median": round(statistics.median(values), 3), "min": round(values[0], 3), "max": round(values[-1], 3)}


def cpu_name() -> str:
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return "unknown"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin")
    parser.add_argument("model")
    parser.add_argument("out")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--kv-type", default="f16", choices=["f16", "f32"], help="our KV cache; the peer's is fp16")
    parser.add_argument("--peer-python", default=sys.executable)
    args = parser.parse_args()

    load_before = os.getloadavg()[0]
    rounds = []
    for i in range(args.rounds):
        order = [("tessera", ours), ("llama.cpp", peer)]
        results = {name: measure(args) for name, measure in (order if i % 2 == 0 else reversed(order))}
        rounds.append(results)
        print(
            f"round {i + 1}: prefill {results['tessera']['pp']:.1f} against {results['llama.cpp']['pp']:.1f} tok/s, "
            f"decode {results['tessera']['tg']:.1f} against {results['llama.cpp']['tg']:.1f} tok/s",
            file=sys.stderr,
        )
    file_bytes = os.path.getsize(args.model)
    memory = generation_memory(args)
    commit = subprocess.run(["git", "-C", HERE, "rev-parse", "HEAD"], stdout=subprocess.PIPE, text=True, check=True).stdout
    dirty = subprocess.run(["git", "-C", HERE, "status", "--porcelain"], stdout=subprocess.PIPE, text=True, check=True).stdout
    record = {
        "what": "prefill of 512 random tokens and 128 single-token steps, tok/s, alternating runs; ratio = tessera / llama.cpp",
        "date": datetime.date.today().isoformat(),
        "commit": commit.strip() + (" with changes" if dirty.strip() else ""),
        "cpu": cpu_name(),
        "threads": args.threads,
        "load_average_before": round(load_before, 2),
        "model": os.path.basename(args.model),
        "file_bytes": file_bytes,
        "peer": rounds[0]["llama.cpp"]["package"],
        "peer_system_info": rounds[0]["llama.cpp"]["system_info"],
        "prefill_ratio": ratio(rounds, "pp"),
        "decode_ratio": ratio(rounds, "tg"),
        "generation_peak_rss_bytes": memory,
        "generation_peak_rss_over_file": round(memory / file_bytes, 3),
        "kv_type": args.kv_type,
        "peak_rss_over_file": {
            name: round(max(r[name]["peak_rss_bytes"] for r in rounds) / file_bytes, 3) for name in ("tessera", "llama.cpp")
        },
        "rounds": [
            {name: {k: round(r[name][k], 2) for k in ("pp", "tg", "peak_rss_bytes")} for name in ("tessera", "llama.cpp")}
            for r in rounds
        ],
    }
    with open(args.out, "w", encoding="utf-8") as file:
        json.dump(record, file, indent=2)
        file.write("\n")
    print(json.dumps({k: v for k, v in record.items() if k != "rounds"}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
