"""Log formats written by a stranger to the reader, each with the noise that stands around it in life.

Of these 32 the reader understood 11 at first sight. Each row is how somebody who writes an engine prints activations.
"""

from __future__ import annotations

from tests.verify.dumps.formats import Format
from tests.verify.dumps.unseen_formats import Log, adding_to, text

FORMATS: list[Format] = []
form = adding_to(FORMATS)


def width(log: Log, node: str) -> int:
    return int(log.run.values[node].shape[-1])


def n_tok(log: Log) -> int:
    return len(log.run.tokens)


@form("rust println, one line a layer, debug of a slice, argmax list at the end")
def _(log: Log) -> str:
    out = [
        "    Finished `release` profile [optimized + debuginfo] target(s) in 0.09s",
        "     Running `target/release/tinyrun -m model.safetensors -n 1`",
        "mmap model.safetensors: 2200119864 bytes in 1.2ms",
        f"prompt ids: {list(log.run.tokens)}",
    ]
    for n in log.layers:
        out.append(f"layer {n} output: [{', '.join(log.first(f'l_out-{n}', 6, 'r'))}]")
    out.append("logits top 5:")
    for i, v in log.top("result_output", 5, "r"):
        out.append(f"  ({i}, {v})")
    out.append("prefill 8.13 tok/s")
    return text(out)


@form("C printf, columns under a header, residual after each block")
def _(log: Log) -> str:
    k = 6
    out = [
        f"dim {width(log, 'embd')}  n_layers {log.run.n_layer}  seq {n_tok(log)}",
        "residual stream, last position",
        " " * 10 + "".join(f"{f'x[{i}]':>12}" for i in range(k)),
    ]
    out.append(f"{'tok_emb':<10}" + "".join(f"{v:>12}" for v in log.first("embd", k, ".6f", said=-1)))
    for n in log.layers:
        out.append(f"{f'block {n:2d}':<10}" + "".join(f"{v:>12}" for v in log.first(f"l_out-{n}", k, ".6f", said=-1)))
    out.append(f"{'final_rms':<10}" + "".join(f"{v:>12}" for v in log.first("result_norm", k, ".6f", said=-1)))
    return text(out)


@form("torch, f-string with = of a slice at the last position")
def _(log: Log) -> str:
    out = [
        "Loading checkpoint shards: 100%|██████████| 2/2 [00:01<00:00,  1.74it/s]",
        f"input_ids=tensor([[{', '.join(map(str, log.run.tokens))}]], device='cuda:0')",
    ]
    for n in log.layers:
        v = log.first(f"l_out-{n}", 6, ".4f", said=-1)
        out.append(
            f"layer_idx={n} hidden_states[0, -1, :6]=tensor([{', '.join(t.rjust(7) for t in v)}], device='cuda:0')"
        )
    v = log.first("result_output", 6, ".4f", said=-1)
    out.append(f"logits[0, -1, :6]=tensor([{', '.join(t.rjust(7) for t in v)}], device='cuda:0')")
    return text(out)


@form("go slog text handler")
def _(log: Log) -> str:
    t = "2025-02-11T21:04:{:02d}.{:03d}+01:00"
    out = [
        f'time={t.format(7, 112)} level=INFO msg="model loaded" path=/models/tl-1b.gguf tensors=201 took=412.88ms',
        f"time={t.format(7, 530)} level=INFO msg=prefill n_tokens={n_tok(log)} batch=1",
    ]
    for n in log.layers:
        out.append(
            f'time={t.format(7, 561 + 31 * n)} level=DEBUG source=model/forward.go:143 msg="block done" layer={n} tok=last '
            f'hidden="[{" ".join(log.first(f"l_out-{n}", 5, "r", said=-1))}]" l2={log.stat(f"l_out-{n}", "norm", "r", said=-1)} took={11 + n}.{3 * n + 1}ms'
        )
    out.append(f'time={t.format(7, 702)} level=WARN msg="kv cache nearly full" used=8 cap=8')
    return text(out)


