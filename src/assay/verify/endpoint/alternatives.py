"""Alternatives to the claim: each predicts other log-probabilities for the same places.

    weights   the claimed file quantised further
    cache     keys and values in fewer bits
    rope      another base or scale of the positions
    prompt    other ids in front: BOS missing, twice or added; another chat template; a hidden system message
    model     another file
    engine    a mistake of the catalogue of faults

`FIRST` are tested in every audit, the others where the claim has failed. Touch this module to add an alternative.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from assay.errors import AssayError
from assay.graph import Node
from assay.models import Model
from assay.text import ChatTemplate, Tokenizer, encode_chat
from assay.text.builtin import TEMPLATES
from assay.verify.diagnosis.by_feeds import FEEDS, Feed
from assay.verify.endpoint.claimed_model import CLAIM, ClaimedModel, Setting, coarser_mixes, rewritten, turns
from assay.verify.endpoint.draw_settings import FEW_PENALTIES, penalty, seen_counts
from assay.verify.endpoint.prompt_ids import other_tokenizations
from assay.verify.endpoint.served_text import ServedText
from assay.verify.faults import FAULTS, Context, Fault, FaultKind, Stage, Variant, planted

Array = NDArray[Any]
MIXES = ("Q8_0", "FP8", "Q6_K", "Q5_K_M", "Q4_K_M", "Q4_0", "Q4_1", "IQ4_XS", "MXFP4", "NVFP4", "Q3_K_M", "Q2_K")
FEW_BITS = ("Q4_0", "Q3_K_M", "Q2_K")  # the first that is coarser than the claim stands for fewer bits in general
BASES = (1e4, 1e5, 5e5, 1e6)
SCALES = (0.5, 0.25, 2.0)
TEMPERATURES = (0.3, 0.5, 0.7, 0.8, 1.0)
WINDOWS = (32, 64, 128, 256, 512)
THINKING: dict[str, tuple[Any, ...]] = {  # switches that templates have, with their values
    "enable_thinking": (False, True),
    "thinking": (True, False),
    "reasoning_effort": ("low", "medium", "high"),
}
SYSTEMS = (
    "You are a helpful assistant.",
    "You are a helpful assistant",
    "You are a helpful AI assistant.",
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face",
    "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
    "You are a helpful, respectful and honest assistant.",
    "You are ChatGPT, a large language model trained by OpenAI.",
    "Answer briefly.",
    "Be concise.",
    "You are an expert.",
)


@dataclass(frozen=True)
class Alternative:
    """One thing that differs from the claim, with the words for a reader and the id of its fault, if it has one."""

    name: str
    words: str
    family: str
    setting: Setting = CLAIM
    front: tuple[int, ...] = ()  # ids put before the text
    drop: int = 0  # ids taken from its beginning
    prompts: dict[tuple[int, ...], tuple[int, ...]] = field(default_factory=dict, hash=False, compare=False)
    feed: Feed | None = None  # the same tokens, fed in another way
    edit: tuple[Variant, float] | None = None  # a mistake that is planted for the steps of every text
    fault: str = ""
    number: tuple[Variant, float] | None = None  # of a mistake of the catalogue
    penalty: tuple[float, int | None, bool] | None = None  # nats, on which last ids, for each time they came
    temperature: float = 0.0  # of draws where 0 was asked for; it shows in tokens alone
    honest: bool = False  # honest servers do this: it is named and never an alarm

    def rows(self, claimed: ClaimedModel, text: ServedText, *, keep: bool = True) -> Array | None:
        """Predicted log-probabilities at the places of the text; None where the alternative does not apply to it."""
        ids, shift = text.ids, 0
        if self.feed is not None:
            fed = self.feed.make(list(text.ids), text.n_prompt)
            places = [fed[1][place.row - 1] + 1 for place in text.places] if fed is not None else []
            return claimed.at(fed[0], places, self.setting, keep=keep) if fed is not None and places else None
        if self.prompts:
            other = self.prompts.get(text.ids[: text.n_prompt])
            if other is None or text.first_row < text.n_prompt:
                return None
            ids, shift = (*other, *text.ids[text.n_prompt :]), len(other) - text.n_prompt
        elif self.front or self.drop:
            ids, shift = (*self.front, *text.ids[self.drop :]), len(self.front) - self.drop
        rows = [place.row + shift for place in text.places]
        if not rows or min(rows) < 1:
            return None
        if self.edit is not None:
            steps = (text.n_prompt, *(1,) * (len(text.ids) - text.n_prompt))
            made = planted(Context(claimed.model, steps), *self.edit)
            return claimed.at(ids, rows, Setting(graph=made.graph, functions=made.functions), keep=False)
        if self.penalty is not None:
            return self._penalised(claimed.at(ids, rows), [ids[:n] for n in rows])
        return claimed.at(ids, rows, self.setting, keep=keep)

    def _penalised(self, rows: Array, before: Sequence[Sequence[int]]) -> Array:
        """Log-probabilities less the penalty on the tokens before each."""
        assert self.penalty is not None
        (nats, window, each), found = self.penalty, rows.copy()
        for row, ids in zip(found, before, strict=True):
            for token, count in seen_counts(ids, window).items():
                row[token] -= nats * (count if each else 1)
        return found

    @property
    def companion(self) -> Alternative | None:
        """The same in the arithmetic of a fast engine; None where a mistake is planted for every text."""
        return replace(self, setting=replace(self.setting, precision="fast")) if self.edit is None else None

    @property
    def slow(self) -> bool:
        """Must the reference compute it?"""
        return self.edit is not None or self.setting.cache in ("q4_0", "fp8")


def first_alternatives(model: Model, tokenizer: Tokenizer) -> list[Alternative]:
    """Those that every audit tests: fewer bits, other positions, another beginning."""
    mixes = coarser_mixes(model.file, FEW_BITS)
    found = [_weights(mix) for mix in mixes[:1]]
    found += list(rope_alternatives(model, BASES[:1] if rope_base(model) != BASES[0] else BASES[1:2], SCALES[:1]))
    found += list(beginnings(tokenizer))
    return found


def more_alternatives(
    model: Model, longest: int, others: Sequence[Path] = (), *, coarse_first: bool = False
) -> Iterator[Alternative]:
    """All others that need one run a text, cheap ones first. `longest` is the number of tokens of the longest text.

    Weights are tried from the finest mix on, or from the coarsest.
    """
    windows = [w for w in WINDOWS if w < longest]
    for window in windows:
        graph = rewritten(model, partial(_with_window, window))
        yield Alternative(
            f"window {window}", f"attention to the last {window} tokens only", "rope", Setting(graph=graph)
        )
    for path in others:
        yield Alternative(f"model {path.name}", f"another model: {path.name}", "model", Setting(file=str(path)))
    yield Alternative("keys and values in q8_0", "keys and values in q8_0", "cache", Setting(cache="q8_0"), honest=True)
    mixes = coarser_mixes(model.file, MIXES)
    for mix in reversed(mixes) if coarse_first else mixes:
        yield _weights(mix)
    for turned in (True, False) if turns(model) else (False,):
        words = "keys and values in q4_0" + ", rotated first" * turned
        yield Alternative(words, words, "cache", Setting(cache="q4_0", rotated=turned))
    yield Alternative("keys and values in fp8", "keys and values in FP8 (E4M3)", "cache", Setting(cache="fp8"))


def _weights(mix: str) -> Alternative:
    return Alternative(f"weights {mix}", f"weights in {mix}, made from the claimed file", "weights", Setting(mix=mix))


def rope_base(model: Model) -> float:
    return next((float(n.attr("base")) for n in model.graph if n.op == "rope"), 0.0)


def _with_window(window: int, node: Node) -> Node | None:
    narrows = node.op == "attn_softmax" and not 0 < node.attr("window") <= window
    return node.with_attrs(window=window) if narrows else None


def _with_base(base: float, node: Node) -> Node | None:
    return node.with_attrs(base=base) if node.op == "rope" else None


def _with_scale(scale: float, node: Node) -> Node | None:
    return node.with_attrs(freq_scale=node.attr("freq_scale") * scale) if node.op == "rope" else None


def rope_alternatives(
    model: Model, bases: Sequence[float] = BASES, scales: Sequence[float] = SCALES
) -> Iterator[Alternative]:
    """Other bases and scales of RoPE."""
    yield from rope_bases(model, bases)
    yield from rope_scales(model, scales)


def no_rope(model: Model) -> Iterator[Alternative]:
    """No rotation at all, which small scales come near to."""
    for fault in (f for f in in_formulas() if f.id == "rope-missing" and rope_base(model)):
        for variant in fault.variants:
            yield from engine_fault(Context(model, (1,)), fault, variant, 0.0)


def rope_bases(model: Model, bases: Sequence[float], about: str = "") -> Iterator[Alternative]:
    """`about` stands before a number that was searched."""
    own = rope_base(model)
    for base in (base for base in bases if own and base != own):
        graph = rewritten(model, partial(_with_base, base))
        words = f"RoPE with a base of {about}{base:g} (the file says {own:g})"
        yield Alternative(f"rope base {base:g}", words, "rope", Setting(graph=graph), fault="rope-base")


def rope_scales(model: Model, scales: Sequence[float], about: str = "") -> Iterator[Alternative]:
    for scale in scales if rope_base(model) else ():
        graph = rewritten(model, partial(_with_scale, scale))
        words = f"RoPE positions multiplied by {about}{scale:g}"
        yield Alternative(f"rope scale {scale:g}", words, "rope", Setting(graph=graph), fault="rope-linear")


def beginnings(tokenizer: Tokenizer) -> Iterator[Alternative]:
    """Other beginnings of every text."""
    bos = tokenizer.bos
    if bos is None:
        return
    if tokenizer.encode("a")[:1] == [bos]:
        yield Alternative("BOS missing", "no BOS in front of a text", "prompt", drop=1, fault="bos-missing")
        yield Alternative("BOS twice", "BOS twice in front of a text", "prompt", front=(bos,), fault="bos-double")
    else:
        words = "a BOS that the file does not ask for"
        yield Alternative("BOS added", words, "prompt", front=(bos,), fault="bos-wrong-id")


def longer_beginning(tokenizer: Tokenizer, more: int) -> Iterator[Alternative]:
    """The beginning where a server counts so many tokens more for every text."""
    if tokenizer.bos is not None and more > 1:
        words = f"{more} more BOS in front of a text"
        yield Alternative(words, words, "prompt", front=(tokenizer.bos,) * more, fault="bos-double")


def cut_prompts(
    tokenizer: Tokenizer, texts: Sequence[ServedText], counts: Sequence[tuple[int, int]]
) -> Iterator[Alternative]:
    """Prompts of which a server reads a part alone, as with a short context. `counts` are prompt tokens, as expected
    and as the server counts them."""
    ids = list(dict.fromkeys(text.ids[: text.n_prompt] for text in texts))
    counted = {found for expected, found in counts if found < expected}
    longest = max(map(len, ids), default=0)
    for n in sorted(counted) if len(counted) == 1 else [w for w in WINDOWS if w < longest]:
        long = [i for i in ids if len(i) > n > 1]
        begun = all(i[0] == tokenizer.bos for i in long)
        kinds = {
            f"to the last {n} tokens": [i[-n:] for i in long],
            f"to BOS and the last {n - 1} tokens": [(*i[:1], *i[1 - n :]) for i in long] if begun else [],
            f"to the first {n} tokens": [i[:n] for i in long],
        }
        for words, parts in kinds.items():
            if parts:
                prompts = {i: i for i in ids} | dict(zip(long, parts, strict=True))
                yield Alternative(f"cut {words}", f"prompts are cut {words}", "prompt", prompts=prompts)


def penalties() -> Iterator[Alternative]:
    """Penalties on tokens of the context, though none was asked for; they show in tokens alone."""
    for nats, window, each in FEW_PENALTIES:
        words = f"{penalty(nats, window, each=each).name}, which was not asked for"
        yield Alternative(words, words, "sampling", penalty=(nats, window, each))


def temperatures() -> Iterator[Alternative]:
    """Tokens that are drawn, though temperature 0 was asked for."""
    for t in TEMPERATURES:
        words = f"temperature 0 was asked for and not honoured: tokens are drawn, most like temperature {t:g}"
        yield Alternative(f"temperature {t:g}", words, "sampling", temperature=t, fault="samp-temp0")


def other_feeds() -> Iterator[Alternative]:
    """The same tokens, fed in another way."""
    for feed in FEEDS:
        if not feed.fault.startswith("bos"):
            yield Alternative(feed.label, feed.label, "requests", feed=feed, fault=feed.fault)


def tokenizer_faults(model: Model, tokenizer: Tokenizer, texts: Sequence[ServedText]) -> Iterator[Alternative]:
    """Texts that were cut into other tokens."""
    labels = [text.label for text in texts if not text.chat and text.label]
    for fault, words, prompts in other_tokenizations(model.file, tokenizer, labels):
        if prompts:
            yield Alternative(words, words, "prompt", prompts=prompts, fault=fault)


def chat_prompts(
    tokenizer: Tokenizer, template: ChatTemplate, conversations: Sequence[Sequence[dict[str, str]]]
) -> Iterator[Alternative]:
    """Other prompts of the conversations: thinking switched on or off, another template, no header, markers as text, a
    hidden system message."""
    right = [tuple(encode_chat(tokenizer, template, messages)) for messages in conversations]

    def other(name: str, words: str, fault: str, ids: Sequence[Sequence[int]]) -> Iterator[Alternative]:
        made = {r: tuple(i) for r, i in zip(right, ids, strict=True) if tuple(i) != r}
        if len(made) == len(set(right)):
            yield Alternative(name, words, "prompt", prompts=made, fault=fault)

    for variable, values in THINKING.items():
        for value in values if variable in template.source else ():
            words = f"the template's {variable} set to {json.dumps(value)}"
            try:
                ids = [encode_chat(tokenizer, template, m, **{variable: value}) for m in conversations]
            except AssayError:
                continue
            yield from other(words, words, "", ids)
    bare = [tokenizer.encode(m[-1]["content"]) for m in conversations]
    yield from other("template none", "the bare text without a template", "tmpl-missing", bare)
    headless = [encode_chat(tokenizer, template, m, add_generation_prompt=False) for m in conversations]
    yield from other("template headless", "without the assistant's header", "tmpl-genprompt", headless)
    if tokenizer.bos is not None:
        yield from other("chat BOS twice", "BOS twice", "bos-double", [[tokenizer.bos, *r] for r in right])
        if all(r[:1] == (tokenizer.bos,) for r in right):
            yield from other("chat BOS missing", "no BOS", "bos-missing", [r[1:] for r in right])
    marks = [tokenizer.encode(template.render(m), parse_special=False) for m in conversations]
    yield from other("markers as text", "the template's markers split like text", "special-as-text", marks)
    for name in TEMPLATES:
        try:
            named = ChatTemplate.named(name, tokenizer)
            ids = [encode_chat(tokenizer, named, m) for m in conversations]
        except AssayError:
            continue
        yield from other(f"template {name}", f"the template of {name}", "tmpl-wrong-family", ids)
    yield from _systems(tokenizer, template, conversations, other)


def _systems(
    tokenizer: Tokenizer, template: ChatTemplate, conversations: Sequence[Sequence[dict[str, str]]], other: Any
) -> Iterator[Alternative]:
    without = [{"role": "system", "content": ""}]
    tried = [(f"hidden system message {text!r}", [{"role": "system", "content": text}]) for text in SYSTEMS]
    for words, front in [("an empty system message", without), *tried]:
        try:
            ids = [encode_chat(tokenizer, template, [*front, *m]) for m in conversations]
        except AssayError:
            continue
        yield from other(words, words, "", ids)


# --- the catalogue of engine faults


def engine_faults(model: Model, steps: tuple[int, ...]) -> Iterator[Alternative]:
    """The mistakes of the catalogue that apply to a model, for a text fed in these steps."""
    context = Context(model, steps)
    for fault in in_formulas():
        for variant in fault.variants:
            for p in variant.search.common if variant.search else (0.0,):
                yield from engine_fault(context, fault, variant, p)


def engine_fault(context: Context, fault: Fault, variant: Variant, p: float) -> Iterator[Alternative]:
    """One mistake of the catalogue, if it applies."""
    made = planted(context, variant, p)
    if made.touched:
        words = variant.text(p)
        setting = Setting(graph=made.graph) if not made.functions else CLAIM
        edit = (variant, p) if made.functions else None
        yield Alternative(
            f"{fault.id}: {words}", words, "engine", setting, edit=edit, fault=fault.id, number=(variant, p)
        )


def in_formulas() -> Iterator[Fault]:
    """The faults that a server's answers can show at the cost of a run each."""
    layouts = (Stage.LAYOUT, Stage.HEAD)
    return (f for f in FAULTS.values() if FaultKind.WEIGHTS not in f.kinds or f.stage in layouts)
