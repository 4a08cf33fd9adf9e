#!/usr/bin/env python3
"""Writes a tiny random GGUF model with a real, small vocabulary; the same arguments give the same bytes.

    python toy_gguf.py --arch llama --type q4_k --out f.gguf --seed 1
    python toy_gguf.py --arch llama --type f16 --rope-freqs --untied --out f.gguf
    python toy_gguf.py --arch qwen3 --type q4_k,q6_k,q5_0 --out f.gguf       (types in turn, matrix after matrix)
    python toy_gguf.py --arch llama --type q8_0 --tokenizer spm --out f.gguf

Matrices take the chosen type; norms, biases and rope_freqs are float32. Where the `gguf` package can quantise a type
the values are random normals; for the K types it can only dequantise, so their blocks are random valid bytes with
scales set for the same variance. Matrices have variance 1 / K, which keeps activations near 1.
"""

import argparse
import sys

import gguf
import numpy as np

import toy_vocab

TYPES = {
    name: getattr(gguf.GGMLQuantizationType, name.upper())
    for name in ("f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k")
}
DEFAULT_PRE = {"llama": "smollm", "qwen2": "qwen2", "qwen3": "qwen2"}
DEFAULT_ROPE_BASE = {"llama": 10000.0, "qwen2": 1000000.0, "qwen3": 1000000.0}


def random_k_blocks(rng: np.random.Generator, kind: gguf.GGMLQuantizationType, n_blocks: int) -> np.ndarray:
    """Valid random blocks [n_blocks, block bytes] of a K type, before their float16 scales are set.

    Every field takes its full range, so each bit of the packed 6-bit scales and high-bit planes matters to some value.
    """
    size = gguf.GGML_QUANT_SIZES[kind][1]
    return rng.integers(0, 256, size=(n_blocks, size), dtype=np.uint8)


def set_k_scales(blocks: np.ndarray, kind: gguf.GGMLQuantizationType, scale: np.ndarray) -> None:
    """Writes the float16 scale(s) of every block; scale [n_blocks] float32.

    Q4_K and Q5_K subtract dmin * min from d * sc * q; dmin is set so that the two have equal means.
    """
    half = scale.astype(np.float16).reshape(-1, 1)
    if kind == TYPES["q6_k"]:
        blocks[:, -2:] = half.view(np.uint8)
        return
    mean_quant = 7.5 if kind == TYPES["q4_k"] else 15.5
    blocks[:, 0:2] = half.view(np.uint8)
    blocks[:, 2:4] = (scale * np.float32(mean_quant)).astype(np.float16).reshape(-1, 1).view(np.uint8)


def random_k_matrix(rng: np.random.Generator, kind: gguf.GGMLQuantizationType, n: int, k: int) -> np.ndarray:
    """Packed rows [n, bytes] whose dequantised values have variance 1 / k."""
    n_blocks = n * k // 256
    blocks = random_k_blocks(rng, kind, n_blocks)
    spread = rng.uniform(0.5, 1.5, size=n_blocks).astype(np.float32)
    probe = np.float32(2.0**-10)
    set_k_scales(blocks, kind, spread * probe)
    rms = np.sqrt(np.mean(gguf.dequantize(blocks, kind).astype(np.float64) ** 2))
    set_k_scales(blocks, kind, spread * np.float32(probe / (rms * np.sqrt(k))))
    return blocks.reshape(n, -1)


class ToyWriter:
    """Adds seeded random tensors to a GGUF file, taking the matrix types in turn."""

    def __init__(self, path: str, arch: str, kinds: list[gguf.GGMLQuantizationType], seed: int):
        self.file = gguf.GGUFWriter(path, arch)
        self.arch = arch
        self.rng = np.random.default_rng(seed)
        self._kinds = kinds
        self._n_matrices = 0

    def matrix(self, name: str, n: int, k: int) -> None:
        kind = self._kinds[self._n_matrices % len(self._kinds)]
        self._n_matrices += 1
        if k % gguf.GGML_QUANT_SIZES[kind][0] != 0:
            raise ValueError(f"{name}: row length {k} is no multiple of the {kind.name} block")
        if kind in (TYPES["q4_k"], TYPES["q5_k"], TYPES["q6_k"]):
            data = random_k_matrix(self.rng, kind, n, k)
        else:
            values = (self.rng.standard_normal((n, k)) / np.sqrt(k)).astype(np.float32)
            data = gguf.quantize(values, kind)
        self.file.add_tensor(name, data, raw_dtype=kind)

    def vector(self, name: str, size: int, centre: float) -> None:
        values = centre + 0.1 * self.rng.standard_normal(size)
        self.file.add_tensor(name, values.astype(np.float32))

    def rope_freqs(self, n_pairs: int) -> None:
        """Frequency divisors that grow smoothly from 1 to 8, as long-context checkpoints have them."""
        values = np.geomspace(1.0, 8.0, n_pairs)
        self.file.add_tensor("rope_freqs.weight", values.astype(np.float32))

    def finish(self) -> None:
        self.file.write_header_to_file()
        self.file.write_kv_data_to_file()
        self.file.write_tensors_to_file()
        self.file.close()


