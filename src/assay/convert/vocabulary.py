"""The vocabulary of a folder as GGUF's `tokenizer.ggml.*` keys.

Byte-level BPE is read from tokenizer.json, SentencePiece from tokenizer.model. The pre-tokenizer of a byte-level
vocabulary is recognised by its regular expressions (`PRE`), not by a hash of its output on a sample. So a new
vocabulary is recognised, too.
"""

from __future__ import annotations

import ast
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from assay.convert.folder import Folder
from assay.errors import AssayError
from assay.gguf.types import Typed, ValueType
from assay.system.text_files import read_text

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
ADDED_SCORE, PAD_SCORE = -1000.0, -10000.0
KINDS = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
KEYS = {"unk": "unknown", "sep": "seperator", "pad": "padding"}  # GGUF's spelling

_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CONTRACTIONS = ("(?i:'s|'t|'re|'ve|'m|'ll|'d)", "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])")
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_BAILING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_MARKED = rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"


def _cased(after: str, digits: str) -> str:
    """Words cut where lower case is followed by upper case; `after` is their ending."""
    first = r"[^\r\n\p{L}\p{N}]?"
    words = rf"{first}{_UPPER}*{_LOWER}+{after}|{first}{_UPPER}+{_LOWER}*{after}"
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"


# The splits of a tokenizer.json in order, and llama.cpp's name for them.
PRE: dict[tuple[str, ...], str] = {
    ("<bytes>",): "gpt-2",
    (_GPT2,): "gpt-2",
    ("<digits>", "<bytes>"): "smollm",
    **{(rf"{c}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}",): "llama-bpe" for c in _CONTRACTIONS},
    **{(rf"{c}|{_WORDS}|\p{{N}}|{_REST}",): "qwen2" for c in _CONTRACTIONS},
    **{(rf"{c}|{_MARKED}",): "qwen35" for c in _CONTRACTIONS},
    (_cased("", r"\p{N}"),): "tekken",
    **{(_cased(f"{c}?", r"\p{N}{1,3}"),): "gpt-4o" for c in _CONTRACTIONS},
    (_BAILING,): "bailingmoe2",
    **{(rf"{c}|{_WORDS}|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}",): "seed-coder" for c in _CONTRACTIONS},
}


def vocabulary(folder: Folder, rows: int = 0) -> dict[str, Typed]:
    """The keys, from the tokenizer files of the folder. Rows of the embedding beyond them are unused tokens."""
    n_vocab = max(folder.setting("vocab_size", kind=int, default=0), rows)
    if n_vocab < 1:
        raise AssayError(f"{folder.path}/config.json: has no vocab_size")
    world = folder.path / "rwkv_vocab_v20230424.txt"
    if world.is_file():
        keys = rwkv_world(world, n_vocab)
    elif (folder.path / "tokenizer.model").is_file():
        keys = sentencepiece(folder, n_vocab)
    elif not folder.tokenizer:
        raise AssayError(f"{folder.path}: has neither tokenizer.model nor tokenizer.json; download the whole model")
    elif _splits(folder.tokenizer) is None:
        keys = byte_fallback(folder, n_vocab)
    else:
        keys = byte_level(folder, n_vocab)
    return keys | special(folder, n_vocab)


def looks_special(text: str) -> bool:
    """Whether a text looks like a control token that is not marked as one."""
    if text in ("<pad>", "<mask>", "<2mass>", "[@BOS@]"):
        return True
    return any(text.startswith(a) and text.endswith(b) for a, b in (("<|", "|>"), ("<｜", "｜>"), ("<unused", ">")))


# --- byte-level BPE


def _model(folder: Folder) -> dict[str, int]:
    """The base vocabulary of tokenizer.json."""
    model = folder.tokenizer.get("model")
    found = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(found, dict) or not all(isinstance(i, int) and i >= 0 for i in found.values()):
        raise AssayError(f"{folder.path}/tokenizer.json: has no vocabulary of tokens and ids")
    return found


def _added(folder: Folder) -> list[dict[str, Any]]:
    found = folder.tokenizer.get("added_tokens")
    listed = [t for t in found if isinstance(t, dict)] if isinstance(found, list) else []
    return [t for t in listed if isinstance(t.get("id"), int) and isinstance(t.get("content"), str)]


