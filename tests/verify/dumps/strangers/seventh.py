"""Log formats written by a stranger to the reader: of these 30 it understood 22 at first sight."""

from __future__ import annotations

from tests.verify.dumps.formats import Format
from tests.verify.dumps.unseen_formats import Log, adding_to, text

FORMATS: list[Format] = []
form = adding_to(FORMATS)


def shape(log, node):
    return log.run.values[node].shape


def width(log, node):
    return log.run.values[node].shape[-1]


@form("c printf dbg_vec, run.c fork")
def _(log: Log) -> str:
    out = [
        '$ gcc -O0 -g -fsanitize=address run.c -lm -o run && ./run model.bin -t 0 -n 1 -i "Once upon"',
        "run.c:512:9: warning: unused variable 'kv_mul' [-Wunused-variable]",
        f"prompt tokens ({len(log.run.tokens)}): " + " ".join(map(str, log.run.tokens)),
    ]
    p = log.run.last
    out.append(f"--- pos {p} token {log.run.tokens[p]} ---")
    out.append(f"tok_emb    : {' '.join(log.first('embd', 6, '9.5f', said=p))} ...")
    for n in log.layers:
        for label, role in (
            ("xb (rms att)", "attn_norm"),
            ("q pre rope", "Qcur_proj"),
            ("q post rope", "Qcur"),
            ("k post rope", "Kcur"),
            ("v", "Vcur"),
            ("xb2 (after wo)", "attn_out"),
            ("x += xb2", "ffn_inp"),
            ("xb (rms ffn)", "ffn_norm"),
            ("hb silu*w3", "ffn_swiglu"),
            ("x end of layer", "l_out"),
        ):
            out.append(f"L{n:02d} {label:<15}: {' '.join(log.first(f'{role}-{n}', 6, '9.5f', said=p))} ...")
    out.append(f"final rmsnorm: {' '.join(log.first('result_norm', 6, '9.5f', said=p))} ...")
    out.append(f"logits     : {' '.join(log.first('result_output', 6, '9.5f', said=p))} ...")
    out.append("achieved tok/s: 3.412969")
    return text(out)


@form("rust dbg! macro")
def _(log: Log) -> str:
    out = [
        "   Compiling tinyinfer v0.1.0 (/home/marek/src/tinyinfer)",
        "    Finished `dev` profile [unoptimized + debuginfo] target(s) in 4.31s",
        "     Running `target/debug/tinyinfer --prompt hi`",
    ]
    for n in log.layers:
        out.append(f"[src/model.rs:201:13] layer_idx = {n}")
        for line, name, role in (
            (209, "attn_normed", "attn_norm"),
            (233, "attn_proj_out", "attn_out"),
            (251, "mlp_out", "ffn_out"),
            (256, "hidden_after_layer", "l_out"),
        ):
            out.append(f"[src/model.rs:{line}:13] &{name}[..4] = [")
            out += [f"    {v}," for v in log.first(f"{role}-{n}", 4, "r")]
            out.append("]")
    out.append("[src/model.rs:270:9] &logits[..4] = [")
    out += [f"    {v}," for v in log.first("result_output", 4, "r")]
    out.append("]")
    return text(out)


@form("rust tracing subscriber")
def _(log: Log) -> str:
    out = [
        '2025-01-19T21:04:11.120394Z  INFO lmrs::loader: mmapped weights path="smol.gguf" tensors=272',
        "2025-01-19T21:04:11.398112Z  INFO lmrs: prefill n_tokens=%d" % len(log.run.tokens),
    ]
    us = 401200
    for n in log.layers:
        for stage, role in (
            ("input_layernorm", "attn_norm"),
            ("self_attn.o_proj", "attn_out"),
            ("post_attn_residual", "ffn_inp"),
            ("mlp.down_proj", "ffn_out"),
            ("block_output", "l_out"),
        ):
            us += 713
            a = f"{role}-{n}"
            out.append(
                f'2025-01-19T21:04:11.{us:06d}Z DEBUG forward{{last_token=true}}:block{{i={n}}}: lmrs::block: stage="{stage}" '
                f"mean={log.stat(a, 'mean', 'r', said=-1)} std={log.stat(a, 'std', 'r', said=-1)} absmax={log.stat(a, 'absmax', 'r', said=-1)}"
            )
    out.append("2025-01-19T21:04:11.455120Z  WARN lmrs::sampler: top-1 prob below 0.02, distribution looks flat")
    return text(out)