@form("node console.log of Float32Array subarrays")
def _(log: Log) -> str:
    def arr(node: str, k: int, said: int | None = None) -> list[str]:
        v = log.first(node, k, "r", said=said)
        w = max(map(len, v))
        rows = ["  " + ", ".join(x.rjust(w) for x in v[i : i + 4]) for i in range(0, k, 4)]
        return [f"Float32Array({k}) [", *(r + ("," if r is not rows[-1] else "") for r in rows), "]"]

    out = [
        "adapter: apple metal-3",
        "pipeline compile: 184.2ms",
        f"tokens Uint32Array({n_tok(log)}) [ {', '.join(map(str, log.run.tokens))} ]",
    ]
    a = arr("embd", 8, -1)
    out += [f"embeddings (last token) {a[0]}", *a[1:]]
    for n in log.layers:
        a = arr(f"l_out-{n}", 8)
        out += [f"hidden after block {n} {a[0]}", *a[1:]]
    out.append("readback: 2.9ms")
    return text(out)


@form("csv with a header, a few nodes a layer")
def _(log: Log) -> str:
    out = ["layer,stage,pos,v0,v1,v2,v3"]
    p = log.run.last
    out.append(f",embed,{p}," + ",".join(log.first("embd", 4, ".7g", row=p, said=p)))
    for n in log.layers:
        for stage, node in (
            ("input_norm", "attn_norm"),
            ("attn_o_proj", "attn_out"),
            ("post_attn_residual", "ffn_inp"),
            ("mlp_down", "ffn_out"),
            ("layer_out", "l_out"),
        ):
            out.append(f"{n},{stage},{p}," + ",".join(log.first(f"{node}-{n}", 4, ".7g", row=p, said=p)))
    out.append(f",logits,{p}," + ",".join(log.first("result_output", 4, ".7g", row=p, said=p)))
    return text(out)


@form("json lines with head, tail and l2")
def _(log: Log) -> str:
    p = log.run.last
    out = [
        '{"ts":1739471021.118,"event":"load","model":"model-f32.bin","ok":true}',
        '{"ts":1739471021.644,"event":"tokenize","ids":[%s]}' % ",".join(map(str, log.run.tokens)),
    ]
    for n in log.layers:
        d = f"l_out-{n}"
        out.append(
            '{"ts":1739471022.%03d,"event":"layer_end","layer":%d,"pos":%d,"dim":%d,"head":[%s],"tail":[%s],"l2":%s}'
            % (
                40 + 17 * n,
                n,
                p,
                width(log, d),
                ",".join(log.first(d, 4, ".6f", row=p, said=p)),
                ",".join(log.final(d, 2, ".6f", row=p, said=p)),
                log.stat(d, "norm", ".5f", row=p, said=p),
            )
        )
    out.append(
        '{"ts":1739471022.301,"event":"logits","pos":%d,"top":[%s]}'
        % (p, ",".join('{"id":%s,"logit":%s}' % (i, v) for i, v in log.top("result_output", 5, ".5f", row=p, said=p)))
    )
    out.append('{"ts":1739471022.305,"event":"sample","temp":0.0,"ms":0.4}')
    return text(out)


@form("markdown table of statistics")
def _(log: Log) -> str:
    out = [
        "### hidden state after each decoder layer (last prompt token, fp32, cpu backend)",
        "",
        "| layer | mean | std | min | max | time |",
        "|------:|-----:|----:|----:|----:|-----:|",
    ]
    for n in log.layers:
        d = f"l_out-{n}"
        out.append(
            f"| {n} | "
            + " | ".join(log.stat(d, s, ".5f", said=-1) for s in ("mean", "std", "min", "max"))
            + f" | {4.1 + n / 10:.1f} ms |"
        )
    out.append(
        "| final norm | "
        + " | ".join(log.stat("result_norm", s, ".5f", said=-1) for s in ("mean", "std", "min", "max"))
        + " | 0.1 ms |"
    )
    return text(out)


