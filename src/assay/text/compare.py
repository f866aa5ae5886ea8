"""Compare the token ids of another tokenizer with the right ones, and name the mistake behind each difference.

`explain` takes two lists of ids for the same text (or the same chat) and returns the differences. Each has the id of a
fault in the catalogue, the position, the ids on both sides and a sentence. BOS, EOS and wrong or missing templates are
handled first. The rest is aligned, and every differing stretch is explained by its text and its tokens' kinds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher

from assay.text.builtin import TEMPLATES
from assay.text.pretokenize import PRETOKENIZERS, PreTokenizer
from assay.text.template import ChatTemplate, Message, encode_chat
from assay.text.tokenizer import Tokenizer
from assay.text.vocab import TokenKind

_ALIGNED = 20_000  # ids; in longer lists only the first difference is explained
# Normalisation steps that a tokenizer may omit, by kind of vocabulary: fields of Vocab, and their wording.
_NORMALISATION = {
    "bert": {
        "lowercase": ("lower-cased", "not lower-cased"),
        "strip_accents": ("stripped of accents", "kept with its accents"),
    },
    "t5": {
        "add_space_prefix": ("prefixed with a space", "not prefixed with a space"),
        "remove_extra_whitespaces": ("stripped of extra spaces", "kept with all its spaces"),
    },
}
_CUT_RULE = {
    "llama": "merge the adjacent pair with the highest score first",
    "bert": "take the longest token that fits, from the left of each word",
    "t5": "take the segmentation with the highest sum of scores",
    "rwkv": "take the longest token that fits, from the left",
}
_CUT_FAULT = {
    "llama": "spm-merge-order",
    "bert": "wordpiece-match",
    "t5": "unigram-path",
    "rwkv": "wordpiece-match",
}
_ALIKE = 0.3  # share of equal characters below which two texts count as unrelated

# Texts that identify the template of a family; the first match counts.
_MARKS = (
    ("llama3", "<|start_header_id|>"),
    ("chatml", "<|im_start|>"),
    ("gemma", "<start_of_turn>"),
    ("llama2", "<<SYS>>"),
    ("llama2 or mistral", "[INST]"),
    ("alpaca", "### Instruction:"),
    ("vicuna", "USER:"),
    ("phi3", "<|end|>"),
    ("zephyr", "<|user|>"),
)


@dataclass(frozen=True)
class TokenDifference:
    """One difference. `at` is an index into the given ids."""

    fault: str
    message: str
    at: int
    expected: tuple[int, ...]
    given: tuple[int, ...]


@dataclass(frozen=True)
class Chat:
    """The conversation that the expected ids encode."""

    template: ChatTemplate
    messages: Sequence[Message]
    add_generation_prompt: bool = True

    def render(self) -> str:
        return self.template.render(self.messages, add_generation_prompt=self.add_generation_prompt)


def explain(
    tokenizer: Tokenizer,
    expected: Sequence[int],
    given: Sequence[int],
    *,
    text: str | bytes | None = None,
    chat: Chat | None = None,
) -> list[TokenDifference]:
    """The differences of `given`; empty if it equals `expected`.

    `text` or `chat` is the text or the conversation that both encode. With it, whole hypotheses can be tested, such as
    another template; without it, only the ids are compared.
    """
    if list(expected) == list(given):
        return []
    case = _Case(tokenizer, tuple(expected), tuple(given), text, chat)
    foreign = case.foreign()
    if foreign:
        return foreign
    findings = case.ends()
    whole = case.another_prompt()
    if whole is not None:
        return [*findings, whole]
    return [*findings, *_grouped(case.stretches())]


def _grouped(findings: list[TokenDifference]) -> list[TokenDifference]:
    """Merge the same mistake at several positions into one difference with a count."""
    groups: dict[str, list[TokenDifference]] = {}
    for finding in findings:
        groups.setdefault(finding.message, []).append(finding)
    return [
        group[0] if len(group) == 1 else replace(group[0], message=f"{group[0].message} ({len(group)} times)")
        for group in groups.values()
    ]


class _Case:
    """One comparison of expected and given ids."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        expected: tuple[int, ...],
        given: tuple[int, ...],
        text: str | bytes | None,
        chat: Chat | None,
    ) -> None:
        self.tokenizer = tokenizer
        self.vocab = tokenizer.vocab
        self.full_expected, self.full_given = expected, given
        self.expected, self.given = expected, given
        self.text, self.chat = text, chat
        self.offset = 0  # position of `given[0]` in the user's ids
        # If BOS is not added but starts every turn (SmolLM2's <|im_start|>), it is part of the text.
        marker = not tokenizer.add_bos and tokenizer.bos in expected[1:]
        self.bos = None if marker else tokenizer.bos

    # --- ids that cannot be right

    def foreign(self) -> list[TokenDifference]:
        n = self.tokenizer.n_vocab
        outside = [i for i, token in enumerate(self.given) if not 0 <= token < n]
        if not outside:
            return []
        token = self.given[outside[0]]
        words = f"id {token} is not in this vocabulary of {n} tokens: the ids belong to another vocabulary"
        return [TokenDifference("vocab-type-mislabel", words, outside[0], (), (token,))]

    # --- BOS and EOS

    def ends(self) -> list[TokenDifference]:
        """Differences of BOS and EOS. Afterwards both sides are without them."""
        findings: list[TokenDifference] = []
        bos, eos = self.bos, self.tokenizer.eos
        closing = self.tokenizer.closing
        doubled = self.tokenizer.bos
        if doubled is not None and _leading(self.expected, doubled) == 1 < _leading(self.given, doubled):
            bos = doubled
        wanted, found = _leading(self.expected, bos), _leading(self.given, bos)
        first = self.given[0] if self.given else None
        rest = self.expected[wanted:]
        if bos is not None and found > max(wanted, 1):
            words = f"BOS {self.name(bos)} stands {found} times at the start, {wanted or 1} is right: " + (
                "the template writes it and the tokenizer adds another" if self.chat else "it was added twice"
            )
            findings.append(TokenDifference("bos-double", words, 0, (bos,) * wanted, (bos,) * found))
        elif bos is not None and found > wanted:
            words = f"BOS {self.name(bos)} stands at the start, but this model's prompts have none"
            findings.append(TokenDifference("bos-wrong-id", words, 0, (), (bos,)))
        elif bos is not None and found < wanted and first is not None and self.given[1:] == rest != self.given:
            words = f"the first id is {self.name(first)} where BOS {self.name(bos)} belongs"
            findings.append(TokenDifference("bos-wrong-id", words, 0, (bos,), (first,)))
            found = 1
        elif not wanted and first is not None and rest == self.given[1:]:
            words = f"{self.name(first)} stands at the start, but this model's prompts have no BOS"
            findings.append(TokenDifference("bos-wrong-id", words, 0, (), (first,)))
            found = 1
        elif bos is not None and found < wanted:
            message = f"BOS {self.name(bos)} is missing at the start"
            findings.append(TokenDifference("bos-missing", message, 0, (bos,), ()))
        self.expected, self.given, self.offset = rest, self.given[found:], found
        if eos is not None and self.given[-1:] == (eos,) != self.expected[-1:]:
            words = f"EOS {self.name(eos)} stands at the end: the model will take the answer as finished"
            findings.append(TokenDifference("eos-added", words, len(self.full_given) - 1, (), (eos,)))
            self.given = self.given[:-1]
        elif closing is not None and self.expected[-1:] == (closing,) != self.given[-1:]:
            words = f"{'EOS' if closing == eos else 'SEP'} {self.name(closing)} is missing at the end"
            findings.append(TokenDifference("eos-missing", words, len(self.full_given), (closing,), ()))
            self.expected = self.expected[:-1]
        return findings

    # --- another prompt altogether

    def another_prompt(self) -> TokenDifference | None:
        """Detect a wrong template, a missing one, or an unexpected one."""
        ours, theirs = self.words(self.expected), self.words(self.given)
        family = next((name for name, mark in _MARKS if mark in theirs and mark not in ours), None)
        mine = next((name for name, mark in _MARKS if mark in ours), None)
        if self.chat is None:
            if family is None:
                return None
            words = f"a chat template ({family}) was applied, but the raw text was meant"
            return self._whole("tmpl-on-base", words)
        exact = self._exact_template()
        if exact is not None and exact != self.chat.template.source:
            name = next(name for name, source in TEMPLATES.items() if source == exact)
            return self._whole("tmpl-wrong-family", f"these are exactly the ids of another template: {name}")
        if family is not None and (mine is None or not _has_mark(theirs, mine)):
            words = f"another family's template: the text has the marks of {family}" + (
                f", this model's has those of {mine}" if mine else ""
            )
            return self._whole("tmpl-wrong-family", f"{words} (it reads {_quote(theirs)})")
        said = [str(message.get("content", "")).strip() for message in self.chat.messages]
        if theirs.strip() and theirs.strip() in (said[-1], "\n".join(said)):
            return self._whole("tmpl-missing", "no chat template was applied: the ids are those of the bare text")
        return None

    def _exact_template(self) -> str | None:
        """The built-in template that produces the given ids, apart from BOS."""
        assert self.chat is not None
        for name, source in TEMPLATES.items():
            template = ChatTemplate.named(name, self.tokenizer)
            try:
                ids = encode_chat(
                    self.tokenizer, template, self.chat.messages,
                    add_generation_prompt=self.chat.add_generation_prompt,
                )  # fmt: skip
            except Exception:  # a template that rejects these messages cannot have made these ids
                continue
            if tuple(ids[_leading(ids, self.bos) :]) == self.given:
                return source
        return None

    def _whole(self, fault: str, words: str) -> TokenDifference:
        return TokenDifference(fault, words, self.offset, self.expected, self.given)

    # --- stretch by stretch

    def stretches(self) -> list[TokenDifference]:
        """Align both sides and explain every stretch that differs."""
        e, g = self.expected, self.given
        head = next((i for i, (a, b) in enumerate(zip(e, g, strict=False)) if a != b), min(len(e), len(g)))
        if max(len(e), len(g)) - head > _ALIGNED:
            ours, theirs = e[head : head + 3], g[head : head + 3]
            words = f"the ids differ here: {self.names(theirs)} where {self.names(ours)} belongs"
            return [TokenDifference("text-differs", words, self.offset + head, ours, theirs)]
        if not e and not g:
            return []
        mine, yours = self.words(e), self.words(g)
        if SequenceMatcher(None, mine[:2000], yours[:2000], autojunk=False).ratio() < _ALIKE:
            words = f"another text or another vocabulary: the ids read {_quote(yours)} where {_quote(mine)} was meant"
            return [self._whole("vocab-type-mislabel", words)]
        rule = self._another_rule() or self._another_text()
        if rule is not None:
            return [self._whole(*rule)]
        findings: list[TokenDifference] = []
        opcodes = SequenceMatcher(None, e, g, autojunk=False).get_opcodes()
        for tag, i1, i2, j1, j2 in opcodes:
            if tag != "equal":
                findings += self._judge(i1, i2, j1, j2)
        return findings

    def _another_rule(self) -> tuple[str, str] | None:
        """Whether another pre-tokenizer or another use of the merges gives exactly these ids."""
        pre = self.vocab.pre
        text = self.chat.render() if self.chat is not None else self.text
        if pre is None or text is None or len(text) > _ALIGNED:
            return None

        expected = list(self.expected)
        parse = self.tokenizer.encode(text, add_special=False)[-len(expected) :] == expected

        def gives(row: PreTokenizer) -> bool:
            ids = self.tokenizer.with_pre(row).encode(text, add_special=False, parse_special=parse)
            return tuple(ids) == self.given

        if gives(replace(pre, ignore_merges=not pre.ignore_merges)):
            rule = (
                "looks up whole words before merging" if pre.ignore_merges else "merges words even if they are tokens"
            )
            return "bpe-ignore-merges", f"these are exactly the ids of the other rule: this vocabulary {rule}"
        rows: dict[tuple[str, ...], str] = {}
        for name, row in PRETOKENIZERS.items():
            if row.byte_encode == pre.byte_encode and row.splits != pre.splits:
                rows.setdefault(row.splits, name)
        names = [name for splits, name in rows.items() if gives(replace(pre, splits=splits))]
        if not names:
            return None
        which = " or ".join(f"'{name}'" for name in names[:3]) + (" or others" if len(names) > 3 else "")
        words = f"these are exactly the ids of pre-tokenizer {which}; this vocabulary's is '{self.vocab.pre_name}'"
        return "bpe-pretok-regex", words

    def _another_text(self) -> tuple[str, str] | None:
        """Whether another normalisation of the text gives exactly these ids."""
        if not isinstance(self.text, str) or len(self.text) > _ALIGNED or self.expected == self.given:
            return None
        end = self.given[-1:] if self.given[-1:] == (self.tokenizer.closing,) else ()
        for rule, (done, undone) in _NORMALISATION.get(self.vocab.model, {}).items():
            wanted = getattr(self.vocab, rule)
            other = self.tokenizer.with_rule(rule, not wanted)
            if (*other.encode(self.text, add_special=False), *end) == self.given:
                ours, theirs = (done, undone) if wanted else (undone, done)
                words = f"these are exactly the ids of a text that was {theirs}; for this vocabulary it is {ours}"
                return "text-normalisation", words
        return None

    def _judge(self, i1: int, i2: int, j1: int, j2: int) -> list[TokenDifference]:
        """One stretch: expected[i1:i2] against given[j1:j2]."""
        e, g = self.expected[i1:i2], self.given[j1:j2]
        at = self.offset + j1
        ours, theirs = self.bytes_of(e), self.bytes_of(g)

        def finding(fault: str, words: str) -> TokenDifference:
            return TokenDifference(fault, words, at, e, g)

        if ours == theirs:
            return [finding(*self._same_text(e, g))]
        if self.vocab.pre is None and self._starts_text(i1):
            if ours == b" " + theirs:
                where = f"after {self.name(self.expected[i1 - 1])}" if i1 else "at the start of the text"
                stands = f" belongs where {self.names(g)} stands" if g else ""
                return [finding("spm-space-prefix", f"the space prefix {where} is missing: {self.names(e)}{stands}")]
            if theirs == b" " + ours:
                words = f"a space prefix stands in front of the text that this vocabulary does not add: {self.names(g)}"
                return [finding("spm-space-prefix", words)]
        special = any(map(self.tokenizer.is_special, (*e, *g)))
        if special and self._unprefixed(self.expected, i1, i2) == self._unprefixed(self.given, j1, j2):
            return [finding(*self._same_text(e, g))]
        if self._is_generation_prompt(i1, i2, len(g)):
            words = f"the generation prompt is missing: the ids should end in {_quote(self.words(e))}"
            return [finding("tmpl-genprompt", words)]
        if j2 == len(self.given) and not e and self.words(g) and self.words(self.expected).endswith(self.words(g)):
            return [finding("tmpl-genprompt", f"the end of the prompt stands twice: {_quote(self.words(g))}")]
        lost = self._lost_bytes(e, g)
        if lost is not None:
            return [finding("byte-fallback", lost)]
        if self.vocab.pre is not None and (theirs in (ours.replace(b" ", b""), ours.replace(b" ", "Ġ".encode()))):
            words = f"spaces are lost (they are U+0120 here): {self.names(g)} where {self.names(e)} belongs"
            return [finding("byte-unicode-map", words)]
        if not g:
            return self._missing(e, i1, at)
        fault = "tmpl-wrong-family" if self.chat else "text-differs"
        if not e:
            return [finding(fault, f"superfluous: {self.names(g)}{self._after(j1, self.given)}")]
        return [finding(fault, f"{self.names(g)} stands where {self.names(e)} belongs{self._after(i1, self.expected)}")]

    def _missing(self, e: tuple[int, ...], i1: int, at: int) -> list[TokenDifference]:
        """The ids `e` are missing. Special tokens, newlines and other text have different faults."""
        fault = "tmpl-wrong-family" if self.chat else "text-differs"
        findings, before = [], self._after(i1, self.expected)
        for k, token in enumerate(e):
            special = self.tokenizer.is_special(token)
            piece = self.tokenizer.piece(token)
            if piece == b" " and self.vocab.pre is None and self._starts_text(i1 + k):
                continue  # the prefix belongs to the token before it
            newlines = piece.count(b"\n") if not piece.strip() else 0
            what = ("a newline" if newlines == 1 else f"{newlines} newlines") if newlines else ""
            words = f"{what} {self.name(token)}".strip() if what else self.name(token)
            vanished = self.chat is None and bool(self.vocab.kinds[token] & TokenKind.BYTE)
            kind = "byte-fallback" if vanished else fault
            findings.append(TokenDifference(kind, f"missing: {words}{before}", at, (token,), ()))
            before = f" after {self.name(token)}" if special or newlines else before
        return findings

    def _same_text(self, e: tuple[int, ...], g: tuple[int, ...]) -> tuple[str, str]:
        """Two tokenizations of one text: name the rule that was not followed."""
        ours, theirs = self.names(e), self.names(g)
        whole = [token for token in e if self.tokenizer.is_special(token) and token not in g]
        if whole:
            return "special-as-text", f"the special token {self.names(whole)} was split into text: {theirs}"
        parsed = [token for token in g if self.tokenizer.is_special(token) and token not in e]
        if parsed:
            return "special-as-text", f"text was taken for the special token {self.names(parsed)}; it is {ours}"
        lost = self._lost_bytes(e, g)
        if lost is not None:
            return "byte-fallback", lost
        parts = f"the same text in other tokens: {theirs} where {ours} belongs"
        if self.vocab.pre is None:
            model = self.vocab.model
            greedy = " (longest match first)" if model != "bert" and g == self._longest_match(e) else ""
            return _CUT_FAULT[model], f"{parts}; {_CUT_RULE[model]}{greedy}"
        return self._bpe_cause(e, g, parts)

    def _bpe_cause(self, e: tuple[int, ...], g: tuple[int, ...], parts: str) -> tuple[str, str]:
        pre = self.vocab.pre
        assert pre is not None
        data = self.bytes_of(e)
        try:
            borders = _borders([word.encode() for word in pre.split(data.decode())])
        except UnicodeDecodeError:
            borders = set()
        cuts = _borders([self.tokenizer.piece(token) for token in g])
        if borders - cuts:
            name = self.vocab.pre_name
            return "bpe-pretok-regex", f"{parts}; a token crosses the words of pre-tokenizer '{name}'"
        if pre.ignore_merges and len(e) == 1:
            return "bpe-ignore-merges", f"{parts}; this vocabulary looks the whole word up before it merges"
        return "bpe-merge-rank", f"{parts}; apply the merge of the lowest rank first"

    def _longest_match(self, e: tuple[int, ...]) -> tuple[int, ...]:
        """The tokenization that takes the longest token from the left each time."""
        text = "".join(self.vocab.tokens[token] for token in e)
        ids: list[int] = []
        while text:
            n = next((n for n in range(len(text), 0, -1) if text[:n] in self.vocab.ids), 0)
            if n == 0:
                return ()
            ids.append(self.vocab.ids[text[:n]])
            text = text[n:]
        return tuple(ids)

    def _lost_bytes(self, e: tuple[int, ...], g: tuple[int, ...]) -> str | None:
        """A character that should be byte tokens, but was dropped, unknown or replaced."""
        unknown = [token for token in g if self.vocab.kinds[token] & TokenKind.UNKNOWN]
        if unknown and not any(token in e for token in unknown):
            return f"{self.name(unknown[0])} stands where {self.names(e)} belongs: write such characters as bytes"
        bytes_ = [t for t in e if self.vocab.kinds[t] & TokenKind.BYTE and self.tokenizer.piece(t) != b"\n"]
        whole = self.vocab.pre is not None and not self.words(e).isascii() and len(e) > 1
        if (bytes_ or whole) and not g:
            return f"{_quote(self.words(e))} was dropped: it is the bytes {self.names(e)}"
        ours, theirs = self.bytes_of(e), self.bytes_of(g)
        if not ours.isascii() and theirs == bytes(b for b in ours if b < 128):
            return f"{_quote(self.words(e))} was dropped: {self.names(e)} belongs where {self.names(g)} stands"
        if bytes_ and not any(self.vocab.kinds[t] & TokenKind.BYTE for t in g):
            return f"{self.names(g)} stands where the bytes {self.names(e)} belong"
        return None

    # --- small questions

    def _starts_text(self, i: int, ids: tuple[int, ...] | None = None) -> bool:
        """Whether a text starts at `i`, where such vocabularies add a space prefix."""
        before = self.expected if ids is None else ids
        return i == 0 or self.tokenizer.is_special(before[i - 1])

    def _unprefixed(self, ids: tuple[int, ...], start: int, end: int) -> bytes:
        """The text of ids[start:end] without added space prefixes."""
        out = b""
        for i in range(start, end):
            piece = self.tokenizer.piece(ids[i])
            prefixed = self.vocab.pre is None and not self.tokenizer.is_special(ids[i]) and self._starts_text(i, ids)
            out += piece.removeprefix(b" ") if prefixed else piece
        return out

    def _is_generation_prompt(self, i1: int, i2: int, n_given: int) -> bool:
        if self.chat is None or not self.chat.add_generation_prompt or i2 != len(self.expected) or n_given:
            return False
        short = encode_chat(self.tokenizer, self.chat.template, self.chat.messages, add_generation_prompt=False)
        start = len(short) - _leading(short, self.bos)
        return start == i1 and i2 > i1

    def _after(self, i: int, ids: tuple[int, ...]) -> str:
        return f" after {self.name(ids[i - 1])}" if i else " at the start"

    def bytes_of(self, ids: Sequence[int]) -> bytes:
        return b"".join(map(self.tokenizer.piece, ids))

    def words(self, ids: Sequence[int]) -> str:
        return self.bytes_of(ids).decode("utf-8", "replace")

    def name(self, token: int) -> str:
        return f"{token} {self.tokenizer.show(token)}"

    def names(self, ids: Sequence[int]) -> str:
        shown = ", ".join(map(self.name, ids[:8]))
        return f"{shown}, …" if len(ids) > 8 else shown or "nothing"


def _leading(ids: Sequence[int], token: int | None) -> int:
    return next((i for i, other in enumerate(ids) if other != token), len(ids)) if token is not None else 0


def _has_mark(text: str, family: str) -> bool:
    return any(name == family and mark in text for name, mark in _MARKS)


def _borders(pieces: list[bytes]) -> set[int]:
    out, at = set(), 0
    for piece in pieces:
        at += len(piece)
        out.add(at)
    return out


def _quote(text: str) -> str:
    shown = text if len(text) <= 60 else text[:57] + "…"
    return repr(shown)


__all__ = ["Chat", "TokenDifference", "explain"]