@form("torch tensors with ellipsis from forward hooks")
def _(log: Log) -> str:
    out = [
        "/home/u/.venv/lib/python3.11/site-packages/torch/nn/modules/module.py:1762: UserWarning: hooks are slow",
        "last position only (out[0, -1]):",
    ]

    def t(node):
        a = log.first(node, 3, ".4f", said=-1)
        b = log.final(node, 3, ".4f", said=-1)
        return "tensor([" + ", ".join(f"{v:>7}" for v in a) + ",  ..., " + ", ".join(f"{v:>7}" for v in b) + "])"

    out.append("model.embed_tokens " + t("embd"))
    for n in log.layers:
        for m, role in (
            ("input_layernorm", "attn_norm"),
            ("self_attn.q_proj", "Qcur_proj"),
            ("self_attn.k_proj", "Kcur_proj"),
            ("self_attn.v_proj", "Vcur"),
            ("self_attn.o_proj", "attn_out"),
            ("post_attention_layernorm", "ffn_norm"),
            ("mlp.gate_proj", "ffn_gate"),
            ("mlp.up_proj", "ffn_up"),
            ("mlp.down_proj", "ffn_out"),
        ):
            out.append(f"model.layers.{n}.{m} " + t(f"{role}-{n}"))
        out.append(f"model.layers.{n} " + t(f"l_out-{n}"))
    out.append("model.norm " + t("result_norm"))
    out.append("lm_head " + t("result_output"))
    return text(out)


@form("go log with %v slices")
def _(log: Log) -> str:
    out = [
        "2024/08/02 23:41:07 main.go:44: loaded 147 tensors",
        f"2024/08/02 23:41:07 main.go:61: ids={'[' + ' '.join(map(str, log.run.tokens)) + ']'}",
    ]
    for n in log.layers:
        out.append(
            f"2024/08/02 23:41:08 block.go:88: block {n} h (residual) after attn: [{' '.join(log.first(f'ffn_inp-{n}', 5, 'r'))}]"
        )
        out.append(
            f"2024/08/02 23:41:08 block.go:97: block {n} h (residual) after mlp:  [{' '.join(log.first(f'l_out-{n}', 5, 'r'))}]"
        )
    out.append(f"2024/08/02 23:41:08 model.go:131: h after output norm: [{' '.join(log.first('result_norm', 5, 'r'))}]")
    out.append('2024/08/02 23:41:08 sample.go:20: picked id=0 piece="<unk>"')
    out.append("exit status 2")
    return text(out)


@form("swift mlx arrays, x[0, -1, ..<4]")
def _(log: Log) -> str:
    out = ["Building for debugging...", "Build complete! (2.14s)", "MLX GPU cache limit 20971520"]
    for n in log.layers:
        out.append(f"🔎 TransformerBlock[{n}]")
        for label, role in (
            ("q (after rope)", "Qcur"),
            ("k (after rope)", "Kcur"),
            ("v", "Vcur"),
            ("attention(x) result after wo", "attn_out"),
            ("x + r (attention residual)", "ffn_inp"),
            ("block return value", "l_out"),
        ):
            k = f"{role}-{n}"
            out.append(
                f"   {label}: shape={[1, *shape(log, k)]} [0, -1, ..<4] = array([{', '.join(log.first(k, 4, 'r', said=-1))}], dtype=float32)"
            )
    out.append("Program ended with exit code: 0")
    return text(out)