def _splits(tokenizer: dict[str, Any]) -> tuple[str, ...] | None:
    """The splits of the pre-tokenizer in order, `<bytes>` for the built-in one; None if it is not byte-level."""
    pre = tokenizer.get("pre_tokenizer")
    parts = pre.get("pretokenizers", [pre]) if isinstance(pre, dict) else []
    found, bytes_seen = [], False
    for part in (p for p in parts if isinstance(p, dict)):
        if part.get("type") == "Split" and isinstance(part.get("pattern"), dict):
            found.append(str(part["pattern"].get("Regex", part["pattern"].get("String", ""))))
        elif part.get("type") == "Digits":
            found.append("<digits>")
        elif part.get("type") == "ByteLevel":
            bytes_seen = True
            if part.get("use_regex", True):
                found.append("<bytes>")
    return tuple(found) if bytes_seen else None


def _padded(folder: Folder, n_vocab: int) -> list[str]:
    used = max([*_model(folder).values(), *(t["id"] for t in _added(folder))], default=0)
    if used >= n_vocab:
        raise AssayError(f"{folder.path}: token {used} is outside the vocabulary of {n_vocab} (config.json)")
    return [f"[PAD{i}]" for i in range(n_vocab)]


def byte_level(folder: Folder, n_vocab: int) -> dict[str, Typed]:
    splits = _splits(folder.tokenizer)
    pre = PRE.get(splits or ())
    if pre is None:
        said = " then ".join(splits or ())
        raise AssayError(f"{folder.path}/tokenizer.json: has an unknown pre-tokenizer ({said!r:.200})")
    tokens, kinds = _padded(folder, n_vocab), [UNUSED] * n_vocab
    for text, i in _model(folder).items():
        tokens[i], kinds[i] = text, NORMAL
    for token in _added(folder):
        i, text = token["id"], token["content"]
        control = bool(token.get("special")) or looks_special(text)
        tokens[i], kinds[i] = (text, CONTROL) if control else (text.replace("▁", " "), USER_DEFINED)
    return {
        "tokenizer.ggml.model": Typed(ValueType.STRING, "gpt2"),
        "tokenizer.ggml.pre": Typed(ValueType.STRING, pre),
        "tokenizer.ggml.tokens": Typed(ValueType.ARRAY, tokens, ValueType.STRING),
        "tokenizer.ggml.token_type": Typed(ValueType.ARRAY, np.array(kinds, np.int32), ValueType.INT32),
        "tokenizer.ggml.merges": Typed(ValueType.ARRAY, list(_merges(folder)), ValueType.STRING),
    }


def _merges(folder: Folder) -> Iterator[str]:
    """Merges as `left right`. A space inside a part is written in the byte-level alphabet."""
    found = folder.tokenizer["model"].get("merges")
    for merge in found if isinstance(found, list) else []:
        parts = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(parts, list) or len(parts) != 2 or not all(isinstance(p, str) for p in parts):
            raise AssayError(f"{folder.path}/tokenizer.json: a merge is not a pair of tokens ({merge!r:.60})")
        yield " ".join(part.replace(" ", "Ġ") for part in parts)


def byte_fallback(folder: Folder, n_vocab: int) -> dict[str, Typed]:
    """A SentencePiece vocabulary that has only a tokenizer.json: the rank of a merge is used as score.

    llama.cpp's converter gives every token the score -1000 in this case, which loses the order of merges.
    """
    tokens, scores, kinds = _padded(folder, n_vocab), [PAD_SCORE] * n_vocab, [UNUSED] * n_vocab
    rank = {merge.replace(" ", "", 1): n for n, merge in enumerate(_merges(folder))}
    for text, i in _model(folder).items():
        kind = BYTE if re.fullmatch(r"<0x[0-9A-F]{2}>", text) else NORMAL
        tokens[i], scores[i], kinds[i] = text, -float(rank.get(text, len(rank))), kind
    _add(folder, tokens, scores, kinds)
    return _pieces(tokens, scores, kinds)


