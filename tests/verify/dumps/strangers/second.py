"""Log formats written by a stranger to the reader: of these 32 it understood 20 at first sight."""

from __future__ import annotations

from tests.verify.dumps.formats import Format
from tests.verify.dumps.unseen_formats import Log, adding_to, text

FORMATS: list[Format] = []
form = adding_to(FORMATS)


def width(log, node):
    return log.run.values[node].shape[-1]


def depth(log):
    return log.run.n_layer


# ---------------------------------------------------------------- simple


@form("Tomasz, C, printf at 2 am")
def _(log: Log) -> str:
    out = [
        "$ make debug && ./run tiny.bin -t 0 -n 1",
        "gcc -O0 -g -o run run.c -lm",
        f"config: dim {width(log, 'embd')} layers {depth(log)}",
        "tokens: " + " ".join(map(str, log.run.tokens)),
    ]
    out.append("after embedding: " + " ".join(log.first("embd", 5, "f")))
    for n in log.layers:
        out.append(f"after layer {n}: " + " ".join(log.first(f"l_out-{n}", 5, "f")))
    out.append("after final rmsnorm: " + " ".join(log.first("result_norm", 5, "f")))
    out.append("logits: " + " ".join(log.first("result_output", 5, "f")))
    out += ["achieved tok/s: 412.371134", "WHY IS IT GARBAGE"]
    return text(out)