@form("webgpu console.log Float32Array")
def _(log: Log) -> str:
    out = ["[vite] connected.", "main.ts:31 adapter: apple metal-3, maxBufferSize 4294967296"]
    for n in log.layers:
        for label, role in (
            ("rmsnorm_1", "attn_norm"),
            ("attn (before Wo)", "kqv_out"),
            ("attn (after Wo)", "attn_out"),
            ("rmsnorm_2", "ffn_norm"),
            ("silu(gate)*up", "ffn_swiglu"),
            ("residual out", "l_out"),
        ):
            k = f"{role}-{n}"
            out.append(
                f"gpu.ts:212 readback layers[{n}] {label} Float32Array({width(log, k)}) [{', '.join(log.first(k, 5, 'r'))}, …]"
            )
    out.append(
        f"gpu.ts:240 readback logits Float32Array({width(log, 'result_output')}) [{', '.join(log.first('result_output', 5, 'r'))}, …]"
    )
    out.append("main.ts:88 next token: 0 ''")
    out.append("[Violation] 'requestAnimationFrame' handler took 1893ms")
    return text(out)


@form("java util logging, two lines a record")
def _(log: Log) -> str:
    out = []
    p = log.run.last
    for n in log.layers:
        for what, role in (
            ("attention RMSNorm output", "attn_norm"),
            ("ffn gate (w1, before SiLU)", "ffn_gate"),
            ("ffn up (w3)", "ffn_up"),
            ("ffn down (w2) output", "ffn_out"),
        ):
            out.append("Mar 03, 2025 9:14:52 PM com.jllama.Transformer forward")
            out.append(f"FINE: position={p} layer={n} {what} = [{', '.join(log.first(f'{role}-{n}', 4, 'r', said=p))}]")
    out.append("Mar 03, 2025 9:14:52 PM com.jllama.Sampler sample")
    out.append("WARNING: argmax is the same token for 12 steps")
    return text(out)


@form("csharp serilog bars")
def _(log: Log) -> str:
    out = ["info: NLlama.Runtime[0]", "      Using AVX2 kernels, 8 threads"]
    p = log.run.last
    out.append(f"[21:17:44 DBG] Forward(tokenId: {log.run.tokens[p]}, pos: {p})")
    for n in log.layers:
        for what, role in (
            ("PreAttnNorm", "attn_norm"),
            ("AttnOutProj", "attn_out"),
            ("PreFfnNorm", "ffn_norm"),
            ("FfnDown", "ffn_out"),
            ("BlockOut", "l_out"),
        ):
            k = f"{role}-{n}"
            out.append(
                f"[21:17:44 DBG] Block {n} | {what}".ljust(40)
                + f"| L2={log.stat(k, 'norm', '.4f', said=p)} | Min={log.stat(k, 'min', '.4f', said=p)} | Max={log.stat(k, 'max', '.4f', said=p)}"
            )
    out.append(
        "[21:17:44 DBG] Head    | FinalNorm".ljust(40)
        + f"| L2={log.stat('result_norm', 'norm', '.4f', said=p)} | Min={log.stat('result_norm', 'min', '.4f', said=p)} | Max={log.stat('result_norm', 'max', '.4f', said=p)}"
    )
    out.append(
        "[21:17:44 DBG] Head    | Logits".ljust(40)
        + f"| L2={log.stat('result_output', 'norm', '.4f', said=p)} | Min={log.stat('result_output', 'min', '.4f', said=p)} | Max={log.stat('result_output', 'max', '.4f', said=p)}"
    )
    return text(out)


@form("cuda kernel printf from thread 0")
def _(log: Log) -> str:
    out = ["CUDA device 0: NVIDIA GeForce RTX 3060, CC 8.6", "weights uploaded: 0.25 GiB in 91.2 ms"]
    for n in log.layers:
        for kern, role in (
            ("rmsnorm_kernel[attn]", "attn_norm"),
            ("matvec_wo", "attn_out"),
            ("rmsnorm_kernel[ffn]", "ffn_norm"),
            ("swiglu_kernel", "ffn_swiglu"),
            ("matvec_w2", "ffn_out"),
        ):
            k = f"{role}-{n}"
            out.append(
                f"[layer {n}] {kern:<22} out[0]={log.at(k, 0, '.6f')} out[1]={log.at(k, 1, '.6f')} out[{width(log, k) - 1}]={log.at(k, width(log, k) - 1, '.6f')}"
            )
        out.append("cudaDeviceSynchronize -> no error")
    return text(out)


