#!/usr/bin/env python3
"""Compares the engine's tokenizer with the Hugging Face `tokenizers` wheel on random and nasty strings.

    compare_hf.py TOKENIZE_TOOL [MODEL.gguf] [--count 20000] [--seed 1]        default model: the demo model in the cache

Every string goes through each supported pre-tokenizer (the vocabulary of the file with another word pattern where the
file names another one), with and without recognition of control tokens, then back through decode. Prints the first
differences. Exit code 0: none; 1: some; 77: the demo model is not in the cache, nothing was compared.
"""

import argparse
import os
import pathlib
import random
import struct
import subprocess
import sys
import unicodedata

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "reference"))
import gguf  # noqa: E402
import hf_tokenizer  # noqa: E402
from tokenizers import AddedToken  # noqa: E402

SPACES = (
    " \t\n\r\v\f\u0085\u00a0\u180e\u1680\u2000\u2003\u2009\u200a\u200b\u2028\u2029\u202f\u205f\u3000\u001c\u001f\ufeff"
)
CONTRACTIONS = [
    "s",
    "t",
    "re",
    "ve",
    "m",
    "ll",
    "d",
    "S",
    "T",
    "RE",
    "Ve",
    "M",
    "LL",
    "lL",
    "D",
    "\u017f",
    "\u017fs",
    "r",
    "v",
    "l",
]
EMOJI = [
    "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "\U0001f1e9\U0001f1ea",
    "\u2764\ufe0f",
    "\U0001f44d\U0001f3fd",
    "\u0031\ufe0f\u20e3",
]
CODE = [
    "def f(x):\n\treturn x**2\n",
    "if (a && b) { c++; }\r\n",
    "x = [1, 22, 333, 4444];",
    "/* \u00e9 */",
    "    " * 3,
    "#include <a.h>\n\n\n",
]


def demo_model():
    home = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "tessera")
    return os.path.join(os.environ.get("TESSERA_CACHE") or home, "SmolLM2-135M-Instruct.Q4_1.gguf")


class Strings:
    """Random strings, one category at a time. The same seed gives the same strings."""

    def __init__(self, seed, tokens, control):
        self.rng = random.Random(seed)
        points = [cp for cp in range(0x110000) if not 0xD800 <= cp <= 0xDFFF]
        self.points = points
        assigned = [cp for cp in points if unicodedata.category(chr(cp)) not in ("Cn", "Co")]
        self.assigned = assigned
        self.digits = [cp for cp in assigned if unicodedata.category(chr(cp))[0] == "N"]
        self.marks = [cp for cp in assigned if unicodedata.category(chr(cp))[0] == "M"]
        self.cased = [cp for cp in assigned if unicodedata.category(chr(cp)) in ("Lu", "Lt", "Lm")]
        self.tokens = tokens
        self.control = control
        self.kinds = [
            lambda: self.of(points),
            lambda: self.of(assigned),
            lambda: self.of([cp for cp in range(0x250)]),
            lambda: self.of(range(0x590, 0x780)),  # right-to-left scripts
            lambda: self.of(range(0xAC00, 0xD7A4)),
            lambda: self.of(range(0x1100, 0x1200)),  # conjoining Hangul
            lambda: self.of(self.cased),
            lambda: self.of(range(0x20000, 0x20100)),
            self.combining,
            self.spaces,
            self.contractions,
            self.numbers,
            self.newlines,
            self.words,
            lambda: "".join(self.rng.choice(EMOJI) for _ in range(self.rng.randint(1, 4))),
            lambda: "".join(self.rng.choice(CODE) for _ in range(self.rng.randint(1, 4))),
            self.run,
            self.specials,
        ]

    def of(self, points):
        return "".join(chr(self.rng.choice(points)) for _ in range(self.rng.randint(1, 20)))

    def combining(self):
        return "".join(
            chr(self.rng.choice(self.assigned)) + chr(self.rng.choice(self.marks)) * self.rng.randint(0, 3)
            for _ in range(6)
        )

    def spaces(self):
        out = ""
        for _ in range(self.rng.randint(1, 8)):
            out += self.rng.choice(SPACES) * self.rng.choice((1, 1, 2, 3, 9))
            out += self.rng.choice(("", "", "a", "1", "!", "\u00e9", "'s", "\n"))
        return out

    def contractions(self):
        return "".join(
            self.rng.choice(("it", "I", " ", "", "1", "\u4e00", "!", "\n"))
            + self.rng.choice("'''\u2019`")
            + self.rng.choice(CONTRACTIONS)
            for _ in range(self.rng.randint(1, 6))
        )

    def numbers(self):
        out = ""
        for _ in range(self.rng.randint(1, 5)):
            out += "".join(chr(self.rng.choice(self.digits)) for _ in range(self.rng.randint(0, 3)))
            out += "".join(self.rng.choice("0123456789") for _ in range(self.rng.randint(0, 9)))
            out += self.rng.choice(("", " ", "  ", ".", ",", "a", "\n", "\U00011de3", "\U00016ff5"))
        return out

    def newlines(self):
        return "".join(
            self.rng.choice(("\r", "\n", "\r\n", " ", "\t", "a", "b c", ".", "\u00a0", "\u2028"))
            for _ in range(self.rng.randint(1, 14))
        )

    def words(self):
        return "".join(self.rng.choice(self.tokens) for _ in range(self.rng.randint(1, 10)))

    def run(self):
        unit = self.rng.choice(
            ("a", " ", "\n", "\r\n", "=", "-", "1", "\u3000", "\u00e9", "\u4e00", "'", "ab", "  \n", "' ", "\U0001f600")
        )
        return unit * self.rng.randint(20, 400) + self.rng.choice(("", "x", " x", "\n", "1"))

    def specials(self):
        marks = self.control + ["<|im_", "im_end|>", "<|", "|>", "<repo_name", "<|im_end|", "<|im_start|"]
        return "".join(
            self.rng.choice(marks) + self.rng.choice(("", " ", "\n", "x", "'s")) for _ in range(self.rng.randint(1, 5))
        )

    def make(self):
        """One to four categories glued together."""
        return "".join(self.rng.choice(self.kinds)() for _ in range(self.rng.choice((1, 1, 1, 2, 3, 4))))


