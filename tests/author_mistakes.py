"""Mistakes that authors of engines make, planted in the second engines: in a Llama with a cache, and in other families.

Like the engines themselves this shares no code with assay. A mistake is a name and a branch where a programmer would
make it. `LLAMA` and `FAMILIES` give the answers that describe it: ids of faults with a pattern of their words.
"""

from __future__ import annotations

import numpy as np

from tests.second_engine import Engine, f32
from tests.second_families import Family, sigmoid, soft

Answers = dict[str, str]  # id of a fault -> a pattern that its words must have

# Of the Llama: mistakes and what describes them.
LLAMA: dict[str, Answers] = {
    "norm: sum without the last element": {"sum-short": "the last of its n values"},
    "norm: sum of the first half": {"sum-short": "part 2 of 2", "wgsl-barrier": "32 of 64"},
    "norm: one of four warps is lost": {"sum-short": "part 3 of 4"},
    "ffn norm without its weight": {"norm-no-weight": "ffn_norm alone"},
    "attention norm subtracts the mean": {"norm-layernorm": "attn_norm alone"},
    "mask hides the end id": {"keys-hidden": "keys of token 2"},
    "mask hides the first key": {"keys-hidden": "position 0|first"},
    "mask hides two keys on the left": {"keys-hidden": "first 2 keys"},
    "mask of whole tiles": {"keys-hidden": "n % 4"},
    "heads not transposed": {"axes-untransposed": "heads' results"},
    "queries viewed without a transpose": {"axes-untransposed": "queries"},
    "values viewed without a transpose": {"axes-untransposed": "values"},
    "decode: q one position ahead": {"pos-off-by-one-decode": "Qcur alone", "index-off": "Qcur.*decode"},
    "decode: k one position behind": {"pos-off-by-one-decode": "Kcur alone", "index-off": "Kcur.*decode"},
    "decode: no scale": {"path-split": "scale-missing"},
    "prompt: no rotation": {"path-split": "rope-missing", "pos-all-same": "of a step at its first"},
    "prompt: groups modulo": {"path-split": "gqa-modulo"},
    "decode rows not stored": {"kv-seqpos-units": "later steps find zeros", "index-off": "position 6 are lost"},
    "layers share one cache": {"cache-layer": "those of the last layer"},
    "cache of the layer before": {"cache-layer": "those of the layer before"},
    "softmax sum without the own key": {"sum-short": "softmax leaves out the last key"},
    "values without the first key": {"sum-short": "values leaves out the first key"},
    "dot product without the last quarter": {"sum-short": "part 4 of 4"},
    "half of down's columns": {"rows-unwritten": "(only part 1|part 2) of 2"},
    "silu of the product": {"ffn-silu-on-up": "silu\\(gate \\* up\\)"},
    "k heads by h // n_kv": {"gqa-modulo": "h // n_kv"},
    "residual twice": {"step-count": "twice", "res-multiplier": "2"},
    "attention subtracted": {"step-count": "-"},
    "q and output matrices exchanged": {"operand-other": "have each other's matrices"},
    "q rotated the other way": {"rope-type": "Qcur alone"},
    "k pairs of halves": {"rope-type": "Kcur alone"},
    "decode: ffn norm skipped": {"step-count": "ffn_norm is left out.*decode", "path-split": "."},
}