@form("spdlog, several nodes a layer, statistics only")
def _(log: Log) -> str:
    out = [
        "[2025-03-02 14:31:08.201] [info] [loader.cpp:77] mapped 1 file, 4196.35 MiB",
        "[2025-03-02 14:31:08.377] [info] [main.cpp:41] decoding one token, threads=12",
    ]
    ms = 381
    for n in log.layers:
        for what, node in (("attn out (after wo)", "attn_out"), ("mlp out", "ffn_out"), ("residual out", "l_out")):
            d = f"{node}-{n}"
            out.append(
                f"[2025-03-02 14:31:08.{ms}] [debug] [block.cpp:212] blk {n:02d} {what:<20}: mean={log.stat(d, 'mean', '+.4e')} rms={log.stat(d, 'rms', '.4e')} absmax={log.stat(d, 'absmax', '.4e')}"
            )
            ms += 3
    out.append("[2025-03-02 14:31:08.431] [info] [main.cpp:58] done")
    return text(out)


@form("java.util.logging, two lines a record, layers from 1")
def _(log: Log) -> str:
    out = [
        "Mar 03, 2025 11:02:14 PM dev.jllm.Main main",
        f"INFO: Prompt encoded to {n_tok(log)} tokens {list(log.run.tokens)}",
    ]
    for n in log.layers:
        out += [
            "Mar 03, 2025 11:02:15 PM dev.jllm.Transformer forward",
            f"FINE: finished layer {n + 1}/{log.run.n_layer}, x = [{', '.join(log.first(f'l_out-{n}', 5, 'r'))}, ...]",
        ]
    out += [
        "Mar 03, 2025 11:02:15 PM dev.jllm.Transformer forward",
        f"FINE: after final RMSNorm, x = [{', '.join(log.first('result_norm', 5, 'r'))}, ...]",
    ]
    return text(out)


@form("llama2.c clone, token at a time, hidden norm and two values at every position")
def _(log: Log) -> str:
    out = ["warning: no tokenizer.bin, using ids from the command line"]
    for p, t in enumerate(log.run.tokens):
        out.append(f"forward(token={t}, pos={p})")
        for n in log.layers:
            d = f"l_out-{n}"
            a, b = log.first(d, 2, ".4f", row=p, said=p)
            out.append(f"    l={n}  |x|={log.stat(d, 'norm', '.4f', row=p, said=p)}  x={a},{b},..")
    out.append("achieved tok/s: 31.250000")
    return text(out)


@form("numpy repr of a vector, elided in the middle")
def _(log: Log) -> str:
    def rep(node: str) -> list[str]:
        a, z = log.first(node, 3, ".8f", said=-1), log.final(node, 3, ".8f", said=-1)
        w = max(map(len, a + z))
        return [
            f"array([{', '.join(x.rjust(w) for x in a)}, ...,",
            f"       {', '.join(x.rjust(w) for x in z)}], dtype=float32)",
        ]

    out = [
        ">>> acts = run(ids, hooks=True)",
        "100%|███████████████████████████| 3/3 [00:00<00:00, 11.02it/s]",
        ">>> acts['embed'][-1]",
        *rep("embd"),
    ]
    for n in log.layers:
        out += [f">>> acts['blocks.{n}.resid_post'][-1]", *rep(f"l_out-{n}")]
    out += [">>> acts['unembed'][-1]     # logits", *rep("result_output")]
    return text(out)