# --- SentencePiece


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a protocol buffer message: number and value, for the four wire types."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while shift < 70:
            if at >= len(data):
                raise ValueError("cut short")
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            if not byte & 128:
                return value
            shift += 7
        raise ValueError("a number of more than ten bytes")

    while at < len(data):
        key = varint()
        kind = key & 7
        if kind == 0:
            yield key >> 3, varint()
            continue
        size = varint() if kind == 2 else {1: 8, 5: 4}.get(kind, -1)
        if size < 0 or at + size > len(data):
            raise ValueError(f"a field of {size} bytes at {at} of {len(data)}")
        at += size
        yield key >> 3, data[at - size : at]


def read_pieces(data: bytes) -> Iterator[tuple[str, float, int]]:
    """Text, score and type of every piece of a SentencePiece model."""
    for number, value in fields(data):
        if number == 1 and isinstance(value, bytes):
            piece: dict[int, Any] = dict(fields(value))
            score = struct.unpack("<f", piece[2])[0] if isinstance(piece.get(2), bytes) and len(piece[2]) == 4 else 0.0
            kind = piece.get(3, NORMAL)
            text = piece.get(1, b"")
            if not isinstance(text, bytes) or not isinstance(kind, int):
                raise ValueError("a piece without a text")
            yield text.decode("utf-8"), score, kind


def sentencepiece(folder: Folder, n_vocab: int) -> dict[str, Typed]:
    path = folder.path / "tokenizer.model"
    tokens, scores, kinds = [f"[PAD{i}]" for i in range(n_vocab)], [PAD_SCORE] * n_vocab, [UNUSED] * n_vocab
    try:
        pieces = list(read_pieces(path.read_bytes()))
    except ValueError as error:
        raise AssayError(f"{path}: not a SentencePiece model ({error})") from None
    if not pieces:
        raise AssayError(f"{path}: not a SentencePiece model (it has no pieces)")
    for i, (text, score, kind) in enumerate(pieces[:n_vocab]):
        tokens[i], scores[i], kinds[i] = text, score, NORMAL if kind == USER_DEFINED else kind
    _add(folder, tokens, scores, kinds)
    return _pieces(tokens, scores, kinds)


def _add(folder: Folder, tokens: list[str], scores: list[float], kinds: list[int]) -> None:
    """Add the tokens that tokenizer.json adds to the model's vocabulary."""
    listed = folder.tokenizer_config.get("added_tokens_decoder")
    rows = listed.items() if isinstance(listed, dict) else ()
    added = {int(i): t for i, t in rows if re.fullmatch(r"[0-9]{1,9}", str(i))}
    if not added:
        added = {token["id"]: token for token in _added(folder)}
    for i, token in added.items():
        text = token.get("content") if isinstance(token, dict) else None
        if i >= len(tokens) or not isinstance(text, str):
            continue
        control = bool(token.get("special")) or looks_special(text)
        tokens[i], scores[i] = text if control else text.replace("▁", " "), ADDED_SCORE
        kinds[i] = CONTROL if control else USER_DEFINED


def _pieces(tokens: list[str], scores: list[float], kinds: list[int]) -> dict[str, Typed]:
    return {
        "tokenizer.ggml.model": Typed(ValueType.STRING, "llama"),
        "tokenizer.ggml.pre": Typed(ValueType.STRING, "default"),
        "tokenizer.ggml.tokens": Typed(ValueType.ARRAY, tokens, ValueType.STRING),
        "tokenizer.ggml.scores": Typed(ValueType.ARRAY, np.array(scores, np.float32), ValueType.FLOAT32),
        "tokenizer.ggml.token_type": Typed(ValueType.ARRAY, np.array(kinds, np.int32), ValueType.INT32),
    }


# --- RWKV World


