"""Mistakes in people's loops, planted in the second engine: masks by tiles, integers, statistics, frequencies, ids.

Like the engine itself this shares no code with assay. A mistake is a kind and a number. `LOOPS` gives for each kind the
numbers to draw from, what is said, and the answers that describe it: ids of faults with a pattern of their words.
"""

from __future__ import annotations

import numpy as np

from tests.second_engine import Engine, f32

Answers = dict[str, str]

# Kind: numbers, words, answers. The `{}` is the number.
LOOPS: dict[str, tuple[tuple[int, ...], str, Answers]] = {
    "tile": ((4,), "later keys of a tile of {} stay visible", {"keys-visible": "own tile of {}"}),
    "prefix": ((3, 4, 5), "the first {} keys are visible to all", {"keys-visible": "first {} keys are visible"}),
    "unmasked": ((0, 1, 2, 3), "head {} is not masked", {"keys-visible": "head {} is not masked"}),
    "finite": ((1, 10), "hidden keys get the score -{}", {"keys-visible": "the score -{},"}),
    "divided": ((2, 4), "positions are divided by {} in integers", {"rounded-number": "pos // {}"}),
    "moved": ((1, 2, 3, 5), "from token {} on the position is one less", {"index-off": "from token {} on rotations"}),
    "groups": ((0,), "query heads in reverse groups", {"index-off": "in reverse order"}),
    "whole-root": ((0,), "the root of the width is a whole number", {"rounded-number": "1 / int"}),
    "exp2": ((0,), "powers of two in the softmax", {"rounded-number": "powers of 2"}),
    "end": ((0,), "frequencies with their end", {"rope-frequencies": "includes its end"}),
    "half-exponent": ((0,), "exponent i / d", {"rope-partial": "exponent over twice"}),
    "reverse": ((0,), "frequencies in reverse order", {"rope-frequencies": "in reverse order"}),
    "n-1": ((0,), "the mean square over n - 1", {"norm-statistic": "every rms_norm is divided by n - 1"}),
    "padded": ((256,), "the mean square over a row padded to {}", {"norm-statistic": "rounded up to {}"}),
    "rows": ((0,), "the mean square over all rows of the call", {"norm-statistic": "all rows of the call"}),
    "parts": ((2, 4), "a norm of {} groups", {"norm-statistic": "takes {} groups"}),
    "no-root": ((0,), "no root in the norm", {"norm-statistic": "without a root"}),
    "gelu": ((0,), "tanh-GELU without its root", {"ffn-act-family": "without the root"}),
    "bits": ((8,), "the lower {} bits of an id", {"token-other": "lower {} bits"}),
}  # fmt: skip