@form("CUDA kernel printf, a line a thread, pre-attention norm and down projection")
def _(log: Log) -> str:
    p = log.run.last
    out = [
        "==PROF== Connected to process 41207 (/home/k/engine/build/engine)",
        "device 0: NVIDIA GeForce RTX 4090, sm_89, 23.6 GiB free",
    ]
    for n in log.layers:
        out.append(f"--- launch rmsnorm_f32<<<{n_tok(log)},256>>> layer {n} (pre-attention norm)")
        for i in (0, 1, 2, 3):
            out.append(
                f"[rmsnorm_f32 layer={n}] row={p} tid={i} out[{i}]={log.at(f'attn_norm-{n}', i, 'f', row=p, said=p)}"
            )
        out.append(f"--- launch gemm_down<<<32,256>>> layer {n} (ffn down proj)")
        for i in (0, 1, 2, 3):
            out.append(
                f"[gemm_down layer={n}] row={p} tid={i} out[{i}]={log.at(f'ffn_out-{n}', i, 'f', row=p, said=p)}"
            )
    out.append("cudaDeviceSynchronize: no error")
    return text(out)


@form("console.table, box drawn")
def _(log: Log) -> str:
    head = ["(index)", "stage", "v[0]", "v[1]", "v[2]", "v[3]", "rms"]
    rows = []
    for n in log.layers:
        for lab, node in (("attn residual", "ffn_inp"), ("block output", "l_out")):
            d = f"{node}-{n}"
            rows.append([str(len(rows)), f"'L{n} {lab}'", *log.first(d, 4, "r"), log.stat(d, "rms", "r")])
    ws = [max(len(r[c]) for r in [head, *rows]) + 2 for c in range(len(head))]

    def line(r: list[str]) -> str:
        return "│" + "│".join(x.center(w) for x, w in zip(r, ws, strict=True)) + "│"

    def bar(a: str, b: str, c: str) -> str:
        return a + b.join("─" * w for w in ws) + c

    return text(
        [
            "dispatch ok (wgsl f32)",
            bar("┌", "┬", "┐"),
            line(head),
            bar("├", "┼", "┤"),
            *map(line, rows),
            bar("└", "┴", "┘"),
        ]
    )


@form("side by side, a column a layer")
def _(log: Log) -> str:
    k = 8
    cols = [log.first(f"l_out-{n}", k, ".5f", said=-1) for n in log.layers]
    out = [
        f"hidden[last token][i] at the output of every layer   (d_model={width(log, 'l_out-0')})",
        "",
        f"{'i':>4}" + "".join(f"{f'layer {n}':>14}" for n in log.layers),
        "-" * (4 + 14 * log.run.n_layer),
    ]
    for i in range(k):
        out.append(f"{i:>4}" + "".join(f"{c[i]:>14}" for c in cols))
    out.append(f"{'l2':>4}" + "".join(f"{log.stat(f'l_out-{n}', 'norm', '.5f', said=-1):>14}" for n in log.layers))
    return text(out)


@form("yaml-ish dump, first token and last token")
def _(log: Log) -> str:
    p = log.run.last
    out = ["run:", "  model: ./ckpt/step-final", "  dtype: f32", f"  tokens: {list(log.run.tokens)}", "activations:"]

    def two(node: str) -> list[str]:
        return [
            f"      tok_0: [{', '.join(log.first(node, 4, '.4f', row=0, said=0))}, ...]",
            f"      tok_{p}: [{', '.join(log.first(node, 4, '.4f', row=p, said=p))}, ...]",
        ]

    for n in log.layers:
        out += [
            f"  layer_{n}:",
            "    attention_output:   # after o_proj, before the residual add",
            *two(f"attn_out-{n}"),
            "    mlp_output:",
            *two(f"ffn_out-{n}"),
            "    hidden_out:",
            *two(f"l_out-{n}"),
        ]
    out += ["  ln_f:", "    out:", *two("result_norm")]
    return text(out)


