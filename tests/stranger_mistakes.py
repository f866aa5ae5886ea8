"""Mistakes that strangers planted in engines of their own, and their neighbours, in the second engine.

Slots of the cache, tensors of another layer, scaled logits, statistics of norms, rows that nobody writes, the order of
heads, angles of few bits. Like the engine itself this shares no code with assay. `MISTAKES` gives for each mistake the
answers that describe it: ids of faults with a pattern of their words.
"""

from __future__ import annotations

import numpy as np

from tests.second_engine import Engine, bf16, f32

Answers = dict[str, str]


def half(x):
    return x.astype(np.float16).astype(f32)


MISTAKES: dict[str, Answers] = {
    # rows of the cache
    "v slot -1 in decode": {"kv-seqpos-units": "."},
    "k slot -1 in decode": {"kv-seqpos-units": "."},
    "kv slot -1 in decode": {"kv-seqpos-units": "."},
    "v slot +1 in decode": {"kv-seqpos-units": ".", "index-off": "values"},
    "k slot +1 in decode": {"kv-seqpos-units": ".", "index-off": "keys"},
    "kv slot +1 in decode": {"kv-seqpos-units": ".", "index-off": "keys and values"},
    "v slot +1 in all": {"index-off": "values"},
    "k slot +1 in all": {"index-off": "keys"},
    "v slot -1 in all": {"index-off": "values"},
    "k slot -1 in all": {"index-off": "keys"},
    "v slot +1 in prompt": {"index-off": "values"},
    "v slot -1 in prompt": {"index-off": "values"},
    "v at one slot in decode": {"index-off": "values is written to the first slot after"},
    "k at one slot in decode": {"index-off": "keys is written to the first slot after"},
    "kv at slot 0 in decode": {"index-off": "keys and values is written to slot 0"},
    "kv two slots apart in decode": {"index-off": "keys and values are written two slots apart"},
    "k strided by tokens": {"index-off": "cache of keys is .heads, tokens, width. with the tokens so far"},
    "v strided by tokens, transposed": {
        "index-off": "cache of values is .heads, width, tokens. with the tokens so far"
    },
    "v strided by the prompt, transposed": {"index-off": "cache of values is .heads, width, tokens. with the prompt's"},
    "k strided by the prompt": {"index-off": "cache of keys is .heads, tokens, width. with the prompt's"},
    # ids and positions
    "decode fed the token before": {"token-other": "token of the step before"},
    "first row by the second id": {"token-other": "position 0"},
    "first row by the end id": {"token-other": "position 0"},
    "decode one late": {"pos-off-by-one-decode": "."},
    "decode one early": {"pos-off-by-one-decode": "."},
    # rotations
    "rope with two plus signs": {"rope-type": "a cos . b sin, a sin . b cos"},
    "rope with cosine and sine exchanged": {"rope-type": "cosine and sine exchanged"},
    "rope of the first heads of q": {"index-off": "heads from 4 on of Qcur are not rotated"},
    "prompt's keys stored unrotated": {"kv-pre-rope": "the prompt's keys unrotated"},
    # buffers
    "values not cleared between heads": {"buffer-not-cleared": "between heads"},
    "v reads the norm of the layer before": {"operand-other": "Vcur reads attn_norm of the layer before"},
    # tensors of another layer
    "layer 3 ffn_norm of 2": {"norm-name-swap": "."},
    "layer 1 attn_norm of 4": {"norm-name-swap": "."},
    "layer 3 attn_q of 2": {"operand-other": ".", "layer-weights": "."},
    "layer 1 ffn_down of 4": {"operand-other": ".", "layer-weights": "."},
    "layer 2 attn_output of 0": {"operand-other": ".", "layer-weights": "."},
    "layer 0 attn_v of 4": {"operand-other": ".", "layer-weights": "."},
    "ffn_norm of layer 0 in every layer": {"norm-name-swap": "ffn_norm takes the weight of layer 0 in every"},
    "attn_v of layer 4 in every layer": {"operand-other": "Vcur takes the matrix of layer 4 in every"},
    # logits
    "logits * 12": {"head-logit-scale": "12"},
    "logits / sqrt d": {"head-logit-scale": "."},
    "logits * sqrt d": {"embd-scale-in-tied-table": ".", "head-logit-scale": "."},
    # statistics
    "n - 1": {"norm-statistic": "n - 1"},
    "eps outside": {"eps-place": "."},
    # rows that nobody writes
    "ffn_up last 3 rows zero": {"rows-unwritten": "."},
    "ffn_down last 5 rows zero": {"rows-unwritten": "."},
    "every product last rows % 7": {"rows-unwritten": "."},
    "head 3 zero": {"head-one-wrong": "."},
    "attn_output last 4 rows stale": {"buffer-not-cleared": "last 4 rows|part|rows %"},
    # heads
    "heads 1 and 2 swapped": {"index-off": "heads 1 and 2 of the results"},
    "q heads 3 and 6 swapped": {"index-off": "heads 3 and 6 of the queries"},
    "kv heads 0 and 2 swapped": {"index-off": "heads 0 and 2 of the keys and values"},
    "groups interleaved": {"gqa-modulo": "."},
    "heads written by group": {"o-proj-head-order": ".", "index-off": "."},
    "layer 2 reads the cache of layer 1": {"cache-layer": "."},
    "layers 3 and 4 share keys": {"cache-layer": "."},
    # angles
    "frequencies in bf16": {"rope-angle-half": "frequencies.*bfloat16"},
    "frequencies in f16": {"rope-angle-half": "frequencies.*half"},
    "cosines in f16": {"rope-angle-half": "cos.*half"},
    "cosines in bf16": {"rope-angle-half": "cos.*bfloat16"},
    "angles in f16": {"rope-angle-half": "angles.*half"},
    "angles in bf16": {"rope-angle-half": "angles.*bfloat16"},
}