def run_tool(tool, model, options, records, out_code):
    """Sends (bytes or id list) records to the tool and returns its records, of struct code B (text) or i (ids)."""
    data = bytearray()
    for record in records:
        body = record if isinstance(record, bytes) else struct.pack(f"<{len(record)}i", *record)
        data += struct.pack("<I", len(record)) + body
    raw = subprocess.run([tool, model, *options], input=bytes(data), stdout=subprocess.PIPE, check=True).stdout
    out, pos, size = [], 0, struct.calcsize(out_code)
    while pos < len(raw):
        (count,) = struct.unpack_from("<I", raw, pos)
        body = raw[pos + 4 : pos + 4 + count * size]
        out.append(bytes(body) if out_code == "B" else list(struct.unpack(f"<{count}i", body)))
        pos += 4 + count * size
    if len(out) != len(records):
        sys.exit(f"{tool}: got {len(out)} records for {len(records)}")
    return out


def compare(title, texts, wanted, got, show):
    """Prints how many results differ and the surroundings of the first difference in a few of them."""
    differences = [i for i in range(len(texts)) if wanted[i] != got[i]]
    print(f"{title}: {len(texts)} strings, {len(differences)} differ", flush=True)
    for i in differences[:show]:
        same = next((k for k, (a, b) in enumerate(zip(wanted[i], got[i])) if a != b), min(len(wanted[i]), len(got[i])))
        window = slice(max(same - 4, 0), same + 8)
        print(f"  {texts[i][:300]!r}\n    from {window.start}: theirs {wanted[i][window]}\n    ours {got[i][window]}")
    return len(differences)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool")
    parser.add_argument("model", nargs="?", default=demo_model())
    parser.add_argument("--count", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", type=int, default=3)
    args = parser.parse_args()
    if not os.path.exists(args.model):
        print(f"SKIPPED: {args.model} is not there; 'tessera run -m demo' fetches it")
        return 77

    fields = gguf.GGUFReader(args.model).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    merges = fields["tokenizer.ggml.merges"].contents()
    types = fields["tokenizer.ggml.token_type"].contents()
    control = [t for t, kind in zip(tokens, types) if kind == hf_tokenizer.TOKEN_TYPE_CONTROL]
    decoder = hf_tokenizer.byte_level_tokenizer(tokens, merges, "smollm")
    plain = [decoder.decode([i]) for i in range(0, len(tokens), 7) if types[i] == 1]
    strings = Strings(args.seed, plain, control)
    texts = [strings.make() for _ in range(args.count)]
    encoded = [t.encode() for t in texts]
    print(f"{args.count} strings, {sum(map(len, encoded))} bytes, seed {args.seed}")

    failures = 0
    for pre in ("smollm", "llama-bpe", "qwen2"):
        hf = hf_tokenizer.byte_level_tokenizer(tokens, merges, pre)
        hf.add_special_tokens([AddedToken(t, normalized=False) for t in control])
        for special in (True, False):
            hf.encode_special_tokens = not special
            wanted = [e.ids for e in hf.encode_batch(texts, add_special_tokens=False)]
            options = ["--pre", pre] + ["--parse-special"] * special
            got = run_tool(args.tool, args.model, options, encoded, "i")
            failures += compare(
                f"{pre}, control tokens {'cut' if special else 'as text'}", texts, wanted, got, args.show
            )
        back = run_tool(args.tool, args.model, ["--decode", "--parse-special"], got, "B")
        hf_back = [hf.decode(ids, skip_special_tokens=False) for ids in got]
        shown = [b.decode("utf-8", errors="replace") for b in back]
        failures += compare(f"{pre}, decoded", texts, hf_back, shown, args.show)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
