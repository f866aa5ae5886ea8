"""Log formats written by a stranger to the reader: of these 30 it understood 23 at first sight."""

from __future__ import annotations

from tests.verify.dumps.formats import Format
from tests.verify.dumps.unseen_formats import Log, adding_to, text

FORMATS: list[Format] = []
form = adding_to(FORMATS)


def wid(log, node):
    return len(log.run.values[node][0])


def sig(t):
    """Leading space for non-negative numbers, as "% f" gives."""
    return t if t.startswith("-") else " " + t


def rust_e(t):
    """1.5e-01 as Rust and Zig write it: 1.5e-1."""
    m, e = t.split("e")
    return f"{m}e{int(e)}"


# ---------------------------------------------------------------- C and C++ (8)


@form("c llama2.c fork, every position, fprintf")
def _(log: Log) -> str:
    out = [
        f"config: n_layers={log.run.n_layer} dim={wid(log, 'embd')} vocab={wid(log, 'result_output')} shared_weights=1",
        "mmap ok, 60.82 MB",
    ]
    for p, tok in enumerate(log.run.tokens):
        out.append(f"--- forward(token={tok}, pos={p})")
        out.append("  emb      x: " + " ".join(sig(v) for v in log.first("embd", 4, ".5f", row=p, said=p)) + " ...")
        for n in log.layers:
            out.append(
                f"  layer {n:2d} x: "
                + " ".join(sig(v) for v in log.first(f"l_out-{n}", 4, ".5f", row=p, said=p))
                + " ..."
            )
    out.append("achieved tok/s: 41.237113")
    return text(out)


@form("c++ spdlog, min max mean of the pieces, last token")
def _(log: Log) -> str:
    out = [
        "[2026-02-03 10:11:12.004] [engine] [info] gguf v3, 26 tensors, 17 kv pairs",
        "[2026-02-03 10:11:12.118] [engine] [info] weights resident: 412.6 MiB, kv cache: 16.0 MiB",
        f"[2026-02-03 10:11:12.119] [engine] [debug] prefill of {len(log.run.tokens)} tokens; the statistics below are over the last token only",
    ]
    ms = 121
    for n in log.layers:
        for node, label in (
            ("attn_norm", "input_layernorm"),
            ("attn_out", "o_proj"),
            ("ffn_inp", "residual (post-attn)"),
            ("ffn_norm", "post_attention_layernorm"),
            ("ffn_out", "down_proj"),
            ("l_out", "residual (post-mlp)"),
        ):
            a, b, c = (log.stat(f"{node}-{n}", k, ".6f", said=-1) for k in ("min", "max", "mean"))
            out.append(f"[2026-02-03 10:11:12.{ms:03d}] [engine] [debug] blk.{n} {label}: min={a} max={b} mean={c}")
            ms += 3
    out.append(f"[2026-02-03 10:11:12.{ms:03d}] [engine] [info] prefill done in {ms - 119} ms")
    return text(out)


@form("c dump_vec with norm, head and tail")
def _(log: Log) -> str:
    out = [f"prompt tokens: {' '.join(map(str, log.run.tokens))}", f"processing last prompt token, pos {log.run.last}"]
    p = log.run.last

    def dump(name, node):
        h = " ".join(log.first(node, 4, "+.4f", said=p))
        t = " ".join(log.final(node, 2, "+.4f", said=p))
        out.append(f"{name:<16s} n={wid(log, node):<6d} |x|={log.stat(node, 'norm', '.4f', said=p):<10s} {h} .. {t}")

    dump("tok_embd", "embd")
    for n in log.layers:
        dump(f"L{n:02d}.xnorm", f"attn_norm-{n}")
        dump(f"L{n:02d}.q", f"Qcur_proj-{n}")
        dump(f"L{n:02d}.k", f"Kcur_proj-{n}")
        dump(f"L{n:02d}.v", f"Vcur-{n}")
        dump(f"L{n:02d}.q_rope", f"Qcur-{n}")
        dump(f"L{n:02d}.k_rope", f"Kcur-{n}")
        dump(f"L{n:02d}.wo_out", f"attn_out-{n}")
        dump(f"L{n:02d}.w2_out", f"ffn_out-{n}")
        dump(f"L{n:02d}.out", f"l_out-{n}")
    dump("final_norm", "result_norm")
    dump("logits", "result_output")
    return text(out)