class Llama(Engine):
    """The second engine with one of these mistakes."""

    def __init__(self, path, mistake="", **options):
        super().__init__(path, **options)
        self.mistake, self.kept = mistake, {}

    def norm(self, x, name):
        m = self.mistake
        n = x.shape[-1]
        cut = {
            "norm: sum without the last element": slice(-1, None),
            "norm: sum of the first half": slice(n // 2, None),
            "norm: one of four warps is lost": slice(n // 2, 3 * n // 4),
        }.get(m)
        if m == "decode: ffn norm skipped" and "ffn_norm" in name and self.decoding:
            return x
        if cut is None:
            y = super().norm(x - x.mean(-1, keepdims=True), name) if self.centred(name) else super().norm(x, name)
            return y / self.weight(name) if m == "ffn norm without its weight" and "ffn_norm" in name else y
        total = (x * x).sum(-1, keepdims=True, dtype=f32) - (x[..., cut] ** 2).sum(-1, keepdims=True, dtype=f32)
        return x / np.sqrt(total / x.shape[-1] + self.eps) * self.weight(name).astype(f32)

    def centred(self, name):
        return self.mistake == "attention norm subtracts the mean" and "attn_norm" in name

    def step(self, tokens, start, prompt):
        self.decoding, self.ids = start > 0, tokens if start == 0 else np.concatenate([self.ids, tokens])
        super().step(tokens, start, prompt)

    def matrix(self, name):
        if self.mistake == "q and output matrices exchanged":
            pairs = {"attn_q": "attn_output", "attn_output": "attn_q"}
            for a, b in pairs.items():
                if f".{a}." in name:
                    return super().matrix(name.replace(a, b))
        return super().matrix(name)

    def matvec(self, name, x, decode=False):
        if self.mistake == "half of down's columns" and "ffn_down" in name:
            x = x.copy()
            x[:, x.shape[1] // 2 :] = 0
        return super().matvec(name, x, decode)

    def rotate(self, x, positions, which):
        m, positions = self.mistake, np.asarray(positions)
        if m == "prompt: no rotation" and not self.decoding:
            return x
        if m == "decode: q one position ahead" and which == "q" and self.decoding:
            positions = positions + 1
        if m == "decode: k one position behind" and which == "k" and self.decoding:
            positions = positions - 1
        if m == "q rotated the other way" and which == "q":
            positions = -positions
        if m == "queries viewed without a transpose" and which == "q":
            x = x.reshape(x.shape[1], x.shape[0], x.shape[2]).transpose(1, 0, 2)
        if m == "k pairs of halves" and which == "k":
            self.bugs.add("rope-type")
            y = super().rotate(x, positions, which)
            self.bugs.discard("rope-type")
            return y
        return super().rotate(x, positions, which)

    def ffn(self, pre, sfx, m, start):
        if self.mistake != "silu of the product":
            return super().ffn(pre, sfx, m, start)
        gate, up = self.matvec(pre + "ffn_gate.weight", m), self.matvec(pre + "ffn_up.weight", m)
        up, gate = self.keep("ffn_up" + sfx, up, start), self.keep("ffn_gate" + sfx, gate, start)
        both = (gate * up).astype(np.float64)
        act = self.keep("ffn_swiglu" + sfx, (both / (1 + np.exp(-both))).astype(f32), start)
        return self.keep("ffn_out" + sfx, self.matvec(pre + "ffn_down.weight", act), start)

    def keep(self, name, value, start, heads=False):
        role, _, at = name.partition("-")
        self.kept[name] = value
        if role == "ffn_inp" and self.mistake in ("residual twice", "attention subtracted"):
            a = self.kept[f"attn_out-{at}"]
            value = value + (value - a) if self.mistake == "residual twice" else value - 2 * a
        return super().keep(name, value, start, heads)

    def attention(self, layer, q, k, k_plain, v, start, prompt):
        """Scores, mask, softmax, values: the plain way, with a mistake."""
        m, n, group = self.mistake, len(q), self.n_head // self.n_kv
        if m == "values viewed without a transpose":
            v = v.reshape(v.shape[1], v.shape[0], v.shape[2]).transpose(1, 0, 2)
        old_k, _, old_v = self.cache.get(layer, (k[:0], k[:0], v[:0]))
        keys, values = np.concatenate([old_k, k]), np.concatenate([old_v, v])
        self.cache[layer] = keys, keys, values
        if start and m == "cache of the layer before" and layer:
            other = self.cache[layer - 1]
            keys, values = np.concatenate([other[0][:start], k]), np.concatenate([other[2][:start], v])
        if start and m == "layers share one cache":  # each layer has written over the rows of the one before it
            keys, values = np.concatenate([self.shared[0], k]), np.concatenate([self.shared[1], v])
        if layer == self.n_layer - 1 and m == "layers share one cache":
            self.shared = (keys, values) if start else (k, v)
        if start and m == "decode rows not stored":
            keys, values = keys.copy(), values.copy()
            keys[prompt:start], values[prompt:start] = 0, 0
        total, past = len(keys), len(keys) - n
        of = [h // group for h in range(self.n_head)]
        if m == "k heads by h // n_kv":
            of = [min(h // self.n_kv, self.n_kv - 1) for h in range(self.n_head)]
        if m == "prompt: groups modulo" and not start:
            of = [h % self.n_kv for h in range(self.n_head)]
        used = self.hd - self.hd // 4 if m == "dot product without the last quarter" else self.hd
        kq = np.stack([q[:, h, :used] @ keys[:, of[h], :used].T for h in range(self.n_head)]).astype(f32)
        i, j = np.arange(n)[:, None] + past, np.arange(total)[None, :]
        hide = j > i
        if m == "mask hides the end id":
            hide = hide | (self.ids[None, :total] == 2)
        if m == "mask hides the first key":
            hide = hide | ((j == 0) & (i > 0))
        if m == "mask hides two keys on the left":
            hide = hide | (j < 2)
        if m == "mask of whole tiles":
            hide = hide | (j >= (i + 1) // 4 * 4)
        scale = f32(1) if start and m == "decode: no scale" else f32(1 / np.sqrt(self.hd))
        scores = np.where(hide[None], -np.inf, (kq * scale).astype(np.float64))
        with np.errstate(all="ignore"):
            e = np.exp(scores - scores.max(-1, keepdims=True))
            added = e * (j < i)[None] if m == "softmax sum without the own key" and total > 1 else e
            added = np.where(added.sum(-1, keepdims=True) > 0, added, e)
            probs = np.nan_to_num(e / added.sum(-1, keepdims=True)).astype(f32)
        mixed = probs.copy()
        if m == "values without the first key":
            mixed[:, :, 0] *= (np.arange(n) + past == 0)[None]
        kqv = np.stack([mixed[h] @ values[:, of[h]] for h in range(self.n_head)]).astype(f32)
        sfx = f"-{layer}"
        self.keep("kq" + sfx, kq, start, True), self.keep("kq_soft_max" + sfx, probs, start, True)
        self.parts[-1]["kqv" + sfx] = kqv
        whole = self.trace.setdefault("kqv" + sfx, np.zeros((self.n_head, self.total, self.hd), f32))
        whole[:, start : start + n] = kqv
        if m == "heads not transposed":
            return kqv.reshape(n, -1)
        return kqv.transpose(1, 0, 2).reshape(n, -1)


# Of other families: (case of tests/models/others.py, mistake) and what describes it.
FAMILIES: dict[tuple[str, str], Answers] = {
    ("gemma2", "post norm of the sum, feed-forward"): {"norm-position": "ffn_post_norm"},
    ("gemma2", "post norm of the sum, attention"): {"norm-position": "attn_post_norm"},
    ("gemma2", "embedding scaled twice"): {"step-count": "twice", "embd-scale-missing": "."},
    ("gpt-oss", "down bias by slot"): {"index-off": "ffn_moe_down_biased.*slot"},
    ("gpt-oss", "up bias by slot"): {"index-off": "ffn_moe_up_biased.*slot"},
    ("qwen3moe", "experts by slot"): {"index-off": "experts' tensors.*slot"},
    ("qwen3moe", "weights by slot"): {"index-off": "weights.*slot"},
    ("qwen3moe", "experts of the first token"): {"index-off": "first token"},
    ("qwen3moe", "last expert not added"): {"sum-short": "last of the chosen"},
    ("qwen3moe", "one expert too few"): {"sum-short": "one expert too few"},
    ("qwen3moe", "gate and up exchanged"): {"operand-other": "each other's", "ffn-silu-on-up": "silu.up"},
    ("qwen3moe", "weights transposed"): {"axes-untransposed": "weights"},
    ("qwen3", "k not normed"): {
        "qknorm-missing": "Kcur_normed alone",
        "step-count": "Kcur_normed",
        "operand-other": "Kcur_proj in place of Kcur_normed",
    },
    ("qwen2", "q bias subtracted"): {"step-count": "subtracts its bias"},
    ("qwen2", "bias twice"): {"step-count": "twice"},
    ("qwen2", "v without its bias"): {
        "qkv-bias-missing": "Vcur alone",
        "step-count": "Vcur",
        "gguf-missing-tensor": "all zeros",
    },
    ("granite", "feed-forward not scaled"): {
        "res-multiplier": "ffn_out_scaled",
        "step-count": "ffn_out_scaled",
        "operand-other": "ffn_out in place of ffn_out_scaled",
    },
    ("granitemoe", "shared expert twice"): {"step-count": "twice"},
    ("deepseek2", "k_pe not rotated"): {"rope-missing": "k_pe alone", "step-count": "k_pe", "index-off": "k_pe"},
    ("deepseek2", "routed scale twice"): {"step-count": "twice"},
    ("glm4", "heads not transposed"): {"axes-untransposed": "heads' results"},
    ("phi3", "norm: sum of the first half"): {"sum-short": "part 2 of 2"},
    ("smollm3", "k rotated in every layer"): {"rope-nope-layer": "Kcur_proj is rotated in the layers"},
    ("smollm3", "q rotated in every layer"): {"rope-nope-layer": "Qcur_proj is rotated in the layers"},
    ("qwen3moe", "nothing is sorted"): {"index-off": "the chosen experts are the first ones by index"},
    ("gpt-oss", "ranks from one"): {"index-off": "the chosen experts are those after the best"},
    ("qwen3moe", "ids of a partial sort"): {"index-off": "the experts are in reverse order"},
    ("qwen3moe", "ids of a loop over slots"): {"index-off": "replaces the smallest of k slots"},
    ("qwen3", "k normed over all heads"): {"norm-statistic": "Kcur_normed takes the whole", "qknorm-across-heads": "."},
    ("qwen3", "every head by the first head's root"): {"norm-statistic": "by the root of the first head"},
    ("qwen2", "k and v biases exchanged"): {"operand-other": "have each other's vectors"},
    ("qwen2", "k bias one value too far"): {"index-off": "vector of Kcur_biased is read one value too far on"},
    ("qwen2", "q bias one head early"): {"index-off": "vector of Qcur_biased is read one head too early"},
    ("gemma2", "logits not multiplied by the cap"): {"head-softcap": "not multiplied"},
    ("glm4moe", "the last values rotated"): {"rope-partial": "the last values"},
    ("glm4moe", "value i paired with the other half"): {"rope-partial": "other half"},
    ("smollm3", "mask hides the first key"): {"keys-hidden": "position 0|first"},
}  # fmt: skip


SLIPS = (  # mistakes inside the mixture of experts
    "down bias by slot", "up bias by slot", "experts by slot", "weights by slot", "experts of the first token",
    "last expert not added", "one expert too few", "gate and up exchanged", "weights transposed",
    "ids of a partial sort", "ids of a loop over slots", "experts by index, weights too",
    "nothing is sorted", "ranks from one",
)  # fmt: skip


class Relative(Family):
    """The second engine's families with one of these mistakes."""

    def __init__(self, path, mistake="", arithmetic="f32"):
        super().__init__(path, (), arithmetic)
        self.mistake = mistake

    def norm(self, x, name, eps=None):
        if self.mistake == "norm: sum of the first half":
            total = (x[..., : x.shape[-1] // 2] ** 2).sum(-1, keepdims=True)
            return (x / np.sqrt(total / x.shape[-1] + f32(eps or self.eps)) * self.w(name)).astype(f32)
        return super().norm(x, name, eps)

    def turns(self, i):
        return super().turns(i) or self.mistake in ("k rotated in every layer", "q rotated in every layer")

    def by_head(self, x, name):
        if self.mistake == "k normed over all heads" and "_k_norm" in name:
            return (x / np.sqrt((x * x).mean((1, 2), keepdims=True) + f32(self.eps)) * self.w(name)).astype(f32)
        if self.mistake == "every head by the first head's root":
            root = np.sqrt((x * x).mean(-1, keepdims=True) + f32(self.eps))
            return (x / root[:, :1] * self.w(name)).astype(f32)
        return x if self.mistake == "k not normed" and "_k_norm" in name else super().by_head(x, name)

    def angles(self, positions, layer):
        self.at = layer
        return super().angles(positions, layer)

    def rotate(self, x, angles, first=0):
        m, n = self.mistake, self.turned
        if m == "k_pe not rotated" and x.shape[1] == 1:
            return x
        if m.endswith(" rotated in every layer") and not super().turns(self.at):
            return super().rotate(x, angles, first) if (x.shape[1] == self.heads) == m.startswith("q") else x
        if m == "the last values rotated":
            return super().rotate(x, angles, x.shape[-1] - n)
        if m == "value i paired with the other half":
            cos, sin, _ = angles
            out, half, far = x.copy(), n // 2, x.shape[-1] // 2
            a, b = x[..., :half], x[..., far : far + half]
            out[..., :half] = a * cos[:, None] - b * sin[:, None]
            out[..., far : far + half] = a * sin[:, None] + b * cos[:, None]
            return out.astype(f32)
        return super().rotate(x, angles, first)

    def put(self, name, x, layer=None):
        m, pre = self.mistake, f"blk.{layer}."
        if (m, name) == ("embedding scaled twice", "inp_scaled"):
            x = x * f32(np.sqrt(self.e))
        if (m, name) == ("logits not multiplied by the cap", "result_output"):
            x = x / f32(self.get("final_logit_softcapping", 30.0))
        if m == "k and v biases exchanged" and name in ("Kcur_biased", "Vcur"):
            own, other = (self.w(f"{pre}attn_{c}.bias") for c in (name[0].lower(), "kv"[name[0] == "K"]))
            x = x - own + other
        for words, role, step in (
            ("k bias one value too far", "Kcur_biased", -1),
            ("q bias one head early", "Qcur_biased", self.width),
        ):
            if (m, name) == (words, role):
                own = self.w(f"{pre}attn_{name[0].lower()}.bias")
                x = x - own + np.roll(own, step)
        if (m, name) == ("q bias subtracted", "Qcur_biased"):
            x = x - 2 * self.w(pre + "attn_q.bias")
        if m == "bias twice" and name in ("Qcur_biased", "Kcur_biased", "Vcur"):
            x = x + self.w(f"{pre}attn_{name[0].lower()}.bias")
        if (m, name) == ("v without its bias", "Vcur"):
            x = x - self.w(pre + "attn_v.bias")
        if (m, name) == ("feed-forward not scaled", "ffn_out_scaled"):
            x = x / f32(self.get("residual_scale"))
        if (m, name) == ("shared expert twice", "ffn_out"):
            x = x + self.trace[f"ffn_shexp-{layer}"]
        if (m, name) == ("routed scale twice", "ffn_moe_weights_scaled"):
            x = x * f32(self.get("expert_weights_scale"))
        late = {
            "post norm of the sum, feed-forward": ("ffn_post_norm", "l_out", "post_ffw_norm"),
            "post norm of the sum, attention": ("attn_post_norm", "sa_out", "post_attention_norm"),
        }.get(m, ("", "", ""))
        if name and name == late[0]:
            return x  # the norm comes after the sum, so nothing is printed here
        if name and name == late[1]:
            x = self.norm(x, f"{pre}{late[2]}.weight")
        return super().put(name, x, layer)

    def after(self, x, name):
        if self.mistake == "post norm of the sum, feed-forward" and "ffw" in name:
            return x
        if self.mistake == "post norm of the sum, attention" and "attention" in name:
            return x
        return super().after(x, name)

    def mix(self, i, q, k, v, scale, window, positions):
        if self.mistake == "mask hides the first key":
            return self.masked(i, q, k, v, scale, np.asarray(positions))
        mixed = super().mix(i, q, k, v, scale, window, positions)
        if self.mistake == "heads not transposed":
            t, heads, width = mixed.shape
            return mixed.transpose(1, 0, 2).reshape(t, heads, width)
        return mixed

    def masked(self, i, q, k, v, scale, at):
        share = q.shape[1] // k.shape[1]
        hide = (at[None, :] > at[:, None]) | ((at[None, :] == 0) & (at[:, None] > 0))
        scores = np.stack([q[:, h] @ k[:, h // share].T for h in range(q.shape[1])])
        weights = soft(np.where(hide, f32(-np.inf), scores * f32(scale)))
        self.put("kq", scores, i), self.put("kq_soft_max", weights, i)
        mixed = np.stack([weights[h] @ v[:, h // share] for h in range(q.shape[1])])
        return self.put("kqv", mixed, i).transpose(1, 0, 2)

    def experts(self, i, m):
        """The plain mixture of experts, with a mistake in an index or a sum; others as they are."""
        if self.mistake not in SLIPS:
            return super().experts(i, m)
        slip, pre, t, oss = self.mistake, f"blk.{i}.", len(m), self.arch == "gpt-oss"
        used = self.get("expert_used_count")
        logits = self.put("ffn_moe_logits", m @ self.w(pre + "ffn_gate_inp.weight").T, i)
        probs = self.put("ffn_moe_probs", logits + self.w(pre + "ffn_gate_inp.bias") if oss else soft(logits), i)
        top = np.argsort(-probs, -1, kind="stable")[:, :used]
        if slip == "nothing is sorted":
            top = np.tile(np.arange(used), (t, 1))
        if slip == "ranks from one":
            top = np.argsort(-probs, -1, kind="stable")[:, 1 : used + 1]
        listed = top
        if slip == "ids of a partial sort":
            listed = np.argpartition(probs, -used, -1)[:, -used:]
        if slip == "ids of a loop over slots":
            listed = np.tile(np.arange(used), (t, 1))
            for token, row in enumerate(probs):
                for e in range(used, len(row)):
                    least = np.argmin(row[listed[token]])
                    if row[e] > row[listed[token, least]]:
                        listed[token, least] = e
        if slip == "experts by index, weights too":
            listed = top = np.sort(top, -1)
        self.trace[f"ffn_moe_topk-{i}"] = listed
        slots = np.broadcast_to(np.arange(used), top.shape)
        weights = np.take_along_axis(probs, slots if slip == "weights by slot" else top, -1)
        if slip == "one expert too few":
            weights[:, -1] = 0
        weights = self.put("ffn_moe_weights", weights, i)
        if oss:
            weights = self.put("ffn_moe_weights_softmax", soft(weights), i)
        else:
            total = self.put("ffn_moe_weights_sum", weights.sum(-1, keepdims=True), i)
            weights = self.put("ffn_moe_weights_norm", weights / total, i)
        read = {"experts by slot": slots, "experts of the first token": np.broadcast_to(top[:1], top.shape)}.get(
            slip, listed
        )
        by = weights.reshape(used, t).T if slip == "weights transposed" else weights
        names = ("gate", "up") if slip == "gate and up exchanged" else ("up", "gate")
        up_w, gate_w, down_w = (self.w(f"{pre}ffn_{c}_exps.weight") for c in (*names, "down"))
        parts, out = {"up": [], "gate": [], "act": [], "down": []}, np.zeros_like(m)
        for token in range(t):
            for j, expert in enumerate(read[token]):
                up, gate = up_w[expert] @ m[token], gate_w[expert] @ m[token]
                if oss:
                    up = up + self.w(pre + "ffn_up_exps.bias")[j if slip == "up bias by slot" else expert]
                    gate = gate + self.w(pre + "ffn_gate_exps.bias")[expert]
                    g, u = np.minimum(gate, 7), np.clip(up, -7, 7)
                    act = g * sigmoid(f32(1.702) * g) * (u + 1)
                else:
                    act = gate * sigmoid(gate) * up
                down = down_w[expert] @ act
                if oss:
                    down = down + self.w(pre + "ffn_down_exps.bias")[j if slip == "down bias by slot" else expert]
                for name, value in zip(parts, (up, gate, act, down), strict=True):
                    parts[name].append(value)
                if not (slip == "last expert not added" and j == used - 1):
                    out[token] += down * by[token, j]
        shown = ("up_biased", "gate_biased", "swiglu_oai", "down_biased") if oss else ("up", "gate", "swiglu", "down")
        for name, rows in zip(shown, parts.values(), strict=True):
            self.put(f"ffn_moe_{name}", np.array(rows).reshape(t, used, -1), i)
        return self.put("ffn_moe_out", out, i)
