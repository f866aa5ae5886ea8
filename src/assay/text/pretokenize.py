r"""The table of pre-tokenizers: how byte-level BPE cuts text into words before any merge is tried.

`tokenizer.ggml.pre` names a row of `PRETOKENIZERS`. A row is a list of splits, each applied to the words of the
previous one. A split makes every match a word, and the text between two matches too. The ids must equal llama.cpp's,
so its reading of the expressions is implemented: categories ignore case outside ASCII (`\p{Lu}` is any letter), `\s`
is Unicode white space, and lookahead ends at the end of the current word.

Python's `re` has no `\p{..}`. Expressions with categories are therefore run on a *collapsed* copy of the text: ASCII
stays, and every other character becomes one placeholder of its category. The copy has the same length, so its cuts are
valid for the text. ASCII text needs no copy, which makes this fast.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise

from assay.errors import AssayError

Split = Callable[[str], list[str]]

# Placeholders of the collapsed copy. Han letters have their own, because one row (kimi-k2) distinguishes them.
_PLACEHOLDER = {"N": "\xd1", "L": "\xd2", "P": "\xd3", "M": "\xd4", "S": "\xd5"}
_HAN_LETTER, _HAN_OTHER, _OTHER, _SPACE = "\xd6", "\xd7", "\xd0", "\x0b"

WHITE_SPACE = frozenset("\x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000") | {chr(c) for c in range(0x2000, 0x200B)}
_HAN_BLOCKS = (
    (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x2A6DF),
    (0x2A700, 0x2EBEF), (0x2F800, 0x2FA1F),
)  # fmt: skip

# Characters that Unicode 15.0 and 15.1 assigned; Python 3.11 has Unicode 14.0. `category:first-last`, hexadecimal.
_SINCE_14 = """
M:CF3-CF3 M:ECE-ECE S:2FFC-2FFF S:31EF-31EF M:10EFD-10EFF L:1123F-11240 M:11241-11241 P:11B00-11B09
M:11F00-11F01 L:11F02-11F02 M:11F03-11F03 L:11F04-11F10 L:11F12-11F33 M:11F34-11F3A M:11F3E-11F42
P:11F43-11F4F N:11F50-11F59 L:1342F-1342F C:13439-1343F M:13440-13440 L:13441-13446 M:13447-13455 L:1B132-1B132
L:1B155-1B155 N:1D2C0-1D2D3 L:1DF25-1DF2A L:1E030-1E06D M:1E08F-1E08F L:1E4D0-1E4EB M:1E4EC-1E4EF
N:1E4F0-1E4F9 S:1F6DC-1F6DC S:1F774-1F776 S:1F77B-1F77F S:1F7D9-1F7D9 S:1FA75-1FA77 S:1FA87-1FA88
S:1FAAD-1FAAF S:1FABB-1FABD S:1FABF-1FABF S:1FACE-1FACF S:1FADA-1FADB S:1FAE8-1FAE8 S:1FAF7-1FAF8
L:2B739-2B739 L:2EBF0-2EE5D L:31350-323AF
"""

# The content of the brackets for each category: its ASCII members, then its placeholders.
_CLASS = {
    "N": "0-9\xd1",
    "L": "A-Za-z\xd2\xd6",
    "P": r"!-#%-*,-/:;?@\[\\\]_{}" + "\xd3",
    "M": "\xd4",
    "S": "$+<=>^`|~\xd5",
    "Upper": "A-Z\xd2\xd6",  # letters that are not ASCII lower case
    "Lower": "a-z\xd2\xd6",  # letters that are not ASCII upper case
    "Han": "\xd6\xd7",
}


@cache
def _added_since_14() -> tuple[tuple[int, int, str], ...]:
    rows = (entry.split(":") for entry in _SINCE_14.split())
    return tuple((int(r.split("-")[0], 16), int(r.split("-")[1], 16), category) for category, r in rows)


def category(code: int) -> str:
    """A character's major category in Unicode 15.1: one of `LMNPSZC`, or `-` if unassigned."""
    found = unicodedata.category(chr(code))
    if found == "Cn":
        return next((kind for first, last, kind in _added_since_14() if first <= code <= last), "-")
    return found[0]