@form("github issue markdown table of the residual stream")
def _(log: Log) -> str:
    out = [
        "### Describe the bug",
        "",
        "Output is `!!!!!!!!` after the first token. Residual stream at the end of each decoder layer (last prompt token):",
        "",
        "| layer | rms | min | max | first 3 values |",
        "|------:|----:|----:|----:|:--------------|",
    ]
    for n in log.layers:
        k = f"l_out-{n}"
        out.append(
            f"| {n} | {log.stat(k, 'rms', '.4f', said=-1)} | {log.stat(k, 'min', '.3f', said=-1)} | {log.stat(k, 'max', '.3f', said=-1)} | `{', '.join(log.first(k, 3, '.5f', said=-1))}` |"
        )
    out += [
        "",
        "### Environment",
        "",
        "- OS: Ubuntu 22.04",
        "- rustc 1.79.0",
        "- model: SmolLM2-135M-Instruct, converted with my own script",
    ]
    return text(out)


@form("json lines trace")
def _(log: Log) -> str:
    out = ['{"event":"start","ts":1719852211.301,"backend":"cpu","threads":4}']
    p = log.run.last
    ts = 1719852211.402
    for n in log.layers:
        for op, role in (
            ("attn_norm", "attn_norm"),
            ("q_rope", "Qcur"),
            ("k_rope", "Kcur"),
            ("v_proj", "Vcur"),
            ("o_proj", "attn_out"),
            ("resid_mid", "ffn_inp"),
            ("mlp_out", "ffn_out"),
            ("resid_post", "l_out"),
        ):
            k = f"{role}-{n}"
            ts += 0.003
            out.append(
                f'{{"event":"tensor","ts":{ts:.3f},"layer":{n},"op":"{op}","pos":{p},"head":[{",".join(log.first(k, 4, ".6g", said=p))}],"mean":{log.stat(k, "mean", ".6g", said=p)},"rms":{log.stat(k, "rms", ".6g", said=p)}}}'
            )
    out.append('{"event":"done","ts":1719852213.001,"text":" the the the"}')
    return text(out)


@form("one pretty json document nested by layer")
def _(log: Log) -> str:
    arr = lambda k: "[" + ", ".join(log.first(k, 5, "r", row=0, said=0)) + "]"
    out = [
        "$ cat /tmp/acts.json",
        "{",
        '  "model": "tinyllama-1.1b",',
        f'  "prompt_ids": {list(log.run.tokens)},',
        '  "token_index": 0,',
        '  "note": "first 5 floats of each activation, token 0 (BOS)",',
        f'  "embedding": {arr("embd")},',
        '  "layers": [',
    ]
    for n in log.layers:
        out += [
            "    {",
            f'      "index": {n},',
            f'      "pre_attention_norm": {arr(f"attn_norm-{n}")},',
            f'      "attention_output": {arr(f"attn_out-{n}")},',
            f'      "post_attention_residual": {arr(f"ffn_inp-{n}")},',
            f'      "feed_forward_output": {arr(f"ffn_out-{n}")},',
            f'      "layer_output": {arr(f"l_out-{n}")}',
            "    }" + ("," if n + 1 < log.run.n_layer else ""),
        ]
    out += ["  ]", "}"]
    return text(out)


@form("reddit prose with inline numbers")
def _(log: Log) -> str:
    a = log.first("embd", 3, ".4f", said=-1)
    out = [
        "So I've been writing my own inference thing in C for a week now (no ggml, just me and a lot of for loops) and I'm stuck. Tokenizer is fine, I checked the ids.",
        "",
        f"For the last token of the prompt the embedding row starts with {a[0]}, {a[1]}, {a[2]} and I'm fairly sure that's right because I looked it up in the safetensors file.",
    ]
    n = 0
    b = log.first("attn_norm-0", 3, ".4f", said=-1)
    c = log.first("attn_out-0", 3, ".4f", said=-1)
    d = log.first("l_out-0", 3, ".4f", said=-1)
    out += [
        "",
        f"In layer 0, after the first RMSNorm I get {b[0]}, {b[1]}, {b[2]}, ... and the attention output (after o_proj, before adding the residual) begins {c[0]}, {c[1]}, {c[2]}. At the end of layer 0 the hidden state is {d[0]}, {d[1]}, {d[2]}.",
    ]
    l = log.run.n_layer - 1
    e = log.first(f"l_out-{l}", 3, ".4f", said=-1)
    out += [
        "",
        f'By the time it comes out of layer {l} (the last one) the hidden state starts with {e[0]}, {e[1]}, {e[2]} and has an L2 norm of {log.stat(f"l_out-{l}", "norm", ".2f", said=-1)}, and the biggest logit is {log.stat("result_output", "max", ".3f", said=-1)}. Does that look sane to anyone?? It then prints "ĠĠĠĠ" forever.',
        "",
        "edit: RTX 4070, but this is the CPU path so it shouldn't matter",
    ]
    return text(out)


