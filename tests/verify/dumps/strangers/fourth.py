"""Log formats written by a stranger to the reader: of these 30 it understood 20 at first sight."""

from __future__ import annotations

from tests.verify.dumps.formats import Format
from tests.verify.dumps.unseen_formats import Log, adding_to, text

FORMATS: list[Format] = []
form = adding_to(FORMATS)


def width(log, node):
    return len(log.run.values[node][-1])


def ntok(log):
    return log.run.last + 1


@form("rust println {:?} slices")
def _(log: Log) -> str:
    ids = ", ".join(map(str, log.run.tokens))
    out = [
        "    Finished `release` profile [optimized] target(s) in 0.09s",
        "     Running `target/release/rllama --model ./model.safetensors --debug`",
        f"prompt tokens: [{ids}]",
    ]
    out.append(f"embedding (last tok): [{', '.join(log.first('embd', 5, 'r', said=-1))}]")
    for n in log.layers:
        for label, node in (
            ("attn_norm", "attn_norm"),
            ("attn out (after wo)", "attn_out"),
            ("ffn_norm", "ffn_norm"),
            ("ffn out", "ffn_out"),
            ("x at end of layer", "l_out"),
        ):
            out.append(f"[layer {n}] {label}: [{', '.join(log.first(f'{node}-{n}', 5, 'r'))}]")
    out.append(f"final norm: [{', '.join(log.first('result_norm', 5, 'r'))}]")
    out.append(f"logits[..5]: [{', '.join(log.first('result_output', 5, 'r'))}]")
    return text(out)


@form("llama2.c fork, position by position")
def _(log: Log) -> str:
    out = ["config: dim=%d n_layers=%d vocab=%d" % (width(log, "embd"), log.run.n_layer, width(log, "result_output"))]
    for pos in (0, 1, log.run.last):
        out.append(f"--- forward(token={log.run.tokens[pos]}, pos={pos}) ---")
        out.append("x = emb          " + " ".join(log.first("embd", 4, "9.5f", row=pos, said=pos)))
        for n in log.layers:
            out.append(f"L{n} xb (rms_att) " + " ".join(log.first(f"attn_norm-{n}", 4, "9.5f", row=pos, said=pos)))
            out.append(f"L{n} xb2 (wo)     " + " ".join(log.first(f"attn_out-{n}", 4, "9.5f", row=pos, said=pos)))
            out.append(f"L{n} xb (w2)      " + " ".join(log.first(f"ffn_out-{n}", 4, "9.5f", row=pos, said=pos)))
            out.append(f"L{n} x (end)      " + " ".join(log.first(f"l_out-{n}", 4, "9.5f", row=pos, said=pos)))
    return text(out)


@form("zig std.debug.print, {any}")
def _(log: Log) -> str:
    out = ["info: mapped weights.bin, 30 tensors", "debug: using 8 threads"]
    for n in log.layers:
        out.append(f"debug: layer={n} post_attention_residual={{ {', '.join(log.first(f'ffn_inp-{n}', 4, '.8e'))} }}")
        out.append(f"debug: layer={n} post_ffn_residual={{ {', '.join(log.first(f'l_out-{n}', 4, '.8e'))} }}")
    out.append(f"debug: final_rmsnorm={{ {', '.join(log.first('result_norm', 4, '.8e'))} }}")
    out.append("info: prefill 61.20ms")
    return text(out)


@form("go slog text handler")
def _(log: Log) -> str:
    ms = iter(range(114, 999, 3))

    def line(msg):
        return f"time=2025-02-11T16:40:07.{next(ms)}+01:00 level=DEBUG source=model.go:188 {msg}"

    out = [line(f'msg="starting forward" tokens={len(log.run.tokens)} pos=0')]
    for n in log.layers:
        for msg, r in (("attention output", "attn_out"), ("mlp output", "ffn_out"), ("block output", "l_out")):
            out.append(
                line(
                    f'msg="{msg}" layer={n} row=last mean={log.stat(f"{r}-{n}", "mean", "r", said=-1)} std={log.stat(f"{r}-{n}", "std", "r", said=-1)} head="[{" ".join(log.first(f"{r}-{n}", 4, "r", said=-1))}]"'
                )
            )
    out.append(
        line(f"msg=logits min={log.stat('result_output', 'min', 'r')} max={log.stat('result_output', 'max', 'r')}")
    )
    return text(out)


