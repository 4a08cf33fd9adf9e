#!/usr/bin/env python3
"""Measures llama.cpp on a GGUF file, through the low-level API of the llama-cpp-python package.

    python llama_cpp_peer.py MODEL.gguf [--threads 2] [--prompt 512] [--generate 128] [--repetitions 5]
    python llama_cpp_peer.py MODEL.gguf --logits TOKENS.json OUT.npy

README.md says how the package is built. The first form prints one JSON object. Prompt processing (pp) and token
generation (tg) are timed as llama-bench times them: pp evaluates one batch of --prompt tokens into an empty cache with
logits for the last token only, tg evaluates --generate single tokens one after another from an empty cache; neither
includes tokenising or sampling; one untimed run of each comes first. Rates are tokens per second. Memory is the peak
resident set of this process (VmHWM) in KiB; the value before the model was loaded stands beside it, because it is the
interpreter's share.

The second form writes teacher-forced logits [T, n_vocab] float32 of all positions, for accuracy comparisons.
"""

import argparse
import importlib.metadata
import json
import os
import random
import statistics
import sys
import time

import llama_cpp


def peak_rss_kib() -> int:
    with open("/proc/self/status", encoding="ascii") as file:
        for line in file:
            if line.startswith("VmHWM:"):
                return int(line.split()[1])
    raise RuntimeError("/proc/self/status: no VmHWM line")


class Session:
    """One model with one context; n_batch and n_ubatch equal the prompt length."""

    def __init__(self, args: argparse.Namespace, n_ctx: int, n_batch: int):
        llama_cpp.llama_backend_init()
        model_params = llama_cpp.llama_model_default_params()
        model_params.n_gpu_layers = 0
        model_params.use_extra_bufts = not args.no_repack
        self.model = llama_cpp.llama_model_load_from_file(args.model.encode(), model_params)
        if not self.model:
            raise RuntimeError(f"{args.model}: llama.cpp could not load the model")
        context_params = llama_cpp.llama_context_default_params()
        context_params.n_ctx = n_ctx
        context_params.n_batch = n_batch
        context_params.n_ubatch = n_batch
        context_params.n_threads = args.threads
        context_params.n_threads_batch = args.threads
        if args.f32_attention:
            context_params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
            context_params.type_k = context_params.type_v = llama_cpp.GGML_TYPE_F32
        self.context = llama_cpp.llama_init_from_model(self.model, context_params)
        if not self.context:
            raise RuntimeError("llama.cpp could not create a context")
        self.n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))

    def clear(self) -> None:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)

    def evaluate(self, tokens: list[int]) -> None:
        """Appends tokens to the sequence; logits of the last one only."""
        array = (llama_cpp.llama_token * len(tokens))(*tokens)
        if llama_cpp.llama_decode(self.context, llama_cpp.llama_batch_get_one(array, len(tokens))) != 0:
            raise RuntimeError("llama_decode failed")
        llama_cpp.llama_synchronize(self.context)

    def all_logits(self, tokens: list[int]):
        """Logits [T, n_vocab] float32 of every position of one batch."""
        import numpy as np

        self.clear()
        batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i] = token
            batch.pos[i] = i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = 1
        if llama_cpp.llama_decode(self.context, batch) != 0:
            raise RuntimeError("llama_decode failed")
        pointer = llama_cpp.llama_get_logits(self.context)
        logits = np.ctypeslib.as_array(pointer, shape=(len(tokens) * self.n_vocab,)).copy()
        llama_cpp.llama_batch_free(batch)
        return logits.reshape(len(tokens), self.n_vocab).astype(np.float32)


def rates(run, n_tokens: int, repetitions: int) -> dict:
    run()  # warm-up: page faults, thread start
    samples = []
    for _ in range(repetitions):
        start = time.perf_counter()
        run()
        samples.append(n_tokens / (time.perf_counter() - start))
    return {
        "n_tokens": n_tokens,
        "mean": round(statistics.mean(samples), 2),
        "stdev": round(statistics.stdev(samples), 2) if len(samples) > 1 else 0.0,
        "best": round(max(samples), 2),
        "samples": [round(s, 2) for s in samples],
    }


def measure(args: argparse.Namespace) -> dict:
    rss_before = peak_rss_kib()
    load_before = os.getloadavg()[0]
    session = Session(args, n_ctx=max(args.prompt, args.generate), n_batch=args.prompt)
    rng = random.Random(1)
    tokens = [rng.randrange(session.n_vocab) for _ in range(max(args.prompt, args.generate))]

    def prompt() -> None:
        session.clear()
        session.evaluate(tokens[: args.prompt])

    def generate() -> None:
        session.clear()
        for token in tokens[: args.generate]:
            session.evaluate([token])

    pp = rates(prompt, args.prompt, args.repetitions)
    tg = rates(generate, args.generate, args.repetitions)
    return {
        "peer": "llama.cpp",
        "package": "llama-cpp-python " + importlib.metadata.version("llama-cpp-python"),
        "system_info": llama_cpp.llama_print_system_info().decode().strip(),
        "model": os.path.basename(args.model),
        "threads": args.threads,
        "attention": "float32 cache, separate softmax" if args.f32_attention else "default (float16 cache)",
        "weights_repacked_at_load": not args.no_repack,
        "pp_tok_per_s": pp,
        "tg_tok_per_s": tg,
        "vm_hwm_kib": peak_rss_kib(),
        "vm_hwm_before_load_kib": rss_before,
        "load_average": [round(load_before, 2), round(os.getloadavg()[0], 2)],
    }


def quiet_log(level, text, user_data) -> None:
    del level, text, user_data


def main() -> int:
    parser = argparse.ArgumentParser(description="Speed and memory of llama.cpp on a GGUF file.")
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--generate", type=int, default=128)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--logits", nargs=2, metavar=("TOKENS.json", "OUT.npy"))
    parser.add_argument("--no-repack", action="store_true", help="use the weights as stored (no AMX buffers)")
    parser.add_argument("--f32-attention", action="store_true", help="float32 cache, no flash attention")
    parser.add_argument("--verbose", action="store_true", help="let llama.cpp write its log to standard error")
    args = parser.parse_args()

    callback = llama_cpp.llama_log_callback(quiet_log)  # must outlive every call into the library
    if not args.verbose:
        llama_cpp.llama_log_set(callback, None)
    if args.logits:
        import numpy as np

        with open(args.logits[0], encoding="utf-8") as file:
            tokens = json.load(file)
        session = Session(args, n_ctx=len(tokens), n_batch=len(tokens))
        np.save(args.logits[1], session.all_logits(tokens))
        return 0
    print(json.dumps(measure(args), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
