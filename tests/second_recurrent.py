"""A second engine for models with a recurrent state: LFM2, Qwen3.5, Qwen3-Next, Mamba, Granite 4, Nemotron-H,
Falcon-H1, Kimi-Linear, Jamba, RWKV.

It shares no code with the package. It reads files with `gguf`, computes with NumPy, and walks a prompt token by token
through each recurrence. `bugs` is a set of names, each one mistake, written where a programmer would make it; after a
slash stands a variant of the same mistake.

    engine = Recurrent("qwen35.gguf", bugs={"gdn-decay-late"})
    parts = engine.run(tokens, steps=(24, 1, 1))       # a dictionary of nodes for each call, states included

Options: `real` (float32, or float64 to check the formulas), `weights` (f32, bf16, f16: the type that matrices are kept
in), `state` (f32, bf16, f16: the type that windows and states are kept in between tokens).
"""

from __future__ import annotations

import math

import numpy as np
from gguf import GGUFReader, dequantize

CHUNK = 16  # tokens of a chunk, for the mistakes of engines that cut a prompt
PADDING = 4  # rows that a padded call appends
PAD_TOKEN = 0
# Tensors that are multiplied with rows of activations: those that an engine may keep in 16 bits.
_MATRICES = """
token_embd output attn_q attn_k attn_v attn_qkv attn_gate attn_output attn_kv_a_mqa attn_k_b attn_v_b ssm_in ssm_out
ssm_x ssm_dt ssm_alpha ssm_beta ssm_ba ssm_f_a ssm_f_b ssm_g_a ssm_g_b in_proj out_proj ffn_gate ffn_up ffn_down
ffn_gate_exps ffn_up_exps ffn_down_exps ffn_gate_up_exps ffn_gate_shexp ffn_up_shexp ffn_down_shexp ffn_latent_down
ffn_latent_up ffn_gate_inp eh_proj time_mix_key time_mix_value time_mix_receptance time_mix_gate time_mix_output
channel_mix_key channel_mix_value channel_mix_receptance
"""
MATRICES = set(_MATRICES.split())


def sigmoid(x):
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def softplus(x):
    return np.where(x > 20, x, np.log1p(np.exp(np.minimum(x, 20))))


def rounded(x, kind):
    """The nearest value of a 16-bit type, kept in the type of x."""
    if kind == "f32":
        return x
    if kind == "f16":
        return x.astype(np.float16).astype(x.dtype)
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    near = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (near & np.uint32(0xFFFF0000)).view(np.float32).astype(x.dtype)