@form("xml-ish dump with attributes")
def _(log: Log) -> str:
    out = ['<?xml version="1.0"?>', f'<forward backend="opencl" tokens="{n_tok(log)}" elapsed-ms="213">']
    for n in log.layers:
        out.append(f'  <layer index="{n}">')
        for name, node in (
            ("ffn-norm", "ffn_norm"),
            ("gate", "ffn_gate"),
            ("up", "ffn_up"),
            ("down", "ffn_out"),
            ("output", "l_out"),
        ):
            d = f"{node}-{n}"
            out.append(
                f'    <tensor name="{name}" token="last" dim="{width(log, d)}" min="{log.stat(d, "min", ".5f", said=-1)}" max="{log.stat(d, "max", ".5f", said=-1)}">{" ".join(log.first(d, 4, ".5f", said=-1))} ...</tensor>'
            )
        out.append("  </layer>")
    out.append("</forward>")
    return text(out)


@form("lldb po of Swift arrays at a breakpoint in the layer loop")
def _(log: Log) -> str:
    out = [
        "Process 71034 stopped",
        "* thread #1, queue = 'com.apple.main-thread', stop reason = breakpoint 1.1",
        "    frame #0: 0x0000000100021f3c LlamaSwift`Transformer.forward(self=0x600003a0c2d0) at Transformer.swift:188:13",
        "   186          h = h + block.feedForward(block.ffnNorm(h))",
        "   187      // h is the block output here",
        "-> 188          cache.advance()",
    ]
    for n in log.layers:
        out += ["(lldb) po layerIndex", str(n), "(lldb) po Array(h.row(-1).prefix(5))", "▿ 5 elements"]
        out += [f"  - {i} : {v}" for i, v in enumerate(log.first(f"l_out-{n}", 5, "r", said=-1))]
        out += ["", "(lldb) c", "Process 71034 resuming"]
    return text(out)


@form("julia show of vectors with vertical dots, layers from 1")
def _(log: Log) -> str:
    def vec(node: str) -> list[str]:
        a, z = log.first(node, 4, "r"), log.final(node, 4, "r")
        return [
            f"{width(log, node)}-element Vector{{Float32}}:",
            *(f" {v:>12}" for v in a),
            "  ⋮",
            *(f" {v:>12}" for v in z),
        ]

    out = ["[ Info: loaded 1.1B params in 3.2 s", f"[ Info: {log.run.n_layer} layers, prompt of {n_tok(log)} tokens"]
    for n in log.layers:
        out += ["┌ Debug: residual after layer", f"│   layer = {n + 1}", "│   x ="]
        v = vec(f"l_out-{n}")
        out += ["│    " + s for s in v]
        out += ["└ @ Lama ~/src/Lama.jl/src/forward.jl:97"]
    return text(out)


@form("ocaml Printf of float arrays, q k v before and after rope")
def _(log: Log) -> str:
    def a(node: str) -> str:
        return "[|" + "; ".join(log.first(node, 4, ".5f", said=-1)) + "; ...|]"

    out = ["$ dune exec bin/llm.exe -- --trace=attn --last-token-only"]
    for n in log.layers:
        out += [
            f"layer {n}:",
            f"  q = wq x        {a(f'Qcur_proj-{n}')}",
            f"  k = wk x        {a(f'Kcur_proj-{n}')}",
            f"  v = wv x        {a(f'Vcur-{n}')}",
            f"  rope q          {a(f'Qcur-{n}')}",
            f"  rope k          {a(f'Kcur-{n}')}",
            f"  softmax(qk)v    {a(f'kqv_out-{n}')}   (heads concatenated)",
            f"  wo (..)         {a(f'attn_out-{n}')}",
        ]
    return text(out)


@form("haskell traceShow of a record")
def _(log: Log) -> str:
    out = []
    for n in log.layers:
        for c, node in (("AfterAttnResidual", "ffn_inp"), ("AfterMlpResidual", "l_out")):
            d = f"{node}-{n}"
            out.append(
                f"Probe {{probeLayer = {n}, probeSite = {c}, probeTake5 = fromList [{','.join(log.first(d, 5, 'r'))}], probeSum = {log.stat(d, 'sum', 'r')}}}"
            )
    out.append(
        f"Probe {{probeLayer = -1, probeSite = Logits, probeTake5 = fromList [{','.join(log.first('result_output', 5, 'r'))}], probeSum = {log.stat('result_output', 'sum', 'r')}}}"
    )
    out += ["     512,113,904 bytes allocated in the heap", "  Total   time    2.114s  (  2.120s elapsed)"]
    return text(out)