@form("gdb session with printf breakpoints")
def _(log: Log) -> str:
    out = [
        "(gdb) b transformer.c:318",
        "Breakpoint 1 at 0x403a1c: file transformer.c, line 318.",
        "(gdb) commands",
        "> silent",
        '> printf "end of layer %d\\n", l',
        "> p *s->x@5",
        "> c",
        "> end",
        "(gdb) r",
        "Starting program: /home/jk/llm/run stories15M.bin",
        "[Thread debugging using libthread_db enabled]",
    ]
    for i, n in enumerate(log.layers):
        out.append(f"end of layer {n}")
        out.append(f"${i + 1} = {{{', '.join(log.first(f'l_out-{n}', 5, '.9g'))}}}")
    out += [
        "(gdb) # after rmsnorm(x, x, w->rms_final_weight, dim)",
        "(gdb) p *s->x@5",
        f"${log.run.n_layer + 1} = {{{', '.join(log.first('result_norm', 5, '.9g'))}}}",
        "(gdb) p *s->logits@5",
        f"${log.run.n_layer + 2} = {{{', '.join(log.first('result_output', 5, '.9g'))}}}",
        "(gdb) q",
        "A debugging session is active.",
    ]
    return text(out)


@form("python repl on a dict of activations")
def _(log: Log) -> str:
    out = [
        ">>> acts = engine.forward(ids, capture=True)",
        ">>> acts['blk.0.ffn_norm'].shape",
        f"{shape(log, 'ffn_norm-0')}",
    ]
    for n in log.layers:
        for key, role in (
            ("attn_norm", "attn_norm"),
            ("attn_q", "Qcur_proj"),
            ("ffn_norm", "ffn_norm"),
            ("ffn_down", "ffn_out"),
        ):
            out.append(f">>> acts['blk.{n}.{key}'][-1, :4].tolist()")
            out.append("[" + ", ".join(log.first(f"{role}-{n}", 4, ".17g", said=-1)) + "]")
    out += [
        ">>> acts['logits'].argmax()",
        "Traceback (most recent call last):",
        '  File "<stdin>", line 1, in <module>',
        "KeyError: 'logits'",
        ">>> ",
    ]
    return text(out)


@form("yaml-like dump, one doc per layer")
def _(log: Log) -> str:
    p = log.run.last
    out = ["# ./nnrun --dump-acts --pos %d" % p, f"pos: {p}"]
    for n in log.layers:
        out += ["---", f"layer: {n}"]
        for key, role in (
            ("norm1", "attn_norm"),
            ("attn", "attn_out"),
            ("norm2", "ffn_norm"),
            ("mlp", "ffn_out"),
            ("out", "l_out"),
        ):
            k = f"{role}-{n}"
            out += [
                f"{key}:",
                f"  sum: {log.stat(k, 'sum', '.5f', said=p)}",
                f"  absmean: {log.stat(k, 'absmean', '.5f', said=p)}",
                f"  head: [{', '.join(log.first(k, 3, '.5f', said=p))}]",
                f"  tail: [{', '.join(log.final(k, 3, '.5f', said=p))}]",
            ]
    return text(out)


