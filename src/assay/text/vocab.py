"""The vocabulary as the file declares it, checked once: tokens, their kinds, special ids and the flags.

All defaults are those of llama.cpp, because files are tested with it: the ids of BOS and EOS if the file has none,
whether BOS is added, and the token texts that end a generation without being declared. Contradictions (two equal
tokens, an id outside the vocabulary, scores of another length) are errors that name the key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from assay.errors import AssayError
from assay.gguf import GGUFFile
from assay.text.pretokenize import PreTokenizer, by_name

TOKENS = "tokenizer.ggml.tokens"
SCORES = "tokenizer.ggml.scores"
KINDS = "tokenizer.ggml.token_type"
MERGES = "tokenizer.ggml.merges"
MAX_TOKENS = 1 << 24  # keeps ids far below 32 bits
MAX_TOKEN_BYTES = 1 << 16
SENTENCEPIECE = "llama"  # GGUF's name for SentencePiece pair merging
NAMELESS = "none"  # a vocabulary of ids without texts


class TokenKind:
    """Kinds of tokens, as bits, because some have several in llama.cpp. Plain integers are fast to look up."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 4
    USER = 8  # always recognised in a text, even if special tokens are not parsed
    UNUSED = 16
    BYTE = 32
    LSTRIP = 64  # strips white space before it
    RSTRIP = 128  # strips white space after it

    SPECIAL = UNKNOWN | CONTROL | USER
    HIDDEN = UNKNOWN | CONTROL


# tokenizer.ggml.token_type: 0 undefined, 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte
_KIND_OF_TYPE = np.array([0, 1, 2, 4, 8, 16, 32], dtype=np.uint8)

