#!/usr/bin/env python3
"""One attention layer of DeepSeek-V4, from hidden states to output, with random weights, beside a float64 model.

    deepseek_v4_layer.py [--ratio 0|4|128] [--cache bf16|fp8] [--tokens N] [--device cpu|cuda] [--transformers]

What a layer does for a token at position p (K = V, one head of 512 dims, the last 64 of them rotated):

    q        = rope(norm(wq_b norm(wq_a x)))                 a row per head, each normed by itself
    kv       = rope(norm(wkv x))                             the row of the cache, K and V at once
    entry s  = rope at s r (norm(gated mean of tokens))      r = 128: of r tokens; r = 4: of 2 r, shared with the next
    o        = softmax over {the last 128 rows} and {the compressed rows s < (p + 1) / r} and a sink of each head
               r = 4: of the compressed rows the `topk` that an indexer lists for the token; r = 0: none
    output   = wo_b [wo_a of each group of heads](inverse rope of o)

Attention is one call with two segments of keys and sinks; with --cache fp8 the compressed rows lie in pages of 448 e4m3,
64 bf16 and a footer of scales, in any order. Projections, norms and rotations are numpy on the host in both cases.

Printed are the relative errors (Frobenius norm) of attention alone, on the rows as they were stored, and of the whole
layer, and whether the last token has the same bytes when it is decoded alone. --transformers: that package's layer, with
the same weights, is compared with the float64 model too (needs torch and a version that has deepseek_v4).
Exit code 0: all within the limits. Smaller than the real layers, and without YaRN.
"""

import argparse
import os
import sys
from dataclasses import dataclass

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "python"))

try:
    import numpy as np

    import tessera
except ImportError as missing:
    print(f"SKIPPED: {missing}; tools/setup test installs numpy, and the target tessera_shared is the library")
    sys.exit(77)

DIM, ROTARY, CODED = 512, 64, 448
EPSILON = 1e-6


@dataclass
class Shape:
    ratio: int
    tokens: int
    hidden: int = 256
    heads: int = 8
    q_rank: int = 96
    groups: int = 4
    o_rank: int = 64
    window: int = 128
    topk: int = 32
    index_heads: int = 16
    index_dim: int = 128

    @property
    def base(self) -> float:  # of the rotation; layers with compressed rows have a longer one
        return 160000.0 if self.ratio else 10000.0

    @property
    def entries(self) -> int:
        return self.tokens // self.ratio if self.ratio else 0


def random_weights(shape: Shape, random) -> dict:
    def matrix(*size):
        return random.standard_normal(size) * size[-2] ** -0.5

    def about_one(*size):
        return 1 + 0.1 * random.standard_normal(size)

    s = shape
    weights = {
        "wq_a": matrix(s.hidden, s.q_rank),
        "q_norm": about_one(s.q_rank),
        "wq_b": matrix(s.q_rank, s.heads * DIM),
        "wkv": matrix(s.hidden, DIM),
        "kv_norm": about_one(DIM),
        "sinks": random.standard_normal(s.heads),
        "wo_a": matrix(s.groups, s.heads // s.groups * DIM, s.o_rank),
        "wo_b": matrix(s.groups * s.o_rank, s.hidden),
    }
    for prefix, dim in (("c", DIM), ("i", s.index_dim)):  # compressed rows, and the indexer's
        if s.ratio == 4 or (s.ratio and prefix == "c"):
            width = dim * (2 if s.ratio == 4 else 1)
            weights[f"{prefix}_kv"] = matrix(s.hidden, width)
            weights[f"{prefix}_gate"] = matrix(s.hidden, width)
            weights[f"{prefix}_place"] = random.standard_normal((s.ratio, width))
            weights[f"{prefix}_norm"] = about_one(dim)
    if s.ratio == 4:
        weights["i_q"] = matrix(s.q_rank, s.index_heads * s.index_dim)
        weights["i_head"] = matrix(s.hidden, s.index_heads)
    return weights


# ---------------------------------------------------------------- the layer, in the precision of x


def norm(x, weight=None):
    y = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + x.dtype.type(EPSILON))
    return y if weight is None else y * weight