@form("C# ILogger console, category line and indented message")
def _(log: Log) -> str:
    out = [
        "info: NanoLlm.Engine[0]",
        f"      Prefill of {n_tok(log)} tokens started",
        "warn: NanoLlm.Kernels[17]",
        "      AVX-512 not available, falling back to Vector256<float>",
    ]
    for n in log.layers:
        d, e = f"ffn_swiglu-{n}", f"l_out-{n}"
        out += [
            "dbug: NanoLlm.Layers.DecoderLayer[0]",
            f"      Layer #{n} SiLU(gate)*up  first=<{'; '.join(log.first(d, 4, '.6g', said=-1))}>  (last token)",
            "dbug: NanoLlm.Layers.DecoderLayer[0]",
            f"      Layer #{n} Output         first=<{'; '.join(log.first(e, 4, '.6g', said=-1))}>  (last token)",
        ]
    out += ["info: NanoLlm.Engine[0]", "      Prefill finished in 00:00:00.4127755"]
    return text(out)


@form("rust tracing with spans")
def _(log: Log) -> str:
    p = log.run.last
    out = [' INFO oxillm::loader: weights mapped path="weights.bin" mib=2098']
    for n in log.layers:
        for mod, what, node in (
            ("attention", "o_proj done", "attn_out"),
            ("mlp", "down_proj done", "ffn_out"),
            ("block", "residual out", "l_out"),
        ):
            d = f"{node}-{n}"
            out.append(
                f"2025-01-19T08:44:5{n}.{120 + 7 * n:03d}913Z DEBUG forward{{pos={p}}}:layer{{idx={n}}}: oxillm::{mod}: {what} head=[{', '.join(log.first(d, 3, 'r', row=p, said=p))}] abs_max={log.stat(d, 'absmax', 'r', row=p, said=p)}"
            )
    out.append(f"2025-01-19T08:44:59.002113Z TRACE forward{{pos={p}}}: oxillm::kv: append len={p + 1}")
    return text(out)


@form("gdb session, p *s->x@6")
def _(log: Log) -> str:
    p = log.run.last
    out = [
        "Reading symbols from ./run...",
        f"(gdb) break run.c:318 if pos == {p}",
        "Breakpoint 1 at 0x3b41: file run.c, line 318.",
        "(gdb) run model.bin",
        "[Thread debugging using libthread_db enabled]",
    ]
    k = 1
    for n in log.layers:
        out += [
            "",
            f"Breakpoint 1, transformer_block (w=0x7fffffffd8e0, s=0x7fffffffd990, l={n}, pos={p}) at run.c:318",
            "318\t    return; /* s->x = x + ffn(x), block finished */",
            "(gdb) p *s->x@6",
            f"${k} = {{{', '.join(log.first(f'l_out-{n}', 6, '.9g', row=p, said=p))}}}",
            "(gdb) c",
            "Continuing.",
        ]
        k += 1
    out.append("[Inferior 1 (process 20931) exited normally]")
    return text(out)


@form("GitHub issue: prose and code fences")
def _(log: Log) -> str:
    out = [
        "**Garbage output with my own engine, the embeddings look fine**",
        "",
        f"Hi, I feed the ids `{' '.join(map(str, log.run.tokens))}` and the model just repeats itself. Running on an M2 (16 GB), fp32, no quantization. "
        "All numbers below are for the last token of the prompt. The embedding row looks right to me:",
        "",
        "```",
        f"{', '.join(log.first('embd', 5, '.5f', said=-1))}, ...",
        "```",
        "",
    ]
    for n in log.layers:
        intro = f"Hidden state that comes out of layer {n}" + (" (residual already added):" if n == 0 else ":")
        out += [intro, "", "```", f"{', '.join(log.first(f'l_out-{n}', 5, '.5f', said=-1))}, ...", "```", ""]
    out += ["and the five highest logits (id: logit)", "", "```"]
    out += [f"{i}: {v}" for i, v in log.top("result_output", 5, ".4f", said=-1)]
    out += ["```", "", "Does anyone see where it goes wrong? I already checked rope theta (10000) and eps (1e-5)."]
    return text(out)