# Of a decode step's number and the prompt's length: the slot that its row is written to.
SLOTS = {
    "at one slot in decode": lambda i, n: n,
    "at slot 0 in decode": lambda i, n: 0,
    "two slots apart in decode": lambda i, n: n + 2 * i,
}

FINE_TUNED = "weights of a fine-tune"  # none of the mistakes: every weight is off by a little


class Strange(Engine):
    """The second engine with one of these mistakes."""

    def __init__(self, path, mistake="", **options):
        super().__init__(path, **options)
        self.mistake, self.slots, self.tuned, self.plain = mistake, {}, {}, {}
        if mistake == "eps outside":
            self.bugs.add("eps-place")

    # -- tensors ---------------------------------------------------------------------------------------------------

    def weight(self, name):
        words = self.mistake.split()
        if words[4:] == ["in", "every", "layer"] and f".{words[0]}." in name:
            name = f"blk.{words[3]}." + name.split(".", 2)[2]
        if words[0] == "layer" and words[3:4] == ["of"]:
            at, what, other = words[1], words[2], words[4]
            if name.startswith(f"blk.{at}.{what}."):
                name = name.replace(f"blk.{at}.", f"blk.{other}.")
        if self.mistake != FINE_TUNED:
            return super().weight(name)
        if name not in self.tuned:
            noise = np.random.default_rng(len(self.tuned)).standard_normal(super().weight(name).shape, f32)
            self.tuned[name] = super().weight(name) * (1 + f32(2e-3) * noise)
        return self.tuned[name]

    def matvec(self, name, x, decode=False):
        if (
            self.mistake == "v reads the norm of the layer before"
            and ".attn_v." in name
            and not name.startswith("blk.0.")
        ):
            x = self.parts[-1][f"attn_norm-{int(name.split('.')[1]) - 1}"]
        y = super().matvec(name, x, decode)
        words = self.mistake.split()
        if words[1:] and words[1] == "last":
            what, rows = words[0], int(words[2])
            if f".{what}." in name and words[4] == "zero":
                y[:, len(y[0]) - rows :] = 0
        if words[4:] == ["stale"] and f".{words[0]}." in name:
            if not name.startswith("blk.0."):
                y[:, len(y[0]) - int(words[2]) :] = self.left[:, len(y[0]) - int(words[2]) :]
            self.left = y.copy()
        if self.mistake == "every product last rows % 7":
            y[:, y.shape[1] // 7 * 7 :] = 0
        return y

    def norm(self, x, name):
        if self.mistake == "n - 1":
            total = (x * x).sum(-1, keepdims=True, dtype=np.float64)
            return (x / np.sqrt(total / (x.shape[-1] - 1) + self.eps) * self.weight(name)).astype(f32)
        return super().norm(x, name)

    # -- ids and logits --------------------------------------------------------------------------------------------

    def step(self, tokens, start, prompt):
        tokens = np.array(tokens)
        if start == 0 and self.mistake == "first row by the second id":
            tokens[0] = tokens[1]
        if start == 0 and self.mistake == "first row by the end id":
            tokens[0] = 2
        fed = tokens
        if start and self.mistake == "decode fed the token before":
            fed = self.before
        self.before = tokens[-1:]
        super().step(fed, start, prompt)

    def keep(self, name, value, start, heads=False):
        if name == "result_output":
            d = f32(np.sqrt(self.n_embd))
            value = value * {"logits * 12": f32(12), "logits / sqrt d": 1 / d, "logits * sqrt d": d}.get(
                self.mistake, f32(1)
            )
        return super().keep(name, value, start, heads)

    # -- positions -------------------------------------------------------------------------------------------------

    def rotate(self, x, positions, which):
        step = {"decode one late": 1, "decode one early": -1}.get(self.mistake, 0)
        positions = np.asarray(positions)
        if positions[0] >= self.prompt:
            positions = positions + step
        if self.mistake.startswith("rope "):
            return self.turned(x, positions, which)
        what, _, kind = self.mistake.partition(" in ")
        if what not in ("frequencies", "cosines", "angles"):
            return super().rotate(x, positions, which)
        narrow = half if kind == "f16" else bf16
        out, n = x.astype(f32).copy(), self.n_rot // 2
        frequency = (self.base ** (-np.arange(n) / n)).astype(f32)
        if what == "frequencies":
            frequency = narrow(frequency)
        angle = positions[:, None].astype(f32) * frequency
        if what == "angles":
            angle = narrow(angle)
        c, s = np.cos(angle.astype(np.float64)).astype(f32), np.sin(angle.astype(np.float64)).astype(f32)
        if what == "cosines":
            c, s = narrow(c), narrow(s)
        for i in range(n):
            a, b = x[:, :, 2 * i], x[:, :, 2 * i + 1]
            out[:, :, 2 * i] = a * c[:, [i]] - b * s[:, [i]]
            out[:, :, 2 * i + 1] = a * s[:, [i]] + b * c[:, [i]]
        return out

    def turned(self, x, positions, which):
        m, out, n = self.mistake, x.astype(f32).copy(), self.n_rot // 2
        angle = np.asarray(positions)[:, None] * self.base ** (-np.arange(n) / n)
        c, s = np.cos(angle).astype(f32), np.sin(angle).astype(f32)
        if "exchanged" in m:
            c, s = s, c
        for i in range(n):
            a, b = x[:, :, 2 * i], x[:, :, 2 * i + 1]
            sign = 1 if "two plus signs" in m else -1
            out[:, :, 2 * i] = a * c[:, [i]] + sign * b * s[:, [i]]
            out[:, :, 2 * i + 1] = a * s[:, [i]] + b * c[:, [i]]
        if "first heads" in m and which == "q":
            out[:, self.n_kv :] = x[:, self.n_kv :]
        return out

    # -- attention -------------------------------------------------------------------------------------------------

    def stored_rows(self, layer, what, rows, start):
        """The cache of a layer as it is read: rows written in slots that the mistake moves."""
        m = self.mistake
        words = m.split()
        if words[1:2] == ["strided"] and words[0] == what:
            return self.strided(layer, rows, start, m.endswith("transposed"))
        if (m.partition(" ")[2] in SLOTS) and what in words[0]:
            return self.placed(layer, what, rows, start, SLOTS[m.partition(" ")[2]])
        step = int(words[2]) if words[1:2] == ["slot"] and what in words[0] else 0
        where = words[-1] if step else ""
        moved = step if where == "all" or where == ("decode" if start else "prompt") else 0
        table = self.slots.setdefault((layer, what), np.zeros((self.total + 2, *rows.shape[1:]), f32))
        for i, row in enumerate(rows):
            if start + i + moved >= 0:
                table[start + i + moved] = row
        shared = m == "layer 2 reads the cache of layer 1" and layer == 2
        if shared or (m == "layers 3 and 4 share keys" and layer == 4 and what == "k"):
            mixed = self.slots[layer - 1, what].copy()
            mixed[start : start + len(rows)] = rows
            return mixed[: start + len(rows)]
        return table[: start + len(rows)]

    def placed(self, layer, what, rows, start, slot):
        """The cache of a layer; a row of a decode step is written to the slot of its number."""
        table = self.slots.setdefault((layer, what), np.zeros((2 * self.total, *rows.shape[1:]), f32))
        for i, row in enumerate(rows):
            at = start + i if not start else slot(start + i - self.prompt, self.prompt)
            if at is not None:
                table[at] = row
        return table[: start + len(rows)]

    def strided(self, layer, rows, start, transposed):
        """A flat buffer that is addressed with the number of tokens so far."""
        heads, width, n = rows.shape[1], rows.shape[2], start + len(rows)
        stride = self.prompt if "by the prompt" in self.mistake else n
        flat = self.slots.setdefault(layer, np.zeros((heads + 1) * width * self.total, f32))
        found = np.zeros((n, heads, width), f32)
        for write in (True, False):
            for t in range(start if write else 0, n):
                for h in range(heads):
                    for i in range(width):
                        place = (h * width + i) * stride + t if transposed else (h * stride + t) * width + i
                        if write:
                            flat[place] = rows[t - start, h, i]
                        else:
                            found[t, h, i] = flat[place]
        return found

    def run(self, tokens, steps=None, hf=False):
        self.slots = {}
        return super().run(tokens, steps, hf)

    def attention(self, layer, q, k, k_plain, v, start, prompt):
        m, n, group = self.mistake, len(q), self.n_head // self.n_kv
        keys, values = self.stored_rows(layer, "k", k, start).copy(), self.stored_rows(layer, "v", v, start).copy()
        if m == "prompt's keys stored unrotated":
            if start == 0:
                self.plain[layer] = k_plain
            else:
                keys[: self.prompt] = self.plain[layer]
        order, of = np.arange(self.n_head), np.arange(self.n_head) // group
        if m == "heads 1 and 2 swapped":
            order[[1, 2]] = 2, 1
        if m == "heads written by group":
            order = order.reshape(self.n_kv, group).T.reshape(-1)
        if m == "q heads 3 and 6 swapped":
            q = q.copy()
            q[:, [3, 6]] = q[:, [6, 3]]
        if m == "kv heads 0 and 2 swapped":
            of = np.array([2, 1, 0, *range(3, self.n_kv)])[of]
        if m == "groups interleaved":
            of = np.arange(self.n_head) % self.n_kv
        kq = np.stack([q[:, h] @ keys[:, of[h]].T for h in range(self.n_head)]).astype(f32)
        i, j = np.arange(n)[:, None] + start, np.arange(len(keys))[None, :]
        scores = np.where((j > i)[None], -np.inf, (kq * f32(1 / np.sqrt(self.hd))).astype(np.float64))
        e = np.exp(scores - scores.max(-1, keepdims=True))
        probs = (e / e.sum(-1, keepdims=True)).astype(f32)
        kqv = np.stack([probs[h] @ values[:, of[h]] for h in range(self.n_head)]).astype(f32)
        if m == "head 3 zero":
            kqv[3] = 0
        if m == "values not cleared between heads":
            kqv = np.cumsum(kqv, axis=0)
        kqv = kqv[order]
        sfx = f"-{layer}"
        self.keep("kq" + sfx, kq, start, True), self.keep("kq_soft_max" + sfx, probs, start, True)
        self.parts[-1]["kqv" + sfx] = kqv
        whole = self.trace.setdefault("kqv" + sfx, np.zeros((self.n_head, self.total, self.hd), f32))
        whole[:, start : start + n] = kqv
        return kqv.transpose(1, 0, 2).reshape(n, -1)
