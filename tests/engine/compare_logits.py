#!/usr/bin/env python3
"""The engine's logits against the numpy forward, teacher-forced on real text.

    compare_logits.py LOGITS_TOOL demo            the demo model (skipped, exit 77, when it is not in the cache)
    compare_logits.py LOGITS_TOOL toy             toy models of every architecture and weight type

Bar: max |difference| <= 2e-3; the best token is the same except where the reference's margin is below the difference.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "reference"))
import forward  # noqa: E402
import hf_tokenizer  # noqa: E402
import toy_gguf  # noqa: E402

BAR = 2e-3
POSITIONS = 512


def cache_folder() -> str:
    home = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "tessera")
    return os.environ.get("TESSERA_CACHE") or home


def engine_logits(tool: str, model: str, tokens: list[int], chunk: int, folder: str) -> np.ndarray:
    tokens_path = os.path.join(folder, "tokens.json")
    out_path = os.path.join(folder, "logits.f32")
    with open(tokens_path, "w", encoding="ascii") as file:
        json.dump(tokens, file)
    subprocess.run([tool, model, tokens_path, out_path, str(chunk)], check=True)
    return np.fromfile(out_path, dtype="<f4").reshape(len(tokens), -1)


def compare(name: str, ours: np.ndarray, reference: np.ndarray) -> bool:
    difference = np.abs(ours.astype(np.float64) - reference)
    rows = np.arange(len(ours))
    best = reference.argmax(axis=1)
    wrong = np.flatnonzero(ours.argmax(axis=1) != best)
    margins = reference[rows, best] - reference[rows, ours.argmax(axis=1)]
    unexplained = [int(t) for t in wrong if margins[t] > 2 * difference[t].max()]
    position, token = np.unravel_index(difference.argmax(), difference.shape)
    print(
        f"{name}: {len(ours)} positions, max |difference| {difference.max():.3e} (position {position}, token {token}), "
        f"p99.9 {np.quantile(difference, 0.999):.3e}, rms {np.sqrt((difference**2).mean()):.3e}, "
        f"largest logit {np.abs(reference).max():.2f}, other best token {len(wrong)} times, {len(unexplained)} unexplained"
    )
    return bool(np.isfinite(ours).all() and difference.max() <= BAR and not unexplained)


def demo(tool: str) -> int:
    model = os.path.join(cache_folder(), "SmolLM2-135M-Instruct.Q4_1.gguf")
    if not os.path.exists(model):
        print(f"SKIPPED: {model} is not there; 'tessera run -m demo' fetches it")
        return 77
    with open(os.path.join(os.path.dirname(forward.__file__), "text.txt"), encoding="utf-8") as file:
        tokens = hf_tokenizer.load(model).encode(file.read(), add_special_tokens=False).ids[:POSITIONS]
    if len(tokens) < POSITIONS:
        print(f"text.txt has only {len(tokens)} tokens")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        ours = engine_logits(tool, model, tokens, 64, folder)
        again = engine_logits(tool, model, tokens, 512, folder)
    if ours.tobytes() != again.tobytes():
        print("chunks of 64 and of 512 give other bytes")
        return 1
    return 0 if compare("demo model", ours, forward.Model(model, dtype=np.float32).logits(tokens)) else 1


def toy(tool: str) -> int:
    good = True
    cases = [(arch, "f32") for arch in ("llama", "qwen2", "qwen3")]
    cases += [("llama", kind) for kind in toy_gguf.TYPES if kind != "f32"]
    cases += [("qwen3", "q4_k,q6_k,q5_0")]
    tokens = [(7 * i * i + 3 * i) % 256 for i in range(64)]
    with tempfile.TemporaryDirectory() as folder:
        for arch, kind in cases:
            model = os.path.join(folder, "toy.gguf")
            toy_gguf.write_toy(toy_gguf.parser().parse_args(["--arch", arch, "--type", kind, "--out", model]))
            ours = engine_logits(tool, model, tokens, 16, folder)
            good = compare(f"toy {arch} {kind}", ours, forward.Model(model, dtype=np.float32).logits(tokens)) and good
    return 0 if good else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool")
    parser.add_argument("what", choices=("demo", "toy"))
    arguments = parser.parse_args()
    return demo(arguments.tool) if arguments.what == "demo" else toy(arguments.tool)


if __name__ == "__main__":
    sys.exit(main())
