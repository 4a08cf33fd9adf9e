#!/usr/bin/env python3
"""Builds a Hugging Face `tokenizers.Tokenizer` from the vocabulary inside a GGUF file.

The result is the oracle for the engine's tokenizer: same vocabulary and merges, another implementation.

    python hf_tokenizer.py MODEL.gguf < text > tokens.json          (token ids of the whole input)
    python hf_tokenizer.py MODEL.gguf --decode < tokens.json > text

Byte-level BPE (tokenizer.ggml.model = gpt2) with the pre-tokenizers smollm, gpt-2, llama-bpe and qwen2, and
SentencePiece BPE (tokenizer.ggml.model = llama). Neither a beginning-of-sequence token nor Unicode normalisation is
applied; control and user-defined tokens are recognised in text unless --no-special is given.
"""

import argparse
import json
import sys

import gguf
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

TOKEN_TYPE_CONTROL = 3
TOKEN_TYPE_USER_DEFINED = 4
SPACE_MARK = "\u2581"

# Published split patterns of the two tokenizer families; they differ in how many digits one piece may hold.
LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_PATTERN = LLAMA3_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}")


def pre_tokenizer(name: str) -> pre_tokenizers.PreTokenizer:
    """The text splitter for a tokenizer.ggml.pre value."""
    if name in ("gpt-2", "gpt2"):
        return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if name == "smollm":
        return pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
    patterns = {"llama-bpe": LLAMA3_PATTERN, "qwen2": QWEN2_PATTERN}
    if name not in patterns:
        raise ValueError(f"tokenizer.ggml.pre: got {name}; allowed gpt-2, smollm, llama-bpe, qwen2")
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(patterns[name]), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def split_merge(rule: str) -> tuple[str, str]:
    """Left and right side of a merge rule; the left side is never empty, so the search starts at index 1."""
    at = rule.index(" ", 1)
    return rule[:at], rule[at + 1 :]


def byte_level_tokenizer(tokens: list[str], merges: list[str], pre: str) -> Tokenizer:
    tokenizer = Tokenizer(
        models.BPE(
            vocab={token: index for index, token in enumerate(tokens)},
            merges=[split_merge(rule) for rule in merges],
            ignore_merges=pre == "llama-bpe",
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizer(pre)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def sentence_piece_tokenizer(tokens: list[str], scores: list[float], unknown: str, space_prefix: bool) -> Tokenizer:
    """SentencePiece's greedy merging as BPE: every split of a piece into two pieces is a rule, best score first."""
    vocab = {token: index for index, token in enumerate(tokens)}
    rules = [
        (-scores[vocab[piece]], piece[:at], piece[at:])
        for piece in tokens
        for at in range(1, len(piece))
        if piece[:at] in vocab and piece[at:] in vocab
    ]
    rules.sort(key=lambda rule: rule[0])
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocab,
            merges=[(left, right) for _, left, right in rules],
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    spaces = [normalizers.Replace(" ", SPACE_MARK)]
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE_MARK)] * space_prefix + spaces)
    steps = [decoders.Replace(SPACE_MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(steps + [decoders.Strip(content=" ", left=1)] * space_prefix)
    return tokenizer


def load(path: str, special: bool = True) -> Tokenizer:
    """The tokenizer of a GGUF file; special = False leaves control and user-defined tokens as ordinary text."""
    fields = gguf.GGUFReader(path).fields
    model = fields["tokenizer.ggml.model"].contents()
    tokens = fields["tokenizer.ggml.tokens"].contents()
    types = fields["tokenizer.ggml.token_type"].contents()
    if model == "gpt2":
        tokenizer = byte_level_tokenizer(
            tokens, fields["tokenizer.ggml.merges"].contents(), fields["tokenizer.ggml.pre"].contents()
        )
    elif model == "llama":
        prefix = fields.get("tokenizer.ggml.add_space_prefix")
        tokenizer = sentence_piece_tokenizer(
            tokens,
            fields["tokenizer.ggml.scores"].contents(),
            tokens[fields["tokenizer.ggml.unknown_token_id"].contents()],
            space_prefix=prefix is None or bool(prefix.contents()),
        )
    else:
        raise ValueError(f"tokenizer.ggml.model: got {model}; allowed gpt2, llama")
    if special:
        tokenizer.add_special_tokens(
            [AddedToken(t, normalized=False) for t, kind in zip(tokens, types) if kind == TOKEN_TYPE_CONTROL]
        )
        tokenizer.add_tokens(
            [AddedToken(t, normalized=False) for t, kind in zip(tokens, types) if kind == TOKEN_TYPE_USER_DEFINED]
        )
    return tokenizer


def main() -> int:
    parser = argparse.ArgumentParser(description="Token ids of standard input by the tokenizer inside a GGUF file.")
    parser.add_argument("model")
    parser.add_argument("--no-special", action="store_true", help="treat control tokens in the text as plain text")
    parser.add_argument("--decode", action="store_true", help="read a JSON list of ids, write the text")
    args = parser.parse_args()

    tokenizer = load(args.model, special=not args.no_special)
    if args.decode:
        sys.stdout.write(tokenizer.decode(json.load(sys.stdin), skip_special_tokens=False))
    else:
        json.dump(tokenizer.encode(sys.stdin.read(), add_special_tokens=False).ids, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