def add_vocabulary(file: gguf.GGUFWriter, vocab: toy_vocab.Vocabulary) -> None:
    file.add_tokenizer_model(vocab.model)
    if vocab.pre is not None:
        file.add_tokenizer_pre(vocab.pre)
    file.add_token_list(vocab.tokens)
    file.add_token_types(vocab.types)
    if vocab.merges is not None:
        file.add_token_merges(vocab.merges)
    if vocab.scores is not None:
        file.add_token_scores(vocab.scores)
    file.add_bos_token_id(vocab.special_ids["bos"])
    file.add_eos_token_id(vocab.special_ids["eos"])
    file.add_unk_token_id(vocab.special_ids["unknown"])
    if "padding" in vocab.special_ids:
        file.add_pad_token_id(vocab.special_ids["padding"])
    sentence_piece = vocab.model == "llama"
    file.add_add_bos_token(sentence_piece)
    file.add_add_space_prefix(sentence_piece)


def write_toy(args: argparse.Namespace) -> None:
    arch = args.arch
    head_dim = args.head_dim or (128 if arch == "qwen3" else args.embd // args.heads)
    if args.tokenizer == "spm":
        vocab = toy_vocab.sentence_piece()
    else:
        vocab = toy_vocab.byte_level_bpe(args.pre or DEFAULT_PRE[arch])
    n_vocab = len(vocab.tokens)

    out = ToyWriter(args.out, arch, [TYPES[name] for name in args.type], args.seed)
    file = out.file
    file.add_name(f"toy {arch} {'+'.join(args.type)} seed {args.seed}")
    file.add_context_length(args.context)
    file.add_embedding_length(args.embd)
    file.add_block_count(args.layers)
    file.add_feed_forward_length(args.ff)
    file.add_head_count(args.heads)
    file.add_head_count_kv(args.kv_heads)
    if head_dim != args.embd // args.heads:
        file.add_key_length(head_dim)
        file.add_value_length(head_dim)
    file.add_layer_norm_rms_eps(1e-5 if arch == "llama" else 1e-6)
    file.add_rope_freq_base(args.rope_base or DEFAULT_ROPE_BASE[arch])
    if arch == "llama":
        file.add_rope_dimension_count(head_dim)
    file.add_vocab_size(n_vocab)
    add_vocabulary(file, vocab)

    q_size, kv_size = args.heads * head_dim, args.kv_heads * head_dim
    out.matrix("token_embd.weight", n_vocab, args.embd)
    if args.rope_freqs:
        out.rope_freqs(head_dim // 2)
    for layer in range(args.layers):
        name = f"blk.{layer}."
        out.vector(name + "attn_norm.weight", args.embd, 1.0)
        for part, size in (("attn_q", q_size), ("attn_k", kv_size), ("attn_v", kv_size)):
            out.matrix(f"{name}{part}.weight", size, args.embd)
            if arch == "qwen2":
                out.vector(f"{name}{part}.bias", size, 0.0)
        if arch == "qwen3":
            out.vector(name + "attn_q_norm.weight", head_dim, 1.0)
            out.vector(name + "attn_k_norm.weight", head_dim, 1.0)
        out.matrix(name + "attn_output.weight", args.embd, q_size)
        out.vector(name + "ffn_norm.weight", args.embd, 1.0)
        out.matrix(name + "ffn_gate.weight", args.ff, args.embd)
        out.matrix(name + "ffn_up.weight", args.ff, args.embd)
        out.matrix(name + "ffn_down.weight", args.embd, args.ff)
    out.vector("output_norm.weight", args.embd, 1.0)
    if args.untied:
        out.matrix("output.weight", n_vocab, args.embd)
    out.finish()


def type_list(text: str) -> list[str]:
    names = text.lower().split(",")
    unknown = [name for name in names if name not in TYPES]
    if unknown:
        raise argparse.ArgumentTypeError(f"got {', '.join(unknown)}; allowed {', '.join(TYPES)}")
    return names


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(description="Writes a tiny random GGUF model.")
    out.add_argument("--arch", choices=DEFAULT_PRE, required=True)
    out.add_argument("--type", type=type_list, required=True, help="weight type, or several separated by commas")
    out.add_argument("--out", required=True)
    out.add_argument("--seed", type=int, default=1)
    out.add_argument("--embd", type=int, default=256)
    out.add_argument("--layers", type=int, default=2)
    out.add_argument("--heads", type=int, default=4)
    out.add_argument("--kv-heads", type=int, default=2)
    out.add_argument("--head-dim", type=int, help="default embd / heads; 128 for qwen3")
    out.add_argument("--ff", type=int, default=512)
    out.add_argument("--context", type=int, default=512)
    out.add_argument("--rope-base", type=float, help="default 1e4 for llama, 1e6 for qwen2 and qwen3")
    out.add_argument("--rope-freqs", action="store_true", help="add rope_freqs.weight (llama only)")
    out.add_argument("--untied", action="store_true", help="add a separate output.weight")
    out.add_argument("--tokenizer", choices=("bpe", "spm"), default="bpe")
    out.add_argument("--pre", choices=("smollm", "gpt-2", "llama-bpe", "qwen2"), help="BPE pre-tokenizer")
    return out


def main() -> int:
    args = parser().parse_args()
    if args.rope_freqs and args.arch != "llama":
        print("toy_gguf.py: --rope-freqs: allowed with --arch llama only", file=sys.stderr)
        return 1
    try:
        write_toy(args)
    except ValueError as error:
        print(f"toy_gguf.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