@form("c++ iostream, braces over two lines, scientific")
def _(log: Log) -> str:
    p = log.run.last
    out = ["Loading model... done (1.92 s)", "Threads: 8, AVX2: yes, FMA: yes", ""]
    for n in log.layers:
        out.append(f"Layer {n + 1} of {log.run.n_layer} output (token index {p}):")
        out.append("    {" + ", ".join(log.first(f"l_out-{n}", 3, ".6e", said=p)) + ",")
        out.append("     ..., " + ", ".join(log.final(f"l_out-{n}", 3, ".6e", said=p)) + "}")
    out.append(f"Final RMSNorm output (token index {p}):")
    out.append("    {" + ", ".join(log.first("result_norm", 3, ".6e", said=p)) + ",")
    out.append("     ..., " + ", ".join(log.final("result_norm", 3, ".6e", said=p)) + "}")
    out.append("")
    out.append("Forward pass: 83.114 ms")
    return text(out)


@form("c elements by index, DBG macro with file and line")
def _(log: Log) -> str:
    out = [
        "transformer.c:88: DBG: rope_theta=10000.0 eps=1e-05",
        f"transformer.c:201: DBG: decode pos={log.run.last} tok={log.run.tokens[-1]}",
    ]
    p = log.run.last
    for n in log.layers:
        w = wid(log, f"l_out-{n}")
        ids = (0, 1, w // 2, w - 1)
        for node, line, what in (("ffn_inp", 264, "x after attn add"), ("l_out", 311, "x after ffn add")):
            out.append(
                f"transformer.c:{line}: DBG: layer {n}: {what}: "
                + " ".join(f"x[{i}]={log.at(f'{node}-{n}', i, '.7f', said=p)}" for i in ids)
            )
    w = wid(log, "result_output")
    out.append(
        "transformer.c:330: DBG: "
        + " ".join(f"logits[{i}]={log.at('result_output', i, '.7f', said=p)}" for i in (0, 1, 2, w - 1))
    )
    return text(out)


@form("c++ setw table of the residual stream")
def _(log: Log) -> str:
    out = [
        "n_threads = 6 / 12 | BLAS = 0 | seed = 1234",
        f"eval: {len(log.run.tokens)} tokens in one batch",
        "",
        "residual stream at the end of each layer, last token:",
        "",
        f"{'layer':>6}{'rms':>12}{'absmax':>12}{'x[0]':>12}{'x[1]':>12}{'x[2]':>12}{'ms':>8}",
        "-" * 74,
    ]
    for n in log.layers:
        node = f"l_out-{n}"
        r, a = log.stat(node, "rms", ".5f", said=-1), log.stat(node, "absmax", ".5f", said=-1)
        x = log.first(node, 3, ".5f", said=-1)
        out.append(f"{n:>6}{r:>12}{a:>12}" + "".join(f"{v:>12}" for v in x) + f"{4.1 + 0.3 * n:>8.1f}")
    out += ["-" * 74, "peak RSS 731 MB"]
    return text(out)


@form("c indented tree of one token")
def _(log: Log) -> str:
    p = log.run.last
    out = ["# build 0x3f2, gcc 13.2, -O0 -fsanitize=address", f"token #{p} (id {log.run.tokens[-1]})"]

    def row(ind, label, node):
        out.append(" " * ind + f"{label:<{26 - ind}}-> " + ", ".join(log.first(node, 5, ".4f", said=p)) + ", ...")

    row(2, "embedding", "embd")
    for n in log.layers:
        out.append(f"  block {n}")
        out.append("    attention")
        row(6, "rmsnorm", f"attn_norm-{n}")
        row(6, "q (before rope)", f"Qcur_proj-{n}")
        row(6, "q (after rope)", f"Qcur-{n}")
        row(6, "k (before rope)", f"Kcur_proj-{n}")
        row(6, "k (after rope)", f"Kcur-{n}")
        row(6, "v", f"Vcur-{n}")
        row(6, "heads concat", f"kqv_out-{n}")
        row(6, "wo", f"attn_out-{n}")
        out.append("    feed forward")
        row(6, "rmsnorm", f"ffn_norm-{n}")
        row(6, "w1 (gate)", f"ffn_gate-{n}")
        row(6, "w3 (up)", f"ffn_up-{n}")
        row(6, "silu(w1)*w3", f"ffn_swiglu-{n}")
        row(6, "w2 (down)", f"ffn_out-{n}")
        row(4, "block output", f"l_out-{n}")
    row(2, "final rmsnorm", "result_norm")
    row(2, "logits", "result_output")
    return text(out)


@form("c++ print_matrix, all rows, head and tail columns")
def _(log: Log) -> str:
    out = ["[INFO] model arch: llama, quant: F32", "[INFO] backend: cpu (neon)"]

    def mat(title, node):
        n, w = len(log.run.tokens), wid(log, node)
        out.append(f"{title}  ({n} x {w}, one row per token)")
        for r in range(n):
            a = log.first(node, 3, "9.4f", row=r, said=r)
            b = log.final(node, 3, "9.4f", row=r, said=r)
            out.append(f"  row {r:>3} |" + " ".join(a) + "  ... " + " ".join(b) + " |")
        out.append("")

    mat("embeddings", "embd")
    for n in log.layers:
        mat(f"hidden state after decoder layer {n}", f"l_out-{n}")
    return text(out)


# ---------------------------------------------------------------- Rust (6)


@form("rust tracing with fields")
def _(log: Log) -> str:
    p = log.run.last
    out = [
        "2026-02-03T10:11:12.101833Z  INFO infer::loader: mapped safetensors file bytes=271060992 tensors=29",
        f"2026-02-03T10:11:12.340017Z  INFO infer::session: prompt tokenized n_tokens={len(log.run.tokens)}",
    ]
    us = 351200
    for n in log.layers:
        out.append(
            f"2026-02-03T10:11:12.{us}Z DEBUG forward{{pos={p}}}:layer{{idx={n}}}: infer::model: attn output proj vals=[{', '.join(log.first(f'attn_out-{n}', 4, 'r', said=p))}]"
        )
        out.append(
            f"2026-02-03T10:11:12.{us + 611}Z DEBUG forward{{pos={p}}}:layer{{idx={n}}}: infer::model: mlp output vals=[{', '.join(log.first(f'ffn_out-{n}', 4, 'r', said=p))}]"
        )
        out.append(
            f"2026-02-03T10:11:12.{us + 702}Z DEBUG forward{{pos={p}}}:layer{{idx={n}}}: infer::model: layer output vals=[{', '.join(log.first(f'l_out-{n}', 4, 'r', said=p))}]"
        )
        us += 1873
    ((i, v),) = log.top("result_output", 1, ".4f", said=p)
    out.append(f"2026-02-03T10:11:12.{us}Z DEBUG forward{{pos={p}}}: infer::sample: argmax token={i} logit={v}")
    return text(out)


@form("rust println of a slice, bracketed tag")
def _(log: Log) -> str:
    out = [
        "    Finished `release` profile [optimized + debuginfo] target(s) in 0.07s",
        "     Running `target/release/rllm --model tiny.gguf --prompt 'Once upon'`",
        f"tokens: {list(log.run.tokens)}",
        f"[embed] first 6: [{', '.join(log.first('embd', 6, 'r'))}]",
    ]
    for n in log.layers:
        out.append(f"[block {n}] first 6: [{', '.join(log.first(f'l_out-{n}', 6, 'r'))}]")
    out.append(f"[ln_f] first 6: [{', '.join(log.first('result_norm', 6, 'r'))}]")
    out.append(f"[lm_head] first 6: [{', '.join(log.first('result_output', 6, 'r'))}]")
    return text(out)


@form("rust dbg! macro")
def _(log: Log) -> str:
    out = ["[src/main.rs:57:5] &prompt_ids = ["] + [f"    {t}," for t in log.run.tokens] + ["]"]

    def dbg(line, expr, vals):
        out.append(f"[src/model/llama.rs:{line}:13] {expr} = [")
        out.extend(f"    {v}," for v in vals)
        out.append("]")

    for n in log.layers:
        out.append(f"[src/model/llama.rs:140:13] layer_idx = {n}")
        dbg(149, "&attn_normed[..4]", log.first(f"attn_norm-{n}", 4, "r"))
        dbg(166, "&hidden_after_attn_residual[..4]", log.first(f"ffn_inp-{n}", 4, "r"))
        dbg(178, "&hidden_after_ffn_residual[..4]", log.first(f"l_out-{n}", 4, "r"))
    dbg(191, "&final_normed[..4]", log.first("result_norm", 4, "r"))
    return text(out)


@form("rust env_logger, layers from one, statistics")
def _(log: Log) -> str:
    L = log.run.n_layer
    out = [
        "[2026-02-03T10:11:12Z INFO  lm::weights] 29 tensors, f32, read in 312ms",
        f"[2026-02-03T10:11:13Z INFO  lm::forward] {len(log.run.tokens)} prompt tokens, {L} layers; stats for token {log.run.last}",
    ]
    p = log.run.last
    for n in log.layers:
        for node, name in (("ffn_inp", "resid_mid"), ("l_out", "resid_post")):
            m, s, l2 = (log.stat(f"{node}-{n}", k, "r", said=p) for k in ("mean", "std", "norm"))
            out.append(f"[2026-02-03T10:11:13Z TRACE lm::forward] layer {n + 1}/{L} {name}: mean={m} std={s} l2={l2}")
    m, s, l2 = (log.stat("result_norm", k, "r", said=p) for k in ("mean", "std", "norm"))
    out.append(f"[2026-02-03T10:11:13Z TRACE lm::forward] final norm: mean={m} std={s} l2={l2}")
    out.append("[2026-02-03T10:11:13Z WARN  lm::sampler] temperature is 0, using greedy")
    return text(out)


@form("rust candle tensor display")
def _(log: Log) -> str:
    out = [
        "avx: false, neon: true, simd128: false, f16c: false",
        "temp: 0.00 repeat-penalty: 1.00 repeat-last-n: 64",
        "loaded the model in 1.604512958s",
    ]

    def t(title, node):
        v = log.first(node, 6, "7.4f", said=-1)
        out.append(f"{title} [last pos, ..6]:")
        out.append("[" + ", ".join(v) + "]")
        out.append("Tensor[[6], f32]")

    t("wte", "embd")
    for n in log.layers:
        t(f"h.{n} attn.o_proj", f"attn_out-{n}")
        t(f"h.{n} mlp", f"ffn_out-{n}")
        t(f"h.{n} out", f"l_out-{n}")
    t("ln_f", "result_norm")
    return text(out)


@form("rust json lines")
def _(log: Log) -> str:
    p = log.run.last
    out = ['{"ts":1770113472.018,"ev":"load","model":"tiny.safetensors","ms":188}']
    ts = 1770113472.207
    for n in log.layers:
        for node, site in (
            ("Qcur", "self_attn.q_rot"),
            ("Kcur", "self_attn.k_rot"),
            ("attn_out", "self_attn.o_proj"),
            ("ffn_out", "mlp.down_proj"),
            ("l_out", "block_out"),
        ):
            v = ",".join(log.first(f"{node}-{n}", 5, "r", said=p))
            out.append(
                f'{{"ts":{ts:.3f},"ev":"act","layer":{n},"site":"{site}","pos":{p},"first":[{v}],"l2":{log.stat(f"{node}-{n}", "norm", "r", said=p)}}}'
            )
            ts += 0.001
    tops = ",".join(f'{{"id":{i},"logit":{v}}}' for i, v in log.top("result_output", 3, "r", said=p))
    out.append(f'{{"ts":{ts:.3f},"ev":"logits","pos":{p},"top":[{tops}]}}')
    out.append(f'{{"ts":{ts + 0.02:.3f},"ev":"done","tok_s":38.4}}')
    return text(out)


# ---------------------------------------------------------------- Python (6)


@form("torch forward hooks with module paths")
def _(log: Log) -> str:
    T = len(log.run.tokens)
    out = [f"input_ids: tensor([[{', '.join(map(str, log.run.tokens))}]])", "registered hooks, printing out[0, -1, :5]"]

    def h(name, node):
        out.append(
            f"{name:<42}(1, {T}, {wid(log, node)})".ljust(62)
            + "tensor(["
            + ", ".join(sig(v) for v in log.first(node, 5, ".4f", said=-1))
            + "])"
        )

    h("model.embed_tokens", "embd")
    for n in log.layers:
        b = f"model.layers.{n}"
        h(f"{b}.input_layernorm", f"attn_norm-{n}")
        h(f"{b}.self_attn.q_proj", f"Qcur_proj-{n}")
        h(f"{b}.self_attn.k_proj", f"Kcur_proj-{n}")
        h(f"{b}.self_attn.v_proj", f"Vcur-{n}")
        h(f"{b}.self_attn.o_proj", f"attn_out-{n}")
        h(f"{b}.post_attention_layernorm", f"ffn_norm-{n}")
        h(f"{b}.mlp.gate_proj", f"ffn_gate-{n}")
        h(f"{b}.mlp.up_proj", f"ffn_up-{n}")
        h(f"{b}.mlp.down_proj", f"ffn_out-{n}")
        h(b, f"l_out-{n}")
    h("model.norm", "result_norm")
    h("lm_head", "result_output")
    return text(out)


@form("numpy arrays that wrap, x[-1, :8]")
def _(log: Log) -> str:
    out = ["(np) loading weights ... 2.31s"]

    def arr(head, node):
        v = [sig(t) for t in log.first(node, 8, ".8f", said=-1)]
        out.append(f"{head} x[-1, :8] = [" + " ".join(v[:6]))
        out.append(" " * 3 + " ".join(v[6:]) + "]")

    arr("embed", "embd")
    for n in log.layers:
        arr(f"layer {n}", f"l_out-{n}")
    arr("norm", "result_norm")
    out.append("total 0.412 s")
    return text(out)


@form("mlx arrays, one line each")
def _(log: Log) -> str:
    out = ["mx.default_device() = Device(gpu, 0)", "peak memory: 0.412 GB"]
    for n in log.layers:
        for node, name in (
            ("attn_out", "self_attn(x)"),
            ("ffn_inp", "residual after attention"),
            ("ffn_out", "mlp(x)"),
            ("l_out", "block output"),
        ):
            out.append(
                f">> TransformerBlock {n}: {name}[0, -1, :4] array([{', '.join(log.first(f'{node}-{n}', 4, '.6g', said=-1))}], dtype=float32)"
            )
    out.append(
        f">> logits[0, -1, :4] array([{', '.join(log.first('result_output', 4, '.6g', said=-1))}], dtype=float32)"
    )
    out.append("Prompt: 212.331 tokens-per-sec")
    return text(out)


@form("jax.debug.print with key=value")
def _(log: Log) -> str:
    out = [
        "INFO:2026-02-03 10:11:12,114:jax._src.xla_bridge:925: Unable to initialize backend 'tpu': libtpu.so not found",
        f"compiling forward for seq_len={len(log.run.tokens)} ... 3.8s",
    ]
    p = log.run.last
    for n in log.layers:
        v = " ".join(sig(t) for t in log.first(f"l_out-{n}", 5, ".7f", said=p))
        out.append(
            f"decoder_layer={n} t={p} resid=[{v}] mean={log.stat(f'l_out-{n}', 'mean', '.7f', said=p)} std={log.stat(f'l_out-{n}', 'std', '.7f', said=p)}"
        )
    v = " ".join(sig(t) for t in log.first("result_norm", 5, ".7f", said=p))
    out.append(
        f"final_norm t={p} y=[{v}] mean={log.stat('result_norm', 'mean', '.7f', said=p)} std={log.stat('result_norm', 'std', '.7f', said=p)}"
    )
    return text(out)


@form("torch repr of the whole hidden state with ellipsis")
def _(log: Log) -> str:
    n_tok = len(log.run.tokens)
    out = ["dtype torch.float32, device cpu"]

    def rep(title, node):
        out.append(title)
        rows = list(range(n_tok)) if n_tok <= 6 else [0, 1, 2, None, n_tok - 3, n_tok - 2, n_tok - 1]
        for k, r in enumerate(rows):
            pre = "tensor([[[" if k == 0 else "         ["
            post = "]]])" if k == len(rows) - 1 else "],"
            if r is None:
                out.append("         ...,")
                continue
            a = log.first(node, 3, ".4f", row=r, said=r)
            b = log.final(node, 3, ".4f", row=r, said=r)
            out.append(pre + ", ".join(sig(v) for v in a) + ",  ..., " + ", ".join(sig(v) for v in b) + post)
        out.append(f"torch.Size([1, {n_tok}, {wid(log, node)}])")
        out.append("")

    for n in log.layers:
        rep(f"after layer {n}:", f"l_out-{n}")
    rep("after model.norm:", "result_norm")
    return text(out)


@form("python csv to stdout")
def _(log: Log) -> str:
    out = ["# my port, commit 4e1c2aa, fp32", "layer,tensor,pos,v0,v1,v2,v3,rms"]
    for p in (0, log.run.last):
        for n in log.layers:
            for node, name in (
                ("attn_norm", "attn_norm"),
                ("attn_out", "attn_proj_out"),
                ("ffn_norm", "mlp_norm"),
                ("ffn_out", "mlp_out"),
                ("l_out", "layer_out"),
            ):
                v = log.first(f"{node}-{n}", 4, ".6f", row=p, said=p)
                out.append(
                    f"{n},{name},{p}," + ",".join(v) + "," + log.stat(f"{node}-{n}", "rms", ".6f", row=p, said=p)
                )
    return text(out)


# ---------------------------------------------------------------- Zig (2)


@form("zig std.log scope, slices in braces")
def _(log: Log) -> str:
    out = [
        "info(gguf): version 3, alignment 32",
        "info(gguf): token_embd.weight f32",
        f"debug(forward): token {log.run.tokens[-1]} at position {log.run.last}",
    ]
    p = log.run.last
    for n in log.layers:
        for node, name in (("ffn_inp", "post-attention residual"), ("l_out", "post-ffn residual")):
            v = [rust_e(t) for t in log.first(f"{node}-{n}", 4, ".6e", said=p)]
            out.append(f"debug(forward): layer {n}, {name}: {{ {', '.join(v)} }}")
    out.append("info(main): 23.71 tok/s")
    return text(out)


@form("zig debug print, q k v a line each")
def _(log: Log) -> str:
    out = ["kv cache: 256 slots, f32", f"prefill {len(log.run.tokens)} tokens"]
    for p in (0, log.run.last):
        out.append(f"@ pos {p}, token {log.run.tokens[p]}")
        for n in log.layers:
            for node, name in (("Qcur", "q roped"), ("Kcur", "k roped"), ("Vcur", "v"), ("kqv_out", "softmax(qk)v")):
                v = log.first(f"{node}-{n}", 4, ".5f", row=p, said=p)
                out.append(f"  L{n} {name:<12} [0..4] = {' '.join(v)}")
    return text(out)


# ---------------------------------------------------------------- Go (2)


@form("go slog text handler")
def _(log: Log) -> str:
    out = [
        'time=2026-02-03T10:11:12.040+01:00 level=INFO msg="model loaded" path=tiny.gguf took=211.4ms',
        f"time=2026-02-03T10:11:12.052+01:00 level=INFO msg=prefill tokens={len(log.run.tokens)}",
    ]
    p = log.run.last
    out.append(
        f'time=2026-02-03T10:11:12.053+01:00 level=DEBUG msg="token embedding" pos={p} x="[{" ".join(log.first("embd", 4, "r", said=p))}]" sum={log.stat("embd", "sum", "r", said=p)}'
    )
    for n in log.layers:
        out.append(
            f'time=2026-02-03T10:11:12.{60 + 7 * n:03d}+01:00 level=DEBUG msg="layer done" pos={p} layer={n} x="[{" ".join(log.first(f"l_out-{n}", 4, "r", said=p))}]" sum={log.stat(f"l_out-{n}", "sum", "r", said=p)} took={6.1 + 0.2 * n:.1f}ms'
        )
    out.append(
        f'time=2026-02-03T10:11:12.090+01:00 level=DEBUG msg="output norm" pos={p} x="[{" ".join(log.first("result_norm", 4, "r", said=p))}]" sum={log.stat("result_norm", "sum", "r", said=p)}'
    )
    return text(out)


@form("go tabwriter, rms of the pieces, layers down the side")
def _(log: Log) -> str:
    cols = (
        ("attn_norm", "norm1"),
        ("attn_out", "attn out"),
        ("ffn_inp", "resid mid"),
        ("ffn_norm", "norm2"),
        ("ffn_out", "mlp out"),
        ("l_out", "resid end"),
    )
    out = [
        f"$ go run ./cmd/probe -prompt-ids {','.join(map(str, log.run.tokens))}",
        "RMS per tensor, last token",
        "layer   " + "".join(f"{c:<12}" for _, c in cols),
    ]
    for n in log.layers:
        out.append(f"{n:<8}" + "".join(f"{log.stat(f'{r}-{n}', 'rms', '.6f', said=-1):<12}" for r, _ in cols))
    out.append("")
    out.append("top logits:")
    for rank, (i, v) in enumerate(log.top("result_output", 5, ".5f", said=-1), 1):
        out.append(f"  #{rank}  id {i:<6} {v}")
    out.append("goroutines 9, heap 188.2MB")
    return text(out)


# ---------------------------------------------------------------- Swift, Metal, CUDA (3)


@form("cuda device printf from thread 0")
def _(log: Log) -> str:
    p = log.run.last
    out = ["Device 0: NVIDIA GeForce RTX 3090, sm_86, 24259 MiB", "cudaGraph disabled (DEBUG_KERNELS=1)"]
    for n in log.layers:
        for node, k, what in (
            ("attn_norm", "rmsnorm_kernel", "attn_norm"),
            ("Qcur", "rope_kernel", "q"),
            ("Kcur", "rope_kernel", "k"),
            ("kqv_out", "attn_decode_kernel", "out"),
            ("ffn_swiglu", "swiglu_kernel", "out"),
            ("ffn_out", "gemv_down_kernel", "out"),
            ("l_out", "residual_add_kernel(ffn)", "x"),
        ):
            v = log.first(f"{node}-{n}", 4, ".6f", said=p)
            out.append(f"[{k}] layer={n} pos={p} {what}: " + " ".join(v))
    out.append("[lm_head] pos=%d logits: " % p + " ".join(log.first("result_output", 4, ".6f", said=p)))
    out.append("cudaDeviceSynchronize: no error")
    return text(out)


@form("swift NSLog prefix, arrays, arrows")
def _(log: Log) -> str:
    pre = "2026-02-03 10:11:12.%06d+0100 LlamaKit[4242:81234] [inference] "
    out = [pre % 18211 + "context ready, 4096 tokens", pre % 19004 + f"evaluating {len(log.run.tokens)} tokens"]
    us = 31877
    for n in log.layers:
        out.append(pre % us + f"layer {n} → attention.wo [{', '.join(log.first(f'attn_out-{n}', 3, 'r', row=0))}]")
        out.append(
            pre % (us + 2210) + f"layer {n} → feedForward [{', '.join(log.first(f'ffn_out-{n}', 3, 'r', row=0))}]"
        )
        out.append(pre % (us + 2304) + f"layer {n} → hidden [{', '.join(log.first(f'l_out-{n}', 3, 'r', row=0))}]")
        us += 4711
    for i, v in log.top("result_output", 3, "r"):
        out.append(pre % us + f"candidate {i}: logit {v}")
    return text(out)


@form("metal buffer readback after each layer")
def _(log: Log) -> str:
    p = log.run.last
    out = ["[MTL] device Apple M2 Pro, recommendedMaxWorkingSetSize 21845 MB", "[MTL] library compiled, 31 kernels"]
    out.append(
        f"[MTL] waitUntilCompleted, readback 'hidden' row {p} after embed_lookup: first8 "
        + " ".join(log.first("embd", 8, ".4f", said=p))
    )
    for n in log.layers:
        out.append(
            f"[MTL] waitUntilCompleted, readback 'hidden' row {p} after layer {n}: first8 "
            + " ".join(log.first(f"l_out-{n}", 8, ".4f", said=p))
            + f" absmax {log.stat(f'l_out-{n}', 'absmax', '.4f', said=p)} (gpu {0.81 + 0.02 * n:.2f} ms)"
        )
    out.append(
        f"[MTL] waitUntilCompleted, readback 'normed' row {p} after final_rmsnorm: first8 "
        + " ".join(log.first("result_norm", 8, ".4f", said=p))
    )
    return text(out)


# ---------------------------------------------------------------- JavaScript, TypeScript (2)


@form("node console.log of Float32Array")
def _(log: Log) -> str:
    out = ["(node:31337) ExperimentalWarning: WASI is an experimental feature", "weights: 243.1ms"]

    def arr(label, node):
        v = log.first(node, 6, ".17g")
        w = max(len(t) for t in v)
        out.append(f"{label} Float32Array(6) [")
        for a in (0, 2, 4):
            out.append("  " + ", ".join(t.rjust(w) for t in v[a : a + 2]) + ("," if a < 4 else ""))
        out.append("]")

    arr("embedding", "embd")
    for n in log.layers:
        arr(f"layer {n} output", f"l_out-{n}")
    arr("final norm", "result_norm")
    arr("logits", "result_output")
    return text(out)


@form("typescript console.table")
def _(log: Log) -> str:
    cols = ("(index)", "layer", "stage", "mean", "std", "x0", "x1", "x2")
    p = log.run.last
    rows = []
    for n in log.layers:
        for node, name in (("ffn_inp", "'afterAttn'"), ("l_out", "'afterMlp'")):
            k = f"{node}-{n}"
            rows.append(
                (
                    str(len(rows)),
                    str(n),
                    name,
                    log.stat(k, "mean", ".5f", said=p),
                    log.stat(k, "std", ".5f", said=p),
                    *log.first(k, 3, ".5f", said=p),
                )
            )
    ws = [max(len(r[i]) for r in (cols, *rows)) + 2 for i in range(len(cols))]

    def bar(a, b, c):
        return a + b.join("─" * w for w in ws) + c

    def line(r):
        return "│" + "│".join(" " + t.ljust(w - 1) for t, w in zip(r, ws)) + "│"

    out = [
        "[webgpu] adapter: apple metal-3",
        f"hidden states at position {p}:",
        bar("┌", "┬", "┐"),
        line(cols),
        bar("├", "┼", "┤"),
    ]
    out += [line(r) for r in rows]
    out.append(bar("└", "┴", "┘"))
    out.append("forward: 61.204ms")
    return text(out)


# ---------------------------------------------------------------- Java (1)


@form("java.util.logging, two lines a record")
def _(log: Log) -> str:
    p = log.run.last
    out = []

    def rec(method, msg, level="FINE"):
        out.append(f"Feb 03, 2026 10:11:12 AM com.example.llama.{method}")
        out.append(f"{level}: {msg}")

    rec("GGUF loadModel", "Parse tiny.gguf: 118 millis", "INFO")
    rec(
        "Transformer forward",
        f"position={p} token={log.run.tokens[-1]} embedding=[{', '.join(log.first('embd', 4, 'r', said=p))}]",
    )
    for n in log.layers:
        rec(
            "Transformer forward",
            f"position={p} layer={n} xb(att_norm)=[{', '.join(log.first(f'attn_norm-{n}', 4, 'r', said=p))}]",
            "FINER",
        )
        rec(
            "Transformer forward",
            f"position={p} layer={n} hb(swiglu)=[{', '.join(log.first(f'ffn_swiglu-{n}', 4, 'r', said=p))}]",
            "FINER",
        )
        rec(
            "Transformer forward",
            f"position={p} layer={n} x(end of layer)=[{', '.join(log.first(f'l_out-{n}', 4, 'r', said=p))}]",
        )
    rec(
        "Sampler topK",
        "position=%d logits: " % p + ", ".join(f"{i}={v}" for i, v in log.top("result_output", 4, "r", said=p)),
    )
    return text(out)