# Texts of end-of-turn tokens, regardless of their declared type, the most likely first.
_END_OF_TURN = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<EOT>",
    "_<EOT>", "[EOT]", "<｜end▁of▁sentence｜>", "<end_of_utterance>",
)  # fmt: skip
_END_OF_GENERATION = (
    *_END_OF_TURN, "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "</s>", "<|eom_id|>", "[EOS]", "<eos>",
    "<turn|>", "<|tool_response>", "[e~[",
)  # fmt: skip
_FILL_IN = {  # fill-in-the-middle roles: the key, then the texts; True if the token also ends a generation
    "fim_pre": (False, "<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>",
                "<|code_prefix|>", "<|prefix|>"),
    "fim_suf": (False, "<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>",
                "<|code_suffix|>", "<|suffix|>"),
    "fim_mid": (False, "<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>",
                "<|code_middle|>", "<|middle|>"),
    "fim_pad": (True, "<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": (True, "<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": (True, "<|file_sep|>"),
}  # fmt: skip
_ALWAYS_SHOWN = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")
_ID_KEYS = {
    "bos": "bos_token_id", "eos": "eos_token_id", "eot": "eot_token_id", "eom": "eom_token_id",
    "unk": "unknown_token_id", "sep": "seperator_token_id", "pad": "padding_token_id",
    "mask": "mask_token_id", "fim_pre": "fim_pre_token_id", "fim_suf": "fim_suf_token_id",
    "fim_mid": "fim_mid_token_id", "fim_pad": "fim_pad_token_id", "fim_rep": "fim_rep_token_id",
    "fim_sep": "fim_sep_token_id",
}  # fmt: skip
_NO_ID = (1 << 32) - 1  # written by some converters for "no id"


@dataclass(frozen=True)
class _Model:
    """llama.cpp's defaults for a `tokenizer.ggml.model`."""

    special: Mapping[str, int]
    add_bos: bool
    add_eos: bool = False
    add_space_prefix: bool = False


_MODELS = {
    "llama": _Model({"bos": 1, "eos": 2, "unk": 0}, add_bos=True, add_space_prefix=True),
    "bert": _Model({"bos": 101, "sep": 102, "unk": 100}, add_bos=True),
    "t5": _Model({"eos": 1, "unk": 2}, add_bos=False, add_eos=True),
    "rwkv": _Model({}, add_bos=False),
}
_BYTE_PAIRS = _Model({}, add_bos=False)
_MERGING = ("gpt2", "gemma4")  # models with a pre-tokenizer


@dataclass(frozen=True)
class Vocab:
    """The vocabulary and its flags. `ids` maps the text of a token to its id."""

    model: str  # "llama", "gpt2", "bert", "t5", "rwkv" or NAMELESS
    tokens: list[str]
    ids: dict[str, int]
    kinds: bytes  # TokenKind per token
    scores: npt.NDArray[np.float32] | None
    pre_name: str
    pre: PreTokenizer | None
    special: dict[str, int]  # "bos", "eos", "eot", ... to its id, if there is one
    eog: frozenset[int]
    add_bos: bool
    add_eos: bool
    add_space_prefix: bool
    notes: tuple[str, ...]  # notes for the user about this vocabulary
    lowercase: bool = True  # bert: normalisation
    strip_accents: bool = True
    remove_extra_whitespaces: bool = False  # t5


class NoVocabulary(AssayError):
    """The file has no vocabulary, or one of an unknown kind."""


def nameless_vocab(n_tokens: int, why: str) -> Vocab:
    """A vocabulary of ids without texts. `why` is its only note."""
    return Vocab(NAMELESS, [""] * n_tokens, {}, bytes(n_tokens), None, "", None, {}, frozenset(), False, False, False,
                 (why,))  # fmt: skip


def read_vocab(file: GGUFFile) -> Vocab:
    """The vocabulary of a GGUF file."""
    model = file.get_str("tokenizer.ggml.model", None)
    if model is None or model in ("no_vocab", "none"):
        raise NoVocabulary(
            f"{file.path.name}: tokenizer.ggml.model: the file has no vocabulary (found "
            f"{'none' if model is None else repr(model)}); give token ids instead of text"
        )
    if model not in _MODELS and model not in _MERGING:
        raise NoVocabulary(
            f"{file.path.name}: tokenizer.ggml.model: unsupported tokenizer (found {model!r:.60}, expected "
            f"one of {', '.join((*_MODELS, *_MERGING))}); give token ids instead of text"
        )
    tokens, ids = _tokens(file)
    kinds = _kinds(file, len(tokens))
    notes: list[str] = []
    pre, pre_name = None, file.get_str("tokenizer.ggml.pre", None) or ""
    if model in _MERGING:
        pre_name = "gemma4" if model == "gemma4" else pre_name
        if not pre_name:
            notes.append(
                "tokenizer.ggml.pre is missing: the 'default' pre-tokenizer is used, as llama.cpp does; ids of "
                "numbers and punctuation may be wrong for this model"
            )
        pre = by_name(pre_name or "default")
    known = _MODELS.get(model, _BYTE_PAIRS)
    special = _special_ids(file, len(tokens), known.special)
    eog = _end_of_generation(ids, kinds, special)
    _strip_rules(file, ids, kinds, pre_name)
    add_bos = file.get_bool("tokenizer.ggml.add_bos_token", pre.add_bos if pre else known.add_bos)
    if pre_name in ("gemma4", "granite-embed-multi-311m"):
        add_bos = True  # llama.cpp overrides the file: early conversions were wrong
    lowercase = file.get_bool("tokenizer.ggml.normalizer.lowercase", True)
    return Vocab(
        model="gpt2" if pre else model,
        tokens=tokens,
        ids=ids,
        kinds=kinds.tobytes(),
        scores=_scores(file, len(tokens)),
        pre_name=(pre_name or "default") if pre else "",
        pre=pre,
        special=special,
        eog=eog,
        add_bos=add_bos,
        add_eos=file.get_bool("tokenizer.ggml.add_eos_token", known.add_eos),
        add_space_prefix=file.get_bool("tokenizer.ggml.add_space_prefix", known.add_space_prefix),
        notes=tuple(notes),
        lowercase=lowercase,
        strip_accents=file.get_bool("tokenizer.ggml.normalizer.strip_accents", lowercase),
        remove_extra_whitespaces=file.get_bool("tokenizer.ggml.remove_extra_whitespaces", False),
    )


def _tokens(file: GGUFFile) -> tuple[list[str], dict[str, int]]:
    tokens: list[str] = file.get_array(TOKENS, kind=str)
    if not tokens:
        raise AssayError(f"{file.path.name}: {TOKENS}: the vocabulary is empty; convert the model again")
    if len(tokens) > MAX_TOKENS:
        raise AssayError(f"{file.path.name}: {TOKENS}: too many (found {len(tokens)}, at most {MAX_TOKENS})")
    if "" in tokens:
        tokens = [text or f"[EMPTY_{i}]" for i, text in enumerate(tokens)]
    ids = dict(zip(tokens, range(len(tokens)), strict=True))
    if len(ids) != len(tokens):
        second = next(i for i, text in enumerate(tokens) if ids[text] != i)
        raise AssayError(
            f"{file.path.name}: {TOKENS}: the same text twice (found {tokens[second]!r:.60} as {second} and "
            f"{ids[tokens[second]]}); convert the model again"
        )
    longest = max(map(len, tokens))
    if longest > MAX_TOKEN_BYTES:
        raise AssayError(f"{file.path.name}: {TOKENS}: a token is too long (found {longest} characters)")
    return tokens, ids


def _array(file: GGUFFile, key: str, n_tokens: int, kinds: tuple[type, ...]) -> npt.NDArray[Any] | None:
    """An array with one number per token, of one of `kinds`; None if the file has none."""
    if key not in file.metadata:
        return None
    value = file.metadata[key]
    numeric = isinstance(value, np.ndarray) and any(np.issubdtype(value.dtype, kind) for kind in kinds)
    if not numeric:
        wanted = " or ".join("float" if kind is np.floating else "integer" for kind in kinds)
        raise AssayError(
            f"{file.path.name}: {key}: wrong type (found {file.metadata.describe(key)}, expected array of {wanted})"
        )
    if len(value) != n_tokens:
        raise AssayError(
            f"{file.path.name}: {key}: wrong length (found {len(value)}, expected {n_tokens}, one per token)"
        )
    return np.asarray(value)


def _kinds(file: GGUFFile, n_tokens: int) -> npt.NDArray[np.uint8]:
    types = _array(file, KINDS, n_tokens, (np.integer,))
    if types is None:
        return np.full(n_tokens, TokenKind.NORMAL, dtype=np.uint8)
    known = (types >= 0) & (types < len(_KIND_OF_TYPE))
    return _KIND_OF_TYPE[np.where(known, types, 0).astype(np.intp)]


def _scores(file: GGUFFile, n_tokens: int) -> npt.NDArray[np.float32] | None:
    scores = _array(file, SCORES, n_tokens, (np.floating, np.integer))
    if scores is None:
        return None
    with np.errstate(all="ignore"):  # scores that no float32 holds are refused below
        scores = scores.astype(np.float32)
    if not np.isfinite(scores).all():
        where = int(np.flatnonzero(~np.isfinite(scores))[0])
        raise AssayError(f"{file.path.name}: {SCORES}: token {where} has the score {scores[where]}, not a number")
    return scores


def _special_ids(file: GGUFFile, n_tokens: int, defaults: Mapping[str, int]) -> dict[str, int]:
    special: dict[str, int] = {}
    for role, name in _ID_KEYS.items():
        key = f"tokenizer.ggml.{name}"
        value = file.get_int(key, None)
        if value is None:
            if role in defaults and defaults[role] >= n_tokens:
                raise AssayError(
                    f"{file.path.name}: {TOKENS}: too few (found {n_tokens}; this kind of vocabulary has its "
                    f"{role} at {defaults[role]} unless {key} says otherwise)"
                )
            value = defaults.get(role, _NO_ID)
        if value in (_NO_ID, -1):
            continue
        if not 0 <= value < n_tokens:
            raise AssayError(
                f"{file.path.name}: {key}: outside the vocabulary (found {value}, expected 0 to {n_tokens - 1})"
            )
        special[role] = value
    return special


def _end_of_generation(ids: dict[str, int], kinds: npt.NDArray[np.uint8], special: dict[str, int]) -> frozenset[int]:
    """The ids that end a generation. Tokens found by their text become control tokens, regardless of their type."""

    def find(role: str, texts: tuple[str, ...]) -> None:
        if role not in special:
            found = next((ids[text] for text in texts if text in ids), None)
            if found is not None:
                special[role] = found
                kinds[found] |= TokenKind.CONTROL

    find("eot", _END_OF_TURN)
    find("eom", ("<|eom_id|>",))
    eog: set[int] = set()
    for role, (ends, *texts) in _FILL_IN.items():
        find(role, tuple(map(str, texts)))
        if ends and role in special:
            eog.add(special[role])
    for text in _END_OF_GENERATION:
        if text in ids:
            eog.add(ids[text])
            kinds[ids[text]] |= TokenKind.CONTROL
    for text in _ALWAYS_SHOWN:
        if text in ids:
            kinds[ids[text]] = TokenKind.USER
    eog.update(special[role] for role in ("eos", "eot", "eom") if role in special)

    def present(*texts: str) -> bool:
        return all(ids.get(text) in eog for text in texts)

    calls = present("<|call|>") or present("<|calls|>")
    if present("<|end|>") and calls and (present("<|return|>") or present("<|flush|>")):
        eog.remove(ids["<|end|>"])  # ends a message here, not the turn
        kinds[ids["<|end|>"]] = TokenKind.USER
    if present("</s>") and (present("<|tool_response>") or present("<|plamo:eos|>")):
        eog.remove(ids["</s>"])
        kinds[ids["</s>"]] = TokenKind.NORMAL
    return frozenset(eog)


def _strip_rules(file: GGUFFile, ids: dict[str, int], kinds: npt.NDArray[np.uint8], pre_name: str) -> None:
    """Set which special tokens strip white space. GGUF has no field for it, so llama.cpp goes by names."""
    name = (file.get_str("general.name", None) or "").lower()
    arch = file.get_str("general.architecture", None) or ""
    masks = {"jina-v2-de": "<mask>", "jina-v2-es": "<mask>", "jina-v2-code": "<mask>"}
    mask = masks.get(pre_name)
    if any(part in arch for part in ("nomic-bert-moe", "jina-bert-v3")):
        mask = "<mask>"
    if mask is None and ("phi-3" in name or "phi3" in name):
        kinds[(kinds & TokenKind.SPECIAL) != 0] |= TokenKind.RSTRIP
        if "</s>" in ids:
            kinds[ids["</s>"]] |= TokenKind.RSTRIP
        for text in ("<unk>", "<s>", "<|endoftext|>"):
            if text in ids:
                kinds[ids[text]] &= 0xFF ^ TokenKind.RSTRIP
        return
    if mask is None and "modern-bert" in name:
        mask = "[MASK]"
    if mask is not None and mask in ids:
        kinds[ids[mask]] |= TokenKind.LSTRIP