@form("csv stats file")
def _(log: Log) -> str:
    out = ["$ head -40 acts.csv", "layer,tensor,token,n,mean,std,min,max,v0,v1,v2"]
    p = log.run.last
    for n in log.layers:
        for t, role in (
            ("q_proj", "Qcur_proj"),
            ("k_proj", "Kcur_proj"),
            ("v_proj", "Vcur"),
            ("o_proj", "attn_out"),
            ("gate_proj", "ffn_gate"),
            ("up_proj", "ffn_up"),
            ("down_proj", "ffn_out"),
            ("hidden_out", "l_out"),
        ):
            k = f"{role}-{n}"
            out.append(
                ",".join(
                    [str(n), t, str(p), str(width(log, k))]
                    + [log.stat(k, s, ".6f", said=p) for s in ("mean", "std", "min", "max")]
                    + log.first(k, 3, ".6f", said=p)
                )
            )
    return text(out)


@form("numpy repr with ellipsis under a heading")
def _(log: Log) -> str:
    out = ["Loading weights... 100%|██████████████████| 201/201 [00:01<00:00, 143.88it/s]"]

    def arr(node):
        return (
            "["
            + " ".join(log.first(node, 3, "11.8f", said=-1))
            + " ... "
            + " ".join(log.final(node, 3, "11.8f", said=-1))
            + "]"
        )

    for n in log.layers:
        out += [
            "",
            f"##### LAYER {n} #####",
            f"x after norm (attention) {shape(log, f'attn_norm-{n}')} x[-1]:",
            arr(f"attn_norm-{n}"),
            f"x after attention + residual {shape(log, f'ffn_inp-{n}')} x[-1]:",
            arr(f"ffn_inp-{n}"),
            f"x after ffn + residual {shape(log, f'l_out-{n}')} x[-1]:",
            arr(f"l_out-{n}"),
        ]
    return text(out)


@form("one-based layer i of n, fortran style exponents in C++")
def _(log: Log) -> str:
    N = log.run.n_layer
    out = ["infer: 1 thread(s), fp32, ctx 256", "prefill done, stats below are for the last prompt token only"]
    for n in log.layers:
        out.append(f"Layer {n + 1}/{N}")
        out.append(
            f"   attention out  rms {log.stat(f'attn_out-{n}', 'rms', '.4e', said=-1)}   abs max {log.stat(f'attn_out-{n}', 'absmax', '.4e', said=-1)}"
        )
        out.append(
            f"   mlp out        rms {log.stat(f'ffn_out-{n}', 'rms', '.4e', said=-1)}   abs max {log.stat(f'ffn_out-{n}', 'absmax', '.4e', said=-1)}"
        )
        out.append(
            f"   hidden state   rms {log.stat(f'l_out-{n}', 'rms', '.4e', said=-1)}   abs max {log.stat(f'l_out-{n}', 'absmax', '.4e', said=-1)}"
        )
    out.append(
        f"Final norm        rms {log.stat('result_norm', 'rms', '.4e', said=-1)}   abs max {log.stat('result_norm', 'absmax', '.4e', said=-1)}"
    )
    out.append("Segmentation fault (core dumped)")
    return text(out)


@form("tree with box characters")
def _(log: Log) -> str:
    v = lambda k: "[" + ", ".join(log.first(k, 4, "+.4f")) + ", …]"
    out = ["forward()", f"├─ embed            {v('embd')}"]
    for n in log.layers:
        out += [
            f"├─ decoder layer {n}",
            "│  ├─ self-attention",
            f"│  │  ├─ norm       {v(f'attn_norm-{n}')}",
            f"│  │  ├─ Q          {v(f'Qcur_proj-{n}')}",
            f"│  │  ├─ K          {v(f'Kcur_proj-{n}')}",
            f"│  │  ├─ V          {v(f'Vcur-{n}')}",
            f"│  │  ├─ RoPE(Q)    {v(f'Qcur-{n}')}",
            f"│  │  ├─ RoPE(K)    {v(f'Kcur-{n}')}",
            f"│  │  ├─ softmax·V  {v(f'kqv_out-{n}')}",
            f"│  │  └─ out proj   {v(f'attn_out-{n}')}",
            "│  ├─ feed-forward",
            f"│  │  ├─ norm       {v(f'ffn_norm-{n}')}",
            f"│  │  ├─ gate       {v(f'ffn_gate-{n}')}",
            f"│  │  ├─ up         {v(f'ffn_up-{n}')}",
            f"│  │  └─ down       {v(f'ffn_out-{n}')}",
            f"│  └─ output        {v(f'l_out-{n}')}",
        ]
    out += [f"├─ final norm       {v('result_norm')}", f"└─ lm_head          {v('result_output')}"]
    return text(out)


