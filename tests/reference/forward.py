#!/usr/bin/env python3
"""Teacher-forced logits of a GGUF model, computed with numpy alone.

This is the yardstick for the engine's logits. It shares no code with the engine: weights come from the `gguf` package's
own dequantisation, and every step is a plain numpy expression over the whole sequence (no key/value cache, no tiles).

    python forward.py MODEL.gguf TOKENS.json OUT.npy [--float64]

TOKENS.json holds a JSON list of token ids, length T >= 1. OUT.npy receives an array [T, n_vocab] (float32, or float64
with --float64); row t holds the logits of the token after position t. Architectures: llama, qwen2, qwen3.

With --float64 all arithmetic runs in float64 over the same inputs: the dequantised float32 weights and the RoPE table
rounded to float32 are part of the model's definition and are not recomputed more finely.
"""

import argparse
import json
import sys
from typing import Callable, Optional

import gguf
import numpy as np

ARCHITECTURES = ("llama", "qwen2", "qwen3")

# Maps an activation matrix [T, K] to the one that the matmul multiplies; used to study activation rounding.
ActivationMap = Callable[[np.ndarray], np.ndarray]


class UnsupportedModel(Exception):
    """The file asks for something this reference does not compute."""


class Model:
    """The weights and hyperparameters of one GGUF file.

    dtype is the arithmetic type of everything but, optionally, the matmuls: matmul_dtype overrides those.
    activation_map, when given, rewrites the input of every matrix product.
    """

    def __init__(
        self,
        path: str,
        dtype: type = np.float32,
        matmul_dtype: Optional[type] = None,
        activation_map: Optional[ActivationMap] = None,
    ):
        self.dtype = np.dtype(dtype)
        self.matmul_dtype = np.dtype(matmul_dtype or dtype)
        self.activation_map = activation_map
        reader = gguf.GGUFReader(path)
        self._fields = reader.fields
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        self._matrices: dict[str, np.ndarray] = {}

        self.arch = self._key("general.architecture")
        if self.arch not in ARCHITECTURES:
            raise UnsupportedModel(f"architecture: got {self.arch}; allowed {', '.join(ARCHITECTURES)}")
        self.n_layer = int(self._key(f"{self.arch}.block_count"))
        self.n_embd = int(self._key(f"{self.arch}.embedding_length"))
        self.n_head = int(self._key(f"{self.arch}.attention.head_count"))
        self.n_head_kv = int(self._key(f"{self.arch}.attention.head_count_kv", self.n_head))
        self.head_dim = int(self._key(f"{self.arch}.attention.key_length", self.n_embd // self.n_head))
        if int(self._key(f"{self.arch}.attention.value_length", self.head_dim)) != self.head_dim:
            raise UnsupportedModel("attention.value_length differs from the key length")
        self.n_rot = int(self._key(f"{self.arch}.rope.dimension_count", self.head_dim))
        self.rope_base = float(self._key(f"{self.arch}.rope.freq_base", 10000.0))
        self.rope_factor = self._linear_rope_factor()
        self.rms_eps = self.dtype.type(self._key(f"{self.arch}.attention.layer_norm_rms_epsilon"))
        self.embedding = self._weight("token_embd.weight")  # [n_vocab, n_embd]

    # ---- file access ----------------------------------------------------------------------------------------------

    def _key(self, name: str, default=None):
        field = self._fields.get(name)
        if field is None:
            if default is None:
                raise UnsupportedModel(f"metadata key {name}: missing")
            return default
        return field.contents()

    def _linear_rope_factor(self) -> float:
        kind = self._key(f"{self.arch}.rope.scaling.type", "none")
        if kind not in ("none", "linear"):
            raise UnsupportedModel(f"{self.arch}.rope.scaling.type: got {kind}; allowed none, linear")
        return float(self._key(f"{self.arch}.rope.scaling.factor", 1.0)) if kind == "linear" else 1.0

    def _weight(self, name: str) -> Optional[np.ndarray]:
        """The dequantised float32 tensor, rows outermost ([N, K] for a matrix), or None when absent."""
        tensor = self._tensors.get(name)
        if tensor is None:
            return None
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        return values.reshape(tuple(int(n) for n in tensor.shape[::-1])).astype(np.float32)

    def _vector(self, name: str) -> Optional[np.ndarray]:
        values = self._weight(name)
        return None if values is None else values.astype(self.dtype)

    def _matrix(self, name: str) -> np.ndarray:
        """[N, K] in matmul_dtype, kept for the next call."""
        if name not in self._matrices:
            values = self._weight(name)
            if values is None:
                raise UnsupportedModel(f"tensor {name}: missing")
            self._matrices[name] = values.astype(self.matmul_dtype)
        return self._matrices[name]

    # ---- layers ---------------------------------------------------------------------------------------------------

    def _linear(self, x: np.ndarray, prefix: str) -> np.ndarray:
        """x [T, K] -> [T, N]: x W^T + bias, the bias only where the file has one."""
        if self.activation_map is not None:
            x = self.activation_map(x)
        y = (x.astype(self.matmul_dtype) @ self._matrix(prefix + ".weight").T).astype(self.dtype)
        bias = self._vector(prefix + ".bias")
        return y if bias is None else y + bias

    def _rms_norm(self, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """x / sqrt(mean(x^2) + eps) * weight over the last axis."""
        mean_square = np.mean(x * x, axis=-1, keepdims=True, dtype=self.dtype)
        return x / np.sqrt(mean_square + self.rms_eps) * weight

    def _rope_table(self, n_tokens: int) -> tuple[np.ndarray, np.ndarray]:
        """cos and sin [T, n_rot / 2]; angles in float64, values rounded once to float32."""
        pair = np.arange(self.n_rot // 2, dtype=np.float64)
        frequency = self.rope_base ** (-2.0 * pair / self.n_rot) / self.rope_factor
        divisor = self._weight("rope_freqs.weight")
        if divisor is not None:
            frequency = frequency / divisor.astype(np.float64)
        angle = np.arange(n_tokens, dtype=np.float64)[:, None] * frequency[None, :]
        return tuple(f(angle).astype(np.float32).astype(self.dtype)[:, None, :] for f in (np.cos, np.sin))

    def _rope(self, x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
        """Rotates the first n_rot values of every head of x [T, H, D]; llama pairs neighbours, the others halves."""
        half = self.n_rot // 2
        if self.arch == "llama":
            first, second = slice(0, self.n_rot, 2), slice(1, self.n_rot, 2)
        else:
            first, second = slice(0, half), slice(half, self.n_rot)
        a, b = x[..., first], x[..., second]
        out = x.copy()
        out[..., first] = a * cos - b * sin
        out[..., second] = a * sin + b * cos
        return out

    def _attention(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        """Causal attention; q [T, H, D], k and v [T, H_kv, D] -> [T, H * D]."""
        n_tokens = q.shape[0]
        scale = self.dtype.type(1.0 / np.sqrt(float(self.head_dim)))
        hidden = np.triu(np.ones((n_tokens, n_tokens), dtype=bool), 1)
        out = np.empty_like(q)
        for head in range(self.n_head):
            source = head // (self.n_head // self.n_head_kv)
            scores = (q[:, head] @ k[:, source].T) * scale
            scores[hidden] = -np.inf
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            out[:, head] = (weights @ v[:, source]) / weights.sum(axis=-1, keepdims=True, dtype=self.dtype)
        return out.reshape(n_tokens, self.n_head * self.head_dim)

    def _block(self, x: np.ndarray, layer: int, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
        name = f"blk.{layer}."
        n_tokens = x.shape[0]
        h = self._rms_norm(x, self._vector(name + "attn_norm.weight"))
        q = self._linear(h, name + "attn_q").reshape(n_tokens, self.n_head, self.head_dim)
        k = self._linear(h, name + "attn_k").reshape(n_tokens, self.n_head_kv, self.head_dim)
        v = self._linear(h, name + "attn_v").reshape(n_tokens, self.n_head_kv, self.head_dim)
        if self.arch == "qwen3":
            q = self._rms_norm(q, self._vector(name + "attn_q_norm.weight"))
            k = self._rms_norm(k, self._vector(name + "attn_k_norm.weight"))
        attended = self._attention(self._rope(q, cos, sin), self._rope(k, cos, sin), v)
        x = x + self._linear(attended, name + "attn_output")

        h = self._rms_norm(x, self._vector(name + "ffn_norm.weight"))
        gate = self._linear(h, name + "ffn_gate")
        up = self._linear(h, name + "ffn_up")
        with np.errstate(over="ignore"):  # exp(-gate) may reach inf; gate / inf is the wanted limit, 0
            swish = gate / (self.dtype.type(1) + np.exp(-gate))
        return x + self._linear(swish * up, name + "ffn_down")

    def logits(self, tokens: list[int]) -> np.ndarray:
        """Logits [T, n_vocab] in dtype for the token ids of positions 0 .. T-1."""
        x = self.embedding[np.asarray(tokens)].astype(self.dtype)
        cos, sin = self._rope_table(len(tokens))
        for layer in range(self.n_layer):
            x = self._block(x, layer, cos, sin)
        x = self._rms_norm(x, self._vector("output_norm.weight"))
        return self._linear(x, "output" if "output.weight" in self._tensors else "token_embd")


def main() -> int:
    parser = argparse.ArgumentParser(description="Teacher-forced logits of a GGUF model in numpy.")
    parser.add_argument("model")
    parser.add_argument("tokens", help="JSON list of token ids")
    parser.add_argument("out", help=".npy file for the logits [T, n_vocab]")
    parser.add_argument("--float64", action="store_true", help="float64 arithmetic and output")
    args = parser.parse_args()

    with open(args.tokens, encoding="utf-8") as file:
        tokens = json.load(file)
    try:
        model = Model(args.model, dtype=np.float64 if args.float64 else np.float32)
    except UnsupportedModel as error:
        print(f"forward.py: {error}", file=sys.stderr)
        return 1
    n_vocab = model.embedding.shape[0]
    if not isinstance(tokens, list) or not tokens or not all(isinstance(t, int) and 0 <= t < n_vocab for t in tokens):
        print(f"forward.py: tokens: need a non-empty JSON list of ids in 0..{n_vocab - 1}", file=sys.stderr)
        return 1
    np.save(args.out, model.logits(tokens))
    return 0


if __name__ == "__main__":
    sys.exit(main())