def rwkv_world(path: Path, n_vocab: int) -> dict[str, Typed]:
    """One token a line: its id, its text or bytes as a Python literal, and its length in bytes. Token 0 ends a text."""
    tokens, kinds = ["<s>"], [CONTROL]
    for number, line in enumerate(read_text(path, "a vocabulary; download it again").splitlines(), 1):
        try:
            first, _, rest = line[:1000].partition(" ")
            literal, _, size = rest.rpartition(" ")
            value = ast.literal_eval(literal)
            if not isinstance(value, str | bytes):
                raise ValueError("it is neither text nor bytes")
            data = value.encode() if isinstance(value, str) else value
            if int(first) != len(tokens) or int(size) != len(data):
                raise ValueError("its id or its length is wrong")
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
            raise AssayError(f"{path}: line {number} is not a token ({error!s:.60})") from None
        tokens.append(repr(data)[2:-1])
        kinds.append(NORMAL)
    if len(tokens) > n_vocab:
        raise AssayError(f"{path}: {len(tokens)} tokens for a vocabulary of {n_vocab} (config.json)")
    tokens += [f"[PAD{i}]" for i in range(len(tokens), n_vocab)]
    kinds += [UNUSED] * (n_vocab - len(kinds))
    return {
        "tokenizer.ggml.model": Typed(ValueType.STRING, "rwkv"),
        "tokenizer.ggml.tokens": Typed(ValueType.ARRAY, tokens, ValueType.STRING),
        "tokenizer.ggml.token_type": Typed(ValueType.ARRAY, np.array(kinds, np.int32), ValueType.INT32),
        "tokenizer.ggml.bos_token_id": Typed(ValueType.UINT32, 0),
        "tokenizer.ggml.eos_token_id": Typed(ValueType.UINT32, 0),
        "tokenizer.ggml.unknown_token_id": Typed(ValueType.UINT32, 0),
        **({"tokenizer.ggml.eot_token_id": Typed(ValueType.UINT32, 261)} if n_vocab > 261 else {}),
    }


# --- special tokens


def special(folder: Folder, n_vocab: int) -> dict[str, Typed]:
    """Ids of the special tokens, whether BOS and EOS are added, and the chat template."""
    config, keys = folder.tokenizer_config, dict[str, Typed]()
    by_text = {token["content"]: token["id"] for token in reversed(_added(folder))}
    for kind in KINDS:
        token = config.get(f"{kind}_token")
        text = token.get("content") if isinstance(token, dict) else token
        i = by_text.get(text) if isinstance(text, str) else None
        i = folder.config.get(f"{kind}_token_id") if i is None else i
        if isinstance(i, int) and not isinstance(i, bool) and 0 <= i < n_vocab:
            keys[f"tokenizer.ggml.{KEYS.get(kind, kind)}_token_id"] = Typed(ValueType.UINT32, i)
    for kind, value in _adds(folder).items():
        keys[f"tokenizer.ggml.add_{kind}_token"] = Typed(ValueType.BOOL, value)
    template = _template(folder)
    if template is not None:
        keys["tokenizer.chat_template"] = Typed(ValueType.STRING, template)
    return keys


def _adds(folder: Folder) -> dict[str, bool]:
    """Whether BOS and EOS are added: by the post-processor, else by tokenizer_config.json."""
    config, found = folder.tokenizer_config, dict[str, bool]()
    post = folder.tokenizer.get("post_processor")
    for part in (p for p in post.get("processors", [post]) if isinstance(p, dict)) if isinstance(post, dict) else ():
        if part.get("type") == "ByteLevel":
            found.setdefault("bos", False)
            found.setdefault("eos", False)
        elif (
            part.get("type") == "TemplateProcessing"
            and isinstance(part.get("single"), list)
            and len(part["single"]) > 1
        ):
            for kind, item in (("bos", part["single"][0]), ("eos", part["single"][-1])):
                name = item.get("SpecialToken", {}).get("id") if isinstance(item, dict) else None
                if name:
                    token = config.get(f"{kind}_token")
                    found[kind] = name == (token.get("content") if isinstance(token, dict) else token)
    for kind in KINDS:
        if isinstance(config.get(f"add_{kind}_token"), bool):
            found.setdefault(kind, config[f"add_{kind}_token"])
    return found


def _template(folder: Folder) -> str | None:
    found = folder.tokenizer_config.get("chat_template")
    path = folder.path / "chat_template.jinja"
    if found is None and path.is_file():
        found = read_text(path, "a chat template; download it again")
    if isinstance(found, list):  # several templates by name: take the default
        found = next((t.get("template") for t in found if isinstance(t, dict) and t.get("name") == "default"), None)
    return found if isinstance(found, str) else None