def is_white(character: str) -> bool:
    """Whether a character is Unicode white space. The separators among the control codes (U+001C to U+001F) are not."""
    return character in WHITE_SPACE or character in " \t\n\v\f\r"


def _placeholder(code: int) -> str:
    """The placeholder for one character outside ASCII."""
    if chr(code) in WHITE_SPACE:
        return _SPACE
    kind = category(code)
    if any(first <= code <= last for first, last in _HAN_BLOCKS):
        return _HAN_LETTER if kind == "L" else _HAN_OTHER
    return _PLACEHOLDER.get(kind, _OTHER)


class _Collapse(dict[int, str]):
    """A `str.translate` table that is filled on demand."""

    def __missing__(self, code: int) -> str:
        result = self[code] = chr(code) if code < 128 else _placeholder(code)
        return result


_COLLAPSE = _Collapse()
_SPACES = {ord(c): _SPACE for c in WHITE_SPACE}


LONG = 32 << 10  # characters of a text that is searched match by match
_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")


def _collapse(text: str, table: Mapping[int, str]) -> str:
    """`text.translate(table)`; quicker for text that is mostly ASCII."""
    return _NOT_ASCII.sub(lambda run: run[0].translate(table), text)


def _expand(expression: str) -> str:
    r"""Expand `\p{..}` to members of a character class, in brackets unless it is already inside some."""
    out, inside = [], False
    for part in re.findall(r"\\p\{\w+\}|\\.|.", expression, re.DOTALL):
        if part.startswith(r"\p{"):
            body = _CLASS[part[3:-1]]
            out.append(body if inside else f"[{body}]")
            continue
        inside = (inside or part == "[") and part != "]"
        out.append(part)
    return "".join(out)


def _split_by_turns(pattern: re.Pattern[str], text: str) -> list[str]:
    """`pattern.split(text)` for an expression that is one group, match by match: other threads run in between.

    One call of `split` would hold the interpreter's lock for half a second for a text of two megabytes.
    """
    parts: list[str] = []
    last = 0
    for match in pattern.finditer(text):
        parts += (text[last : match.start()], match[0])
        last = match.end()
    return [*parts, text[last:]]


def _by_expression(expression: str) -> Split:
    r"""Isolate every match. An expression without `\p{..}` searches the text itself, with white space unified."""
    table = _COLLAPSE if r"\p{" in expression else _SPACES
    pattern = re.compile(f"({_expand(expression)})", re.ASCII)

    def search(text: str) -> list[str]:
        return pattern.split(text) if len(text) <= LONG else _split_by_turns(pattern, text)

    def split(text: str) -> list[str]:
        if text.isascii():
            return [word for word in search(text) if word]
        ends = list(accumulate(map(len, search(_collapse(text, table)))))
        return [text[a:b] for a, b in zip([0, *ends], ends, strict=False) if b > a]

    return split


_BEYOND = re.compile("(?:[\U00010000-\U0010ffff]-[\U00010000-\U0010ffff])+")
# Placeholders beyond U+FFFF: of the ranges that an expression names, and of the others. No expression names these two.
_NAMED, _UNNAMED = "\ufffe", "\uffff"
_SPELT = {r"\s": r"[ \t\n\r\f\v]", r"\S": r"[^ \t\n\r\f\v]"}