class Loops(Engine):
    """The second engine with one of these mistakes: its kind and number."""

    loop: tuple[str, int] = ("", 0)

    def step(self, tokens, start, prompt):
        kind, number = self.loop
        super().step(np.asarray(tokens) & ((1 << number) - 1) if kind == "bits" else tokens, start, prompt)

    def norm(self, x, name):
        kind, number = self.loop
        n, squares = x.shape[-1], (x * x).sum(-1, keepdims=True, dtype=np.float64)
        if kind == "n-1":
            squares = squares * n / (n - 1)
        elif kind == "padded":
            squares = squares * n / (-(-n // number) * number)
        elif kind == "rows":
            squares = np.full_like(squares, squares.mean())
        elif kind == "parts":
            groups = x.reshape(len(x), number, -1).astype(np.float64)
            root = np.sqrt((groups * groups).mean(-1, keepdims=True) + self.eps)
            return ((groups / root).reshape(x.shape) * self.weight(name)).astype(f32)
        elif kind == "no-root":
            return (x / (squares / n + self.eps) * self.weight(name)).astype(f32)
        else:
            return super().norm(x, name)
        return (x / np.sqrt(squares / n + self.eps) * self.weight(name)).astype(f32)

    def rotate(self, x, positions, which):
        kind, number = self.loop
        positions = np.asarray(positions)
        if kind == "divided":
            positions = positions // number
        elif kind == "moved":
            positions = positions - (positions >= number)
        elif kind in ("end", "half-exponent", "reverse"):
            out, half = x.astype(f32).copy(), self.n_rot // 2
            for i in range(half):
                last = half - 1
                exponent = {"end": i / last, "half-exponent": i / self.n_rot, "reverse": (last - i) / half}[kind]
                angle = positions[:, None] * self.base**-exponent
                c, s = np.cos(angle).astype(f32), np.sin(angle).astype(f32)
                a, b = x[:, :, 2 * i], x[:, :, 2 * i + 1]
                out[:, :, 2 * i], out[:, :, 2 * i + 1] = a * c - b * s, a * s + b * c
            return out
        return super().rotate(x, positions, which)

    def ffn(self, pre, sfx, m, start):
        if self.loop[0] != "gelu":
            return super().ffn(pre, sfx, m, start)
        gate, up = self.matvec(pre + "ffn_gate.weight", m), self.matvec(pre + "ffn_up.weight", m)
        up, gate = self.keep("ffn_up" + sfx, up, start), self.keep("ffn_gate" + sfx, gate, start)
        g = gate.astype(np.float64)
        made = 0.5 * g * (1 + np.tanh(2 / np.pi * (g + 0.044715 * g**3)))
        act = self.keep("ffn_swiglu" + sfx, (made * up).astype(f32), start)
        return self.keep("ffn_out" + sfx, self.matvec(pre + "ffn_down.weight", act), start)

    def attention(self, layer, q, k, k_plain, v, start, prompt):
        kind, number = self.loop
        if kind not in ("tile", "prefix", "unmasked", "finite", "groups", "whole-root", "exp2"):
            return super().attention(layer, q, k, k_plain, v, start, prompt)
        n, group, sfx = len(q), self.n_head // self.n_kv, f"-{layer}"
        old_k, _, old_v = self.cache.get(layer, (k[:0], k[:0], v[:0]))
        keys, values = np.concatenate([old_k, k]), np.concatenate([old_v, v])
        self.cache[layer] = keys, keys, values
        of = [self.n_kv - 1 - h // group if kind == "groups" else h // group for h in range(self.n_head)]
        kq = np.stack([q[:, h] @ keys[:, of[h]].T for h in range(self.n_head)]).astype(f32)
        i, j = np.arange(n)[:, None] + start, np.arange(len(keys))[None, :]
        hide = np.broadcast_to(j > i, kq.shape).copy()
        if kind == "tile":
            hide &= j // number > i // number
        elif kind == "prefix":
            hide &= j >= number
        elif kind == "unmasked":
            hide[number] = False
        root = int(np.sqrt(self.hd)) if kind == "whole-root" else np.sqrt(self.hd)
        scores = kq.astype(np.float64) / root
        scores = np.where(hide, -float(number) if kind == "finite" else -np.inf, scores)
        power = np.exp2 if kind == "exp2" else np.exp
        e = power(scores - scores.max(-1, keepdims=True))
        probs = (e / e.sum(-1, keepdims=True)).astype(f32)
        kqv = np.stack([probs[h] @ values[:, of[h]] for h in range(self.n_head)]).astype(f32)
        self.keep("kq" + sfx, kq, start, True), self.keep("kq_soft_max" + sfx, probs, start, True)
        self.parts[-1]["kqv" + sfx] = kqv
        whole = self.trace.setdefault("kqv" + sfx, np.zeros((self.n_head, self.total, self.hd), f32))
        whole[:, start : start + n] = kqv
        return kqv.transpose(1, 0, 2).reshape(n, -1)


def answers(kind: str, number: int) -> Answers:
    """What describes a mistake."""
    return {fault: words.format(number) for fault, words in LOOPS[kind][2].items()}