class Recurrent:
    def __init__(self, path, bugs=(), real=np.float32, weights="f32", state="f32", shows_before=False):
        self.bugs, self.t, self.kinds, self.shows_before = set(bugs), real, (weights, state), shows_before
        reader = GGUFReader(path)
        self.meta = {k: v.contents() for k, v in reader.fields.items() if not k.startswith("GGUF.")}
        self.tensors = {t.name: t for t in reader.tensors}
        self.loaded: dict = {}
        self.arch = self.meta["general.architecture"]
        self.e = self.get("embedding_length")
        self.drafts = self.get("nextn_predict_layers", 0)
        self.layers = self.get("block_count") - self.drafts
        layer_eps = self.get("attention.layer_norm_epsilon", 1e-5)
        self.eps, self.layer_eps = self.get("attention.layer_norm_rms_epsilon", layer_eps), layer_eps
        self.hybrid = self.arch in ("qwen35", "qwen35moe", "qwen3next")
        self.kept_state = "bf16" if "st-bf16" in self.bugs else "f16" if "st-f16" in self.bugs else state
        self.clear()

    def clear(self):
        self.past, self.keys, self.values, self.windows, self.states = 0, {}, {}, {}, {}

    def get(self, key, default=None):
        return self.meta.get(f"{self.arch}.{key}", default)

    def at(self, key, layer, default=None):
        value = self.get(key, default)
        return value[layer] if isinstance(value, (list, tuple)) else value

    def has(self, bug):
        """Whether this mistake, or a variant of it, was made."""
        return bug in self.bugs or any(b.startswith(bug + "/") for b in self.bugs)

    def w(self, name, layer=None):
        """A tensor in the shape of the formulas, matrices rounded to the type they are kept in; None where absent."""
        name = name if layer is None else f"blk.{layer}.{name}"
        name = next((n for n in (f"{name}.weight", name) if n in self.tensors), None)
        if name is None:
            return None
        if name not in self.loaded:
            tensor = self.tensors[name]
            x = dequantize(tensor.data, tensor.tensor_type).reshape([int(d) for d in tensor.shape[::-1]])
            x = rounded(x, self.kinds[0]) if x.ndim > 1 and name.split(".")[-2] in MATRICES else x
            self.loaded[name] = np.array(x, self.t)
        return self.loaded[name]

    def product(self, x, name, layer=None):
        y = x @ self.w(name, layer).T
        bias = self.w(f"{name}.bias", layer)
        return y if bias is None else y + bias

    def put(self, name, layer, x):
        self.nodes[name if layer is None else f"{name}-{layer}"] = np.array(x)
        return x

    def rms(self, x, w=None, eps=None):
        y = x / np.sqrt(np.mean(x * x, -1, keepdims=True) + self.t(self.eps if eps is None else eps))
        return y if w is None else y * w

    def centred(self, x, w=None, b=None, eps=None):
        x = x - x.mean(-1, keepdims=True)
        y = x / np.sqrt(np.mean(x * x, -1, keepdims=True) + self.t(self.layer_eps if eps is None else eps))
        y = y if w is None else y * w
        return y if b is None else y + b

    def norm(self, x, name, layer=None):
        w = self.w(name, layer)
        if self.arch.startswith("rwkv"):
            return self.centred(x, w, self.w(f"{name}.bias", layer))
        return self.rms(x, w)

    # -- calls

    def run(self, tokens, steps):
        """The nodes of each call; `steps` says how many tokens each call takes."""
        if self.has("st-leak"):
            other = [(7 * t + 3) % len(self.w("token_embd")) for t in tokens[: steps[0]]]
            self.call(other if "st-leak/other" in self.bugs else tokens[: steps[0]])
            self.past, self.keys, self.values = 0, {}, {}
        parts, start = [], 0
        for n in steps:
            parts.append(self.call(tokens[start : start + n]))
            start += n
        return parts

    def call(self, tokens):
        if self.has("st-lost"):
            self.states = {}
        before = self._shown("_before-") if self.shows_before else {}
        nodes = {**before, **self.forward(tokens)}
        if self.has("st-pad-enters"):
            self._pad(tokens)
        if self.has("st-rollback"):
            self._taken_back(tokens)
        if self.has("st-pad-decays"):
            for layer in self.states:
                self.states[layer] = self.states[layer] * self.idle[layer] ** PADDING
        return {**nodes, **self._shown("_l")}

    def _shown(self, side):
        windows = {f"cache_r{side}{layer}": self._window(rows) for layer, rows in self.windows.items()}
        return windows | {f"cache_s{side}{layer}": self._laid_out(state) for layer, state in self.states.items()}

    def _pad(self, tokens):
        """Rows of padding run behind the prompt: they are cut from K and V and from the windows, not from the state."""
        keys, values, windows, past = dict(self.keys), dict(self.values), dict(self.windows), self.past
        row = [tokens[-1]] if "st-pad-enters/last" in self.bugs else [PAD_TOKEN]
        self.forward(row * PADDING)
        self.keys, self.values, self.past = keys, values, past
        if "st-pad-enters/window" not in self.bugs:
            self.windows = windows

    def _taken_back(self, tokens):
        """A token is run and taken back: keys and values are cut, the state has seen it."""
        keys, values, past = dict(self.keys), dict(self.values), self.past
        if "st-rollback/draft" in self.bugs:
            self.forward([(t + 1) % len(self.w("token_embd")) for t in tokens[-2:]])
        else:
            self.forward(tokens[-1:])
        self.keys, self.values, self.past = keys, values, past

    def _window(self, rows):
        """A window as llama.cpp keeps it: [channels, taps - 1]; the rows of RWKV as they are."""
        if self.arch.startswith("rwkv"):
            return np.array(rows)
        return np.concatenate([r[1:].T for r in rows])

    def _laid_out(self, state):
        delta = self.hybrid or self.arch == "kimi-linear"
        state = state[:, 0] if self.arch in ("mamba", "jamba") else state
        return np.array(state.swapaxes(-1, -2) if delta else state)

    def kept(self, x):
        return rounded(x, self.kept_state)

    def forward(self, tokens):
        self.nodes, self.idle = {}, {}
        tokens = np.asarray(tokens)
        self.positions = self.past + np.arange(len(tokens))
        x = self.w("token_embd")[tokens]
        if self.arch == "granitehybrid":
            self.put("embd_rows", None, x)
            x = x * self.t(self.get("embedding_scale", 1.0))
        self.put("embd", None, x)
        if self.arch.startswith("rwkv"):
            x = self.put("inp_norm", 0, self.norm(x, "token_embd_norm"))
        if self.arch.startswith("lfm2") and self.has("sconv-norm-first"):
            x = self.rms(x, self.w("token_embd_norm"))
        block = self.rwkv_block if self.arch.startswith("rwkv") else self.block
        for i in range(self.layers):
            x = block(x, i)
        short = self.arch.startswith("lfm2")
        last = "token_embd_norm" if short else "output_norm"
        unnormed = short and self.has("sconv-norm-first") and "sconv-norm-first/twice" not in self.bugs
        x = self.put("result_norm", None, x if unnormed else self.norm(x, last))
        y = x @ self.head().T
        if self.arch == "granitehybrid":
            y = self.put("result_output_proj", self.layers - 1, y) / self.t(self.get("logit_scale", 1.0))
        self.put("result_output", None, y)
        self.past += len(tokens)
        return self.nodes

    def head(self):
        found = self.w("output")
        return self.w("token_embd") if found is None else found

    # -- a layer

    def recurrent(self, i):
        if self.arch in ("mamba", "mamba2", "falcon-h1"):
            return True
        if self.hybrid:
            listed = self.get("attention.recurrent_layers")
            return bool(listed[i]) if listed else (i + 1) % self.get("full_attention_interval", 4) != 0
        return self.at("attention.head_count_kv", i) == 0

    def block(self, x, i):
        n = self.put("attn_norm", i, self.rms(x, self.w("attn_norm", i)))
        if self.arch.startswith("nemotron_h"):
            return self.put("nemotron_h_block_out", i, x + self.nemotron(n, i))
        if self.arch == "falcon-h1":
            middle = self.side_by_side(x, n, i)
        elif self.recurrent(i):
            middle = x + self.plus(self.mixer(n, i), i, state=True)
        else:
            middle = x + self.plus(self.attention(n, i), i)
        if self.arch in ("mamba", "mamba2"):
            return self.put("l_out", i, middle)
        self.put("attn_residual" if self.hybrid else "ffn_inp", i, middle)
        n = self.w("post_attention_norm" if self.hybrid else "ffn_norm", i)
        n = self.put("attn_post_norm" if self.hybrid else "ffn_norm", i, self.rms(middle, n))
        return self.put("l_out", i, middle + self.scaled(self.ffn(n, i), "ffn_out_scaled", i))

    def scaled(self, x, name, i):
        if self.arch != "granitehybrid":
            return x
        return self.put(name, i, x * self.t(self.get("residual_scale", 1.0)))

    def plus(self, x, i, state=False):
        return x if state and self.has("hyb-residual-plain") else self.scaled(x, "attn_out_scaled", i)

    def side_by_side(self, x, n, i):
        attended = self.attention(n, i)
        if "falcon-serial/direct" in self.bugs:
            return x + self.mamba2(attended, i)
        if self.has("falcon-serial"):
            x = x + attended
            return x + self.mamba2(self.rms(x, self.w("attn_norm", i)), i)
        return x + self.put("layer_out", i, attended + self.mamba2(n, i))

    def mixer(self, n, i):
        if self.arch.startswith("lfm2"):
            return self.shortconv(n, i)
        if self.arch == "kimi-linear":
            return self.kda(n, i)
        if self.hybrid:
            return self.linear(n, i)
        return self.mamba(n, i) if self.arch in ("mamba", "jamba") else self.mamba2(n, i)

    def nemotron(self, n, i):
        if self.at("feed_forward_length", i):
            return self.ffn(n, i)
        return self.mamba2(n, i) if self.recurrent(i) else self.attention(n, i)

    # -- the convolution

    def windowed(self, x, i, slot, taps):
        """The rows that a kernel of `taps` sees: the window (one row more than needed), then the call's own."""
        slots = self.windows.get(i, [])
        rows = slots[slot] if slot < len(slots) else np.zeros((taps, x.shape[1]), self.t)
        if self.has("conv-state-missing"):
            rows = np.zeros_like(rows)
        if self.has("conv-state-short"):
            rows = rows.copy()
            rows[:2] = 0
        return np.concatenate([rows, x])

    def keep_window(self, rows, i, slot, taps):
        if self.has("conv-state-padded"):
            rows = np.concatenate([rows, np.zeros((1, rows.shape[1]), self.t)])
        slots = list(self.windows.get(i, []))
        slots[slot : slot + 1] = [self.kept(rows[-taps:])]
        self.windows[i] = slots

    def conv(self, x, i, kernel, bias=None, slot=0, act=True, name="conv_output"):
        taps = kernel.shape[1]
        rows = self.windowed(x, i, slot, taps)
        if self.has("conv-reversed"):
            kernel = kernel[:, ::-1]
        first = 0 if self.has("conv-late") else 1
        y = np.zeros_like(x)
        for k in range(taps):
            y = y + kernel[:, k] * rows[first + k : first + k + len(x)]
        y = self.put(f"{name}_raw", i, y)
        if bias is not None and not self.has("conv-bias-absent"):
            y = self.put(f"{name}_biased", i, y + bias)
        if act:
            y = self.put(f"{name}_silu", i, y if self.has("conv-act-absent") else silu(y))
        if "conv-state-activated/output" in self.bugs:
            rows = np.concatenate([rows[: -len(x)], y])
        elif self.has("conv-state-activated"):
            rows = np.concatenate([rows[: -len(x)], silu(x)])
        self.keep_window(rows, i, slot, taps)
        return y

    def shortconv(self, n, i):
        both = self.put("bcx", i, self.product(n, "shortconv.in_proj", i))
        b, c, x = np.split(both, 3, axis=1)
        if self.has("sconv-order"):
            x, b, c = b, c, x
        if self.has("sconv-gates-swapped"):
            b, c = c, b
        late = self.has("sconv-b-late")
        bx = self.put("bx", i, x if late else b * x)
        kernel = self.w("shortconv.conv", i)
        held = self.windows.get(i)
        y = self.conv(bx, i, kernel, act=False)
        if self.has("conv-state-input"):
            before = np.zeros((kernel.shape[1], self.e), self.t) if held is None else held[0]
            self.windows[i] = [np.concatenate([before, x])[-kernel.shape[1] :]]
        y = y * b if late else silu(y) if self.has("sconv-silu") else y
        y = self.put("shortconv_gated", i, y if self.has("sconv-c-absent") else c * y)
        return self.put("shortconv_out", i, self.product(y, "shortconv.out_proj", i))

    # -- the delta rule

    def unit(self, x, which):
        """q or k divided by its length, head by head."""
        if self.has("gdn-l2-absent") or (self.has("gdn-l2-q-only") and which == "k"):
            return x
        total = np.sum(x * x, -1, keepdims=True)
        if self.has("gdn-l2-mean"):
            return x / np.sqrt(total / self.t(x.shape[-1]) + self.t(self.eps))
        if self.has("gdn-l2-clamp"):
            return x / np.maximum(np.sqrt(total), self.t(self.eps))
        return x / np.sqrt(total + self.t(self.eps))

    def delta(self, q, k, v, g, beta, i):
        """The delta rule over the call's tokens; state [head, key, value], decay [T, H] or [T, H, key]."""
        heads, n = v.shape[1], v.shape[2]
        q = q if self.has("gdn-q-unscaled") else q / self.t(math.sqrt(n))
        k = k / self.t(math.sqrt(n)) if self.has("gdn-k-scaled") else k
        state = self.states.get(i, np.zeros((heads, k.shape[-1], n), self.t))
        g = g[..., None] if g.ndim == 2 else g  # [T, H, 1 or key]
        g = -g if self.has("gdn-decay-sign") else g * 0 if self.has("gdn-decay-absent") else g
        fade = np.exp(g)
        out = np.zeros_like(v)
        for t in range(len(v)):
            state, fall = self._chunked(state, fade[t], t, len(v))
            fall = fall[:, None, :] if self.has("kda-decay-axis") and fall.shape[-1] > 1 else fall[:, :, None]
            state, out[t] = self._delta_step(state, q[t], k[t], v[t], fall, beta[t])
            state = self.kept(state)
        self.states[i] = state
        return out

    def _chunked(self, state, fade, t, count):
        """What an engine that cuts its prompts gets wrong at the first token of a chunk."""
        if count > 1 and t % CHUNK == 0:
            if self.has("chunk-reset"):
                state = np.zeros_like(state)
            if self.has("chunk-decay"):
                fade = np.ones_like(fade)
        return state, fade

    def _delta_step(self, state, q, k, v, fall, beta):
        def seen(s, x):
            """A read of the state: over its keys."""
            return np.einsum("hij,hi->hj", s, x)

        late, decayed = self.has("gdn-decay-late"), state * fall
        base = state if late else decayed
        found = seen(state if self.has("gdn-delta-stale") else base, k)
        if "gdn-state-transposed/both" in self.bugs:
            found = np.einsum("hji,hi->hj", base, k)
        b = beta[:, None]
        d = b * (v - found)
        if self.has("gdn-no-delta"):
            d = b * v
        if self.has("gdn-beta-key-only"):
            d = b * v - found
        new = base + k[:, :, None] * d[:, None, :]
        out = new
        if self.has("gdn-read-early"):
            out = state if "gdn-read-early/decay" in self.bugs else base
        if late:
            new = new * fall
            out = out if "gdn-decay-late/end" in self.bugs else new
        if self.has("gdn-state-transposed"):
            return new, np.einsum("hji,hi->hj", out, q)
        return new, seen(out, q)

    def decay(self, alpha, i, a):
        """The log decay of the delta rule from the product alpha."""
        bias = self.w("ssm_dt.bias", i)
        biased = alpha if self.has("gdn-dt-bias-absent") else alpha + bias
        if self.has("gdn-softplus-absent"):
            soft = biased
        else:
            soft = np.exp(biased) if self.has("gdn-softplus-exp") else softplus(biased)
        a = -np.exp(a) if self.has("gdn-a-log") else a
        return biased, soft, a

    def strength(self, raw):
        if self.has("gdn-beta-raw"):
            return raw
        return 2 * sigmoid(raw) if self.has("gdn-beta-double") else sigmoid(raw)

    def parts_of_linear(self, n, i):
        """The fused rows q | k | v, z, and the raw beta and alpha of a linear layer."""
        state, heads, groups = self.get("ssm.state_size"), self.get("ssm.time_step_rank"), self.get("ssm.group_count")
        kq, run = groups * state, heads // groups
        if self.w("ssm_in", i) is not None:
            fused = self.put("linear_attn_mixed_qkvz", i, self.product(n, "ssm_in", i))
            cuts = np.cumsum([state, state, state * run])
            if self.has("gdn-fused-flat"):
                q, k, v, z = np.split(fused, np.cumsum([kq, kq, heads * state]), axis=1)
            else:
                by_head = fused.reshape(len(n), groups, -1)
                q, k, v, z = (p.reshape(len(n), -1) for p in np.split(by_head, cuts, axis=2))
            mixed = np.concatenate([q, k, v], 1)
        else:
            mixed, z = self.product(n, "attn_qkv", i), self.product(n, "attn_gate", i)
            self.put("z", i, z)
        self.put("linear_attn_qkv_mixed", i, mixed)
        if self.w("ssm_ba", i) is not None:
            ba = self.put("linear_attn_mixed_ba", i, self.product(n, "ssm_ba", i))
            if self.has("gdn-ba-halves"):
                beta, alpha = np.split(ba, 2, axis=1)
            else:
                pairs = ba.reshape(len(n), groups, 2, run)
                beta, alpha = pairs[:, :, 0].reshape(len(n), -1), pairs[:, :, 1].reshape(len(n), -1)
        else:
            beta = self.put("beta", i, self.product(n, "ssm_beta", i))
            alpha = self.put("alpha", i, self.product(n, "ssm_alpha", i))
        return (mixed, z, alpha, beta) if self.has("gdn-ba-swapped") else (mixed, z, beta, alpha)

    def linear(self, n, i):
        width, heads, groups = self.get("ssm.state_size"), self.get("ssm.time_step_rank"), self.get("ssm.group_count")
        mixed, z, beta, alpha = self.parts_of_linear(n, i)
        y = self.conv(mixed, i, self.w("ssm_conv1d", i))
        q, k, v = np.split(y, np.cumsum([groups * width] * 2), axis=1)
        if self.has("gdn-qk-swapped"):
            q, k = k, q
        q, k, v = (a.reshape(len(n), -1, width) for a in (q, k, v))
        q, k = self.unit(q, "q"), self.unit(k, "k")
        runs = (self.arch == "qwen3next") != self.has("gdn-head-map")
        key_of = np.arange(heads) // (heads // groups) if runs else np.arange(heads) % groups
        shown = key_of if self.arch == "qwen3next" else np.arange(groups)
        self.put("q_conv_predelta", i, q[:, shown])
        self.put("k_conv_predelta", i, k[:, shown])
        biased, soft, a = self.decay(alpha, i, self.w("ssm_a", i).reshape(-1))
        self.put("alpha_biased", i, biased)
        self.put("a_softplus", i, soft)
        g = self.put("gate", i, a * soft)
        b = self.strength(beta)
        self.put("beta_sigmoid", i, b.reshape(len(n), groups, -1) if self.arch == "qwen3next" else b[..., None])
        self.idle[i] = np.exp(a * softplus(self.w("ssm_dt.bias", i)))[:, None, None]
        o = self.put("attn_output", i, self.delta(q[:, key_of], k[:, key_of], v, g, b, i))
        y = self.gated_norm(o, z.reshape(o.shape), i)
        return self.put("linear_attn_out", i, self.product(y.reshape(len(n), -1), "ssm_out", i))

    def head_norm(self, o, i):
        w = self.w("ssm_norm", i)
        w = w + 1 if self.has("gdn-norm-plus-one") else w
        if self.has("gdn-norm-absent"):
            return o
        if self.has("gdn-norm-wide"):
            return (self.rms(o.reshape(len(o), -1)).reshape(o.shape) * w).astype(self.t)
        return self.rms(o, w)

    def gated_norm(self, o, z, i):
        gate = self.put("z_silu", i, sigmoid(z) if self.has("gdn-z-sigmoid") else silu(z))
        if self.has("gdn-z-absent"):
            gate = np.ones_like(gate)
        if self.has("gdn-z-before-norm"):
            y = self.head_norm(o * gate, i)
            self.put("attn_output_normed", i, y)
        else:
            y = self.put("attn_output_normed", i, self.head_norm(o, i)) * gate
        return self.put("final_output", i, y)

    def kda(self, n, i):
        width = self.get("kda.head_dim")
        made = {}
        for slot, part in enumerate("qkv"):
            kernel = self.w(f"ssm_conv1d_{'q' if self.has('kda-one-kernel') else part}", i)
            x = self.product(n, f"attn_{part}", i)
            y = self.conv(x, i, kernel.reshape(x.shape[1], -1), slot=slot, name=f"{part}_conv")
            made[part] = y.reshape(len(n), -1, width)
        if self.has("gdn-qk-swapped"):
            made["q"], made["k"] = made["k"], made["q"]
        q = self.put("q_conv_predelta", i, self.unit(made["q"], "q"))
        k = self.put("k_conv_predelta", i, self.unit(made["k"], "k"))
        f = self.put("kda_g1_proj", i, self.product(self.product(n, "ssm_f_a", i), "ssm_f_b", i))
        biased, soft, a = self.decay(f, i, self.w("ssm_a", i).reshape(-1, 1))
        self.put("kda_g1_biased", i, biased)
        self.put("kda_g1_softplus", i, soft)
        g = self.put("kda_g1", i, a * soft.reshape(q.shape))
        if self.has("kda-scalar-decay"):
            g = np.broadcast_to(g.mean(-1, keepdims=True), g.shape)
        self.idle[i] = np.exp(a * softplus(self.w("ssm_dt.bias", i)).reshape(-1, width))[:, :, None]
        raw = self.put("kda_beta", i, self.product(n, "ssm_beta", i))
        b = self.strength(raw)
        self.put("beta_sigmoid", i, b[..., None])
        o = self.put("attn_output", i, self.delta(q, k, made["v"], g, b, i))
        gate = self.put("g2", i, self.product(self.product(n, "ssm_g_a", i), "ssm_g_b", i)).reshape(o.shape)
        gate = self.put("g2_sigmoid", i, silu(gate) if self.has("kda-gate-silu") else sigmoid(gate))
        if self.has("gdn-z-absent"):
            gate = np.ones_like(gate)
        if self.has("gdn-z-before-norm"):
            y = self.head_norm(o * gate, i)
            self.put("kda_normed", i, y)
        else:
            y = self.put("kda_normed", i, self.head_norm(o, i)) * gate
        y = self.put("kda_gated", i, y).reshape(len(n), -1)
        return self.put("kda_out", i, self.product(y, "attn_output", i))

    # -- the scans

    def step_size(self, dt, i):
        """dt after its bias, then after softplus."""
        dt = dt if self.has("ssm-dt-bias-absent") else dt + self.w("ssm_dt.bias", i)
        self.put("dt", i, dt)
        if self.has("ssm-softplus-absent"):
            return dt
        return np.exp(dt) if self.has("ssm-softplus-exp") else softplus(dt)

    def fading(self, i):
        """A as the scan multiplies it with the step."""
        a = self.w("ssm_a", i)
        a = -np.exp(a) if self.has("ssm-a-log") else a
        return -a if self.has("ssm-decay-sign") else a

    def scan(self, x, step, a, b, c, i):
        """x [T, H, W], step [T, H], a [H, 1 or N], b and c [T, H, N] -> y [T, H, W]; state [H, W, N]."""
        state = self.states.get(i, np.zeros((*x.shape[1:], b.shape[-1]), self.t))
        taken = x if self.has("ssm-dt-x-absent") else step[..., None] * x
        y = np.zeros_like(x)
        for t in range(len(x)):
            fade = np.exp(step[t][:, None] * a)[:, None, :]
            state, fade = self._chunked(state, fade, t, len(x))
            write = taken[t][:, :, None] * b[t][:, None, :]
            if self.has("ssm-decay-late"):
                new = (state + write) * fade
                read = state + write if "ssm-decay-late/end" in self.bugs else new
            else:
                new = state * fade + write
                read = new
            if self.has("ssm-read-early"):
                read = state if "ssm-read-early/decay" in self.bugs else state * fade
            y[t] = np.einsum("hwn,hn->hw", read, c[t])
            state = self.kept(new)
        self.states[i] = state
        return y

    def mamba2(self, n, i):
        inner, state = self.get("ssm.inner_size"), self.get("ssm.state_size")
        heads, groups = self.get("ssm.time_step_rank"), self.get("ssm.group_count")
        fused = self.put("zxBCdt", i, self.product(n, "ssm_in", i))
        z, xbc, dt = np.split(fused, [inner, 2 * inner + 2 * groups * state], axis=1)
        if self.has("ssm-zx-swapped"):
            z, xbc = xbc[:, :inner], np.concatenate([z, xbc[:, inner:]], 1)
        xbc = self.conv(xbc, i, self.w("ssm_conv1d", i), self.w("ssm_conv1d.bias", i))
        x, b, c = np.split(xbc, [inner, inner + groups * state], axis=1)
        if self.has("ssm-bc-swapped"):
            b, c = c, b
        group_of = np.arange(heads) // (heads // groups)
        if self.has("ssm-group-ignored"):
            group_of = group_of * 0
        if self.has("ssm-group-tile"):
            group_of = np.arange(heads) % groups
        b, c = (p.reshape(len(n), groups, state)[:, group_of] for p in (b, c))
        x = x.reshape(len(n), heads, -1)
        step, a = self.step_size(dt, i), self.fading(i).reshape(heads, 1)
        self.idle[i] = np.exp(softplus(self.w("ssm_dt.bias", i))[:, None] * a)[:, None, :]
        y = self.put("y_ssm", i, self.scan(x, step, a, b, c, i))
        if not self.has("ssm-d-absent"):
            y = y + self.w("ssm_d", i).reshape(heads, 1) * x
        y = self.put("mamba2_y_add_d", i, y)
        y = self.gated_groups(y, z.reshape(y.shape), i)
        return self.put("mamba_out", i, self.product(y.reshape(len(n), -1), "ssm_out", i))

    def gated_groups(self, y, z, i):
        """The gate, then the norm over each group."""
        w = self.w("ssm_norm", i)
        gate = np.ones_like(z) if self.has("ssm-z-absent") else sigmoid(z) if self.has("ssm-z-sigmoid") else silu(z)
        if w is None:
            return self.put("y_gated", i, y * gate)
        after = self.has("ssm-z-after-norm")
        y = y if after else self.put("y_gated", i, y * gate)
        shape = (len(y), -1) if self.has("ssm-norm-wide") else (len(y), *w.shape)
        if self.has("ssm-norm-absent"):
            normed = y.reshape(len(y), *w.shape)
        else:
            normed = self.rms(y.reshape(shape)).reshape(len(y), *w.shape) * w
        if after:
            normed = normed * gate.reshape(normed.shape)
        return self.put("y_normed", i, normed)

    def mamba(self, n, i):
        inner, state, rank = self.get("ssm.inner_size"), self.get("ssm.state_size"), self.get("ssm.time_step_rank")
        x, z = np.split(self.put("xz", i, self.product(n, "ssm_in", i)), 2, axis=1)
        if self.has("ssm-zx-swapped"):
            x, z = z, x
        x = self.conv(x, i, self.w("ssm_conv1d", i), self.w("ssm_conv1d.bias", i))
        dbc = self.put("x_db", i, x @ self.w("ssm_x", i).T)
        dt, b, c = np.split(dbc, [rank, rank + state], axis=1)
        if self.has("ssm-bc-swapped"):
            b, c = c, b
        if not self.has("ssm-dbc-norm-absent"):
            dt, b, c = self.normed_parts(dt, b, c, i)
        dt = self.put("dt_proj", i, dt @ self.w("ssm_dt.weight", i).T)
        step, a = self.step_size(dt, i), self.fading(i)
        self.idle[i] = np.exp(softplus(self.w("ssm_dt.bias", i))[:, None] * a)[:, None, :]
        wide = (len(n), inner, state)
        y = self.scan(x[..., None], step, a, np.broadcast_to(b[:, None], wide), np.broadcast_to(c[:, None], wide), i)
        y = self.put("y_ssm", i, y)[..., 0]
        if not self.has("ssm-d-absent"):
            y = y + self.w("ssm_d", i) * x
        y = self.put("mamba2_y_add_d", i, y)
        gate = np.ones_like(z) if self.has("ssm-z-absent") else sigmoid(z) if self.has("ssm-z-sigmoid") else silu(z)
        y = self.put("y_gated", i, y * gate)
        return self.put("mamba_out", i, self.product(y, "ssm_out", i))

    def normed_parts(self, dt, b, c, i):
        if self.w("ssm_dt_norm", i) is not None:
            dt = self.put("dt_normed", i, self.rms(dt, self.w("ssm_dt_norm", i)))
            b = self.rms(b, self.w("ssm_b_norm", i))
            c = self.rms(c, self.w("ssm_c_norm", i))
        elif self.get("ssm.dt_b_c_rms"):
            dt, b, c = self.put("dt_normed", i, self.rms(dt)), self.rms(b), self.rms(c)
        else:
            return dt, b, c
        self.put("B_normed", i, b[:, None])
        self.put("C_normed", i, c[:, None])
        return dt, b, c

    # -- attention

    def turned(self, x, i, offset=0, width=None, flip=False):
        """x [T, heads, d] with its values turned by position."""
        width = x.shape[-1] if width is None else width
        pairs = np.arange(width // 2)
        theta = self.get("rope.freq_base", 10000.0) ** (-2.0 * pairs / width) / self.get("rope.scaling.factor", 1.0)
        factors = self.w("rope_freqs") if self.arch == "granitehybrid" else None
        theta = theta if factors is None else theta / factors
        angle = self.positions[:, None] * theta
        cos, sin = (f(angle)[:, None].astype(self.t) for f in (np.cos, np.sin))
        neighbours = (self.arch == "granitehybrid") != (self.has("hyb-rope-mode") or flip)
        first = offset + (2 * pairs if neighbours else pairs)
        second = first + (1 if neighbours else width // 2)
        y = x.copy()
        y[..., first] = x[..., first] * cos - x[..., second] * sin
        y[..., second] = x[..., first] * sin + x[..., second] * cos
        return y

    def rotates(self):
        here = self.hybrid or self.arch in ("lfm2", "lfm2moe", "falcon-h1")
        if self.arch == "granitehybrid":
            here = self.get("rope.scaling.finetuned", True)
        return bool(here) != self.has("hyb-rope-flip")

    def placed(self, x, i, which):
        """q or k [T, heads, d] after its norm and its rotation."""
        w = self.w(f"attn_{which.lower()}_norm", i)
        late = self.has("gattn-norm-after-rope")
        if w is not None and not late and not self.has("gattn-qk-norm-absent"):
            x = self.put(f"{which}cur_normed", i, self.rms(x, w))
        if self.rotates():
            whole = self.has("gattn-full-rope")
            width = x.shape[-1] if whole else self.get("rope.dimension_count", x.shape[-1])
            x = self.put(f"{which}cur", i, self.turned(x, i, width=width))
        if w is not None and late:
            x = self.put(f"{which}cur_normed", i, self.rms(x, w))
        return x

    def attention(self, n, i):
        if self.arch == "kimi-linear":
            return self.mla(n, i)
        heads, groups = self.at("attention.head_count", i), self.at("attention.head_count_kv", i)
        d = self.get("attention.key_length", self.e // heads)
        q, gate = self.product(n, "attn_q", i), None
        if self.hybrid:
            full = self.put("Qcur_full", i, q)
            if self.has("gattn-halves"):
                q, gate = (p.reshape(len(n), heads, d) for p in np.split(full, 2, axis=1))
            else:
                q, gate = np.split(full.reshape(len(n), heads, 2 * d), 2, axis=2)
            q, gate = (gate, q) if self.has("gattn-swapped") else (q, gate)
        else:
            self.put("Qcur_proj", i, q)
        k, v = self.put("Kcur_proj", i, self.product(n, "attn_k", i)), self.product(n, "attn_v", i)
        self.put("Vcur", i, v)
        q = self.placed(q.reshape(len(n), heads, d), i, "Q")
        k = self.placed(k.reshape(len(n), groups, d), i, "K")
        scale = self.get("attention.scale", 0.0) if self.arch == "granitehybrid" else 0.0
        if not scale or self.has("hyb-scale-default"):
            scale = 1 / math.sqrt(d)
        y = self.attend(q, k, v.reshape(len(n), groups, -1), scale, i)
        y = y.transpose(1, 0, 2).reshape(len(n), -1)
        if gate is None:
            self.put("kqv_out", i, y)
        else:
            y = self.put("attn_pregate", i, y)
            gate = gate.reshape(len(n), -1)
            gate = self.put("gate_sigmoid", i, silu(gate) if self.has("gattn-silu") else sigmoid(gate))
            y = self.put("attn_gated", i, y if self.has("gattn-absent") else y * gate)
        return self.put("attn_out", i, self.product(y, "attn_output", i))

    def attend(self, q, k, v, scale, i):
        """Values [head, T, d] that the call's queries find in the cache."""
        if i in self.keys:
            k, v = np.concatenate([self.keys[i], k]), np.concatenate([self.values[i], v])
        self.keys[i], self.values[i] = k, v
        run = q.shape[1] // k.shape[1]
        k, v = np.repeat(k, run, axis=1), np.repeat(v, run, axis=1)
        kq = self.put("kq", i, np.einsum("thd,shd->hts", q, k))
        hidden = np.arange(len(k))[None, :] > (len(k) - len(q) + np.arange(len(q)))[:, None]
        scores = np.where(hidden, -np.inf, kq * self.t(scale)).astype(self.t)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        probs = self.put("kq_soft_max", i, scores / scores.sum(-1, keepdims=True))
        return self.put("kqv", i, np.einsum("hts,shd->htd", probs, v))

    def mla(self, n, i):
        heads, rank = self.get("attention.head_count"), self.get("attention.kv_lora_rank")
        turned = self.get("rope.dimension_count")
        q = self.product(n, "attn_q", i).reshape(len(n), heads, -1)
        nope, pe = q[..., :-turned], q[..., -turned:]
        low = self.product(n, "attn_kv_a_mqa", i)
        squeezed, key_pe = self.rms(low[:, :rank], self.w("attn_kv_a_norm", i)), low[:, None, rank:]
        if self.has("kda-mla-rope"):
            pe, key_pe = self.turned(pe, i, flip=True), self.turned(key_pe, i, flip=True)
        absorbed = self.put("q_nope_absorbed", i, np.einsum("hcd,thd->htc", self.w("attn_k_b", i), nope))
        q = self.put("Qcur", i, np.concatenate([absorbed.transpose(1, 0, 2), pe], -1))
        k = self.put("Kcur", i, np.concatenate([squeezed[:, None], key_pe], -1))
        width = q.shape[-1] if self.has("kda-mla-scale") else self.get("attention.key_length_mla")
        found = self.attend(q, k, squeezed[:, None], 1 / math.sqrt(width), i)
        y = self.put("kqv_mla", i, np.einsum("hmc,htc->htm", self.w("attn_v_b", i), found))
        y = self.put("kqv_out", i, y.transpose(1, 0, 2).reshape(len(n), -1))
        return self.put("mla_out", i, self.product(y, "attn_output", i))

    # -- feed-forward

    def ffn(self, n, i):
        if self.w("ffn_gate_inp", i) is None:
            return self.put("ffn_out", i, self.inner(n, i, ""))
        routed = self.experts(n, i)
        if self.w("ffn_up_shexp", i) is None:
            return routed
        shared = self.put("ffn_shexp", i, self.inner(n, i, "_shexp"))
        if self.w("ffn_gate_inp_shexp", i) is not None:
            gate = self.put("shared_expert_gate", i, n @ self.w("ffn_gate_inp_shexp", i).reshape(-1, 1))
            gate = self.put("shared_expert_gate_sigmoid", i, sigmoid(gate))
            shared = shared if self.has("moe-shared-gate-absent") else shared * gate
            self.put("ffn_shexp_gated", i, shared)
        return self.put("ffn_out", i, routed if self.has("moe-shared-absent") else routed + shared)

    def squared(self, x):
        if self.has("nemo-silu"):
            return silu(x)
        return np.maximum(x, 0) if self.has("nemo-relu") else np.maximum(x, 0) ** 2

    def inner(self, n, i, suffix):
        up = self.put("ffn_up", i, self.product(n, f"ffn_up{suffix}", i))
        if self.w(f"ffn_gate{suffix}", i) is None:
            self.put("ffn_relu", i, np.maximum(up, 0))
            y = self.put("ffn_relu_sqr", i, self.squared(up))
        else:
            gate = self.put("ffn_gate", i, self.product(n, f"ffn_gate{suffix}", i))
            y = self.put("ffn_swiglu", i, silu(gate) * up)
        return self.product(y, f"ffn_down{suffix}", i)

    def routing(self):
        """Sigmoid or softmax; whether the weights are normalised; what they are multiplied with."""
        nemotron, kimi = self.arch.startswith("nemotron"), self.arch == "kimi-linear"
        squash = nemotron or (self.arch in ("lfm2moe", "kimi-linear") and self.get("expert_gating_func", 1) == 2)
        whole = self.get("expert_weights_norm", False) if nemotron else self.arch != "jamba"
        scale = self.get("expert_weights_scale", 0.0) if nemotron or kimi else 0.0
        scale = 0.0 if self.has("moe-scale-absent") else scale
        return squash != self.has("moe-gate-kind"), whole != self.has("moe-norm-flip"), scale if scale != 1 else 0.0

    def chosen(self, n, i):
        """The experts of each token and their weights."""
        squash, whole, scale = self.routing()
        logits = self.put("ffn_moe_logits", i, self.product(n, "ffn_gate_inp", i))
        shifted = np.exp(logits - logits.max(-1, keepdims=True))
        probs = self.put("ffn_moe_probs", i, sigmoid(logits) if squash else shifted / shifted.sum(-1, keepdims=True))
        bias, ranked = self.w("exp_probs_b.bias", i), probs
        if bias is not None and not self.has("moe-bias-absent"):
            ranked = self.put("ffn_moe_probs_biased", i, probs + bias)
        order = self.put("ffn_moe_argsort", i, np.argsort(-ranked, axis=-1, kind="stable"))
        top = self.put("ffn_moe_topk", i, order[:, : self.at("expert_used_count", i)])
        source = ranked if self.has("moe-bias-in-weights") else probs
        weights = self.put("ffn_moe_weights", i, np.take_along_axis(source, top, 1))
        if whole:
            total = self.put("ffn_moe_weights_sum", i, weights.sum(-1, keepdims=True))
            total = self.put("ffn_moe_weights_sum_clamped", i, np.maximum(total, self.t(6.103515625e-5)))
            weights = self.put("ffn_moe_weights_norm", i, weights / total)
        if scale:
            weights = self.put("ffn_moe_weights_scaled", i, weights * self.t(scale))
        return top, weights

    def experts(self, n, i):
        top, weights = self.chosen(n, i)
        latent = self.w("ffn_latent_down", i)
        x = n if latent is None else self.put("ffn_latent", i, n @ latent.T)
        up, gate = self.w("ffn_up_exps", i), self.w("ffn_gate_exps", i)
        if self.w("ffn_gate_up_exps", i) is not None:
            gate, up = np.split(self.w("ffn_gate_up_exps", i), 2, axis=1)
        y = self.put("ffn_moe_up", i, np.einsum("tuoi,ti->tuo", up[top], x))
        if gate is None:
            y = self.put("ffn_moe_relu_sqr", i, self.squared(y))
        else:
            g = self.put("ffn_moe_gate", i, np.einsum("tuoi,ti->tuo", gate[top], x))
            y = self.put("ffn_moe_swiglu", i, silu(g) * y)
        y = self.put("ffn_moe_down", i, np.einsum("tuoi,tui->tuo", self.w("ffn_down_exps", i)[top], y))
        y = self.put("ffn_moe_weighted", i, y * weights[..., None])
        y = self.put("ffn_moe_out", i, y.sum(1))
        return y if latent is None else self.put("ffn_latent_out", i, self.product(y, "ffn_latent_up", i))

    # -- RWKV

    def rwkv_block(self, x, i):
        n = self.put("attn_norm", i, self.norm(x, "attn_norm", i))
        mix = self.mix7 if self.arch == "rwkv7" else self.mix6
        mixed = self.put("time_mix_out", i, mix(n, self.moved(n, i, 0), i))
        x = self.put("ffn_inp", i, x + mixed)
        n = self.put("ffn_norm", i, self.norm(x, "attn_norm_2", i))
        out = self.channel(n, self.moved(n, i, 1), i)
        every = self.get("rescale_every_n_layers", 0) if self.arch == "rwkv6" else 0
        x = x + out
        if every and (i + 1) % every == 0 and not self.has("rwkv-rescale-absent"):
            x = x / 2
        return self.put("l_out", i, x)

    def moved(self, n, i, slot):
        """The row before minus the row; the last row is kept for the next call."""
        held = self.windows.get(i, np.zeros((2, self.e), self.t))
        before = held[slot : slot + 1] * (0 if self.has("rwkv-shift-lost") else 1)
        delta = np.concatenate([before, n[:-1]]) - n
        self.windows[i] = held.copy()
        self.windows[i][slot] = self.kept(n[-1])
        return -delta if self.has("rwkv-shift-sign") else delta

    def channel(self, n, delta, i):
        k = n + delta * self.w("channel_mix_lerp_k", i).reshape(-1)
        y = np.maximum(self.product(k, "channel_mix_key", i), 0) ** 2
        y = self.put("channel_mix_out", i, self.product(y, "channel_mix_value", i))
        if self.arch == "rwkv7":
            return y
        r = n + delta * self.w("channel_mix_lerp_r", i).reshape(-1)
        return self.put("channel_mix_gated", i, sigmoid(self.product(r, "channel_mix_receptance", i)) * y)

    def by_heads(self, y, i):
        """The norm by heads, its weights over the whole width."""
        y = self.centred(y, eps=1e-5 if self.has("rwkv-gn-eps") else 64e-5).reshape(len(y), -1)
        return y * self.w("time_mix_ln", i) + self.w("time_mix_ln.bias", i)

    def low(self, x, i, name, middle=None):
        y = x @ self.w(f"time_mix_{name}1", i).T
        return (y if middle is None else middle(y)) @ self.w(f"time_mix_{name}2", i).T

    def mix7(self, n, delta, i):
        lerp = self.w("time_mix_lerp_fused", i).reshape(6, -1)
        if self.has("rwkv-mix-order"):
            lerp = lerp[[1, 0, 2, 3, 4, 5]]
        xr, xw, xk, xv, xa, xg = (n + delta * row for row in lerp)
        size = self.get("wkv.head_size")
        shape = (len(n), -1, size)
        r = self.put("r", i, self.product(xr, "time_mix_receptance", i))
        k = self.put("k_proj", i, self.product(xk, "time_mix_key", i))
        v = self.put("v_proj", i, self.product(xv, "time_mix_value", i))
        rate = self.t(1.0 if self.has("rwkv-decay-plain") else math.exp(-0.5))
        w = np.exp(-rate * sigmoid(self.w("time_mix_w0", i) + self.low(xw, i, "w", np.tanh)))
        self.idle[i] = np.exp(-rate * sigmoid(self.w("time_mix_w0", i))).reshape(-1, 1, size)
        a = sigmoid(self.w("time_mix_a0", i) + self.low(xa, i, "a"))
        g = self.put("g", i, sigmoid(xg @ self.w("time_mix_g1", i).T) @ self.w("time_mix_g2", i).T)
        if i == 0:
            self.first = v
        elif not self.has("rwkv-v-first"):
            v = v + (self.first - v) * sigmoid(self.w("time_mix_v0", i) + self.low(xv, i, "v"))
        kk = (k * self.w("time_mix_k_k", i)).reshape(shape)
        if not self.has("rwkv-l2-absent"):
            kk = kk / np.maximum(np.sqrt(np.sum(kk * kk, -1, keepdims=True)), self.t(1e-12))
        self.put("kk", i, kk)
        if not self.has("rwkv-ka-absent"):
            k = k + (a - 1) * k * self.w("time_mix_k_a", i)
        r, w, k, v, a = (p.reshape(shape) for p in (r, w, k, v, a))
        y = self.put("wkv_out", i, self.wkv7(r, w, k, v, kk, a, i))
        y = self.by_heads(y, i).reshape(shape)
        if not self.has("rwkv-bonus-absent"):
            y = y + (r * k * self.w("time_mix_r_k", i).reshape(-1, size)).sum(-1, keepdims=True) * v
        y = y.reshape(len(n), -1)
        return self.product(y if self.has("rwkv-gate-absent") else y * g, "time_mix_output", i)

    def wkv7(self, r, w, k, v, kk, a, i):
        state = self.states.get(i, np.zeros((r.shape[1], r.shape[2], r.shape[2]), self.t))  # [head, value, key]
        y = np.zeros_like(v)
        for t in range(len(v)):
            state, fade = self._chunked(state, w[t], t, len(v))
            s = -np.einsum("hij,hj->hi", state, kk[t])
            new = state * fade[:, None, :] + v[t][:, :, None] * k[t][:, None, :]
            new = new + s[:, :, None] * (kk[t] * a[t])[:, None, :]
            y[t] = np.einsum("hij,hj->hi", state if self.has("rwkv-read-early") else new, r[t])
            state = self.kept(new)
        self.states[i] = state
        return y

    def mix6(self, n, delta, i):
        m = np.tanh((n + delta * self.w("time_mix_lerp_x", i).reshape(-1)) @ self.w("time_mix_w1", i).T)
        m = np.einsum("tpr,per->tpe", m.reshape(len(n), 5, -1), self.w("time_mix_w2", i))
        fused = self.w("time_mix_lerp_fused", i)
        if fused is None:
            fused = np.stack([self.w(f"time_mix_lerp_{p}", i).reshape(-1) for p in "wkvrg"])
        fused = fused.reshape(5, -1)
        if self.has("rwkv-mix-order"):
            m, fused = m[:, [3, 1, 2, 0, 4]], fused[[3, 1, 2, 0, 4]]
        xw, xk, xv, xr, xg = (n + delta * (m[:, p] + fused[p]) for p in range(5))
        size = self.get("wkv.head_size")
        shape = (len(n), -1, size)
        k = self.put("k_proj", i, self.product(xk, "time_mix_key", i)).reshape(shape)
        v = self.put("v_proj", i, self.product(xv, "time_mix_value", i)).reshape(shape)
        r = self.put("r", i, self.product(xr, "time_mix_receptance", i)).reshape(shape)
        base = self.w("time_mix_decay", i).reshape(-1)
        low = np.tanh(xw @ self.w("time_mix_decay_w1", i).T) @ self.w("time_mix_decay_w2", i).T
        w = np.exp(-np.exp(base + low)).reshape(shape)
        self.idle[i] = np.exp(-np.exp(base)).reshape(-1, size, 1)
        y = self.by_heads(self.put("wkv_out", i, self.wkv6(r, w, k, v, i)), i)
        if not self.has("rwkv-gate-absent"):
            y = y * silu(self.product(xg, "time_mix_gate", i))
        return self.product(y, "time_mix_output", i)

    def wkv6(self, r, w, k, v, i):
        u = self.w("time_mix_first", i).reshape(r.shape[1:])
        state = self.states.get(i, np.zeros((r.shape[1], r.shape[2], r.shape[2]), self.t))  # [head, key, value]
        y = np.zeros_like(v)
        for t in range(len(v)):
            state, fade = self._chunked(state, w[t], t, len(v))
            write = k[t][:, :, None] * v[t][:, None, :]
            new = state * fade[:, :, None] + write
            read = state if self.has("rwkv-u-absent") else state + u[:, :, None] * write
            y[t] = np.einsum("hij,hi->hj", new if self.has("rwkv-read-late") else read, r[t])
            state = self.kept(new)
        self.states[i] = state
        return y

    # -- the draft head

    def draft(self, tokens, hidden, positions=None):
        """The nodes of the draft head: it takes tokens, and the trunk's normed rows of the tokens before them."""
        self.nodes, i = {}, self.layers
        tokens = np.asarray(tokens)
        self.positions = np.arange(len(tokens)) if positions is None else np.asarray(positions)
        table = self.w("nextn.embed_tokens", i)
        rows = (self.w("token_embd") if table is None else table)[tokens]
        rows = self.rms(rows, self.w("nextn.enorm", i))
        hidden = self.rms(np.asarray(hidden, self.t), self.w("nextn.hnorm", i))
        pair = [hidden, rows] if self.has("mtp-concat-order") else [rows, hidden]
        x = self.put("mtp_eh_proj", i, np.concatenate(pair, 1) @ self.w("nextn.eh_proj", i).T)
        n = self.put("attn_norm", i, self.rms(x, self.w("attn_norm", i)))
        x = self.put("mtp_attn_residual", i, x + self.attention(n, i))
        n = self.put("attn_post_norm", i, self.rms(x, self.w("post_attention_norm", i)))
        x = self.put("mtp_post_ffn", i, x + self.ffn(n, i))
        own = self.w("nextn.shared_head_norm", i)
        own = self.w("output_norm") if own is None or self.has("mtp-norm-shared") else own
        plain = self.centred(x, own) if self.arch.startswith("nemotron") else self.rms(x, own)
        x = self.put("result_norm", None, plain)
        head = self.w("nextn.shared_head_head", i)
        self.put("result_output", None, x @ (self.head() if head is None else head).T)
        return self.nodes
