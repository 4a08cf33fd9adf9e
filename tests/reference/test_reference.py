"""Checks of the reference implementations on toy models. Run: python -m unittest discover tests/reference"""

import contextlib
import io
import itertools
import os
import sys
import tempfile
import unittest

try:
    import gguf
    import numpy as np

    import activation_rounding
    import forward
    import hf_tokenizer
    import toy_gguf
except ModuleNotFoundError as missing:
    print(f"test_reference.py: skipped: {missing}; install tests/requirements.txt", file=sys.stderr)
    sys.exit(77)

HERE = os.path.dirname(os.path.abspath(__file__))
ARCHITECTURES = ("llama", "qwen2", "qwen3")

# First eight logits after the last of Forward.tokens, measured with llama.cpp (llama-cpp-python 0.3.36, float32 cache,
# no flash attention) on the toy models of these arguments.
LLAMA_CPP_LOGITS = {
    ("llama",): [0.98052, 2.46130, -1.12639, 0.19394, -2.86623, 0.62707, 1.29068, -0.78870],
    ("qwen2",): [0.49695, 1.52725, -0.16674, -1.09989, -0.06842, -1.91703, 0.07878, -0.49811],
    ("qwen3",): [1.00414, 1.90786, 2.05695, -1.51504, -1.07834, -0.50222, -0.73008, 0.18607],
    ("llama", "--rope-freqs", "--untied"): [-0.44417, 1.47421, 0.76756, 2.61892, 1.89851, -0.47472, 0.31843, 2.02523],
}


