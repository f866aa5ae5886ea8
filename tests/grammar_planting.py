"""Mistakes that no catalogue lists, drawn at random and planted in the second engine.

A mistake is a kind (another operand, another index, a layer left out or run twice, another token), a place and, for
mistakes of a layer, the layers that have it. The engine is `second_engine.Engine`, which shares no code with assay; so
does this module. `Drawn.words` says what was planted, `Drawn.accepts` which answers describe it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np

from tests.loop_mistakes import LOOPS, Loops, answers
from tests.second_engine import Engine

ROLES = {  # node that a matrix computes
    "attn_q": "Qcur_proj", "attn_k": "Kcur_proj", "attn_v": "Vcur", "attn_output": "attn_out",
    "ffn_gate": "ffn_gate", "ffn_up": "ffn_up", "ffn_down": "ffn_out",
}  # fmt: skip
NORMS = ("attn_norm", "ffn_norm")
ONE_LAYER = 0.4  # share of the mistakes that are in one layer alone


@dataclass
class Drawn:
    """A mistake: what the engine does, in words and as data."""

    words: str = ""
    accepts: tuple[tuple[str, str], ...] = ()  # id of a fault and a pattern of its words
    named: dict[str, str] = field(default_factory=dict)  # tensor -> the tensor that is read in its place
    order: dict[str, object] = field(default_factory=dict)  # matrix -> a function that gives the order of its rows
    reads: dict[str, str] = field(default_factory=dict)  # tensor whose operation reads another value -> that node
    turned: dict[str, int] = field(default_factory=dict)  # q or k -> added to the position
    skipped: int | None = None
    repeated: int | None = None
    token: tuple[int, int] | None = None  # position, id
    looked_up: int = 0  # added to every id
    unturned: tuple[str, int] | None = None  # q or k, head that is not rotated
    only_first: str = ""  # of keys or values, every cached row is the first token's
    rows: tuple[str, int, bool] | None = None  # cache rows: which, from or at this position, lost or late
    shifted: int = 0  # rows of the logits
    loop: tuple[str, int] = ("", 0)  # a mistake of `loop_mistakes`


class Edited(Loops):
    """The second engine with a drawn mistake."""

    def __init__(self, path, drawn, **options):
        super().__init__(path, **options)
        self.drawn, self.written, self.loop = drawn, {}, drawn.loop

    def norm(self, x, name):
        return super().norm(self.given(name, x), self.drawn.named.get(name, name))

    def matrix(self, name):
        w = super().matrix(self.drawn.named.get(name, name))
        order = self.drawn.order.get(name)
        return w if order is None else w[order(len(w))]

    def matvec(self, name, x, decode=False):
        return super().matvec(name, self.given(name, x), decode)

    def given(self, name, x):
        other = self.drawn.reads.get(name)
        return x if other is None else self.parts[-1][other]

    def rotate(self, x, positions, which):
        y = super().rotate(x, np.asarray(positions) + self.drawn.turned.get(which, 0), which)
        if self.drawn.unturned is not None and self.drawn.unturned[0] == which:
            head = self.drawn.unturned[1]
            y = y.copy()
            y[:, head] = x[:, head]
        return y

    def step(self, tokens, start, prompt):
        if self.drawn.token is not None:
            at, other = self.drawn.token
            tokens = np.where(np.arange(start, start + len(tokens)) == at, other, tokens)
        tokens = np.asarray(tokens) + self.drawn.looked_up
        super().step(tokens, start, prompt)

    def block(self, x, layer, start, prompt):
        if layer == self.drawn.skipped:
            return x
        before = self.cache.get(layer)
        x = super().block(x, layer, start, prompt)
        if layer == self.drawn.repeated:  # the second pass writes over the rows of the first
            self.cache.pop(layer)
            if before is not None:
                self.cache[layer] = before
            x = super().block(x, layer, start, prompt)
        return x

    def attention(self, layer, q, k, k_plain, v, start, prompt):
        if self.drawn.rows is not None:
            which, at, late = self.drawn.rows
            k = self.moved(layer, "k", k, start, at, late) if "keys" in which else k
            v = self.moved(layer, "v", v, start, at, late) if "values" in which else v
        if self.drawn.only_first == "keys":
            k = np.broadcast_to(self.written.setdefault((layer, "k"), k)[:1], k.shape).copy()
        elif self.drawn.only_first:
            v = np.broadcast_to(self.written.setdefault((layer, "v"), v)[:1], v.shape).copy()
        return super().attention(layer, q, k, k_plain, v, start, prompt)

    def moved(self, layer, what, rows, start, at, late):
        whole = np.concatenate([self.written.get((layer, what), rows[:0]), rows])
        self.written[layer, what] = whole
        found = whole.copy()
        if late:
            found[at + 1 :] = whole[at:-1]
        found[at : at + 1] = 0
        return found[start:]

    def keep(self, name, value, start, heads=False):
        if name == "result_output" and self.drawn.shifted:
            value = np.roll(value, self.drawn.shifted, axis=0)
        return super().keep(name, value, start, heads)


def draw(rng: np.random.Generator, engine: Engine, tokens: tuple[int, ...]) -> Drawn:
    """A mistake of a random kind in a random place."""
    while True:
        drawn = _pick(rng, KINDS)(rng, engine, tokens)
        if drawn is not None:
            return drawn


def _layers(rng, engine):
    """The layers that have it, and words for them."""
    if rng.random() < ONE_LAYER:
        at = int(rng.integers(engine.n_layer))
        return [at], f" in layer {at}"
    return list(range(engine.n_layer)), ""


def _pick(rng, values):
    return list(values)[int(rng.integers(len(list(values))))]


def _norm(rng, engine, tokens):
    layers, where = _layers(rng, engine)
    own = _pick(rng, NORMS)
    other = NORMS[1 - NORMS.index(own)]
    named = {f"blk.{i}.{own}.weight": f"blk.{i}.{other}.weight" for i in layers}
    return Drawn(
        f"{own} takes the weight of {other}{where}", (("norm-name-swap", own), ("norm-name-swap", "weight")),
        named=named,
    )  # fmt: skip


def _norms(rng, engine, tokens):
    layers, where = _layers(rng, engine)
    a, b = NORMS
    named = {f"blk.{i}.{x}.weight": f"blk.{i}.{y}.weight" for i in layers for x, y in ((a, b), (b, a))}
    return Drawn(f"the weights of {a} and {b} are exchanged{where}", (("norm-name-swap", ""),), named=named)


def _matrix(rng, engine, tokens):
    name, step = _pick(rng, ROLES), _pick(rng, (-1, 1))
    at = int(rng.integers(engine.n_layer))
    if not 0 <= at + step < engine.n_layer:
        return None
    word = "after" if step > 0 else "before"
    return Drawn(
        f"{name} of layer {at} takes the matrix of the layer {word}",
        (("operand-other", f"{ROLES[name]} takes the matrix of the layer {word}"),),
        named={f"blk.{at}.{name}.weight": f"blk.{at + step}.{name}.weight"},
    )


def _rolled(rng, engine, tokens):
    layers, where = _layers(rng, engine)
    name, step = _pick(rng, ROLES), _pick(rng, (-1, 1))
    word = "far on" if step > 0 else "early"
    return Drawn(
        f"{name} is read one row too {word}{where}", (("index-off", f"{ROLES[name]} is read one row too {word}"),),
        order={f"blk.{i}.{name}.weight": lambda n: np.roll(np.arange(n), -step) for i in layers},
    )  # fmt: skip


def _exchanged(rng, engine, tokens):
    at, name = int(rng.integers(engine.n_layer)), _pick(rng, ROLES)
    tensor = f"blk.{at}.{name}.weight"
    rows = engine.weight(tensor).shape[0]
    if rows > 256:
        return None
    i = int(rng.integers(min(rows, 10) - 1))  # ten printed values show the first rows

    def order(n):
        found = np.arange(n)
        found[[i, i + 1]] = i + 1, i
        return found

    words = f"rows {i} and {i + 1} of {tensor} are exchanged"
    return Drawn(words, (("index-off", re.escape(words)),), order={tensor: order})


def _heads(rng, engine, tokens):
    if engine.n_kv < 2:
        return None
    layers, where = _layers(rng, engine)
    what, step = _pick(rng, ("keys", "values", "keys and values")), _pick(rng, (1, -1))
    which = "next" if step > 0 else "previous"
    names = [n for n, word in (("attn_k", "keys"), ("attn_v", "values")) if word in what]
    roll = step * engine.hd
    return Drawn(
        f"query heads use the {what} of the {which} group{where}",
        (("index-off", f"use the {what} of the {'next|previous' if engine.n_kv == 2 else which} group"),),
        order={f"blk.{i}.{n}.weight": lambda n: np.roll(np.arange(n), -roll) for i in layers for n in names},
    )


def _turned(rng, engine, tokens):
    which, step = _pick(rng, "qk"), _pick(rng, (1, -1))
    words = f"{which.upper()}cur is rotated with position {'+' if step > 0 else '-'} 1"
    return Drawn(words, (("index-off", re.escape(words)),), turned={which: step})


def _unturned(rng, engine, tokens):
    which = _pick(rng, "qk")
    head = int(rng.integers(engine.n_head if which == "q" else engine.n_kv))
    words = f"head {head} of {which.upper()}cur is not rotated"
    return Drawn(words, (("index-off", words),), unturned=(which, head))


def _only_first(rng, engine, tokens):
    what = _pick(rng, ("keys", "values"))
    words = f"every cached row of {what} is that of the first token"
    return Drawn(words, (("kv-aliased", words),), only_first=what)


def _skipped(rng, engine, tokens):
    at = int(rng.integers(engine.n_layer))
    return Drawn(f"layer {at} is left out", (("layer-skipped", ""),), skipped=at)


def _repeated(rng, engine, tokens):
    at = int(rng.integers(engine.n_layer))
    return Drawn(f"layer {at} runs twice", (("layer-repeated", f"layer {at} "),), repeated=at)


def _token(rng, engine, tokens):
    at = int(rng.integers(len(tokens)))
    other = _pick(rng, (tokens[at] + 1, tokens[at] - 1, 0, tokens[int(rng.integers(len(tokens)))]))
    if other == tokens[at]:
        return None
    return Drawn(
        f"the token at position {at} is fed as {other}", (("token-other", f"position {at} "), ("bos-missing", "")),
        token=(at, other),
    )  # fmt: skip


def _cache(rng, engine, tokens):
    what, late = _pick(rng, ("keys", "values", "keys and values")), bool(rng.integers(2))
    at = int(rng.integers(1, len(tokens) - 1))
    words = f"from position {at} on {what} are written one row further" if late else f"{what} of position {at} are lost"
    return Drawn(words, (("index-off", words),), rows=(what, at, late))


def _operand(rng, engine, tokens):
    layers, where = _layers(rng, engine)
    name, other = _pick(
        rng,
        (("ffn_gate", "ffn_inp"), ("ffn_up", "ffn_inp"), ("ffn_gate", "attn_norm"), ("ffn_up", "attn_norm"),
         ("attn_q", "l_out"), ("attn_k", "l_out"), ("attn_v", "l_out"), ("ffn_norm", "attn_out")),
    )  # fmt: skip
    if other == "l_out":
        layers = [max(layers[0], 1)] if where else layers[1:]
        where = f" in layer {layers[0]}" if where else " from layer 1 on"
    node = {f"blk.{i}.{name}.weight": f"{other}-{i - 1 if other == 'l_out' else i}" for i in layers}
    role = ROLES.get(name, name)
    return Drawn(f"{name} reads {other}{where}", (("operand-other", f"{role} reads {other}"),), reads=node)


def _loop(rng, engine, tokens):
    kind = _pick(rng, LOOPS)
    number = int(_pick(rng, LOOPS[kind][0]))
    if kind == "unmasked":
        number %= engine.n_head
    whole = kind == "whole-root" and int(np.sqrt(engine.hd)) ** 2 == engine.hd
    if whole or (kind == "groups" and engine.n_kv < 2) or (kind == "bits" and max(tokens) < 1 << number):
        return None
    found = tuple((fault, words) for fault, words in answers(kind, number).items())
    return Drawn(LOOPS[kind][1].format(number), found, loop=(kind, number))


KINDS = (
    _norm, _norms, _matrix, _rolled, _exchanged, _heads, _turned, _unturned, _only_first, _skipped, _repeated, _token,
    _cache, _operand, *[_loop] * 7,
)  # fmt: skip