def portable_split(expression: str) -> tuple[str, list[tuple[int, str]]]:
    r"""A split for another language's regular expressions: the expression, and the placeholders of code points.

    A run is the first code point from 128 on that has a placeholder, and the placeholder; empty if a character stays
    itself. White space is spelt out, because languages differ in `\s`. Ranges beyond U+FFFF become one placeholder, so
    they must stand together. Raises AssayError for what has no such form.
    """
    expression = _PORTABLE.get(expression, expression)
    beyond = _BEYOND.findall(expression)
    expression = _BEYOND.sub(_NAMED, expression)
    if len(beyond) > 1 or (beyond and r"\p{" in expression) or any(ord(c) > 0xFFFF for c in expression):
        raise AssayError(f"tokenizer.ggml.pre: the split {expression!r:.40} is not a portable expression")
    out, inside = [], False
    for part in re.findall(r"\\.|.", _expand(expression), re.DOTALL):
        if part == r"\Z":
            part = "$"
        elif part in _SPELT:
            part = _SPELT[part] if not inside else _SPELT[part][1:-1]
        else:
            inside = (inside or part == "[") and part != "]"
        out.append(part)
    return "".join(out), _placeholder_runs() if r"\p{" in expression else _space_runs("".join(beyond))


@cache
def _placeholder_runs() -> list[tuple[int, str]]:
    runs: list[tuple[int, str]] = []
    for code in (*range(128, 0x32400), *range(0xE0000, 0xE0200)):  # the rest is unassigned or private
        shown = _placeholder(code)
        if not runs or runs[-1][1] != shown:
            runs.append((code, shown))
    return runs


def _space_runs(named: str) -> list[tuple[int, str]]:
    """White space; and beyond U+FFFF one placeholder for the ranges that the expression names, one for the others."""
    marks = {128: "", ord(_NAMED): _UNNAMED}  # a text may have the placeholder itself
    for i in range(0, len(named), 3):  # each range is its first character, a hyphen, and its last
        marks |= {ord(named[i + 2]) + 1: _UNNAMED, ord(named[i]): _NAMED}
    for c in sorted(WHITE_SPACE):
        marks |= {ord(c): _SPACE, ord(c) + 1: marks.get(ord(c) + 1, "")}
    return sorted(marks.items())


def _superbpe_cuts(text: str) -> list[str]:
    """Cut before every ASCII digit from which the rest of the run is a multiple of three digits."""
    cuts = {0, len(text)}
    for match in re.finditer("[0-9]+", text):
        cuts.update(range(match.end() - 3, match.start() - 1, -3))
    ordered = sorted(cuts)
    return [text[a:b] for a, b in pairwise(ordered)]


def _thousands(text: str) -> list[str]:
    r"""Isolate each run of `\p{N}`, in threes counted from its right end."""
    cuts = {0, len(text)}
    searched = text if text.isascii() else _collapse(text, _COLLAPSE)
    for match in re.finditer(_expand(r"\p{N}+"), searched):
        cuts.update((match.start(), *range(match.end(), match.start(), -3)))
    ordered = sorted(cuts)
    return [text[a:b] for a, b in pairwise(ordered)]


# The same as expressions, whose search would take long in a long run of digits.
_PORTABLE = {
    "<thousands>": r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))",
    "<superbpe>": "(?=(?:[0-9]{3})+(?![0-9]))",
}
_FUNCTIONS: dict[str, Split] = {"<thousands>": _thousands, "<superbpe>": _superbpe_cuts}


@dataclass(frozen=True)
class PreTokenizer:
    """One row: the splits in order, and other properties of the pre-tokenizer."""

    splits: tuple[str, ...]
    ignore_merges: bool = False  # a word that is a token becomes that token, without merging
    add_bos: bool = False  # default, if the file has no flag
    byte_encode: bool = True  # False: tokens are plain UTF-8 with U+2581 for the space
    newline_words: bool = False  # a run of newlines that is a token becomes that token

    def split(self, text: str) -> list[str]:
        """The words of `text`; joined they are `text` again."""
        words = [text] if text else []
        for name in self.splits:
            cut = _compiled(name)
            words = cut(words[0]) if len(words) == 1 else [part for word in words for part in cut(word)]
        return words


