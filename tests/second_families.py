"""The second engine's other models: Qwen, Gemma, gpt-oss, Phi, Mistral 3, SmolLM3, Granite, DeepSeek, GLM.

Like `second_engine.py` it shares no code with the package. It is one port in float32 that grew with the models: a long
loop over tokens and heads with a question for each peculiarity. `bugs` is a set of names, each one mistake, written
where a programmer would make it. Weights are F32.

    trace = Family("model.gguf", bugs={"sink-missing"}).run([1, 2, 3])     # node name -> array over all tokens
"""

from __future__ import annotations

import math

import numpy as np

from tests.second_engine import File

f32 = np.float32
NEOX = ("qwen2", "qwen3", "qwen2moe", "qwen3moe", "gemma2", "gemma3", "gpt-oss", "phi3", "glm4moe")
EVERY = {"gemma2": 2, "gemma3": 6, "gpt-oss": 2}  # each so-many-th layer sees everything


def soft(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return (e / e.sum(-1, keepdims=True)).astype(f32)


def sigmoid(x):
    return (1 / (1 + np.exp(-x))).astype(f32)


def gelu(x):
    return (0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))).astype(f32)


class Family:
    def __init__(self, path, bugs=(), arithmetic="f32"):
        self.file, self.bugs, self.arithmetic = File(path), set(bugs), arithmetic
        self.arch = self.file.meta["general.architecture"]
        self.e, self.heads = self.get("embedding_length"), self.get("attention.head_count")
        self.groups = self.get("attention.head_count_kv", self.heads)
        self.width = self.get("attention.key_length", self.e // self.heads)
        self.eps = self.get("attention.layer_norm_rms_epsilon")
        self.layers = self.get("block_count") - self.get("nextn_predict_layers", 0)
        self.turned = self.get("rope.dimension_count", self.width)
        self.mla = "blk.0.attn_kv_a_mqa.weight" in self.file.tensors

    def get(self, key, default=None):
        return self.file.meta.get(f"{self.arch}.{key}", default)

    def w(self, name):
        if name not in self.file.tensors:
            return None
        dims, kind, offset = self.file.tensors[name]
        assert kind == 0
        count = math.prod(dims)
        raw = np.frombuffer(self.file.data, "<f4", count, self.file.start + offset)
        return raw.reshape(dims[::-1])

    def stored(self, x):
        """What is kept of a result: the rounding of the engine's own type."""
        if self.arithmetic == "f16":
            return x.astype(np.float16).astype(f32)
        x = x.astype(f32)
        if self.arithmetic == "bf16":
            bits = x.view(np.uint32)
            x = ((bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)).view(f32)
        return x

    def put(self, name, x, layer=None):
        x = self.stored(np.asarray(x))
        self.trace[name if layer is None else f"{name}-{layer}"] = x
        return x

    def norm(self, x, name, eps=None):
        w = self.w(name)
        if "norm-plus1-double" in self.bugs:
            w = w + 1
        return (x / np.sqrt(np.mean(x * x, -1, keepdims=True) + f32(eps or self.eps)) * w).astype(f32)

    def by_head(self, x, name):
        """q or k normed head by head, or over the whole row by mistake."""
        w = self.w(name)
        if w is None or "qknorm-missing" in self.bugs:
            return x
        x = x.astype(f32)
        if "qknorm-across-heads" in self.bugs:
            return (x / np.sqrt(np.mean(x * x, (-1, -2), keepdims=True) + f32(self.eps)) * w).astype(f32)
        return (x / np.sqrt(np.mean(x * x, -1, keepdims=True) + f32(self.eps)) * w).astype(f32)

    # -- positions

    def local(self, i):
        every = self.get("attention.sliding_window_pattern", EVERY.get(self.arch, 0))
        if not self.get("attention.sliding_window") or self.arch not in EVERY:
            return False
        found = bool(every[i]) if isinstance(every, list) else i % every < every - 1
        return not found if "swa-layers-inverted" in self.bugs else found

    def angles(self, positions, layer):
        """Cosines and sines [tokens, pairs], and what turned values are multiplied by."""
        n = self.width if "rope-partial" in self.bugs else self.turned
        base, kind = self.get("rope.freq_base", 10000.0), self.get("rope.scaling.type", "linear")
        factor = self.get("rope.scaling.factor", 1.0) if kind != "none" else 1.0
        gain = self.get("rope.scaling.attn_factor", 1.0)
        if self.local(layer) and self.arch in ("gemma3", "gpt-oss") and "rope-per-layer-base" not in self.bugs:
            base = self.get("rope.freq_base_swa", 10000.0 if self.arch == "gemma3" else base)
            factor = 1.0 if self.arch == "gemma3" else factor
        pair = np.arange(n // 2)
        theta = base ** (-2.0 * pair / n)
        slow = theta / factor
        if kind == "yarn" and factor > 0:
            original = self.get("rope.scaling.original_context_length", self.get("context_length"))
            fast, late = 32.0, 1.0
            if self.arch == "mistral3":
                fast, late = (self.get(f"rope.scaling.yarn_beta_{k}", v) for k, v in (("fast", fast), ("slow", late)))

            def dim(turns):
                return n * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

            low, high = max(math.floor(dim(fast)), 0), min(math.ceil(dim(late)), n - 1)
            ramp = np.clip((pair - low) / max(high - low, 0.001), 0, 1)
            slow = theta * (1 - ramp) + slow * ramp
            c = self.get("rope.scaling.yarn_log_multiplier", 0.0)
            m = 1 + 0.1 * math.log(factor) if factor > 1 else 1.0
            if "rope-yarn-factor" in self.bugs:
                m, c = 1.0, 0.0
            if c and self.arch == "deepseek2":
                m = 1.0
            elif c and factor > 1:
                m = m / (1 + 0.1 * c * math.log(factor))
            gain *= m
        long = self.get("context_length") > self.get("rope.scaling.original_context_length", 1 << 60)
        if "rope-longrope-set" in self.bugs:
            long = not long
        factors = self.w(f"rope_factors_{'long' if long else 'short'}.weight")
        if factors is not None:
            slow = slow / factors
        turn = np.asarray(positions, np.float64)[:, None] * slow
        return (np.cos(turn) * gain).astype(f32), (np.sin(turn) * gain).astype(f32), n

    def rotate(self, x, angles, first=0):
        """[tokens, heads, width]: the pairs from `first` on."""
        cos, sin, n = angles
        cos, sin = cos[:, None], sin[:, None]
        neox = self.arch in NEOX
        if "rope-type" in self.bugs:
            neox = not neox
        out = x.copy()
        part = x[..., first : first + n]
        a, b = (part[..., : n // 2], part[..., n // 2 :]) if neox else (part[..., ::2], part[..., 1::2])
        u, v = a * cos - b * sin, a * sin + b * cos
        if neox:
            out[..., first : first + n] = np.concatenate([u, v], -1)
        else:
            out[..., first : first + n : 2], out[..., first + 1 : first + n : 2] = u, v
        return out.astype(f32)

    def turns(self, layer):
        if self.arch == "smollm3" and "rope-nope-layer" not in self.bugs:
            return (layer + 1) % 4 != 0
        return True

    # -- a run

    def run(self, tokens):
        self.trace = {}
        n = len(tokens)
        x = self.w("token_embd.weight")[np.asarray(tokens)]
        if self.arch in ("granite", "granitemoe"):
            self.put("embd_rows", x)
            x = self.put("embd", x * f32(self.get("embedding_scale", 1.0)))
        else:
            x = self.put("embd", x)
        if self.arch.startswith("gemma"):
            x = self.put("inp_scaled", x if "embd-scale-missing" in self.bugs else x * f32(math.sqrt(self.e)))
        for i in range(self.layers):
            x = self.layer(i, x, range(n))
        x = self.put("result_norm", self.norm(x, "output_norm.weight"))
        head = self.w("output.weight")
        y = x @ (self.w("token_embd.weight") if head is None else head).T
        cap = self.get("final_logit_softcapping", 30.0 if self.arch == "gemma2" else 0.0)
        if self.arch.startswith("granite"):
            self.put("result_output_proj", y)
            scale = f32(self.get("logit_scale"))
            y = y * scale if "head-logit-scale" in self.bugs else y / scale
        elif cap:
            self.put("result_output_proj", y)
            y = y if "head-softcap" in self.bugs else f32(cap) * np.tanh(y / f32(cap))
        self.put("result_output", y)
        return self.trace

    def layer(self, i, x, positions):
        pre = f"blk.{i}."
        n = self.put("attn_norm", self.norm(x, pre + "attn_norm.weight"), i)
        if self.mla:
            mixed = self.latent(i, n, positions)
        else:
            mixed = self.attention(i, n, positions)
        self.put("kqv_out", mixed, i)
        out = mixed @ self.w(pre + "attn_output.weight").T
        bias = self.w(pre + "attn_output.bias")
        if bias is not None:
            out = self.put("attn_out_proj", out, i) + bias
        out = self.put("attn_out", out, i)
        if self.arch.startswith("gemma"):
            x = self.put("sa_out", self.put("attn_post_norm", self.after(out, pre + "post_attention_norm"), i) + x, i)
        elif self.arch == "glm4":
            x = self.put("ffn_inp", self.put("post_attn_norm", self.after(out, pre + "post_attention_norm"), i) + x, i)
        else:
            x = self.put("ffn_inp", self.scaled("attn_out_scaled", out, i) + x, i)
        post = self.w(pre + "ffn_norm.weight") is None
        label = {"gpt-oss": "attn_post_norm", "glm4moe": "post_attn_norm"}.get(self.arch, "ffn_norm")
        m = self.put(label, self.norm(x, pre + ("post_attention_norm" if post else "ffn_norm") + ".weight"), i)
        out = self.experts(i, m) if self.w(pre + "ffn_gate_inp.weight") is not None else self.dense(i, m, "ffn_out")
        if self.arch.startswith("gemma"):
            out = self.put("ffn_post_norm", self.after(out, pre + "post_ffw_norm"), i)
        elif self.arch == "glm4":
            out = self.put("post_mlp_norm", self.after(out, pre + "post_ffw_norm"), i)
        return self.put("l_out", self.scaled("ffn_out_scaled", out, i) + x, i)

    def after(self, x, name):
        return x if "postnorm-missing" in self.bugs else self.norm(x, name + ".weight")

    def scaled(self, name, x, i):
        if not self.arch.startswith("granite"):
            return x
        return self.put(name, x if "res-multiplier" in self.bugs else x * f32(self.get("residual_scale")), i)

    # -- attention

    def qkv(self, i, n):
        pre, found = f"blk.{i}.", []
        fused = self.w(pre + "attn_qkv.weight")
        if fused is not None:
            y = self.put("wqkv", n @ fused.T, i)
            a, b = self.heads * self.width, self.groups * self.width
            parts = np.split(y, [a, a + b], -1)
        else:
            parts = [n @ self.w(f"{pre}attn_{c}.weight").T for c in "qkv"]
        for c, y in zip("qkv", parts, strict=True):
            bias = self.w(f"{pre}attn_{c}.bias")
            if bias is not None:
                y = self.put(f"{c.upper()}cur_proj", y, i)
                y = y if "qkv-bias-missing" in self.bugs else y + bias
                y = self.put("Vcur" if c == "v" else f"{c.upper()}cur_biased", y, i)
            else:
                y = self.put("Vcur" if c == "v" else f"{c.upper()}cur_proj", y, i)
            found.append(y.reshape(len(n), -1, self.width))
        return found

    def attention(self, i, n, positions):
        q, k, v = self.qkv(i, n)
        pre, angles = f"blk.{i}.", self.angles(positions, i)
        late = "qknorm-order" in self.bugs
        both = []
        for c, x in (("q", q), ("k", k)):
            has = self.w(f"{pre}attn_{c}_norm.weight") is not None
            name = f"{c.upper()}cur"
            if has and not late:
                x = self.by_head(x, f"{pre}attn_{c}_norm.weight")
                x = self.put(f"{name}_normed", x.reshape(len(n), -1), i).reshape(x.shape)
            elif has:
                self.put(f"{name}_normed", x.reshape(len(n), -1), i)
            if self.turns(i):
                x = self.rotate(x, angles)
                x = self.by_head(x, f"{pre}attn_{c}_norm.weight") if has and late else x
                x = self.put(name, x, i)
            both.append(x)
        q, k = both
        scale = self.width**-0.5
        if "scale-wrong-dim" in self.bugs:
            scale = (self.e // self.heads) ** -0.5
        if self.arch.startswith("granite"):
            scale = self.get("attention.scale", 0.0) or scale
        beta = self.get("attention.temperature_scale", 0.0)
        if self.arch == "mistral3" and beta:
            unit = self.get("rope.scaling.original_context_length")
            heat = 1 + beta * np.log(np.floor(np.asarray(positions) / unit) + 1)
            heat = np.ones_like(heat) if "attn-temp" in self.bugs else heat
            q = self.put("Qcur_attn_temp_scaled", q * heat[:, None, None].astype(f32), i)
        if self.arch.startswith("gemma") or self.arch == "phi3":
            q, scale = self.put("Qcur_scaled", q * f32(scale), i), 1.0
        window = self.get("attention.sliding_window") if self.local(i) else 0
        return self.mix(i, q, k, v, scale, window, positions).reshape(len(n), -1)

    def mix(self, i, q, k, v, scale, window, positions):
        """Head by head: scores, mask, softmax, values. [tokens, heads, width of v]"""
        t, heads = q.shape[:2]
        if self.arithmetic == "kv16":
            k, v = (x.astype(np.float16).astype(f32) for x in (k, v))
        share = heads // k.shape[1]
        at = np.asarray(positions)
        hide = at[None, :] > at[:, None]
        if window:
            hide |= at[None, :] <= at[:, None] - window
        cap = self.get("attn_logit_softcapping", 50.0) if self.arch == "gemma2" else 0.0
        sinks = None if "sink-missing" in self.bugs else self.w(f"blk.{i}.attn_sinks.weight")
        all_scores, all_capped, all_weights, all_mixed = [], [], [], []
        for h in range(heads):
            scores = self.stored(q[:, h] @ k[:, h // share].T)
            all_scores.append(scores)
            if cap:
                scores = scores if "attn-softcap" in self.bugs else f32(cap) * np.tanh(scores / f32(cap))
                all_capped.append(scores)
            scores = np.where(hide, f32(-np.inf), scores * f32(scale))
            if sinks is not None:
                scores = np.concatenate([scores, np.full((t, 1), sinks[h], f32)], -1)
            weights = self.stored(soft(scores)[:, :t])
            all_weights.append(weights)
            all_mixed.append(weights @ v[:, h // share])
        self.put("kq", np.stack(all_scores), i)
        if cap:
            self.put("kq_scaled_2", np.stack(all_capped), i)
        self.put("kq_soft_max", np.stack(all_weights), i)
        mixed = self.put("kqv", np.stack(all_mixed), i)
        return mixed.transpose(1, 0, 2)

    def latent(self, i, n, positions):
        """DeepSeek: one compressed row a token is all that is cached."""
        pre, t = f"blk.{i}.", len(n)
        rank, r = self.get("attention.kv_lora_rank"), self.turned
        dk = self.get("attention.key_length_mla")
        a = self.put("q_a", n @ self.w(pre + "attn_q_a.weight").T, i)
        a = self.put("q_a_normed", self.norm(a, pre + "attn_q_a_norm.weight"), i)
        q = self.put("q", a @ self.w(pre + "attn_q_b.weight").T, i).reshape(t, self.heads, dk)
        both = self.put("kv_cmpr_pe", n @ self.w(pre + "attn_kv_a_mqa.weight").T, i)
        angles = self.angles(positions, i)
        cut = r if "mla-rope-first" in self.bugs else 0  # the turned values are the last of each head
        nope, pe = (q[..., r:], q[..., :r]) if cut else (q[..., : dk - r], q[..., dk - r :])
        self.put("q_nope", nope, i)
        pe = self.put("q_pe", self.rotate(self.put("q_pe_proj", pe, i), angles), i)
        k_pe = self.put("k_pe_proj", both[:, None, rank:], i)
        k_pe = self.put("k_pe", self.rotate(k_pe, angles), i)
        kv = self.put("kv_cmpr_proj", both[:, :rank], i)
        weight = self.w(pre + "attn_kv_a_norm.weight")
        if "mla-norm-width" in self.bugs:
            kv = kv / np.sqrt(np.mean(both * both, -1, keepdims=True) + f32(self.eps)) * weight
        else:
            kv = self.norm(kv, pre + "attn_kv_a_norm.weight")
        kv = self.put("kv_cmpr", kv, i)
        k_b, v_b = self.w(pre + "attn_k_b.weight"), self.w(pre + "attn_v_b.weight")
        absorbed = np.stack([nope[:, h] @ k_b[h].T for h in range(self.heads)])
        absorbed = self.put("q_nope_absorbed", absorbed, i).transpose(1, 0, 2)
        q = self.put("Qcur", np.concatenate([absorbed, pe], -1), i)
        k = self.put("Kcur", np.concatenate([kv[:, None], k_pe], -1), i)
        factor, c = self.get("rope.scaling.factor", 1.0), 10 * self.get("rope.scaling.yarn_log_multiplier", 0.0)
        mu = 1 + 0.1 * c * math.log(factor)
        mixed = self.mix(i, q, k, kv[:, None], (1.0 if "mla-scale" in self.bugs else mu * mu) * dk**-0.5, 0, positions)
        out = np.stack([mixed[:, h] @ v_b[h].T for h in range(self.heads)])
        return self.put("kqv_mla", out, i).transpose(1, 0, 2).reshape(t, -1)

    # -- feed-forward

    def dense(self, i, m, name, suffix=""):
        pre = f"blk.{i}."
        up = self.put("ffn_up", m @ self.w(f"{pre}ffn_up{suffix}.weight").T, i)
        gate = self.w(f"{pre}ffn_gate{suffix}.weight")
        if gate is None:  # gate and up in one matrix, the gate first
            gate, up = np.split(up, 2, -1)
            if "gateup-split" in self.bugs:
                gate, up = up, gate
        else:
            gate = self.put("ffn_gate", m @ gate.T, i)
        if self.arch.startswith("gemma"):
            y = self.put("ffn_geglu", gelu(gate) * up, i)
        else:
            y = self.put("ffn_swiglu", gate * sigmoid(gate) * up, i)
        return self.put(name, y @ self.w(f"{pre}ffn_down{suffix}.weight").T, i)

    def experts(self, i, m):
        pre, t = f"blk.{i}.", len(m)
        used = self.get("expert_used_count")
        logits = self.put("ffn_moe_logits", m @ self.w(pre + "ffn_gate_inp.weight").T, i)
        gating = self.get("expert_gating_func", 2 if self.arch == "glm4moe" else 1)
        bias, oss = self.w(pre + "exp_probs_b.bias"), self.arch == "gpt-oss"
        if oss:
            probs = logits + self.w(pre + "ffn_gate_inp.bias")
        else:
            probs = sigmoid(logits) if gating == 2 else soft(logits)
        probs = self.put("ffn_moe_probs", probs, i)
        choose = probs
        if bias is not None:
            choose = self.put("ffn_moe_probs_biased", probs + bias, i)
            if "moe-router-bias" in self.bugs:
                probs = choose
        n_groups = self.get("expert_group_count", 0)
        if n_groups > 1 and self.arch == "deepseek2":
            if "moe-groups" not in self.bugs:
                parts = choose.reshape(t, n_groups, -1)
                best = np.sort(parts, -1)[..., -2:].sum(-1)
                order = np.argsort(-best, -1, kind="stable")[:, : self.get("expert_group_used_count")]
                kept = np.full_like(parts, -np.inf)
                for token in range(t):
                    kept[token, order[token]] = parts[token, order[token]]
                choose = kept.reshape(t, -1)
            self.put("ffn_moe_probs_masked", choose, i)
        top = np.argsort(-choose, -1, kind="stable")[:, :used]
        self.trace[f"ffn_moe_topk-{i}"] = top
        weights = self.put("ffn_moe_weights", np.take_along_axis(probs, top, -1), i)
        if oss:
            every = np.take_along_axis(soft(probs), top, -1)
            weights = self.put("ffn_moe_weights_softmax", every if "moe-topk-norm" in self.bugs else soft(weights), i)
        normalise = {"qwen3moe": True, "granitemoe": True, "qwen2moe": False, "gpt-oss": False}.get(
            self.arch, self.get("expert_weights_norm", False)
        )
        if self.arch == "qwen2moe" and "moe-topk-norm" in self.bugs:
            weights = weights / weights.sum(-1, keepdims=True)
        if normalise:
            total = self.put("ffn_moe_weights_sum", weights.sum(-1, keepdims=True), i)
            weights = self.put("ffn_moe_weights_norm", weights if "moe-no-renorm" in self.bugs else weights / total, i)
        gain = self.get("expert_weights_scale", 0.0)
        if gain not in (0.0, 1.0):
            weights = self.put("ffn_moe_weights_scaled", weights * (1 if "moe-routed-scale" in self.bugs else gain), i)
        up_w, gate_w, down_w = (self.w(f"{pre}ffn_{c}_exps.weight") for c in ("up", "gate", "down"))
        ups, gates, acts, downs, out = [], [], [], [], np.zeros_like(m)
        for token in range(t):
            for j, expert in enumerate(top[token]):
                up, gate = up_w[expert] @ m[token], gate_w[expert] @ m[token]
                if oss:
                    up = up + self.w(pre + "ffn_up_exps.bias")[expert]
                    gate = gate + self.w(pre + "ffn_gate_exps.bias")[expert]
                    g, v = np.minimum(gate, 7), np.clip(up, -7, 7)
                    act = g * sigmoid(f32(1.702) * g) * (v if "ffn-oai-swiglu" in self.bugs else v + 1)
                else:
                    act = gate * sigmoid(gate) * up
                down = down_w[expert] @ self.stored(act)
                if oss:
                    down = down + self.w(pre + "ffn_down_exps.bias")[expert]
                ups.append(up), gates.append(gate), acts.append(act), downs.append(down)
                out[token] += self.stored(down) * weights[token, j]
        names = ("up_biased", "gate_biased", "swiglu_oai", "down_biased") if oss else ("up", "gate", "swiglu", "down")
        for name, rows in zip(names, (ups, gates, acts, downs), strict=True):
            self.put(f"ffn_moe_{name}", np.array(rows).reshape(t, used, -1), i)
        out = self.put("ffn_moe_out", out, i)
        if self.w(pre + "ffn_up_shexp.weight") is None:
            return out
        shared = self.dense(i, m, "ffn_shexp_out" if self.arch == "glm4moe" else "ffn_shexp", "_shexp")
        door = self.w(pre + "ffn_gate_inp_shexp.weight")
        if door is not None:
            gate = self.put("ffn_shexp_gate_inp", (m @ door.reshape(-1))[:, None], i)
            gate = self.put("ffn_shexp_gate", sigmoid(gate), i)
            shared = self.put("ffn_shexp_out", shared if "moe-shared-gate" in self.bugs else shared * gate, i)
        return self.put("ffn_out", out if "moe-shared-missing" in self.bugs else out + shared, i)