@form("Ines, PyTorch forward hooks on HF modules, decode step")
def _(log: Log) -> str:
    p = log.run.last
    out = [
        "Loading checkpoint shards: 100%|██████████| 1/1 [00:00<00:00, 14.22it/s]",
        f"registered 33 hooks; step with past_key_values, cache_position=[{p}]",
    ]

    def line(name, node):
        out.append(
            f"[hook] {name:<44} (1, 1, {width(log, node)})  mean={log.stat(node, 'mean', '+.5f', said=p)}  "
            f"absmax={log.stat(node, 'absmax', '.5f', said=p)}  norm={log.stat(node, 'norm', '.4f', said=p)}"
        )

    line("model.embed_tokens", "embd")
    for n in log.layers:
        for m, r in (
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
            line(f"model.layers.{n}.{m}", f"{r}-{n}")
        line(f"model.layers.{n}", f"l_out-{n}")
    line("model.norm", "result_norm")
    line("lm_head", "result_output")
    return text(out)


@form("Kofi, Dart in a Flutter app")
def _(log: Log) -> str:
    out = [
        "Launching lib/main.dart on Pixel 7 in debug mode...",
        "✓ Built build/app/outputs/flutter-apk/app-debug.apk",
        "I/flutter ( 9127): tokenizer ok, 8 ids",
        "D/EGL_emulation( 9127): app_time_stats: avg=16.80ms min=2.11ms max=41.02ms count=60",
    ]
    for n in log.layers:
        out.append(f"I/flutter ( 9127): [L{n}] x + attention → ({', '.join(log.first(f'ffn_inp-{n}', 4))})")
        out.append(f"I/flutter ( 9127): [L{n}] x + feedForward → ({', '.join(log.first(f'l_out-{n}', 4))})")
    out.append("I/flutter ( 9127): forward took 0:00:00.018233")
    return text(out)


@form("Yuki, jax.debug.print, unordered callbacks")
def _(log: Log) -> str:
    out = [
        "INFO:2026-02-03 10:11:12,881:jax._src.xla_bridge:945: Unable to initialize backend 'tpu': INTERNAL: Failed to open libtpu.so"
    ]
    for n in sorted(log.layers, key=lambda n: n % 2):
        out.append(f"layer={n} mlp(x)[-1, :4]=[{' '.join(log.first(f'ffn_out-{n}', 4, '11.7f', said=-1))}]")
        out.append(f"layer={n} self_attention(x)[-1, :4]=[{' '.join(log.first(f'attn_out-{n}', 4, '11.7f', said=-1))}]")
    out.append(f"logits[-1, :4]=[{' '.join(log.first('result_output', 4, '11.7f', said=-1))}]")
    return text(out)


@form("Lena, TypeScript, Chrome console")
def _(log: Log) -> str:
    out = [
        "llama.worker.ts:88 WebGPU adapter: apple m2, maxBufferSize 4294967296",
        "llama.worker.ts:141 prefill 8 tokens 41.2ms",
    ]
    tail = "buffer: ArrayBuffer(16), byteLength: 16, byteOffset: 0, length: 4"
    out.append(f"llama.worker.ts:160 embedding Float32Array(4) [{', '.join(log.first('embd', 4, ''))}, {tail}]")
    for n in log.layers:
        out.append(
            f"llama.worker.ts:203 blocks[{n}] residual out Float32Array(4) [{', '.join(log.first(f'l_out-{n}', 4, ''))}, {tail}]"
        )
    out.append("DevTools failed to load source map: Could not load content for http://localhost:5173/ort.mjs.map")
    out.append(
        "llama.worker.ts:219 argmax candidates "
        + " ".join(f"(2) [{i}, {v}]" for i, v in log.top("result_output", 3, ""))
    )
    return text(out)


@form("Bao, ESP32-S3, UART monitor")
def _(log: Log) -> str:
    out = [
        "rst:0x1 (POWERON),boot:0x8 (SPI_FAST_FLASH_BOOT)",
        "I (312) cpu_start: Multicore app",
        "I (1042) tinyllm: model mapped @0x3c040020, psram free 7340032",
    ]
    ms = 1310
    for n in log.layers:
        out.append(
            f"I ({ms}) tinyllm: blk{n} out rms={log.stat(f'l_out-{n}', 'rms', '.4f')} min={log.stat(f'l_out-{n}', 'min', '.4f')} max={log.stat(f'l_out-{n}', 'max', '.4f')}"
        )
        ms += 87
        out.append(f"W ({ms}) task_wdt: feed")
        ms += 2
    out.append(f"I ({ms}) tinyllm: logit max={log.stat('result_output', 'max', '.4f')} heap=182344")
    return text(out)


@form("Viktor, C++ spdlog")
def _(log: Log) -> str:
    p = log.run.last
    out = [
        "[2026-02-03 23:48:10.101] [infer] [info] kv cache 3 layers x 256 ctx, 0.19 MiB",
        f"[2026-02-03 23:48:10.102] [infer] [info] decode token {log.run.tokens[p]} at position {p}",
    ]
    t = 113
    for n in log.layers:
        for what, r in (("rmsnorm before attention", "attn_norm"), ("rmsnorm before mlp", "ffn_norm")):
            k = f"{r}-{n}"
            out.append(
                f"[2026-02-03 23:48:10.{t}] [infer] [debug] layer {n}: {what}: min {log.stat(k, 'min', '.3f', said=p)} / max {log.stat(k, 'max', '.3f', said=p)} / "
                f"avg {log.stat(k, 'mean', '.5f', said=p)} / l2 {log.stat(k, 'norm', '.3f', said=p)}"
            )
            t += 3
    out.append(f"[2026-02-03 23:48:10.{t}] [infer] [warning] sampler: temperature 0, greedy")
    return text(out)


@form("Priya, Mojo, sections with SIMD vectors")
def _(log: Log) -> str:
    out = ["num parallel workers: 8  SIMD width: 16", "checkpoint size:  1056796 [ 1 MB ]"]
    for n in log.layers:
        out.append(f"==== FFN of layer {n} ====")
        for what, r in (
            ("w1(x)           ", "ffn_gate"),
            ("w3(x)           ", "ffn_up"),
            ("silu(w1(x))*w3(x)", "ffn_swiglu"),
            ("w2(...)         ", "ffn_out"),
        ):
            out.append(f"{what} [{', '.join(log.first(f'{r}-{n}', 4, 'r'))}]")
    return text(out)


@form("Anders, Swift, os_log in Console.app")
def _(log: Log) -> str:
    out = ["2026-02-03 10:11:12.004127+0100 LlamaPhone[812:44021] [metal] pipeline cache warm, 14 functions"]
    us = 104410
    for n in log.layers:
        k = f"l_out-{n}"
        out.append(
            f"2026-02-03 10:11:12.{us}+0100 LlamaPhone[812:44021] [inference] hidden state leaving layer {n}: μ {log.stat(k, 'mean', '.6f')} σ {log.stat(k, 'std', '.6f')} |max| {log.stat(k, 'absmax', '.6f')}"
        )
        us += 8311
    out.append(f"2026-02-03 10:11:12.{us}+0100 LlamaPhone[812:44021] [inference] thermalState nominal, 31.2 tok/s")
    return text(out)


@form("Sam, numpy port, every position of the residual stream")
def _(log: Log) -> str:
    pieces = ["<s>", "▁Once", "▁upon", "▁a", "▁time", "▁there", "▁was", ","]
    out = [">>> run('Once upon a time there was,')"]
    for n in log.layers:
        out.append(f"hidden states at the end of layer {n} (first 4 dims)")
        for p in (0, 1, 2, log.run.last):
            out.append(
                f"  pos {p:2d}  id {log.run.tokens[p]:5d}  {pieces[p % 8]:<8} "
                + " ".join(log.first(f"l_out-{n}", 4, "9.5f", row=p, said=p))
            )
            if p == 2:
                out.append("  ...")
    return text(out)


@form("Jo, Discord message, prose")
def _(log: Log) -> str:
    p = log.run.last
    out = [
        "jo_ — Today at 01:47",
        f"ok so I finally dumped it. prompt is {len(log.run.tokens)} toks, everything below is pos {p} only",
        f"embedding row starts {', '.join(log.first('embd', 3, '.4f', said=p))} which looks sane to me",
    ]
    for n in log.layers:
        a, b = log.first(f"attn_out-{n}", 3, ".4f", said=p), log.first(f"ffn_inp-{n}", 3, ".4f", said=p)
        out.append(
            f"layer {n}: attention (after o_proj) starts {', '.join(a)}, and once the residual is added it's {', '.join(b)}"
        )
    out.append(f"after the very last norm i get {', '.join(log.first('result_norm', 3, '.4f', said=p))}")
    out.append(
        "top 3 logits are " + ", ".join(f"token {i} ({v})" for i, v in log.top("result_output", 3, ".3f", said=p))
    )
    out += ["anyone see anything?? i've been at this for 5 hours", "(edited)"]
    return text(out)


# ---------------------------------------------------------------- middling


@form("Marek, gdb session")
def _(log: Log) -> str:
    p = log.run.last
    out = [
        "Reading symbols from ./llm...",
        "(gdb) b layer_done",
        "Breakpoint 1 at 0x40213c: file llm.c, line 331.",
        f"(gdb) run -p 'Once upon' --stop-pos {p}",
        "[Thread debugging using libthread_db enabled]",
    ]
    v = 1
    for n in log.layers:
        out += [
            "",
            f"Breakpoint 1, layer_done (l={n}, pos={p}, s=0x7fffffffd7a0) at llm.c:331",
            "331\t    if (!g_debug) return;",
        ]
        for expr, r in (("s->ffn_out", "ffn_out"), ("s->residual", "l_out")):
            out.append(f"(gdb) p *{expr}@5")
            out.append(f"${v} = {{{', '.join(log.first(f'{r}-{n}', 5, '.9g', said=p))}}}")
            v += 1
        out += ["(gdb) c", "Continuing."]
    out.append("[Inferior 1 (process 20417) exited normally]")
    return text(out)


@form("Andreea, Kotlin, logcat tree")
def _(log: Log) -> str:
    h = "02-03 10:11:12.{:03d}  8123  8160 D LlamaKt : "
    out = [
        "--------- beginning of main",
        "02-03 10:11:11.902  8123  8123 I Choreographer: Skipped 41 frames!  The application may be doing too much work on its main thread.",
    ]
    t = 100
    for n in log.layers:
        out.append(h.format(t) + f"▶ layer {n}")
        rows = (
            ("├ rmsNorm1", "attn_norm"),
            ("├ q (rope)", "Qcur"),
            ("├ k (rope)", "Kcur"),
            ("├ v       ", "Vcur"),
            ("├ wo      ", "attn_out"),
            ("└ x       ", "l_out"),
        )
        for what, r in rows:
            t += 1
            out.append(h.format(t) + f"{what} {'  '.join(log.first(f'{r}-{n}', 4, '.5f'))} …")
    out.append(h.format(t + 5) + "▶ head, best logits")
    for i, v in log.top("result_output", 4, ".5f"):
        out.append(h.format(t + 5) + f"  #{i} → {v}")
    return text(out)


@form("Hugo, GitHub issue, markdown table")
def _(log: Log) -> str:
    p = log.run.last
    out = [
        "### Output diverges after a few tokens on Radeon 780M",
        "",
        "**Environment:** Ubuntu 24.04, ROCm 6.2, commit `a81f3c2`",
        "",
        f"I printed the values for position {p} (last prompt token), first 3 elements each:",
        "",
        "| layer | after attn norm | attn output (post `wo`) | ffn output (post `w2`) | ‖layer output‖₂ |",
        "|------:|:----------------|:------------------------|:-----------------------|----------------:|",
    ]
    for n in log.layers:
        c = [", ".join(log.first(f"{r}-{n}", 3, ".4f", said=p)) for r in ("attn_norm", "attn_out", "ffn_out")]
        out.append(f"| {n} | {c[0]} | {c[1]} | {c[2]} | {log.stat(f'l_out-{n}', 'norm', '.4f', said=p)} |")
    out += ["", "Happy to test patches. Same thing happens with `HSA_OVERRIDE_GFX_VERSION=11.0.0`."]
    return text(out)


@form("Nadia, pytest failure with captured stdout")
def _(log: Log) -> str:
    out = [
        "=================================== FAILURES ===================================",
        "_________________________ test_generate_is_deterministic _________________________",
        "",
        "    def test_generate_is_deterministic(engine):",
        ">       assert engine.generate(PROMPT, n=4) == engine.generate(PROMPT, n=4)",
        "E       AssertionError: assert ' a time there' == ' a time, the'",
        "",
        "tests/test_engine.py:57: AssertionError",
        "----------------------------- Captured stdout call -----------------------------",
    ]
    for n in log.layers:
        for m, r in (("attention_norm(h)", "attn_norm"), ("ffn_norm(h)", "ffn_norm"), ("__call__(h)", "l_out")):
            k = f"{r}-{n}"
            out.append(
                f"self.layers[{n}].{m} -> [{', '.join(log.first(k, 3, '.5f'))}, ..., {', '.join(log.final(k, 3, '.5f'))}] shape=({width(log, k)},)"
            )
    k = "result_norm"
    out.append(
        f"self.norm(h) -> [{', '.join(log.first(k, 3, '.5f'))}, ..., {', '.join(log.final(k, 3, '.5f'))}] shape=({width(log, k)},)"
    )
    out += [
        "=========================== short test summary info ============================",
        "FAILED tests/test_engine.py::test_generate_is_deterministic - AssertionError",
        "========================= 1 failed, 12 passed in 3.41s =========================",
    ]
    return text(out)


@form("Wim, R, str() of a list")
def _(log: Log) -> str:
    out = [
        "> acts <- forward(model, c(" + "L, ".join(map(str, log.run.tokens)) + "L))",
        "> str(acts$layers, digits.d = 5)",
        f"List of {depth(log)}",
    ]
    for n in log.layers:
        out.append(f" $ layer{n + 1}:List of 3")
        for name, r in (
            ("resid_after_attn", "ffn_inp"),
            ("ffn_down        ", "ffn_out"),
            ("resid_out       ", "l_out"),
        ):
            out.append(
                f"  ..$ {name}: num [1:{width(log, f'{r}-{n}')}] {' '.join(log.first(f'{r}-{n}', 5, '.5g'))} ..."
            )
    out += [
        "> str(acts$final_norm, digits.d = 5)",
        f" num [1:{width(log, 'result_norm')}] {' '.join(log.first('result_norm', 5, '.5g'))} ...",
        "> ",
    ]
    return text(out)


@form("Aiko, Octave")
def _(log: Log) -> str:
    out = [
        "octave:14> % llama forward in plain octave, layers are l = 1..3",
        "octave:15> for l = 1:3, l, attn_out_proj = A{l}(1:4)', block_out = H{l}(1:4)', end",
    ]
    for n in log.layers:
        out.append(f"l = {n + 1}")
        for name, r in (("attn_out_proj", "attn_out"), ("block_out", "l_out")):
            out += [f"{name} =", "", "  " + " ".join(log.first(f"{r}-{n}", 4, "9.5f")), ""]
    out.append("octave:16> ")
    return text(out)


@form("Felipe, Julia REPL, vertical vectors")
def _(log: Log) -> str:
    out = ["julia> debug_forward(m, ids)", "┌ Info: using BLAS", "└   threads = 8"]
    for n in log.layers:
        k = f"l_out-{n}"
        out.append(f"layer {n + 1} of {depth(log)}, output:")
        out.append(f"{width(log, k)}-element Vector{{Float32}}:")
        out += [" " + ("" if t.startswith("-") else " ") + t for t in log.first(k, 4, "r")]
        out.append("  ⋮")
        out += [" " + ("" if t.startswith("-") else " ") + t for t in log.final(k, 3, "r")]
        out.append("")
    out.append("  0.004131 seconds (1.21 k allocations: 412.094 KiB)")
    return text(out)


@form("Zoë, Elixir, IO.inspect of Nx tensors")
def _(log: Log) -> str:
    out = [
        "10:11:12.345 [info] XLA service 0x7f2c4c00a1b0 initialized for platform Host",
        "iex(3)> Bumblet.Debug.forward(ids)",
    ]
    for n in log.layers:
        for name, r in (("query after rotary", "Qcur"), ("key after rotary", "Kcur"), ("value", "Vcur")):
            out += [
                f"layer #{n} {name}: #Nx.Tensor<",
                "  f32[5]",
                f"  EXLA.Backend<host:0, 0.1843201.268.{n}>",
                f"  [{', '.join(log.first(f'{r}-{n}', 5, 'r'))}]",
                ">",
            ]
    out.append(":ok")
    return text(out)


@form("Rasmus, Rust, dbg!")
def _(log: Log) -> str:
    out = [
        "    Finished `dev` profile [unoptimized + debuginfo] target(s) in 0.04s",
        "     Running `target/debug/rllm --prompt 'Once upon'`",
    ]

    def dump(line, expr, node):
        out.append(f"[src/llama.rs:{line}:13] &{expr}[..4] = [")
        out.extend(f"    {t}," for t in log.first(node, 4, "r"))
        out.append("]")

    dump(171, "tok_embedding", "embd")
    for n in log.layers:
        out.append(f"[src/llama.rs:188:13] layer_idx = {n}")
        dump(204, "attn_output_proj", f"attn_out-{n}")
        dump(219, "x_after_mlp", f"l_out-{n}")
    dump(231, "logits", "result_output")
    return text(out)


@form("Chen, CUDA printf, elements in whatever order the warps come")
def _(log: Log) -> str:
    p = log.run.last
    out = ["Device 0: NVIDIA GeForce RTX 3060 (sm_86), 12288 MiB", "launch decode graph, 61 nodes"]
    for n in log.layers:
        for i in (2, 3, 0, 1, 9):
            out.append(
                f"[add_residual_attn<<<1,32>>> layer {n} pos {p}] y[{i}]={log.at(f'ffn_inp-{n}', i, 'f', said=p)}"
            )
        for i in (0, 1, 3, 2):
            out.append(f"[gemv_w2<<<4,32>>> layer {n} pos {p}] y[{i}]={log.at(f'ffn_out-{n}', i, 'f', said=p)}")
    out.append("cudaDeviceSynchronize: no error")
    return text(out)


@form("Gwen, Ruby, inspected structs in irb")
def _(log: Log) -> str:
    out = ["irb(main):014:0> session.traces.each { |t| p t }; session.top(5)"]
    for n in log.layers:
        k = f"l_out-{n}"
        out.append(
            f"#<struct LayerTrace layer={n}, hidden_head=[{', '.join(log.first(k, 4, ''))}], hidden_tail=[{', '.join(log.final(k, 2, ''))}], ms={1.8 + n / 10:.1f}>"
        )
    out.append(
        "=> {:top_logits=>[" + ", ".join(f"[{i}, {v}]" for i, v in log.top("result_output", 5, "")) + "], :eos=>false}"
    )
    return text(out)


# ---------------------------------------------------------------- odd but honest


@form("Sven, F#, %A of records")
def _(log: Log) -> str:
    out = ['> Model.traceLayers m ids |> List.iter (printfn "%A");;']
    for n in log.layers:
        a, b = ("; ".join(t + "f" for t in log.first(f"{r}-{n}", 4, ".7f")) for r in ("attn_norm", "ffn_norm"))
        c = log.stat(f"l_out-{n}", "rms", ".7f")
        out += [
            f"{{ Layer = {n}",
            f"  NormedForAttention = [|{a}; ...|]",
            f"  NormedForFeedForward = [|{b}; ...|]",
            f"  OutputRms = {c}f",
            f"  Elapsed = 00:00:00.00{n + 1}4120 }}",
        ]
    out.append("val it: unit = ()")
    return text(out)


@form("Otto, Zig, {any} slices in short scientific form")
def _(log: Log) -> str:
    def z(t):
        m, e = t.split("e")
        return f"{m}e{int(e)}"

    out = ["info(gguf): 29 tensors, alignment 32", "info(llama): arena 4.2MiB"]
    for n in log.layers:
        for name, r in (
            ("attention heads concatenated (before wo)", "kqv_out"),
            ("after wo", "attn_out"),
            ("after w2", "ffn_out"),
        ):
            out.append(f"debug(llama): blk {n}: {name}: {{ {', '.join(map(z, log.first(f'{r}-{n}', 5, '.7e')))} }}")
    out.append("error: the following command exited with error code 1: zig build run")
    return text(out)


@form("Jürgen, spreadsheet export with decimal commas")
def _(log: Log) -> str:
    out = ["sep=;", "Layer;Stage;Token pos;v[0];v[1];v[2];v[3];Mean;Max |v|;Comment"]

    def row(layer, stage, node, p, comment=""):
        v = log.first(node, 4, ".6f", row=p, said=p) + [
            log.stat(node, "mean", ".6f", row=p, said=p),
            log.stat(node, "absmax", ".6f", row=p, said=p),
        ]
        out.append(f"{layer};{stage};{p};" + ";".join(t.replace(".", ",") for t in v) + f";{comment}")

    for p in (0, log.run.last):
        row("", "Token embedding", "embd", p)
    for n in log.layers:
        for p in (0, log.run.last):
            row(n, "Attention + residual", f"ffn_inp-{n}", p, "BOS" if p == 0 else "")
            row(n, "MLP + residual", f"l_out-{n}", p, "BOS" if p == 0 else "")
    return text(out)


@form("Dmitri, Vulkan, debugPrintfEXT through the validation layer")
def _(log: Log) -> str:
    p = log.run.last
    h = "Validation Information: [ WARNING-DEBUG-PRINTF ] Object 0: handle = 0x55d0c81f2a40, type = VK_OBJECT_TYPE_QUEUE; | MessageID = 0x76589099 | vkQueueSubmit(): "
    out = ["ggvk: device 0 = AMD Radeon RX 6600 (RADV NAVI23), subgroup 64"]
    for n in log.layers:
        for which, r in (("pre-attention", "attn_norm"), ("pre-ffn", "ffn_norm")):
            out.append(
                f"{h}rmsnorm.comp layer {n} {which} token {p}: result.xyzw = {', '.join(log.first(f'{r}-{n}', 4, 'f', said=p))}"
            )
        out.append(
            f"{h}swiglu.comp layer {n} token {p}: silu(g)*u .xyzw = {', '.join(log.first(f'ffn_swiglu-{n}', 4, 'f', said=p))}"
        )
    out.append(
        f"{h}rmsnorm.comp final (lm head input) token {p}: result.xyzw = {', '.join(log.first('result_norm', 4, 'f', said=p))}"
    )
    return text(out)


@form("Bernard, Fortran, D exponents, layers from 1")
def _(log: Log) -> str:
    def d(ts):
        return "".join(f"{t:>16}" for t in ts).replace("e", "D")

    out = [
        " ***** LLAMA90 DEBUG BUILD *****",
        f" NLAYER = {depth(log):11d}   NEMBD = {width(log, 'embd'):11d}",
        f" PROMPT LENGTH = {len(log.run.tokens):11d}",
    ]
    for n in log.layers:
        out.append(f" --- LAYER {n + 1:3d} / {depth(log):3d} ---")
        out.append("  RESIDUAL AFTER ATTENTION, X(1:4)")
        out.append(d(log.first(f"ffn_inp-{n}", 4, ".7e")))
        out.append("  RESIDUAL AFTER FEED-FORWARD, X(1:4)")
        out.append(d(log.first(f"l_out-{n}", 4, ".7e")))
    out.append(" Note: The following floating-point exceptions are signalling: IEEE_UNDERFLOW_FLAG IEEE_DENORMAL")
    return text(out)


@form("Pascal, Common Lisp, plists from SBCL")
def _(log: Log) -> str:
    out = ["CL-USER> (time (dolist (tr (trace-forward *model* *ids*)) (print tr)))"]
    for n in log.layers:
        g = {r: " ".join(log.first(f"{r}-{n}", 4, "r")) for r in ("Qcur_proj", "Qcur", "kqv_out", "attn_out")}
        out += [
            "",
            f"(:LAYER {n}",
            f" :Q-BEFORE-ROPE ({g['Qcur_proj']})",
            f" :Q-AFTER-ROPE ({g['Qcur']})",
            f" :HEADS-CONCAT ({g['kqv_out']})",
            f" :OUT-PROJ ({g['attn_out']})) ",
        ]
    out += ["Evaluation took:", "  0.021 seconds of real time", "  6,521,840 bytes consed", "NIL"]
    return text(out)


@form("Agnieszka, Erlang, ~p terms under report headers")
def _(log: Log) -> str:
    p = log.run.last
    out = []
    for n in log.layers:
        out.append(f"=INFO REPORT==== 3-Feb-2026::10:11:12.{345112 + 1207 * n} ===")
        g = {r: ",".join(log.first(f"{r}-{n}", 4, "", said=p)) for r in ("ffn_gate", "ffn_up", "ffn_out")}
        out += [
            f"{{mlp_trace,{{layer,{n}}},",
            f"           {{pos,{p}}},",
            f"           [{{gate_proj,[{g['ffn_gate']}]}},",
            f"            {{up_proj,[{g['ffn_up']}]}},",
            f"            {{down_proj,[{g['ffn_out']}]}}]}}",
        ]
    out.append("=PROGRESS REPORT==== 3-Feb-2026::10:11:12.402201 ===")
    out.append("    supervisor: {local,llm_sup}")
    return text(out)


@form("Morten, Dyalog APL, high minus")
def _(log: Log) -> str:
    p = log.run.last

    def m(ts):
        return " ".join(ts).replace("-", "¯")

    out = [
        "      ⎕IO←0 ⋄ ⎕PP←7",
        "      RES←FORWARD "
        + " ".join(map(str, log.run.tokens))
        + "   ⍝ residual stream after each layer: layer × position × dim",
        f"      {{⎕←'layer' ⍵ 'pos' {p} 'residual:',5↑RES[⍵;{p};]}}¨⍳3",
    ]
    for n in log.layers:
        out.append(f" layer {n} pos {p} residual:  {m(log.first(f'l_out-{n}', 5, '.6f', said=p))}")
    out.append(f"      ⎕←'logits pos' {p} ':',5↑LOGITS[{p};]")
    out.append(f" logits pos {p} :  {m(log.first('result_output', 5, '.6f', said=p))}")
    return text(out)


@form("Thibault, PHP, var_dump of a trace array")
def _(log: Log) -> str:
    out = ["PHP 8.3.6 (cli) llama.php: FFI off, pure PHP, be patient", "var_dump($layers):", f"array({depth(log)}) {{"]
    for n in log.layers:
        out += [f"  [{n}]=>", "  array(2) {"]
        for key, r in (("attention_after_wo", "attn_out"), ("residual_at_end", "l_out")):
            out += [f'    ["{key}"]=>', "    array(3) {"]
            for i, t in enumerate(log.first(f"{r}-{n}", 3, "")):
                out += [f"      [{i}]=>", f"      float({t})"]
            out.append("    }")
        out.append("  }")
    out += ["}", "PHP Deprecated:  Implicit conversion from float to int loses precision in llama.php on line 91"]
    return text(out)


@form("Ravi, bench harness, layers as columns, TransformerLens hook names")
def _(log: Log) -> str:
    p = log.run.last
    out = [
        "bench: warmup 3 iters, measure 20 iters, median 2.114 ms",
        "",
        f"activation RMS, position {p} (last)",
        f"{'hook':<24}" + "".join(f"{f'blocks.{n}':>12}" for n in log.layers),
        "-" * (24 + 12 * depth(log)),
    ]
    for hook, r in (
        ("ln1 (output)", "attn_norm"),
        ("attn.hook_q", "Qcur_proj"),
        ("attn.hook_rot_q", "Qcur"),
        ("attn.hook_k", "Kcur_proj"),
        ("attn.hook_rot_k", "Kcur"),
        ("attn.hook_v", "Vcur"),
        ("attn.hook_z", "kqv_out"),
        ("hook_attn_out", "attn_out"),
        ("hook_resid_mid", "ffn_inp"),
        ("hook_mlp_out", "ffn_out"),
        ("hook_resid_post", "l_out"),
    ):
        out.append(f"{hook:<24}" + "".join(f"{log.stat(f'{r}-{n}', 'rms', '.5f', said=p):>12}" for n in log.layers))
    out += ["-" * (24 + 12 * depth(log)), "peak rss 41.8 MB"]
    return text(out)