def rope(x, positions, base, inverse=False):
    """Rotates the last 64 dims, pairs (2i, 2i + 1), of x (tokens, ..., dim)."""
    angle = np.asarray(positions, np.float64)[:, None] * base ** (-np.arange(0, ROTARY, 2) / ROTARY)
    angle = (-angle if inverse else angle).reshape(len(positions), *(1,) * (x.ndim - 2), ROTARY // 2)
    cos, sin = np.cos(angle).astype(x.dtype), np.sin(angle).astype(x.dtype)
    even, odd = x[..., -ROTARY::2], x[..., -ROTARY + 1 :: 2]
    y = x.copy()
    y[..., -ROTARY::2], y[..., -ROTARY + 1 :: 2] = even * cos - odd * sin, odd * cos + even * sin
    return y


def compressed_rows(x, weights, prefix, shape: Shape):
    """A row for every `ratio` whole tokens: per dim, a mean under a softmax of gates, normed and rotated. For ratio 4 every
    token has two values, the first for the row of the next four tokens and the second for its own."""
    ratio, entries = shape.ratio, shape.entries
    cut = lambda name: (x[: entries * ratio] @ weights[f"{prefix}_{name}"]).reshape(entries, ratio, -1)  # noqa: E731
    values, gates = cut("kv"), cut("gate") + weights[f"{prefix}_place"]
    if ratio == 4:
        half = values.shape[2] // 2
        no_values, no_gates = np.zeros_like(values[:1, :, :half]), np.full_like(gates[:1, :, :half], -np.inf)
        values = np.concatenate([np.concatenate([no_values, values[:-1, :, :half]]), values[:, :, half:]], axis=1)
        gates = np.concatenate([np.concatenate([no_gates, gates[:-1, :, :half]]), gates[:, :, half:]], axis=1)
    share = np.exp(gates - gates.max(axis=1, keepdims=True))
    rows = norm((values * share).sum(axis=1) / share.sum(axis=1), weights[f"{prefix}_norm"])
    return rope(rows, np.arange(entries) * ratio, shape.base)


def listed_entries(x, q_low, weights, shape: Shape):
    """(tokens, topk): for every token its best visible entries, higher scores first and of equal ones the first; -1 after
    them. The call does not mind the order: keys are taken in ascending order (R10)."""
    s = shape
    q = rope((q_low @ weights["i_q"]).reshape(s.tokens, s.index_heads, s.index_dim), np.arange(s.tokens), s.base)
    k = compressed_rows(x, weights, "i", s)
    score = np.einsum("th,ths->ts", x @ weights["i_head"], np.maximum(np.einsum("thd,sd->ths", q, k), 0))
    lists = np.full((s.tokens, s.topk), -1, np.int32)
    for p in range(s.tokens):
        best = np.argsort(-score[p, : (p + 1) // s.ratio], kind="stable")[: s.topk]
        lists[p, : len(best)] = best
    return lists


def layer(x, weights, shape: Shape, attend, lists=None):
    """Hidden states x (tokens, hidden) through the layer. attend(q, kv, compressed, lists) gives o (tokens, heads, 512).
    Returns the output, and the lists, which are chosen unless given."""
    s, w = shape, {name: value.astype(x.dtype) for name, value in weights.items()}
    positions = np.arange(s.tokens)
    q_low = norm(x @ w["wq_a"], w["q_norm"])
    q = rope(norm((q_low @ w["wq_b"]).reshape(s.tokens, s.heads, DIM)), positions, s.base)
    kv = rope(norm(x @ w["wkv"], w["kv_norm"]), positions, s.base)
    compressed = None
    if s.entries:
        compressed = compressed_rows(x, w, "c", s)
        if s.ratio == 4 and lists is None:
            lists = listed_entries(x, q_low, w, s)
    o = rope(attend(q, kv, compressed, lists).astype(x.dtype), positions, s.base, inverse=True)
    grouped = np.einsum("tgi,gio->tgo", o.reshape(s.tokens, s.groups, -1), w["wo_a"])
    return grouped.reshape(s.tokens, -1) @ w["wo_b"], lists


# ---------------------------------------------------------------- attention in float64


def exact_attention(q, kv, compressed, lists, sinks, shape: Shape):
    o = np.zeros(q.shape)
    for p in range(shape.tokens):
        rows = [kv[max(0, p - shape.window + 1) : p + 1]]
        if compressed is not None:
            visible = (p + 1) // shape.ratio
            rows.append(compressed[:visible] if lists is None else compressed[[j for j in lists[p] if 0 <= j < visible]])
        keys = np.concatenate(rows).astype(np.float64)
        scores = q[p].astype(np.float64) @ keys.T * DIM**-0.5
        peak = np.maximum(scores.max(axis=1), sinks)[:, None]
        weights = np.exp(scores - peak)
        o[p] = weights @ keys / (weights.sum(axis=1, keepdims=True) + np.exp(sinks[:, None] - peak))
    return o


# ---------------------------------------------------------------- the layer of transformers


def of_transformers(x, weights, shape: Shape):
    """The output of that package's layer, in float32, or a sentence why not."""
    try:
        import torch
        from transformers.models.deepseek_v4 import modeling_deepseek_v4 as model
        from transformers.models.deepseek_v4.configuration_deepseek_v4 import DeepseekV4Config
    except ImportError as missing:
        return f"NOT COMPARED with transformers: {missing}"
    s = shape
    kind = {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}[s.ratio]
    config = DeepseekV4Config(
        hidden_size=s.hidden,
        num_hidden_layers=1,
        num_attention_heads=s.heads,
        head_dim=DIM,
        q_lora_rank=s.q_rank,
        layer_types=[kind],
        sliding_window=s.window,
        o_groups=s.groups,
        o_lora_rank=s.o_rank,
        index_n_heads=s.index_heads,
        index_head_dim=s.index_dim,
        index_topk=s.topk,
        rms_norm_eps=EPSILON,
    )
    config._attn_implementation = "eager"
    attention = model.DeepseekV4Attention(config, 0).eval()
    transposed = {"wq_a": "q_a_proj", "wq_b": "q_b_proj", "wkv": "kv_proj", "wo_b": "o_b_proj"}
    plain = {"q_norm": "q_a_norm", "kv_norm": "kv_norm"}
    state = {f"{theirs}.weight": weights[ours].T for ours, theirs in transposed.items()}
    state |= {f"{theirs}.weight": weights[ours] for ours, theirs in plain.items()}
    state["sinks"] = weights["sinks"]
    state["o_a_proj.weight"] = weights["wo_a"].transpose(0, 2, 1).reshape(s.groups * s.o_rank, -1)
    for prefix, place in (("c", "compressor."), ("i", "compressor.indexer.")):
        if f"{prefix}_kv" in weights:
            state[f"{place}kv_proj.weight"] = weights[f"{prefix}_kv"].T
            state[f"{place}gate_proj.weight"] = weights[f"{prefix}_gate"].T
            state[f"{place}position_bias"] = weights[f"{prefix}_place"]
            state[f"{place}kv_norm.weight"] = weights[f"{prefix}_norm"]
    if s.ratio == 4:
        state["compressor.indexer.q_b_proj.weight"] = weights["i_q"].T
        state["compressor.indexer.scorer.weights_proj.weight"] = weights["i_head"].T
    attention.load_state_dict({name: torch.tensor(np.ascontiguousarray(value), dtype=torch.float32) for name, value in state.items()})
    hidden = torch.tensor(x, dtype=torch.float32)[None]
    positions = torch.arange(s.tokens)[None]
    rotary = model.DeepseekV4RotaryEmbedding(config)
    embeddings = {name: rotary(hidden, position_ids=positions, layer_type=name) for name in ("main", "compress")}
    distance = positions[0][:, None] - positions[0][None]
    hidden_keys = torch.zeros(s.tokens, s.tokens).masked_fill((distance < 0) | (distance >= s.window), -torch.inf)
    with torch.no_grad():
        output = attention(hidden, position_embeddings=embeddings, position_ids=positions, attention_mask=hidden_keys[None, None])
    return output[0][0].numpy()


# ---------------------------------------------------------------- attention by Tessera


def to_bf16(x):
    """Nearest bf16, ties to even, as uint16; x is finite."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def e4m3_values():
    codes = np.arange(256)
    exponent, fraction = codes >> 3 & 15, codes & 7
    magnitude = np.where(exponent == 0, fraction * 2.0**-9, (8 + fraction) * 2.0 ** (exponent - 10.0))
    return np.where(codes & 128, -magnitude, magnitude)


class Fp8Pages:
    """Rows in pages of the V4 format, whose order in the pool is shuffled."""

    def __init__(self, rows, page_size, random):
        self.page_size, self.count = page_size, len(rows)
        pages = -(-len(rows) // page_size)
        self.table = random.permutation(pages + 3)[:pages].astype(np.int32)[None]
        page_bytes = -(-page_size * 584 // 576) * 576
        memory = np.full((pages + 3) * page_bytes + 16, 0xFF, np.uint8)  # 0xff is NaN in every part of a row
        start = -memory.ctypes.data % 16
        self.pool = memory[start : start + (pages + 3) * page_bytes].reshape(pages + 3, page_bytes)
        j = np.arange(len(rows))
        self.slots = self.table[0, j // page_size].astype(np.int64) * page_size + j % page_size
        tessera.kv_to_fp8(rows, "fp8_v4", self.pool, page_size=page_size, slots=self.slots)

    def values(self):
        """What the rows are worth (R11), read back by a formula of its own."""
        page, slot = self.slots // self.page_size, self.slots % self.page_size
        data = self.pool[:, : self.page_size * 576].reshape(len(self.pool), self.page_size, 576)[page, slot]
        footer = self.pool[:, self.page_size * 576 : self.page_size * 584].reshape(len(self.pool), self.page_size, 8)
        scales = np.repeat(2.0 ** (footer[page, slot, :7].astype(np.float64) - 127), 64, axis=1)
        coded = e4m3_values()[data[:, :CODED]] * scales
        return np.concatenate([coded, from_bf16(np.ascontiguousarray(data[:, CODED:]).view(np.uint16))], axis=1)


class Attention:
    """attend() of a layer through tessera. Keeps the stored rows, to measure attention on what it was given."""

    def __init__(self, shape: Shape, sinks, cache: str, device: str, random):
        self.shape, self.cache, self.random = shape, cache, random
        self.sinks = np.asarray(sinks, np.float32)
        self.device = device
        self.kernel = self.contract = None

    def __call__(self, q, kv, compressed, lists):
        self.q, self.kv, self.lists = to_bf16(q), to_bf16(kv), lists
        self.entries = None
        if compressed is not None:
            rows = to_bf16(compressed)
            self.entries = Fp8Pages(rows, 256 // self.shape.ratio, self.random) if self.cache == "fp8" else rows
        self.o = self.run(0, self.shape.tokens)
        return self.o

    def stored(self):
        """q, kv and compressed rows as they were used, in float64."""
        entries = self.entries
        if entries is not None:
            entries = entries.values() if isinstance(entries, Fp8Pages) else from_bf16(entries).astype(np.float64)
        return from_bf16(self.q).astype(np.float64), from_bf16(self.kv).astype(np.float64), entries

    def run(self, begin, end):
        """Query tokens [begin, end), in a call of their own."""
        kv = self.kv[:end, None][None]
        segments = [tessera.Segment(self.put(kv), causal=True, window=(self.shape.window - 1, -1))]
        if self.entries is not None:
            options = {"compress_ratio": self.shape.ratio, "q_positions": self.put(np.array([begin], np.int32))}
            if self.lists is not None:
                options["indices"] = self.put(np.ascontiguousarray(self.lists[None, begin:end]))
            pages = self.entries
            if isinstance(pages, Fp8Pages):
                options |= {"format": "fp8_v4", "page_table": self.put(pages.table), "page_size": pages.page_size, "max_seqlen_k": pages.count}
                segments.append(tessera.Segment(self.put(pages.pool), **options))
            else:
                segments.append(tessera.Segment(self.put(pages[:, None][None]), **options))
        q = self.put(np.ascontiguousarray(self.q[None, begin:end]))
        call = tessera.SegmentedAttention(q, segments, sinks=self.put(self.sinks), dtype="bfloat16", softmax_scale=DIM**-0.5)
        call.run()
        self.kernel, self.contract = call.kernel, call.contract_id
        return (call.o if self.device == "cpu" else call.o.cpu().numpy())[0]

    def put(self, array):
        """On the device; bf16 bits as such for torch."""
        if self.device == "cpu":
            return array
        import torch

        tensor = torch.from_numpy(np.ascontiguousarray(array.view(np.int16) if array.dtype == np.uint16 else array)).cuda()
        return tensor.view(torch.bfloat16) if array.dtype == np.uint16 else tensor


def relative(got, want) -> float:
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ratio", type=int, choices=(0, 4, 128), default=4)
    parser.add_argument("--cache", choices=("bf16", "fp8"), default="fp8")
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--transformers", action="store_true")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    random = np.random.default_rng(1)
    shape = Shape(options.ratio, options.tokens, heads=options.heads)
    weights = random_weights(shape, random)
    x = random.standard_normal((shape.tokens, shape.hidden))

    want, lists = layer(x, weights, shape, lambda *rows: exact_attention(*rows, weights["sinks"], shape))
    attention = Attention(shape, weights["sinks"], options.cache, options.device, random)
    try:
        got, _ = layer(x.astype(np.float32), weights, shape, attention, lists)
    except tessera.TesseraError as error:
        if error.code != "UNSUPPORTED":
            raise
        print(f"SKIPPED: {error}")
        return 77
    exact = exact_attention(*attention.stored(), lists, attention.sinks.astype(np.float64), shape)
    alone = attention.run(shape.tokens - 1, shape.tokens)
    same = alone[0].tobytes() == attention.o[-1].tobytes()
    of_attention, of_layer = relative(attention.o, exact), relative(got, want)

    fp8 = options.cache == "fp8" and shape.entries > 0
    limits = (1e-6 if options.device == "cpu" else 3e-3, 5e-2 if fp8 else 6e-3)
    print(f"kernel {attention.kernel}, {attention.contract}; ratio {shape.ratio}, {shape.tokens} tokens, {shape.heads} heads, cache {options.cache}")
    print(f"attention on the stored rows: relative error {of_attention:.2e}, allowed {limits[0]:.0e}")
    print(f"whole layer: relative error {of_layer:.2e}, allowed {limits[1]:.0e} (the rounding of q and of the caches)")
    print(f"last token decoded alone: {'the same bytes' if same else 'OTHER BYTES'}")
    good = same and of_attention <= limits[0] and of_layer <= limits[1]
    if options.transformers:
        theirs = of_transformers(x, weights, shape)
        if isinstance(theirs, str):
            print(theirs)
            return 77 if good else 1
        difference = relative(theirs, want)
        print(f"the layer of transformers and the float64 model: relative difference {difference:.2e}, allowed 1e-05")
        good = good and difference <= 1e-5
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
