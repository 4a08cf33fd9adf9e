#!/usr/bin/env python3
"""Compares the engine's SentencePiece-style tokenizer with the `sentencepiece` package on models trained here.

    compare_sentencepiece.py TOKENIZE_TOOL [--count 20000] [--seed 1]

Trains two small BPE models (byte fallback on, with and without the leading space) the way the "llama" files were made:
no normalization, white space kept. Each is written as a GGUF file that holds nothing but the vocabulary. Exit code 0:
every string has the same tokens and comes back from decode; 1: some differ; 77: the package is not installed.
"""

import argparse
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import gguf  # noqa: E402

try:
    import sentencepiece
except ImportError:
    print("SKIPPED: the Python package sentencepiece is not installed")
    sys.exit(77)
from compare_hf import Strings, compare, run_tool  # noqa: E402

CORPUS = pathlib.Path(__file__).resolve().parent.parent / "reference/text.txt"
# Scripts and symbols that the prose lacks, so that some of them become pieces and the rest needs bytes.
EXTRA = "naïve café déjà vu über Straße \u4e2d\u6587\u5b57 \u65e5\u672c\u8a9e 1234 {}[]()<>== \t\t  x   y    z"


def train(folder, space_prefix):
    lines = folder / "corpus.txt"
    lines.write_text(CORPUS.read_text() + "\n" + (EXTRA + "\n") * 20)
    prefix = str(folder / f"spm{int(space_prefix)}")
    sentencepiece.SentencePieceTrainer.train(
        input=str(lines),
        model_prefix=prefix,
        model_type="bpe",
        vocab_size=900,
        character_coverage=0.995,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=space_prefix,
        allow_whitespace_only_pieces=True,
        split_digits=True,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_file=prefix + ".model")


def token_type(model, i):
    if model.is_unknown(i):
        return gguf.TokenType.UNKNOWN
    if model.is_control(i):
        return gguf.TokenType.CONTROL
    if model.is_byte(i):
        return gguf.TokenType.BYTE
    return gguf.TokenType.UNUSED if model.is_unused(i) else gguf.TokenType.NORMAL


def write_gguf(model, path, space_prefix):
    ids = range(model.get_piece_size())
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list([model.id_to_piece(i).encode() for i in ids])
    writer.add_token_scores([model.get_score(i) for i in ids])
    writer.add_token_types([token_type(model, i) for i in ids])
    writer.add_bos_token_id(model.bos_id())
    writer.add_eos_token_id(model.eos_id())
    writer.add_unk_token_id(model.unk_id())
    writer.add_add_space_prefix(space_prefix)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool")
    parser.add_argument("--count", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    failures = 0
    for space_prefix in (True, False):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            model = train(folder, space_prefix)
            path = str(folder / "vocab.gguf")
            write_gguf(model, path, space_prefix)
            pieces = [model.id_to_piece(i) for i in range(model.get_piece_size())]
            strings = Strings(
                args.seed, [p.replace("\u2581", " ") for p in pieces[259:]], ["<s>", "</s>", "<unk>", "<0x41>"]
            )
            # U+2581 in the input would come back from decode as a space, in both implementations.
            texts = [strings.make().replace("\u2581", "") for _ in range(args.count)]
            encoded = [t.encode() for t in texts]
            wanted = model.encode(texts)
            got = run_tool(args.tool, path, [], encoded, "i")
            title = f"sentencepiece, {'with' if space_prefix else 'no'} space prefix"
            print(f"{title}: {len(pieces)} pieces, {sum(map(len, encoded))} bytes, {sum(map(len, wanted))} tokens")
            failures += compare(title, texts, wanted, got, 3)
            back = run_tool(args.tool, path, ["--decode"], got, "B")
            failures += compare(title + ", decoded", texts, encoded, back, 3)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
