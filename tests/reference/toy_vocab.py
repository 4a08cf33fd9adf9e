"""Small deterministic vocabularies for toy models: byte-level BPE and SentencePiece style.

Merges are learned from text.txt beside this file, so tokenising English text exercises real merge chains.
"""

import collections
import os
import re
from dataclasses import dataclass, field
from typing import Optional

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # tokenizer.ggml.token_type values

SPACE_MARK = "\u2581"  # SentencePiece's visible space


@dataclass
class Vocabulary:
    """The tokenizer.ggml.* arrays of a toy model; merges belong to BPE, scores to SentencePiece."""

    model: str
    tokens: list[str]
    types: list[int]
    merges: Optional[list[str]] = None
    scores: Optional[list[float]] = None
    pre: Optional[str] = None
    special_ids: dict[str, int] = field(default_factory=dict)


def byte_alphabet() -> dict[int, str]:
    """The printable stand-in of every byte in byte-level BPE vocabularies.

    Bytes that are printable in Latin-1 stand for themselves; the rest take the code points from U+0100 on, in order.
    """
    printable = set(range(0x21, 0x7F)) | set(range(0xA1, 0xAD)) | set(range(0xAE, 0x100))
    alphabet = {}
    next_code = 0x100
    for byte in range(256):
        if byte in printable:
            alphabet[byte] = chr(byte)
        else:
            alphabet[byte] = chr(next_code)
            next_code += 1
    return alphabet


def training_words() -> list[str]:
    """Words of the bundled text, each with the space before it."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "text.txt")
    with open(path, encoding="utf-8") as file:
        return re.findall(r" ?[A-Za-z]+| ?[^A-Za-z\s]+|\s+", file.read())


def learn_merges(words: list[tuple[str, ...]], count: int) -> list[tuple[str, str]]:
    """The `count` most frequent pairs, one at a time; equal counts go to the lexicographically smaller pair."""
    frequency = collections.Counter(words)
    merges = []
    for _ in range(count):
        pairs: collections.Counter = collections.Counter()
        for word, times in frequency.items():
            for pair in zip(word, word[1:]):
                pairs[pair] += times
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        merged = collections.Counter()
        for word, times in frequency.items():
            merged[apply_merge(word, best)] += times
        frequency = merged
    return merges


def apply_merge(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    out = []
    i = 0
    while i < len(word):
        if word[i : i + 2] == pair:
            out.append(word[i] + word[i + 1])
            i += 2
        else:
            out.append(word[i])
            i += 1
    return tuple(out)


def byte_level_bpe(pre: str, size: int = 384) -> Vocabulary:
    """`size` tokens: three control tokens, one user-defined token, 256 bytes, the rest merges."""
    alphabet = byte_alphabet()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool>"]
    words = [tuple(alphabet[b] for b in word.encode()) for word in training_words()]
    merges = learn_merges(words, size - len(special) - 256)
    tokens = special + [alphabet[b] for b in range(256)] + [left + right for left, right in merges]
    if len(set(tokens)) != size:
        raise ValueError("two merges made the same token; choose another vocabulary size")
    types = [CONTROL] * 3 + [USER_DEFINED] + [NORMAL] * (size - len(special))
    return Vocabulary(
        model="gpt2",
        tokens=tokens,
        types=types,
        merges=[f"{left} {right}" for left, right in merges],
        pre=pre,
        special_ids={"bos": 1, "eos": 2, "unknown": 0, "padding": 2},
    )


def sentence_piece(size: int = 448) -> Vocabulary:
    """`size` tokens: <unk>, <s>, </s>, 256 byte tokens, characters of the text, merged pieces.

    A piece's score is minus its rank, so earlier merges win. Characters outside the text exercise the byte fallback.
    """
    words = [tuple(word.replace(" ", SPACE_MARK)) for word in training_words()]
    characters = sorted({c for word in words for c in word if c != "\n"})
    merges = learn_merges([w for w in words if "\n" not in w], size - 3 - 256 - len(characters))
    pieces = [left + right for left, right in merges]
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)] + pieces + characters
    if len(set(tokens)) != size:
        raise ValueError("two merges made the same piece; choose another vocabulary size")
    types = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * (len(pieces) + len(characters))
    scores = [0.0] * 259 + [-float(rank) for rank in range(len(pieces) + len(characters))]
    return Vocabulary(
        model="llama",
        tokens=tokens,
        types=types,
        scores=scores,
        special_ids={"bos": 1, "eos": 2, "unknown": 0},
    )