@form("torch forward hooks with HF module names")
def _(log: Log) -> str:
    mods = (
        ("input_layernorm", "attn_norm"),
        ("self_attn.q_proj", "Qcur_proj"),
        ("self_attn.k_proj", "Kcur_proj"),
        ("self_attn.v_proj", "Vcur"),
        ("self_attn.o_proj", "attn_out"),
        ("post_attention_layernorm", "ffn_norm"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_out"),
    )

    def line(name, node):
        return f"{name:<48}(1, {ntok(log)}, {width(log, node)})  out[0, -1, :5] = tensor([{', '.join(log.first(node, 5, '7.4f', said=-1))}])"

    out = [
        "Loading checkpoint shards: 100%|██████████| 2/2 [00:01<00:00,  1.73it/s]",
        line("model.embed_tokens", "embd"),
    ]
    for n in log.layers:
        out += [line(f"model.layers.{n}.{m}", f"{r}-{n}") for m, r in mods]
        out.append(line(f"model.layers.{n}", f"l_out-{n}"))
    out += [line("model.norm", "result_norm"), line("lm_head", "result_output")]
    return text(out)


@form("torch tensor repr of the hidden states")
def _(log: Log) -> str:
    out = [f"input_ids: tensor([[{', '.join(map(str, log.run.tokens))}]])"]
    for n in log.layers:
        node = f"l_out-{n}"
        out.append(f"hidden_states after layer {n}: torch.Size([1, {ntok(log)}, {width(log, node)}])")
        rows = []
        for r in (0, 1, 2, None, -3, -2, -1) if ntok(log) > 6 else range(ntok(log)):
            rows.append(
                "..."
                if r is None
                else f"[{', '.join(log.first(node, 3, '7.4f', row=r, said=r))},  ..., {', '.join(log.final(node, 3, '7.4f', row=r, said=r))}]"
            )
        out.append("tensor([[" + rows[0] + ",")
        out += ["         " + r + "," for r in rows[1:-1]]
        out.append("         " + rows[-1] + "]])")
    return text(out)


@form("numpy print(label, x[-1, :5])")
def _(log: Log) -> str:
    out = [
        ">>> loading weights",
        "vocab ok",
        f"tokens {list(log.run.tokens)}",
        "(all values below: last position, first 5 dims)",
    ]
    out.append(f"embed [{' '.join(log.first('embd', 5, ' .6f', said=-1))}]")
    for n in log.layers:
        for label, r in (
            ("ln1", "attn_norm"),
            ("attn", "attn_out"),
            ("x+attn", "ffn_inp"),
            ("ln2", "ffn_norm"),
            ("mlp", "ffn_out"),
            ("x+mlp", "l_out"),
        ):
            out.append(f"block {n} {label} [{' '.join(log.first(f'{r}-{n}', 5, ' .6f', said=-1))}]")
    out.append(f"ln_f [{' '.join(log.first('result_norm', 5, ' .6f', said=-1))}]")
    out.append(f"logits [{' '.join(log.first('result_output', 5, ' .6f', said=-1))}]")
    return text(out)


@form("c++ spdlog")
def _(log: Log) -> str:
    out, ms = [], 201

    def line(s, lv="debug", at=412):
        nonlocal ms
        ms += 2
        out.append(f"[2024-11-03 21:14:09.{ms}] [engine] [{lv}] [transformer.cpp:{at}] {s}")

    line("KV cache: 64.00 MiB", "info", 77)
    for n in log.layers:
        line(f"layer {n} q before rope: {', '.join(log.first(f'Qcur_proj-{n}', 6, '.5f', row=0))}", at=301)
        line(f"layer {n} q after rope: {', '.join(log.first(f'Qcur-{n}', 6, '.5f', row=0))}", at=318)
        line(f"layer {n} k after rope: {', '.join(log.first(f'Kcur-{n}', 6, '.5f', row=0))}", at=319)
        line(f"layer {n} v: {', '.join(log.first(f'Vcur-{n}', 6, '.5f', row=0))}", at=320)
        line(f"layer {n} attn before o_proj: {', '.join(log.first(f'kqv_out-{n}', 6, '.5f', row=0))}", at=344)
        line(f"layer {n} attn after o_proj: {', '.join(log.first(f'attn_out-{n}', 6, '.5f', row=0))}", at=351)
        line(f"layer {n} done in 1.{n}7 ms", "trace", 410)
    line("forward finished, sampler disabled (--no-sample)", "info", 455)
    return text(out)


@form("fixed-width stats table")
def _(log: Log) -> str:
    out = [
        "Activation statistics, last token",
        "",
        f"{'layer':>5}  {'tensor':<14}{'min':>12}{'max':>12}{'mean':>12}{'rms':>12}",
        "-" * 67,
    ]
    for n in log.layers:
        for label, r in (
            ("attn_norm", "attn_norm"),
            ("attn_out", "attn_out"),
            ("ffn_norm", "ffn_norm"),
            ("ffn_out", "ffn_out"),
            ("residual_out", "l_out"),
        ):
            out.append(
                f"{n:>5}  {label:<14}"
                + "".join(log.stat(f"{r}-{n}", k, "12.5f", said=-1) for k in ("min", "max", "mean", "rms"))
            )
    out.append("-" * 67)
    return text(out)


@form("swift / metal print")
def _(log: Log) -> str:
    out = ["Metal device: Apple M2 Pro", "Compiled 14 pipelines in 0.31s", "", f"🔤 tokens: {list(log.run.tokens)}"]
    for n in log.layers:
        out.append(f"🔍 Layer {n} attnNorm: [{', '.join(log.first(f'attn_norm-{n}', 4, 'r'))}]")
        out.append(f"🔍 Layer {n} attnProj (wo): [{', '.join(log.first(f'attn_out-{n}', 4, 'r'))}]")
        out.append(f"🔍 Layer {n} ffnDown: [{', '.join(log.first(f'ffn_out-{n}', 4, 'r'))}]")
        out.append(
            f"✅ Layer {n} hidden out: [{', '.join(log.first(f'l_out-{n}', 4, 'r'))}] ||x||₂ = {log.stat(f'l_out-{n}', 'norm', 'r')}"
        )
    out.append("🎯 top-5 logits: " + ", ".join(f"(id: {i}, logit: {v})" for i, v in log.top("result_output", 5, "r")))
    return text(out)


@form("node console.log of Float32Array")
def _(log: Log) -> str:
    out = ["[webgpu] adapter: nvidia ampere", "[webgpu] uploaded 291 buffers"]
    for n in log.layers:
        out.append(f"layer {n} hidden (last token, first 8):")
        v = log.first(f"l_out-{n}", 8, ".16f", said=-1)
        out.append("Float32Array(8) [")
        for i in range(0, 8, 3):
            out.append("  " + ", ".join(v[i : i + 3]) + ("," if i + 3 < 8 else ""))
        out.append("]")
    v = log.first("result_output", 3, ".16f", said=-1)
    out.append(f"logits (last token, first 3): Float32Array(3) [ {', '.join(v)} ]")
    return text(out)


@form("json lines")
def _(log: Log) -> str:
    p = log.run.last
    out = ['{"event":"model_loaded","arch":"llama","ms":812}', '{"event":"prefill","n_tokens":%d}' % ntok(log)]
    for n in log.layers:
        for op, r in (
            ("attn_norm", "attn_norm"),
            ("attn_output", "attn_out"),
            ("ffn_norm", "ffn_norm"),
            ("ffn_down", "ffn_out"),
            ("layer_output", "l_out"),
        ):
            node = f"{r}-{n}"
            out.append(
                f'{{"event":"act","layer":{n},"op":"{op}","pos":{p},"n":{width(log, node)},"mean":{log.stat(node, "mean", ".6g", said=p)},"absmax":{log.stat(node, "absmax", ".6g", said=p)},"first":[{",".join(log.first(node, 4, ".6g", said=p))}]}}'
            )
    return text(out)


@form("mlx array repr")
def _(log: Log) -> str:
    out = ["Fetching 7 files: 100%|███████████████| 7/7 [00:00<00:00, 51150.05it/s]"]
    out.append(
        f"h after embed_tokens h[0, -1, :6] array([{', '.join(log.first('embd', 6, '.6g', said=-1))}], dtype=float32)"
    )
    for n in log.layers:
        out.append(
            f"h after layers[{n}] h[0, -1, :6] array([{', '.join(log.first(f'l_out-{n}', 6, '.6g', said=-1))}], dtype=float32)"
        )
    out.append(
        f"after norm h[0, -1, :6] array([{', '.join(log.first('result_norm', 6, '.6g', said=-1))}], dtype=float32)"
    )
    return text(out)


@form("interpretability hook names with norms")
def _(log: Log) -> str:
    out = ["Loaded pretrained weights into HookedTransformer-like model (jax)", "cache, position -1, L2 norms:"]
    out.append(f"hook_embed: {log.stat('embd', 'norm', '.4f', said=-1)}")
    for n in log.layers:
        for h, r in (
            ("ln1.out", "attn_norm"),
            ("hook_attn_out", "attn_out"),
            ("hook_resid_mid", "ffn_inp"),
            ("hook_mlp_out", "ffn_out"),
            ("hook_resid_post", "l_out"),
        ):
            out.append(f"blocks.{n}.{h}: {log.stat(f'{r}-{n}', 'norm', '.4f', said=-1)}")
    out.append(f"ln_final.out: {log.stat('result_norm', 'norm', '.4f', said=-1)}")
    return text(out)


@form("java, Arrays.toString")
def _(log: Log) -> str:
    out = [
        "WARNING: Using incubator modules: jdk.incubator.vector",
        "Parse model.gguf: 312 millis",
        "Load LlaMa model: 1045 millis",
    ]
    for n in log.layers:
        out.append(
            f"DEBUG forward: layer={n} rmsnorm(x, rms_att_weight) -> [{', '.join(log.first(f'attn_norm-{n}', 5, 'r'))}]"
        )
        out.append(
            f"DEBUG forward: layer={n} residual after attention -> [{', '.join(log.first(f'ffn_inp-{n}', 5, 'r'))}]"
        )
        out.append(f"DEBUG forward: layer={n} silu(w1(x))*w3(x) -> [{', '.join(log.first(f'ffn_swiglu-{n}', 5, 'r'))}]")
        out.append(f"DEBUG forward: layer={n} residual after ffn -> [{', '.join(log.first(f'l_out-{n}', 5, 'r'))}]")
    out.append(f"DEBUG forward: final rmsnorm -> [{', '.join(log.first('result_norm', 5, 'r'))}]")
    out.append(f"DEBUG forward: logits -> [{', '.join(log.first('result_output', 5, 'r'))}]")
    return text(out)


@form("android logcat, kotlin + jni")
def _(log: Log) -> str:
    out, ms = [], 310

    def line(s, lv="D"):
        nonlocal ms
        ms += 4
        out.append(f"05-17 10:22:41.{ms}  9123  9160 {lv} LlmEngine: {s}")

    line("nativeInit ok, big cores=4", "I")
    for n in log.layers:
        line(f"L{n} attn_out[0..3]=" + ",".join(log.first(f"attn_out-{n}", 4, ".4f")))
        line(f"L{n} ffn_out[0..3]=" + ",".join(log.first(f"ffn_out-{n}", 4, ".4f")))
        line(f"L{n} out[0..3]=" + ",".join(log.first(f"l_out-{n}", 4, ".4f")))
    line("logits top3: " + " ".join(f"{i}={v}" for i, v in log.top("result_output", 3, ".3f")))
    line("decode 41.3 ms/token", "I")
    return text(out)


@form("c# Console.WriteLine stats")
def _(log: Log) -> str:
    out = ["info: Engine.ModelLoader[0]", "      Loaded 201 tensors", ""]
    for n in log.layers:
        for label, r in (
            ("AttentionNorm", "attn_norm"),
            ("AttentionOutput", "attn_out"),
            ("FfnNorm", "ffn_norm"),
            ("FfnOutput", "ffn_out"),
            ("LayerOutput", "l_out"),
        ):
            d = f"{r}-{n}"
            out.append(
                f"Layer {n:02d} {label:<16}: Min={log.stat(d, 'min', '.4f')}, Max={log.stat(d, 'max', '.4f')}, Mean={log.stat(d, 'mean', '.4f')}"
            )
    out.append(
        f"FinalNorm                : Min={log.stat('result_norm', 'min', '.4f')}, Max={log.stat('result_norm', 'max', '.4f')}, Mean={log.stat('result_norm', 'mean', '.4f')}"
    )
    out.append(
        f"Logits                   : Min={log.stat('result_output', 'min', '.4f')}, Max={log.stat('result_output', 'max', '.4f')}, Mean={log.stat('result_output', 'mean', '.4f')}"
    )
    return text(out)


@form("julia, layers from 1")
def _(log: Log) -> str:
    out = ['julia> include("run.jl")', "[ Info: weights loaded"]
    for n in log.layers:
        out.append(
            f"layer {n + 1}/{log.run.n_layer}: x[1:5, end] = Float32[{', '.join(log.first(f'l_out-{n}', 5, 'r', said=-1))}]"
        )
    out.append(f"after final RMSNorm: x[1:5, end] = Float32[{', '.join(log.first('result_norm', 5, 'r', said=-1))}]")
    return text(out)


@form("tinygrad, bare index and array under a header")
def _(log: Log) -> str:
    out = [
        "ram used:  2.20 GB, layers.2.feed_forward.w3.weight: 100%|████| 30/30",
        "loaded weights in 410.22 ms",
        "",
        "layer outputs, h[0, -1, :4].numpy():",
    ]
    for n in log.layers:
        out.append(f"{n} [{' '.join(log.first(f'l_out-{n}', 4, ' .8f', said=-1))}]")
    out.append("norm(h)[0, -1, :4].numpy():")
    out.append(f"[{' '.join(log.first('result_norm', 4, ' .8f', said=-1))}]")
    return text(out)


@form("cuda debug, indexed elements")
def _(log: Log) -> str:
    out = ["[INFO] CUDA device 0: NVIDIA GeForce RTX 3060 (sm_86)", "[INFO] weights uploaded: 1.1 GiB"]
    for n in log.layers:
        for label, r in (
            ("after rmsnorm_att", "attn_norm"),
            ("after wo gemv", "attn_out"),
            ("after ffn residual add", "l_out"),
        ):
            v = log.first(f"{r}-{n}", 4, ".6f")
            out.append(f"[DBG] layer={n} {label}: " + " ".join(f"x[{i}]={t}" for i, t in enumerate(v)))
    out.append("[DBG] cudaDeviceSynchronize ok")
    out.append(
        f"[DBG] logits[0]={log.at('result_output', 0, '.6f')} logits[1]={log.at('result_output', 1, '.6f')} logits[10]={log.at('result_output', 10, '.6f')}"
    )
    return text(out)


@form("csv of stats")
def _(log: Log) -> str:
    out = ["layer,name,token_pos,mean,std,min,max"]
    p = log.run.last
    for n in log.layers:
        for r, label in (
            ("attn_norm", "attn_norm"),
            ("Qcur", "q_rope"),
            ("Kcur", "k_rope"),
            ("Vcur", "v"),
            ("attn_out", "attn_proj"),
            ("ffn_out", "ffn_down"),
            ("l_out", "layer_out"),
        ):
            out.append(
                f"{n},{label},{p},"
                + ",".join(log.stat(f"{r}-{n}", k, ".6f", said=p) for k in ("mean", "std", "min", "max"))
            )
    return text(out)


@form("c, print_tensor helper with ellipsis and gguf-like names")
def _(log: Log) -> str:
    out = ["gguf: version 3, 25 kv, 30 tensors"]

    def line(name, node):
        return f"{name:<22} [{width(log, node):>5}]  {', '.join(log.first(node, 3, '8.4f', said=-1))}, ..., {', '.join(log.final(node, 3, '8.4f', said=-1))}"

    out.append(line("token_embd", "embd"))
    for n in log.layers:
        for label, r in (
            ("attn_norm", "attn_norm"),
            ("attn_q", "Qcur_proj"),
            ("attn_k", "Kcur_proj"),
            ("attn_v", "Vcur"),
            ("attn_output", "attn_out"),
            ("ffn_norm", "ffn_norm"),
            ("ffn_gate", "ffn_gate"),
            ("ffn_up", "ffn_up"),
            ("ffn_down", "ffn_out"),
        ):
            out.append(line(f"blk.{n}.{label}", f"{r}-{n}"))
    out += [line("output_norm", "result_norm"), line("output", "result_output")]
    out.insert(1, "result of each matmul/norm, last token only")
    return text(out)


@form("c++ sections with indented labels")
def _(log: Log) -> str:
    out = ["main: seed = 42", "main: processing prompt one token at a time", f"main: pos = {log.run.last}", ""]
    p = log.run.last
    for n in log.layers:
        out.append(f"==================== Layer {n} ====================")
        for label, r in (
            ("Input norm", "attn_norm"),
            ("Q", "Qcur_proj"),
            ("K", "Kcur_proj"),
            ("V", "Vcur"),
            ("Q + RoPE", "Qcur"),
            ("K + RoPE", "Kcur"),
            ("Attention out proj", "attn_out"),
            ("Residual 1", "ffn_inp"),
            ("Post-attn norm", "ffn_norm"),
            ("Gate proj", "ffn_gate"),
            ("Up proj", "ffn_up"),
            ("SiLU(gate) * up", "ffn_swiglu"),
            ("Down proj", "ffn_out"),
            ("Residual 2", "l_out"),
        ):
            out.append(f"  {label:<20}: {' '.join(log.first(f'{r}-{n}', 5, '.6g', said=p))} ...")
        out.append("")
    return text(out)


@form("rust tracing")
def _(log: Log) -> str:
    out, us = [], 201344

    def line(s, lv="DEBUG"):
        nonlocal us
        us += 1873
        out.append(f"2025-01-19T08:31:55.{us}Z {lv:>5} infer::model::llama: {s}")

    line("no batched prefill yet, feeding prompt token by token", "INFO")
    for n in log.layers:
        with_span = f"forward:block{{idx={n}}}: "
        line(
            with_span
            + f"post-attention residual rms={log.stat(f'ffn_inp-{n}', 'rms', 'r')} x=[{', '.join(log.first(f'ffn_inp-{n}', 3, 'r'))}]"
        )
        line(
            with_span
            + f"block output rms={log.stat(f'l_out-{n}', 'rms', 'r')} x=[{', '.join(log.first(f'l_out-{n}', 3, 'r'))}]"
        )
    line(f"final norm rms={log.stat('result_norm', 'rms', 'r')} x=[{', '.join(log.first('result_norm', 3, 'r'))}]")
    return text(out)


@form("rust {:#?}, one number a line")
def _(log: Log) -> str:
    out = ["warning: unused variable: `mask`", "   --> src/attention.rs:88:13", ""]
    for n in log.layers:
        for label, r in (("attention output (post o_proj)", "attn_out"), ("mlp output", "ffn_out")):
            out.append(f"layer {n} {label} = [")
            out += [f"    {t}," for t in log.first(f"{r}-{n}", 4, "r", row=0)]
            out.append("]")
    return text(out)


@form("github actions log of a test, print and checksum")
def _(log: Log) -> str:
    out, ts = [], 1203381

    def line(s):
        nonlocal ts
        ts += 4127
        out.append(f"2024-09-14T12:05:31.{ts}Z {s}")

    line("##[group]Run ctest --output-on-failure -R forward")
    line("test 3")
    line("    Start 3: forward_smoke")
    for n in log.layers:
        line(
            f"3: layer {n} out: sum={log.stat(f'l_out-{n}', 'sum', '.5f')} first: {' '.join(log.first(f'l_out-{n}', 4, '.5f'))}"
        )
    line(
        f"3: output norm: sum={log.stat('result_norm', 'sum', '.5f')} first: {' '.join(log.first('result_norm', 4, '.5f'))}"
    )
    line(
        f"3: logits: sum={log.stat('result_output', 'sum', '.5f')} first: {' '.join(log.first('result_output', 4, '.5f'))}"
    )
    line("1/1 Test #3: forward_smoke ...................***Failed    2.31 sec")
    return text(out)


@form("browser console, wasm")
def _(log: Log) -> str:
    out = [
        "engine.js:44 wasm simd: true, threads: 4",
        f"engine.js:102 encode() -> ({len(log.run.tokens)}) [{', '.join(map(str, log.run.tokens))}]",
    ]
    for n in log.layers:
        out.append(f"engine.js:231 [L{n}] attn (5) [{', '.join(log.first(f'attn_out-{n}', 5, '.7g'))}]")
        out.append(f"engine.js:240 [L{n}] mlp (5) [{', '.join(log.first(f'ffn_out-{n}', 5, '.7g'))}]")
        out.append(f"engine.js:246 [L{n}] resid (5) [{', '.join(log.first(f'l_out-{n}', 5, '.7g'))}]")
    out.append("engine.js:260 top5 token/logit " + " ".join(f"{i}:{v}" for i, v in log.top("result_output", 5, ".4f")))
    return text(out)


@form("forum post, prose and fenced block")
def _(log: Log) -> str:
    out = [
        "Hi all, I'm writing my own runner in C and the output is garbage after the first word.",
        "I dumped the first 6 values of the hidden state for the **first** token (BOS) after every layer:",
        "",
        "```",
    ]
    out.append("embedding:     " + "  ".join(log.first("embd", 6, ".4f", row=0, said=0)))
    for n in log.layers:
        out.append(f"after layer {n}: " + "  ".join(log.first(f"l_out-{n}", 6, ".4f", row=0, said=0)))
    out += ["```", "", "and inside layer 0:", "", "```"]
    for label, r in (
        ("rmsnorm", "attn_norm"),
        ("q (no rope)", "Qcur_proj"),
        ("k (no rope)", "Kcur_proj"),
        ("v", "Vcur"),
        ("attn @ Wo", "attn_out"),
    ):
        out.append(f"{label + ':':<15}" + "  ".join(log.first(f"{r}-0", 6, ".4f", row=0, said=0)))
    out += ["```", "", "Does anybody see what is wrong? Running on Debian 12, gcc 12.2, -O2."]
    return text(out)


@form("pandas DataFrame of per-layer norms")
def _(log: Log) -> str:
    cols = (
        ("attn_norm", "attn_norm"),
        ("attn_out", "attn_out"),
        ("ffn_norm", "ffn_norm"),
        ("ffn_out", "ffn_out"),
        ("layer_out", "l_out"),
    )
    out = [
        'In [14]: df = pd.DataFrame(rms_rows).set_index("layer")  # rms of the last token',
        "In [15]: df",
        "Out[15]:",
    ]
    out.append("       " + "".join(f"{c:>11}" for c, _ in cols))
    out.append("layer  ")
    for n in log.layers:
        out.append(f"{n:<7}" + "".join(log.stat(f"{r}-{n}", "rms", "11.6f", said=-1) for _, r in cols))
    return text(out)


@form("c++ cout, flat buffer from its start")
def _(log: Log) -> str:
    out = ["n_threads = 6", f"n_tokens = {ntok(log)}", "dump(): first 8 floats of the buffer, token 0 first"]
    for n in log.layers:
        out.append(f"layer_{n}.attn_norm -> {' '.join(log.first(f'attn_norm-{n}', 8, '.6g', row=0, said=0))} ")
        out.append(f"layer_{n}.ffn_norm -> {' '.join(log.first(f'ffn_norm-{n}', 8, '.6g', row=0, said=0))} ")
        out.append(f"layer_{n}.output -> {' '.join(log.first(f'l_out-{n}', 8, '.6g', row=0, said=0))} ")
    return text(out)