@form("top logits listing with residual norms")
def _(log: Log) -> str:
    out = ["> ./chat -p 'The capital of France is' --debug", f"tokens: {list(log.run.tokens)}"]
    out.append(f"|embed| = {log.stat('embd', 'norm', '.3f', said=-1)}   (all norms: last token)")
    for n in log.layers:
        out.append(f"|resid after layer {n}| = {log.stat(f'l_out-{n}', 'norm', '.3f', said=-1)}")
    out += ["", "top 5 next-token logits:"]
    for r, (i, v) in enumerate(log.top("result_output", 5, ".4f", said=-1)):
        out.append(f"  #{r + 1}  id {i:>6}  logit {v}")
    out += ["", "generated: ' Ber Ber Ber Ber'"]
    return text(out)


@form("c++ spdlog with fmt ranges")
def _(log: Log) -> str:
    out = ["[2025-02-11 18:20:33.101] [llm] [info] GQA: n_head=9 n_kv_head=3"]
    ms = 140
    for n in log.layers:
        for fn, what, role in (
            ("attention", "q_proj", "Qcur_proj"),
            ("attention", "k_proj", "Kcur_proj"),
            ("attention", "v_proj", "Vcur"),
            ("attention", "o_proj", "attn_out"),
            ("mlp", "down_proj", "ffn_out"),
        ):
            ms += 3
            k = f"{role}-{n}"
            out.append(
                f"[2025-02-11 18:20:33.{ms}] [llm] [trace] layers.{n}.{fn}.{what} -> [{', '.join(log.first(k, 4, '.4f'))}] (n={width(log, k)}, mean {log.stat(k, 'mean', '.5f')})"
            )
    out.append("[2025-02-11 18:20:33.201] [llm] [critical] NaN detected? false")
    return text(out)


@form("zig std.log braces")
def _(log: Log) -> str:
    out = [
        "debug(gguf): 290 tensors, alignment 32",
        "info(main): prompt -> { %s }" % ", ".join(map(str, log.run.tokens)),
    ]
    p = log.run.last
    for n in log.layers:
        out.append(
            f"debug(fwd): pos={p} blk={n} norm_att={{ {', '.join(log.first(f'attn_norm-{n}', 3, '.6e', said=p))} }} wo_out={{ {', '.join(log.first(f'attn_out-{n}', 3, '.6e', said=p))} }} w2_out={{ {', '.join(log.first(f'ffn_out-{n}', 3, '.6e', said=p))} }} x_out={{ {', '.join(log.first(f'l_out-{n}', 3, '.6e', said=p))} }}"
        )
    out.append("error(gpa): memory address 0x7f1c2a0e1000 leaked:")
    out.append("/home/z/llm/src/main.zig:91:41: 0x1040d2f in main (run)")
    return text(out)


@form("wide aligned table, one row per layer, one column per stage (rms)")
def _(log: Log) -> str:
    cols = (
        ("ln1", "attn_norm"),
        ("attn_out", "attn_out"),
        ("resid_mid", "ffn_inp"),
        ("ln2", "ffn_norm"),
        ("mlp_out", "ffn_out"),
        ("resid_post", "l_out"),
    )
    out = [
        "RMS of activations, last token",
        "",
        "layer" + "".join(f"{c:>12}" for c, _ in cols),
        "-" * (5 + 12 * len(cols)),
    ]
    for n in log.layers:
        out.append(f"{n:>5}" + "".join(log.stat(f"{r}-{n}", "rms", "12.5f", said=-1) for _, r in cols))
    out += ["", f"after final norm: {log.stat('result_norm', 'rms', '.5f', said=-1)}", "took 0.84 s"]
    return text(out)