@cache
def _compiled(name: str) -> Split:
    return _FUNCTIONS.get(name) or _by_expression(name)


_CONTRACTION = r"'(?:[sStTmMdD]|[rRvV][eE]|[lL][lL])"
_TAIL = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_PUNCT = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_GPT2 = r"'(?:[stmd]|[rv]e|ll)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_PUNCT}{_TAIL}"
_QWEN2 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}|{_PUNCT}{_TAIL}"
_QWEN35 = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*{_TAIL}"
_CJK = "[一-龥\u3040-\u309f\u30a0-\u30ff]+"
_DEEPSEEK_CJK = "[一-龥\u0800-一가-\ud7ff]+"
_ASCII_PUNCT = r"[!-/:-@\[-`{-~]"
_DEEPSEEK3 = (
    rf"{_ASCII_PUNCT}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+[\r\n]*{_TAIL}"
)
_LINES = r"[^\n]+|\n+"
_BLOOM = " ?[^(\\s|.,!?…。，、।۔،)]+"


def _cased(upper: str, lower: str, digits: str, contraction: str) -> str:
    """The o200k family: a word may change from upper to lower case once."""
    head = r"[^\r\n\p{L}\p{N}]?"
    words = rf"{head}[{upper}]*[{lower}]+{contraction}|{head}[{upper}]+[{lower}]*{contraction}"
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*{_TAIL}"


_TEKKEN = _cased(r"\p{Upper}", r"\p{Lower}", r"\p{N}", "")
_GPT4O = _cased(r"\p{Upper}", r"\p{Lower}", r"\p{N}{1,3}", f"(?:{_CONTRACTION})?")
_GRANITE_MULTI = _cased(r"\p{Upper}\p{M}", r"\p{Lower}\p{M}", r"\p{N}{1,3}", f"(?:{_CONTRACTION})?")
_ANY_CASE = rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+(?:{_CONTRACTION})?"
_ANY_CASE_TAIL = rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*{_TAIL}"

# Letters of scripts with case, as DeepSeek-LLM lists them.
_DEEPSEEK_LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-"
    "\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳ"
    "Ꙁ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)

_gpt2 = PreTokenizer((_GPT2,))
_digits_gpt2 = PreTokenizer((r"\p{N}", _GPT2))
_llama3 = PreTokenizer((_LLAMA3,))
_llama3_bos = PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True)
_qwen2 = PreTokenizer((_QWEN2,))
_deepseek3 = PreTokenizer((r"\p{N}{1,3}", _CJK, _DEEPSEEK3))
_gpt4o = PreTokenizer((_GPT4O,))
_bloom = PreTokenizer((_BLOOM,))
_bailing = PreTokenizer((rf"{_CONTRACTION}|{_WORD}|\p{{N}}|{_PUNCT}|\s*[\r\n]|\s+(?!\S)|\s+",))
_tiny_aya = PreTokenizer(("<thousands>", rf"{_ANY_CASE}|\p{{N}}{{1,3}}{_ANY_CASE_TAIL}"))
_gemma4 = PreTokenizer((_LINES,), add_bos=True, byte_encode=False, newline_words=True)
_glm4 = PreTokenizer((_LLAMA3,), ignore_merges=True)

