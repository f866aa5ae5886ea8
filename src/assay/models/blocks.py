"""The parts that architectures share: embedding, norms, attention, feed-forward, experts, head, pooling.

A builder method appends nodes and returns the name of the last. Names follow llama.cpp; where one of its names
stands for several values, the stages are `_proj`, `_biased`, `_normed`, then the plain name. Optional tensors (biases,
a separate head, q/k norms, a fused `attn_qkv`) are looked up by name and used if the file has them. Differences between
layers are in each layer's row of the hyper-parameters. Touch this when several architectures need the same new part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from assay.errors import AssayError
from assay.graph import Graph, Node, join
from assay.models.arch_keys import ArchKeys
from assay.models.hparams import Experts, HParams, Layer, RopeParams

Shapes = Mapping[str, tuple[int, ...]]  # GGUF tensor name -> row-major shape
POOLING = {1: "mean", 2: "first", 3: "last"}
RANK = 4  # pooling_type of a file that scores a text instead: a classification head on the pooled row


class Builder:
    """Collects nodes; `layer` is the block being built, or None outside the blocks. `n_ctx` is the context in use."""

    def __init__(self, meta: ArchKeys, shapes: Shapes, n_ctx: int | None = None) -> None:
        self.meta, self.shapes = meta, shapes
        self.n_ctx = n_ctx or meta.count("context_length")
        self.nodes: list[Node] = []
        self.layer: int | None = None
        self.embedding_node = ""
        self.draft: Graph | None = None  # the graph of the draft head, where the file has one
        self.draft_fault = ""  # why it has none that can be run, though it says so

    # -- what the file says --------------------------------------------------------------------------------

    def read(self, *, norm: str = "rms", mode: str = "norm", least_heads: int = 1) -> HParams:
        """The hyper-parameters all architectures share; a builder begins with it and may change the layers' rows."""
        table = self.shapes.get("token_embd.weight", ())
        if len(table) != 2:
            raise AssayError(
                f"{self.meta.where}token_embd.weight: missing or not a matrix; there is no model in this file"
            )
        self.norm_op = f"{norm}_norm"
        self.hp = HParams.read(self.meta, self.shapes, table[0], norm=norm, mode=mode, least_heads=least_heads)
        if table[1] != self.hp.n_embd:
            raise self.meta.error("embedding_length", self.hp.n_embd, f"{table[1]}, the width of token_embd.weight")
        return self.hp

    def rope_factors(self, *, long: bool = False) -> None:
        """Use `rope_freqs` if the file has it, or with `longrope` scaling (or `long`) the long or short factors.

        The long factors apply when the context in use is larger than the original one.
        """

        def own(rope: RopeParams) -> RopeParams:
            if long or rope.kind == "longrope":
                name = f"rope_factors_{'long' if self.n_ctx > rope.n_ctx_orig else 'short'}.weight"
            else:
                name = "rope_freqs.weight"
            return replace(rope, factors=name) if name in self.shapes else rope

        self.hp = self.hp.each(lambda i, row: replace(row, rope=own(row.rope)) if row.rope else row)

    def local(self, default: int, *, base: bool = True, **changes: Any) -> list[bool]:
        """Which layers are local. Their rows get `changes` and, with `base`, the RoPE base of local layers."""
        local = self.meta.pattern(self.hp.n_layer, default)
        own = self.meta.positive("rope.freq_base_swa", self.hp.rope.base) if base else self.hp.rope.base
        rope = replace(self.hp.rope, base=own)
        self.hp = self.hp.each(lambda i, row: replace(row, **{"rope": rope, **changes}) if local[i] else row)
        return local

    def routing(self, first: int = 0, step: int = 1, **choices: Any) -> None:
        """Give every `step`-th layer from `first` on experts with these choices. The other layers are dense."""

        def own(i: int, row: Layer) -> Layer:
            if row.experts is None or i < first or (i + 1) % step:
                return replace(row, experts=None)
            return replace(row, experts=replace(row.experts, **choices))

        self.hp = self.hp.each(own)

    @property
    def here(self) -> Layer:
        """The row of the layer being built."""
        assert self.layer is not None
        return self.hp.layers[self.layer]

    def blocks(self) -> Iterator[int]:
        for layer in range(self.hp.n_layer):
            self.layer = layer
            yield layer
        self.layer = None

    def weight(self, stem: str, suffix: str = "weight") -> str:
        """The name of a tensor of this layer. Some tensors have no suffix: `ssm_a`."""
        name = f"{stem}.{suffix}" if suffix else stem
        return f"blk.{self.layer}.{name}" if self.layer is not None else name

    def bare(self, stem: str) -> str:
        """The name of a tensor that files write without a suffix; with `.weight` where a file has it so."""
        return self.weight(stem) if self.has(stem) else self.weight(stem, "")

    def has(self, stem: str, suffix: str = "weight") -> bool:
        return self.weight(stem, suffix) in self.shapes

    # -- nodes ---------------------------------------------------------------------------------------------

    def node(self, role: str, op: str, *inputs: str, weights: tuple[str, ...] = (), **attrs: Any) -> str:
        name = join(role, self.layer)
        self.nodes.append(Node(name, op, inputs, weights, attrs))
        return name

    def linear(self, role: str, x: str, stem: str) -> str:
        """`role = W x`, times the matrix's own scale where the file has one: NVFP4 keeps it beside the blocks."""
        if self.shapes.get(self.weight(stem, "scale")) != (1,):
            return self.node(role, "linear", x, weights=(self.weight(stem),))
        y = self.node(f"{role}_unscaled", "linear", x, weights=(self.weight(stem),))
        return self.node(role, "mul_weight", y, weights=(self.weight(stem, "scale"),))

    def add(self, role: str, a: str, b: str) -> str:
        return self.node(role, "add", a, b)

    def scaled(self, role: str, x: str, factor: float) -> str:
        return self.node(role, "scale", x, factor=factor)

    def embedding(self, scale: float = 1.0, *, scaled: str = "inp_scaled") -> str:
        """Rows of the embedding table; multiplied by `scale` in a node called `scaled`."""
        rows = "embd_rows" if scaled == "embd" and scale != 1.0 else "embd"
        x = self.node(rows, "embed", "inp_tokens", weights=("token_embd.weight",))
        return self.scaled(scaled, x, scale) if scale != 1.0 else x

    def norm(self, role: str, x: str, stem: str = "", *, n_head: int = 0) -> str:
        """The architecture's norm, with a bias if the file has one."""
        stem = stem or role
        heads = {"n_head": n_head} if n_head else {}
        weights: tuple[str, ...] = (self.weight(stem),)
        if self.has(stem, "bias") and self.norm_op == "layer_norm":
            weights += (self.weight(stem, "bias"),)
        elif self.has(stem, "bias"):
            y = self.node(f"{role}_unbiased", self.norm_op, x, weights=weights, eps=self.hp.eps, **heads)
            return self.node(role, "bias", y, weights=(self.weight(stem, "bias"),))
        return self.node(role, self.norm_op, x, weights=weights, eps=self.hp.eps, **heads)

    def project(self, role: str, x: str, stem: str, *, partial: str) -> str:
        """`role = W x (+ b)`. If there is a bias, the product alone is called `partial`."""
        if not self.has(stem, "bias"):
            return self.linear(role, x, stem)
        y = self.linear(partial, x, stem)
        return self.node(role, "bias", y, weights=(self.weight(stem, "bias"),))

    # -- attention -----------------------------------------------------------------------------------------

    def qkv(self, x: str, clamp: float = 0.0, *, gated: bool = False) -> tuple[str, str, str]:
        """Query, key and value before norm and rotation, from three matrices or from one fused `attn_qkv`.

        With `gated`, the rows of each query head are the query and a gate: `Qcur_full`.
        """
        row = self.here
        names = []
        parts = (
            ("Qcur_full", "attn_q", 2 * row.n_head * row.n_embd_head)
            if gated
            else ("Qcur", "attn_q", row.n_head * row.n_embd_head),
            ("Kcur", "attn_k", row.n_head_kv * row.n_embd_head),
            ("Vcur", "attn_v", row.n_head_kv * row.n_embd_head_v),
        )
        fused = self.has("attn_qkv")
        for stem, width in [("attn_qkv", sum(p[2] for p in parts))] if fused else [p[1:] for p in parts]:
            self.check_rows(stem, width)
        if fused:
            x = self.project("wqkv_b" if self.has("attn_qkv", "bias") else "wqkv", x, "attn_qkv", partial="wqkv")
            if clamp:
                x = self.node("wqkv_clamped", "clamp", x, lo=-clamp, hi=clamp)
        start = 0
        for role, stem, width in parts:
            biased = self.has(stem, "bias")
            whole = role in ("Vcur", "Qcur_full")  # nothing but a bias changes it
            plain, final = f"{role}_proj", role if whole else f"{role}_biased"
            first = final if whole and not biased else plain
            if fused:
                y = self.node(first, "slice", x, start=start, stop=start + width)
            else:
                y = self.linear(first, x, stem)
            names.append(self.node(final, "bias", y, weights=(self.weight(stem, "bias"),)) if biased else y)
            start += width
        return names[0], names[1], names[2]

    def check_rows(self, stem: str, rows: int) -> None:
        """Check that a matrix whose rows form heads has as many rows as the metadata say."""
        name, row = self.weight(stem), self.here
        if name in self.shapes and self.shapes[name][:1] != (rows,):
            heads = f"{row.n_head} heads over {row.n_head_kv}, {row.n_embd_head} wide"
            raise AssayError(
                f"{name}: rows do not make the heads (found {self.shapes[name]}, expected {rows}: {heads})"
            )

    def head_norm(self, role: str, x: str, stem: str, n_head: int) -> str:
        """The q/k norm, if the file has one: over each head, or over the whole width if the weight is that long."""
        if not self.has(stem):
            return x
        shape = self.shapes[self.weight(stem)]
        whole = len(shape) == 1 and n_head > 1 and shape[0] == n_head * self.here.n_embd_head
        return self.norm(role, x, stem, n_head=0 if whole else n_head)

    def rope(self, role: str, x: str, n_head: int, **more: Any) -> str:
        """Rotate by position (RoPE). A layer without rotation returns `x`."""
        rope = self.here.rope
        if rope is None:
            return x
        factors = (rope.factors,) if rope.factors else ()
        return self.node(role, "rope", x, "inp_pos", weights=factors, n_head=n_head, **rope.attrs(), **more)

    def query(self, q: str) -> str:
        """The last steps of the query: its scale, if the layer scales queries, and its temperature."""
        row = self.here
        if row.scale_query:
            q = self.scaled("Qcur_scaled", q, row.scale)
        if row.temperature:
            t = row.temperature
            q = self.node("Qcur_attn_temp_scaled", "pos_scale", q, "inp_pos", beta=t.beta, unit=t.unit, offset=t.offset)
        return q

    def attend(self, q: str, k: str, v: str) -> str:
        """Scores, softmax and weighted values: `kqv` [H, T, D]. Operands without an axis of heads are split here."""
        row = self.here
        flat: dict[str, Any] = {} if row.rope else {"n_head": row.n_head}
        kept: dict[str, Any] = (
            {} if row.causal else {"n_head_kv": row.n_head_kv}
        )  # uncached keys and values have no axis of heads
        flat |= {} if row.rope else kept
        kq = self.node("kq", "kq", q, k, **flat)
        if row.cap:
            kq = self.node("kq_scaled_2", "softcap", kq, cap=row.cap)
        given = {"window": row.window, "chunk": row.chunk, "max_bias": row.max_bias}
        attrs: dict[str, Any] = {key: value for key, value in given.items() if value}
        if not row.causal:
            attrs["causal"] = False
        sinks = (self.weight("attn_sinks"),) if self.has("attn_sinks") else ()
        scale = 1.0 if row.scale_query else row.scale
        keys = "inp_kpos" if row.causal else "inp_pos"
        p = self.node("kq_soft_max", "attn_softmax", kq, "inp_pos", keys, weights=sinks, scale=scale, **attrs)
        return self.node("kqv", "kqv", p, v, **kept)

    def cached(self, k: str, v: str) -> tuple[str, str]:
        """Keys and values of all steps so far. Without causal attention, those of this step alone."""
        row = self.here
        if not row.causal:
            return k, v
        k = self.node("cache_k", "cache", k, n_head=row.n_head_kv)
        return k, self.node("cache_v", "cache", v, n_head=row.n_head_kv)

    def output(self, kqv: str) -> str:
        """Merge the heads and multiply by the output matrix."""
        return self.project(
            "attn_out", self.node("kqv_out", "merge_heads", kqv), "attn_output", partial="attn_out_proj"
        )

    def attention(self, x: str, *, clamp: float = 0.0, norm_last: bool = False, normed: str = "normed") -> str:
        """Attention from norm to output: q, k, v; norms and rotation (norm last with `norm_last`); scores; output.

        `normed` is the end of the names of queries and keys after their norm.
        """
        row = self.here
        q, k, v = self.qkv(x, clamp)
        for last in (False, True):
            if last == norm_last:
                q = self.head_norm(f"Qcur_{normed}", q, "attn_q_norm", row.n_head)
                k = self.head_norm(f"Kcur_{normed}", k, "attn_k_norm", row.n_head_kv)
            if not last:
                q, k = self.rope("Qcur", q, row.n_head), self.rope("Kcur", k, row.n_head_kv)
        return self.output(self.attend(self.query(q), *self.cached(k, v)))

    # -- feed-forward --------------------------------------------------------------------------------------

    def ffn(self, x: str, act: str = "swiglu", *, out: str = "ffn_out", tail: str = "") -> str:
        """down(act(gate) * up). Without a gate matrix, a gated `act` splits `up` into gate and up.

        `tail` is the end of the tensors' names (`_shexp` for a shared expert), `out` the name of the result.
        """

        def part(role: str) -> str:
            stem = role + tail
            return self.project(f"{role}_b" if self.has(stem, "bias") else role, x, stem, partial=role)

        up = part("ffn_up")
        if act == "gelu":
            y = self.node("ffn_gelu", "act", up, act="gelu_tanh")
        elif act in ("relu_sqr", "sqr(relu)"):
            relu = self.node("ffn_relu", "act", up, act="relu")
            y = self.node(f"ffn_{act}", "mul", relu, relu)
        elif not self.has("ffn_gate" + tail):
            y = self.node(f"ffn_{act}", "glu_split", up, act=_ACTS[act])
        else:
            y = self.node(f"ffn_{act}", "glu", part("ffn_gate"), up, act=_ACTS[act])
        return self.project(out, y, "ffn_down" + tail, partial="ffn_down")

    def experts(self, x: str, *, router: str = "") -> str:
        """The weighted sum of the chosen experts' results; the layer's row says how they are chosen.

        `router` is the router's input where it is not the experts'.
        """
        e = self.here.experts
        assert e is not None
        self._check_experts(e)
        best, w = self._route(router or x, e)
        inner = self.node("ffn_moe_weighted", "expert_input", x, w) if e.weigh_input else x

        def expert(role: str, y: str, stem: str, scale: str = "") -> str:
            y = self.node(role, "expert_linear", y, best, weights=(self.weight(stem),))
            if self.has(scale or stem, "scale"):
                gain = (self.weight(scale or stem, "scale"),)
                y = self.node(f"{role}_scaled", "expert_gain", y, best, weights=gain)
            if self.has(stem, "bias"):
                y = self.node(f"{role}_biased", "expert_bias", y, best, weights=(self.weight(stem, "bias"),))
            return y

        gate = ""
        if self.has("ffn_gate_up_exps"):  # gate rows first
            both = expert("ffn_moe_gate_up", inner, "ffn_gate_up_exps", "ffn_up_exps")
            half = self.shapes[self.weight("ffn_gate_up_exps")][1] // 2
            gate = self.node("ffn_moe_gate", "slice", both, start=0, stop=half)
            up = self.node("ffn_moe_up", "slice", both, start=half, stop=2 * half)
        else:
            up = expert("ffn_moe_up", inner, "ffn_up_exps")
            gate = "" if e.act in _UNGATED else expert("ffn_moe_gate", inner, "ffn_gate_exps")
        if e.act in _UNGATED:
            y = self.node(f"ffn_moe_{e.act}", "act", up, act=_UNGATED[e.act])
        elif e.act == "swiglu_oai":
            y = self.node("ffn_moe_swiglu_oai", "glu_oai", gate, up)
        else:
            y = self.node(f"ffn_moe_{e.act}", "glu", gate, up, act=_ACTS[e.act])
        y = expert("ffn_moe_down", y, "ffn_down_exps")
        if not e.weigh_input:
            y = self.node("ffn_moe_weighted", "expert_scale", y, w)
        return self.node("ffn_moe_out", "expert_sum", y)

    def _route(self, x: str, e: Experts) -> tuple[str, str]:
        """The chosen experts of each token, and their weights."""
        if self.has("ffn_gate_inp", "bias"):  # without a gate, llama.cpp calls the biased logits probabilities
            role = "ffn_moe_probs" if e.gate == "none" else "ffn_moe_logits_biased"
            logits = self.project(role, x, "ffn_gate_inp", partial="ffn_moe_logits")
        else:
            logits = self.linear("ffn_moe_logits", x, "ffn_gate_inp")
        probs = logits if e.gate == "none" else self.node("ffn_moe_probs", e.gate, logits)
        chosen = logits if e.choose == "logits" else probs
        for suffix in ("bias", ""):  # used to choose only: the weights are the unbiased probabilities
            if self.has("exp_probs_b", suffix):
                added = (self.weight("exp_probs_b", suffix),)
                chosen = self.node("ffn_moe_probs_biased", "bias", chosen, weights=added)
                break
        if e.groups > 1:
            chosen = self.node("ffn_moe_probs_masked", "group_mask", chosen, groups=e.groups, used=e.groups_used)
        best = self.node("ffn_moe_topk", "topk", self.node("ffn_moe_argsort", "argsort", chosen), k=e.used)
        w = self.node("ffn_moe_weights", "gather", probs, best)
        if e.softmax_chosen:
            w = self.node("ffn_moe_weights_softmax", "softmax", w)
        if e.normalise:
            total = self.node("ffn_moe_weights_sum", "row_sum", w)
            # llama.cpp's floor, the smallest normal float16: the sum is 0 only after underflow.
            total = self.node("ffn_moe_weights_sum_clamped", "clamp_min", total, lo=6.103515625e-5)
            w = self.node("ffn_moe_weights_norm", "div", w, total)
        if e.scale not in (0.0, 1.0):
            w = self.scaled("ffn_moe_weights_scaled", w, e.scale)
        return best, w

    def _check_experts(self, e: Experts) -> None:
        """Check that every tensor indexed by expert has a row for each expert."""
        stems = ("ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_gate_up_exps", "ffn_down_exps", "exp_probs_b")
        for stem in stems:
            for suffix in ("weight", "bias", "scale", ""):
                shape = self.shapes.get(self.weight(stem, suffix))
                own = shape is not None and not (stem == "ffn_gate_inp" and suffix == "scale")
                if own and shape and shape[0] != e.count:
                    name = self.weight(stem, suffix)
                    raise AssayError(f"{name}: not one row an expert (found {shape[0]}, expected {e.count})")

    # -- the end -------------------------------------------------------------------------------------------

    def head(self, x: str, *, norm: str = "output_norm", scale: float = 1.0, cap: float = 0.0) -> Graph:
        """Norm and logits. Without an `output.weight` in the file, the embedding table is the matrix."""
        if norm:
            x = self.norm("result_norm", x, norm)
        self.pool(x)
        role = "result_output" if scale == 1.0 and not cap else "result_output_proj"
        stem = "output" if self.has("output") else "token_embd"
        if self.has("output", "bias"):
            y = self.linear("result_output_no_bias", x, stem)
            y = self.node(role, "bias", y, weights=(self.weight("output", "bias"),))
        else:
            y = self.linear(role, x, stem)
        if scale != 1.0:
            y = self.scaled("result_output_scaled" if cap else "result_output", y, scale)
        if cap:
            self.node("result_output", "softcap", y, cap=cap)
        return self._graph("result_output")

    def encoded(self, x: str) -> Graph:
        """The end of an encoder: a row for each token, and one for the text."""
        self.pool(x)
        return self._graph(x)

    def pool(self, x: str) -> None:
        """Pool all tokens into one row, if the file says how; then multiply by `dense_2` and `dense_3`, if present."""
        kind = self.meta.count("pooling_type", 0, least=0)
        self.embedding_node = x
        if kind == 0:
            return
        if kind == RANK:
            self._rank(x)
            return
        if kind not in POOLING:
            raise self.meta.error("pooling_type", kind, "0 none, 1 mean, 2 first, 3 last or 4 rank")
        dense = [stem for stem in ("dense_2", "dense_3") if self.has(stem)]
        x = self.node("result_embd_pool" if dense else "result_embd_pooled", "pool", x, kind=POOLING[kind])
        for stem in dense:
            role = "result_embd_pooled" if stem == dense[-1] else f"result_{stem}"
            x = self.project(role, x, stem, partial=f"{role}_proj")
        self.embedding_node = x

    def _rank(self, x: str) -> None:
        """The classification head of a reranker: a score for each label. Encoders pool the first row, others the last.

        y = W2 tanh(W1 x + b1) + b2; a file has both matrices or only the second.
        """
        if not self.has("cls.output") and not self.has("cls"):
            raise self.meta.error("pooling_type", RANK, "cls.output.weight or cls.weight in a file that ranks")
        kind = "last" if self.hp.layers[0].causal else "first"
        x = self.node("result_embd_pool", "pool", x, kind=kind)
        if self.has("cls"):
            last = not self.has("cls.output")
            x = self.project("result_embd_pooled" if last else "result_cls", x, "cls", partial="result_cls_proj")
        if self.has("cls.output"):
            if self.has("cls"):
                x = self.node("result_cls_tanh", "act", x, act="tanh")
            x = self.project("result_embd_pooled", x, "cls.output", partial="result_score_proj")
        self.embedding_node = x

    def _graph(self, output: str) -> Graph:
        return Graph(tuple(self.nodes), self.shapes, output, embedding=self.embedding_node)


_ACTS = {"swiglu": "silu", "geglu": "gelu_tanh"}
_UNGATED = {"relu_sqr": "relu_sqr", "gelu": "gelu_tanh"}  # experts without a gate matrix