@form("julia vectors shown vertically")
def _(log: Log) -> str:
    out = ['julia> using TinyLM; m = load("smollm.safetensors");', "[ Info: 30 s precompile, sorry"]
    for n in log.layers:
        for what, role in (("attention output (after Wo)", "attn_out"), ("hidden state at layer end", "l_out")):
            out += [f"layer {n} (0-based, as in HF): {what}, first 4", "4-element Vector{Float32}:"]
            out += [" " + (v if v.startswith("-") else " " + v) for v in log.first(f"{role}-{n}", 4, "r")]
            out.append("")
    out.append("julia> ")
    return text(out)


@form("indexed element lines, stack overflow")
def _(log: Log) -> str:
    out = ["I dump a few elements of the layer's output vector (the residual stream) for the last token:", ""]
    for n in log.layers:
        k = f"l_out-{n}"
        for i in (0, 1, 2, 7):
            out.append(f"    layer_out[{n}][{i}] = {log.at(k, i, '.7f', said=-1)}")
    out += ["", "    logits:"]
    for i in (0, 1, 2):
        out.append(f"    logits[{i}] = {log.at('result_output', i, '.7f', said=-1)}")
    out += ["", "What am I doing wrong? I followed the answer in the linked question and transposed the weights."]
    return text(out)


@form("chinese labels")
def _(log: Log) -> str:
    out = [
        "加载模型完成, 用时 1.32 秒",
        f"输入 token: {','.join(map(str, log.run.tokens))}",
        f"词嵌入 (最后一个token) 前5个: {', '.join(log.first('embd', 5, '.5f', said=-1))}",
    ]
    for n in log.layers:
        out.append(f"第{n}层 attn_norm 前5个: {', '.join(log.first(f'attn_norm-{n}', 5, '.5f'))}")
        out.append(f"第{n}层 注意力输出(o_proj之后) 前5个: {', '.join(log.first(f'attn_out-{n}', 5, '.5f'))}")
        out.append(f"第{n}层 FFN输出(down_proj) 前5个: {', '.join(log.first(f'ffn_out-{n}', 5, '.5f'))}")
        out.append(f"第{n}层 输出hidden_states 前5个: {', '.join(log.first(f'l_out-{n}', 5, '.5f'))}")
    out.append("输出: 的的的的的的")
    return text(out)


@form("discord code block, metal, per token first rows")
def _(log: Log) -> str:
    out = [
        "hey, anyone around who knows rope? my metal port gives different text every run lol",
        "```",
        "[mtl] device: Apple M2 Pro  simd=32",
    ]
    for n in log.layers:
        for p in range(min(3, log.run.last + 1)):
            out.append(
                f"L{n} t{p}: Q_roped {' / '.join(log.first(f'Qcur-{n}', 4, '.3f', row=p, said=p))}  K_roped {' / '.join(log.first(f'Kcur-{n}', 4, '.3f', row=p, said=p))}"
            )
    out += ["[mtl] cmdbuf 14 completed 0.9ms", "```", "(L = layer, t = token position, first 4 dims of head 0)"]
    return text(out)


@form("ctypes ANSI coloured min/max/mean ranges")
def _(log: Log) -> str:
    g, y, z = "\x1b[32m", "\x1b[33m", "\x1b[0m"
    out = [
        f"{g}✓{z} weights ok",
        f"{y}!{z} rope_theta missing in config, using 10000",
        "decode step (batch 1, single token):",
    ]
    for n in log.layers:
        for what, role in (
            ("mlp.gate", "ffn_gate"),
            ("mlp.up", "ffn_up"),
            ("mlp.act(gate)*up", "ffn_swiglu"),
            ("mlp.down", "ffn_out"),
        ):
            k = f"{role}-{n}"
            out.append(
                f"{y}layer{n}{z}.{what:<18} range [{log.stat(k, 'min', '.3f')}, {log.stat(k, 'max', '.3f')}]  μ={log.stat(k, 'mean', '.4f')}  σ={log.stat(k, 'std', '.4f')}"
            )
    out.append(f"{g}✓{z} step 1 done")
    return text(out)