_ROWS: dict[str, PreTokenizer] = {
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano": _llama3_bos,
    "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2": _digits_gpt2,
    "gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert "
    "jina-v1-en jina-v2-code roberta-bpe exaone4 mpt olmo jais trillion granite-docling": _gpt2,
    "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2": _qwen2,
    "dbrx smaug-bpe chatglm-bpe": _llama3,
    "glm4 glm5": _glm4,
    "jais-2": PreTokenizer(
        (
            rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_PUNCT}|\s*[\r\n]+|"
            + "|".join(rf"\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4))
            + r"|\s{1,2}(?!\S)|\s",
        )
    ),
    "minicpm5": PreTokenizer((r"\p{N}{1,3}", rf"{_CONTRACTION}|{_WORD}|\p{{N}}+|{_PUNCT}{_TAIL}"), ignore_merges=True),
    "deepseek-llm": PreTokenizer(
        (
            r"[\r\n]",
            rf"\s?[{_DEEPSEEK_LETTERS}]+",
            r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
            r"(?<!\s)\s+\Z",
            _DEEPSEEK_CJK,
            r"\p{N}+",
        )
    ),
    "deepseek-coder": PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_CJK, r"\p{N}")),
    "deepseek-v3 hunyuan-dense joyai-llm hy_v4": _deepseek3,
    "spark2_5": PreTokenizer(
        (
            r"\p{N}{1,3}",
            _CJK,
            rf"{_ASCII_PUNCT}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
            r"| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+",
            r"\p{N}",
        )
    ),
    "youtu": PreTokenizer(
        (
            f"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|{_CJK}",
            rf"{_ANY_CASE}|\p{{N}}{_ANY_CASE_TAIL}",
        ),
        ignore_merges=True,
    ),
    "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
    "qwen35": PreTokenizer((_QWEN35,)),
    "poro-chat bloom gpt3-finnish": _bloom,
    "viking": PreTokenizer((_BLOOM, r"\p{N}")),
    "tekken": PreTokenizer((_TEKKEN,), ignore_merges=True, add_bos=True),
    "chameleon": PreTokenizer(
        (
            "<sentinel:[0-9]+>",
            "IMGIMG[A-I]{1,4}Z",
            r"[\t\n]|    |  ",
            r"\p{N}",
            r"[\p{P}!-/:-@\[-`{-~]",
            _GPT2,
        ),
        add_bos=True,
    ),
    "gpt-4o llama4 kanana2 talkie minimax-m2": _gpt4o,
    "granite-embed-multi-97m": PreTokenizer((_GRANITE_MULTI,), ignore_merges=True),
    "tiny_aya cohere2moe": _tiny_aya,
    "superbpe": PreTokenizer((r"\p{N}+", "<superbpe>")),
    "bailingmoe bailingmoe2 llada-moe": _bailing,
    "seed-coder": PreTokenizer((rf"{_CONTRACTION}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+{_TAIL}",)),
    "ufakzeka": PreTokenizer((rf"{_WORD}|\p{{N}}|{_PUNCT}{_TAIL}",)),
    "laguna": PreTokenizer((_LINES, _QWEN2)),
    "exaone-moe": PreTokenizer(
        (
            rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
        )
    ),
    "afmoe": PreTokenizer(
        (
            "<thousands>",
            "[一-\u9fff\u3400-\u4dbf\u8c48-\ufaff\u3040-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0eff\u1780-\u17ff"
            "\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+",
            _DEEPSEEK3,
        )
    ),
    "kimi-k2": PreTokenizer(
        (
            r"\p{Han}+|[^\r\n\p{L}\p{Han}\p{N}]?[A-Za-z"
            + "\xd2"
            + rf"]+(?:{_CONTRACTION})?|\p{{N}}{{1,3}}|{_PUNCT}{_TAIL}",
        )
    ),
    "gemma4 granite-embed-multi-311m": _gemma4,
    "sarvam-moe": PreTokenizer((_LINES,), byte_encode=False),
}

PRETOKENIZERS: dict[str, PreTokenizer] = {name: row for names, row in _ROWS.items() for name in names.split()}


def by_name(name: str) -> PreTokenizer:
    """The row for `tokenizer.ggml.pre`; an unknown name is an error, because guessing gives wrong ids."""
    try:
        return PRETOKENIZERS[name]
    except KeyError:
        known = ", ".join(sorted(PRETOKENIZERS))
        raise AssayError(
            f"tokenizer.ggml.pre: unknown pre-tokenizer (found {name!r:.60}, expected one of {known}); "
            "convert the model again with a name from this list"
        ) from None