@form("go test output, got [...] without golden file")
def _(log: Log) -> str:
    out = ["=== RUN   TestForward"]
    for n in log.layers:
        out += [
            f"=== RUN   TestForward/layer_{n}_output",
            f"    forward_test.go:88: layer {n} output: open testdata/golden/layer{n}.f32: no such file or directory",
            f"    forward_test.go:89: got x[:6] = [{' '.join(log.first(f'l_out-{n}', 6, '.6f'))}], want golden",
        ]
    out += ["--- FAIL: TestForward (0.61s)"] + [
        f"    --- FAIL: TestForward/layer_{n}_output (0.2{n}s)" for n in log.layers
    ]
    out += ["FAIL", "exit status 1", "FAIL\tgithub.com/someone/gollm/model\t0.640s"]
    return text(out)


@form("C++ iostream, a whole block with an arrow a step")
def _(log: Log) -> str:
    def s(node: str) -> str:
        return f"{'  '.join(v.rjust(10) for v in log.first(node, 3, '.6g'))}  ..  (n={width(log, node)})"

    out = ["using 8 threads, no BLAS", f"x = embed[tok]             {s('embd')}"]
    for n in log.layers:
        out += [
            f"== block {n} " + "=" * 40,
            f"  xb  <- rmsnorm(x, att)   {s(f'attn_norm-{n}')}",
            f"  q   <- wq * xb           {s(f'Qcur_proj-{n}')}",
            f"  k   <- wk * xb           {s(f'Kcur_proj-{n}')}",
            f"  v   <- wv * xb           {s(f'Vcur-{n}')}",
            f"  q   <- rope(q)           {s(f'Qcur-{n}')}",
            f"  k   <- rope(k)           {s(f'Kcur-{n}')}",
            f"  xb  <- attend(q, K, V)   {s(f'kqv_out-{n}')}",
            f"  xb2 <- wo * xb           {s(f'attn_out-{n}')}",
            f"  x   <- x + xb2           {s(f'ffn_inp-{n}')}",
            f"  xb  <- rmsnorm(x, ffn)   {s(f'ffn_norm-{n}')}",
            f"  hb  <- w1 * xb           {s(f'ffn_gate-{n}')}",
            f"  hb2 <- w3 * xb           {s(f'ffn_up-{n}')}",
            f"  hb  <- silu(hb) * hb2    {s(f'ffn_swiglu-{n}')}",
            f"  xb  <- w2 * hb           {s(f'ffn_out-{n}')}",
            f"  x   <- x + xb            {s(f'l_out-{n}')}",
        ]
    out += [
        "=" * 51,
        f"x = rmsnorm(x, final)      {s('result_norm')}",
        f"logits = wcls * x          {s('result_output')}",
    ]
    return text(out)


@form("MLX repr of [1, T, D], rows and columns elided")
def _(log: Log) -> str:
    def row(node: str, r: int) -> str:
        return f"[{', '.join(log.first(node, 3, '.6g', row=r, said=r))}, ..., {', '.join(log.final(node, 3, '.6g', row=r, said=r))}]"

    def rep(node: str) -> list[str]:
        return [
            f"array([[{row(node, 0)},",
            f"        {row(node, 1)},",
            f"        {row(node, 2)},",
            "        ...,",
            f"        {row(node, -3)},",
            f"        {row(node, -2)},",
            f"        {row(node, -1)}]], dtype=float32)",
        ]

    out = ["Fetching 6 files: 100%|█████████| 6/6 [00:00<00:00, 21345.06it/s]"]
    for n in log.layers:
        out += [f"[TransformerBlock {n}] out (1, {n_tok(log)}, {width(log, f'l_out-{n}')})", *rep(f"l_out-{n}")]
    out.append("peak mem 4.412 GB")
    return text(out)