class ToyCase(unittest.TestCase):
    """Gives each test a folder for its models."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self._folder = folder.name
        self._number = itertools.count()

    def toy(self, *arguments: str) -> str:
        path = os.path.join(self._folder, f"toy{next(self._number)}.gguf")
        toy_gguf.write_toy(toy_gguf.parser().parse_args([*arguments, "--out", path]))
        return path


class ToyModels(ToyCase):
    def test_same_arguments_give_the_same_bytes_and_another_seed_does_not(self):
        files = []
        for seed in ("1", "1", "2"):
            with open(self.toy("--arch", "qwen3", "--type", "q6_k,q4_k", "--seed", seed), "rb") as file:
                files.append(file.read())
        self.assertEqual(files[0], files[1])
        self.assertNotEqual(files[0], files[2])

    def test_every_type_has_the_intended_variance(self):
        for name in toy_gguf.TYPES:
            with self.subTest(type=name):
                reader = gguf.GGUFReader(self.toy("--arch", "llama", "--type", name))
                tensor = next(t for t in reader.tensors if t.name == "blk.0.ffn_down.weight")
                values = gguf.dequantize(tensor.data, tensor.tensor_type)
                self.assertEqual(tensor.tensor_type, toy_gguf.TYPES[name])
                self.assertEqual(values.shape, (256, 512))
                self.assertAlmostEqual(float(values.std()) * np.sqrt(512), 1.0, delta=0.05)

    def test_row_length_must_suit_the_block(self):
        with self.assertRaisesRegex(ValueError, "token_embd.weight: row length 128 is no multiple of the Q4_K block"):
            self.toy("--arch", "llama", "--type", "q4_k", "--embd", "128")


class Forward(ToyCase):
    tokens = [int(t) for t in np.random.default_rng(0).integers(0, 384, 24)]

    def test_logits_are_those_of_llama_cpp(self):
        for variant, expected in LLAMA_CPP_LOGITS.items():
            with self.subTest(variant=variant):
                model = forward.Model(self.toy("--type", "f32", "--arch", *variant))
                np.testing.assert_allclose(model.logits(self.tokens)[-1, :8], expected, rtol=0, atol=3e-5)

    def test_float32_agrees_with_float64(self):
        for arch in ARCHITECTURES:
            with self.subTest(arch=arch):
                path = self.toy("--arch", arch, "--type", "f16")
                single = forward.Model(path).logits(self.tokens)
                double = forward.Model(path, dtype=np.float64).logits(self.tokens)
                self.assertEqual((single.dtype, double.dtype), (np.float32, np.float64))
                self.assertEqual(single.shape, (24, 384))
                self.assertLess(np.abs(single - double).max(), 2e-5)

    def test_later_tokens_do_not_change_earlier_logits(self):
        for arch in ARCHITECTURES:
            with self.subTest(arch=arch):
                model = forward.Model(self.toy("--arch", arch, "--type", "q8_0"), dtype=np.float64)
                whole, prefix = model.logits(self.tokens), model.logits(self.tokens[:9])
                np.testing.assert_allclose(whole[:9], prefix, rtol=0, atol=1e-12)

    def test_attention_depends_on_relative_positions(self):
        """Rotating queries and keys by positions shifted together leaves every score unchanged."""
        for arch in ARCHITECTURES:
            with self.subTest(arch=arch):
                model = forward.Model(self.toy("--arch", arch, "--type", "f32"), dtype=np.float64)
                rng = np.random.default_rng(2)
                q, k = rng.standard_normal((2, 1, 1, model.head_dim))
                cos, sin = model._rope_table(40)

                def score(q_position, k_position):
                    turned_q = model._rope(q, cos[q_position, None], sin[q_position, None])
                    turned_k = model._rope(k, cos[k_position, None], sin[k_position, None])
                    return float((turned_q * turned_k).sum())

                self.assertAlmostEqual(score(9, 4), score(35, 30), delta=1e-5)
                self.assertGreater(abs(score(9, 4) - score(9, 5)), 1e-3)

    def test_rope_freqs_and_an_untied_output_change_the_logits(self):
        plain, scaled, untied = (
            forward.Model(self.toy("--arch", "llama", "--type", "f32", *extra)).logits(self.tokens)
            for extra in ((), ("--rope-freqs",), ("--untied",))
        )
        np.testing.assert_array_equal(plain[0], scaled[0])  # position 0 is not rotated
        self.assertGreater(np.abs(plain - scaled).max(), 1e-2)
        self.assertGreater(np.abs(plain - untied).max(), 0.5)

    def test_unknown_architecture_is_refused(self):
        path = self.toy("--arch", "llama", "--type", "f32")
        with open(path, "rb") as file:
            content = file.read()
        with open(path, "wb") as file:
            file.write(content.replace(b"llama", b"lxxma"))
        with self.assertRaisesRegex(forward.UnsupportedModel, "architecture: got lxxma; allowed llama, qwen2, qwen3"):
            forward.Model(path)

    def test_token_outside_the_vocabulary_is_refused(self):
        path = self.toy("--arch", "llama", "--type", "f32")
        tokens = os.path.join(self._folder, "tokens.json")
        with open(tokens, "w", encoding="utf-8") as file:
            file.write("[1, 384]")
        before = sys.argv
        self.addCleanup(setattr, sys, "argv", before)
        sys.argv = ["forward.py", path, tokens, os.path.join(self._folder, "out.npy")]
        message = io.StringIO()
        with contextlib.redirect_stderr(message):
            self.assertEqual(forward.main(), 1)
        self.assertIn("ids in 0..383", message.getvalue())


class Tokenizers(ToyCase):
    def texts(self):
        with open(os.path.join(HERE, "text.txt"), encoding="utf-8") as file:
            prose = file.read()
        return [prose, "", " ", "a  b\n\n c", "It's 12345 o'clock", "caf\u00e9 \u65e5\u672c \U0001f600"]

    def test_every_vocabulary_restores_its_text(self):
        kinds = [("--pre", pre) for pre in ("smollm", "gpt-2", "llama-bpe", "qwen2")] + [("--tokenizer", "spm")]
        for kind in kinds:
            tokenizer = hf_tokenizer.load(self.toy("--arch", "llama", "--type", "f16", *kind))
            for text in self.texts():
                with self.subTest(kind=kind, text=text[:20]):
                    ids = tokenizer.encode(text, add_special_tokens=False).ids
                    self.assertEqual(tokenizer.decode(ids, skip_special_tokens=False), text)

    def test_merges_shorten_prose(self):
        tokenizer = hf_tokenizer.load(self.toy("--arch", "llama", "--type", "f16"))
        prose = self.texts()[0]
        self.assertLess(len(tokenizer.encode(prose, add_special_tokens=False).ids), 0.6 * len(prose))

    def test_control_tokens_are_text_when_special_is_off(self):
        path = self.toy("--arch", "llama", "--type", "f16")
        text = "<|im_start|>user"
        special = hf_tokenizer.load(path).encode(text, add_special_tokens=False).ids
        plain = hf_tokenizer.load(path, special=False).encode(text, add_special_tokens=False).ids
        self.assertEqual(special[0], 1)
        self.assertNotIn(1, plain)


class ActivationRounding(unittest.TestCase):
    def test_integer_grid_bounds_the_error_by_half_a_step(self):
        x = np.random.default_rng(1).standard_normal((3, 64)).astype(np.float32)
        x[1, :32] = 0
        for name, limit in activation_rounding.INT_LIMITS.items():
            with self.subTest(name=name):
                got = activation_rounding.integer_map(limit, 32)(x)
                step = np.abs(x).reshape(3, 2, 32).max(axis=-1) / limit
                error = np.abs(got - x).reshape(3, 2, 32).max(axis=-1)
                self.assertTrue((error <= 0.5 * step + 1e-7 * step * limit).all())
                self.assertTrue((got[1, :32] == 0).all())

    def test_bfloat16_rounds_to_even(self):
        x = np.array([1.0, 1.0 + 2.0**-8, 1.0 + 3 * 2.0**-8, 1.0 + 2.0**-7, -3.0], dtype=np.float32)
        expected = [1.0, 1.0, 1.0 + 2.0**-6, 1.0 + 2.0**-7, -3.0]
        np.testing.assert_array_equal(activation_rounding.bfloat16(x), expected)


if __name__ == "__main__":
    unittest.main()