@form("esp32 log, values of chosen channels")
def _(log: Log) -> str:
    out = ["I (312) psram: Found 8MB PSRAM device", "I (1841) llm: weights @ 0x3c0a0020, heap free 241332"]
    t = 2210
    for n in log.layers:
        d = f"l_out-{n}"
        out.append(
            f"D ({t}) llm: blk{n} end x[0]={log.at(d, 0, '.5f')} x[5]={log.at(d, 5, '.5f')} x[11]={log.at(d, 11, '.5f')} x[15]={log.at(d, 15, '.5f')}"
        )
        t += 377
        if n == 1:
            out.append(f"W ({t - 90}) task_wdt: feeding watchdog from llm_task")
    out.append(
        f"I ({t}) llm: logits[0]={log.at('result_output', 0, '.5f')} logits[13]={log.at('result_output', 13, '.5f')}"
    )
    out.append(f"I ({t + 4}) llm: stack high water mark 3180")
    return text(out)


@form("fortran list-directed, wrapped lines, layers from 1")
def _(log: Log) -> str:
    out = [f" read weights, emb_dim =  {width(log, 'l_out-0')}  n_layers =  {log.run.n_layer}"]
    for n in log.layers:
        v = log.first(f"l_out-{n}", 14, ".8f")
        out.append(f" x(1:14) after layer  {n + 1}  of  {log.run.n_layer}")
        out += ["".join(x.rjust(15) for x in v[i : i + 5]) for i in range(0, 14, 5)]
    out += [" Inference time:    1.20400000      seconds", " STOP 0"]
    return text(out)


@form("clojure tap> of edn maps")
def _(log: Log) -> str:
    out = [
        "user=> (require '[tinyllm.core :as llm] :reload)",
        "nil",
        f"user=> (run! prn (llm/trace model {list(log.run.tokens)!r}))".replace(",", ""),
    ]
    for n in log.layers:
        out.append(
            f"{{:layer {n}, :at :mlp/out, :token :last, :take-4 ({' '.join(log.first(f'ffn_out-{n}', 4, 'r', said=-1))})}}"
        )
        out.append(
            f"{{:layer {n}, :at :residual/out, :token :last, :take-4 ({' '.join(log.first(f'l_out-{n}', 4, 'r', said=-1))})}}"
        )
    out += [
        f"{{:at :final-norm, :token :last, :take-4 ({' '.join(log.first('result_norm', 4, 'r', said=-1))})}}",
        "nil",
    ]
    return text(out)


@form("nim echo as a tree, values and statistics, top 5 logits")
def _(log: Log) -> str:
    out = ["Hint: mm: orc; opt: speed; options: -d:release", f"forward({n_tok(log)} tokens, showing the last one)"]
    for n in log.layers:
        out.append(f"├─ layer {n}  [{'#' * (4 * (n + 1)):<12}]")
        for j, (lab, node) in enumerate(
            (("self-attn (o-projected)", "attn_out"), ("feed-forward (down)", "ffn_out"), ("stream out", "l_out"))
        ):
            d = f"{node}-{n}"
            out.append(
                f"│  {'└─' if j == 2 else '├─'} {lab:<24} @[{', '.join(log.first(d, 3, '.4f', said=-1))}, …]  μ {log.stat(d, 'mean', '.4f', said=-1)}  σ {log.stat(d, 'std', '.4f', said=-1)}"
            )
    out.append("└─ lm_head")
    tops = log.top("result_output", 5, ".3f", said=-1)
    out += [f"   {'└─' if r == 4 else '├─'} #{r + 1} id {i:<6} logit {v}" for r, (i, v) in enumerate(tops)]
    return text(out)
