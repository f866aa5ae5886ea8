"""Log formats written by a stranger to the reader: of these 30 it understood 23 at first sight."""

from __future__ import annotations

from tests.verify.dumps.formats import Format
from tests.verify.dumps.unseen_formats import Log, adding_to, text

FORMATS: list[Format] = []
form = adding_to(FORMATS)

WORDS = [
    " the",
    " Paris",
    ",",
    " a",
    "\\n",
    " of",
    " and",
    ".",
    " in",
    " to",
    "ing",
    " it",
    " is",
    "1",
    " was",
    " one",
    "s",
    " city",
]


def word(i):
    return WORDS[int(i) % len(WORDS)]


def width(log, node):
    return log.run.values[node].shape[1]


def rows(count):
    return list(range(count)) if count <= 6 else [0, 1, 2, None, count - 3, count - 2, count - 1]


def c(items, sep=", "):
    return sep.join(items)


@form("rust println {:?} of slices")
def _(log: Log) -> str:
    d = width(log, "embd")
    out = [
        "    Finished `release` profile [optimized] target(s) in 8.42s",
        "     Running `target/release/rllm --model model.safetensors --prompt 'Hello'`",
        f"config: Config {{ dim: {d}, n_layers: {log.run.n_layer}, norm_eps: 1e-5, rope_theta: 10000.0 }}",
        f"prompt tokens: {list(log.run.tokens)}",
        f"embedding[..8] = [{c(log.first('embd', 8, 'r'))}]",
    ]
    for n in log.layers:
        out += [
            f"layer {n}: attn_out[..8] = [{c(log.first(f'attn_out-{n}', 8, 'r'))}]",
            f"layer {n}: ffn_out[..8] = [{c(log.first(f'ffn_out-{n}', 8, 'r'))}]",
            f"layer {n}: x[..8] after residual = [{c(log.first(f'l_out-{n}', 8, 'r'))}]",
        ]
    out.append(f"logits[..8] = [{c(log.first('result_output', 8, 'r'))}]")
    return text(out)


@form("rust tracing, key=value")
def _(log: Log) -> str:
    out, ms, p = (
        ['2025-02-11T09:14:02.551032Z  INFO ember::loader: mapped weights path="/models/tiny.gguf" elapsed_ms=41'],
        600113,
        log.run.last,
    )

    def line(n, stage, node):
        nonlocal ms
        ms += 1377
        v = c(log.first(node, 4, ".5f", said=p))
        out.append(
            f"2025-02-11T09:14:02.{ms}Z DEBUG forward{{pos={p}}}:layer{{idx={n}}}: ember::model: {stage} rms={log.stat(node, 'rms', '.5f', said=p)} head=[{v}]"
        )

    for n in log.layers:
        line(n, "attn_norm", f"attn_norm-{n}")
        line(n, "attn_out", f"attn_out-{n}")
        line(n, "ffn_norm", f"ffn_norm-{n}")
        line(n, "ffn_out", f"ffn_out-{n}")
        line(n, "layer_out", f"l_out-{n}")
    t = log.top("result_output", 1, ".4f", said=p)[0]
    out.append(
        f"2025-02-11T09:14:02.{ms + 4021}Z  INFO forward{{pos={p}}}: ember::sample: argmax token={t[0]} logit={t[1]}"
    )
    return text(out)


@form("llama2.c style C printf with run-state names")
def _(log: Log) -> str:
    p = log.run.last
    out = [
        '$ ./run stories.bin -t 0 -n 16 -i "Once upon"',
        f"--- pos {p} token {log.run.tokens[-1]} ---",
        f"x (tok emb):  {c(log.first('embd', 6, '9.6f', said=p), ' ')}",
    ]
    for n in log.layers:
        for label, node in (
            ("xb (rmsnorm att)", "attn_norm"),
            ("q before rope", "Qcur_proj"),
            ("k before rope", "Kcur_proj"),
            ("v", "Vcur"),
            ("q after rope", "Qcur"),
            ("k after rope", "Kcur"),
            ("xb (att, before wo)", "kqv_out"),
            ("xb2 (after wo)", "attn_out"),
            ("x (after att residual)", "ffn_inp"),
            ("xb (rmsnorm ffn)", "ffn_norm"),
            ("hb (w1)", "ffn_gate"),
            ("hb2 (w3)", "ffn_up"),
            ("hb (silu(w1)*w3)", "ffn_swiglu"),
            ("xb (w2)", "ffn_out"),
            ("x (end of layer)", "l_out"),
        ):
            out.append(f"[L{n}] {label}:  {c(log.first(f'{node}-{n}', 6, '9.6f', said=p), ' ')}")
    out += [
        f"x (final rmsnorm):  {c(log.first('result_norm', 6, '9.6f', said=p), ' ')}",
        f"logits:  {c(log.first('result_output', 6, '9.6f', said=p), ' ')}",
    ]
    return text(out)


@form("zig std.log scoped")
def _(log: Log) -> str:
    out = ["info(main): loaded 29 tensors (arena 418 MiB)", "info(main): backend = cpu, threads = 8"]
    out.append(f"debug(llama): embd = {{ {c(log.first('embd', 5, '.4f'))} }}")
    for n in log.layers:
        out += [
            f"debug(llama): blk.{n} q = {{ {c(log.first(f'Qcur_proj-{n}', 5, '.4f'))} }}",
            f"debug(llama): blk.{n} q_rope = {{ {c(log.first(f'Qcur-{n}', 5, '.4f'))} }}",
            f"debug(llama): blk.{n} k_rope = {{ {c(log.first(f'Kcur-{n}', 5, '.4f'))} }}",
            f"debug(llama): blk.{n} v = {{ {c(log.first(f'Vcur-{n}', 5, '.4f'))} }}",
            f"debug(llama): blk.{n} out = {{ {c(log.first(f'l_out-{n}', 5, '.4f'))} }}",
        ]
    out += [
        f"debug(llama): output_norm = {{ {c(log.first('result_norm', 5, '.4f'))} }}",
        "warning(sampler): temperature is 0, falling back to greedy",
    ]
    return text(out)


@form("go log.Printf %v")
def _(log: Log) -> str:
    s = "2024/05/12 19:03:4"
    out = [
        s + "1 loading model from ./models/llama.bin",
        s + "1 mmap ok, 3 shards",
        s + f"2 tokens: [{c(map(str, log.run.tokens), ' ')}]",
    ]
    for n in log.layers:
        out += [
            s + f"2 layer {n} attention output: [{c(log.first(f'attn_out-{n}', 5, 'r'), ' ')}]",
            s + f"2 layer {n} mlp output: [{c(log.first(f'ffn_out-{n}', 5, 'r'), ' ')}]",
        ]
    out += [
        s + f"3 final norm: [{c(log.first('result_norm', 5, 'r'), ' ')}]",
        s + f"3 logits: [{c(log.first('result_output', 10, 'r'), ' ')}]",
        s + "3 next token in 412.88ms",
    ]
    return text(out)


@form("go slog text handler with statistics")
def _(log: Log) -> str:
    out, k = ['time=2025-06-03T22:41:09.104+02:00 level=INFO msg="model ready" arch=llama quant=F16'], 118
    for n in log.layers:
        for op, node in (("attn", "attn_out"), ("ffn", "ffn_out"), ("output", "l_out")):
            m = f"{node}-{n}"
            k += 7
            name = {"attn": "attention output (after o_proj)", "ffn": "feed forward output", "output": "layer output"}[
                op
            ]
            out.append(
                f'time=2025-06-03T22:41:09.{k}+02:00 level=DEBUG msg="{name}" layer={n} token=last mean={log.stat(m, "mean", ".6g", said=-1)} std={log.stat(m, "std", ".6g", said=-1)} min={log.stat(m, "min", ".6g", said=-1)} max={log.stat(m, "max", ".6g", said=-1)}'
            )
    out.append(
        f'time=2025-06-03T22:41:09.{k + 15}+02:00 level=DEBUG msg="logits" token=last min={log.stat("result_output", "min", ".6g", said=-1)} max={log.stat("result_output", "max", ".6g", said=-1)}'
    )
    return text(out)


@form("swift/metal print with emoji")
def _(log: Log) -> str:
    out = [
        "🚀 Metal device: Apple M2 Pro",
        "✅ Compiled 14 kernels in 0.31s",
        "✅ Weights loaded (float16)",
        f"🔤 Prompt: {len(log.run.tokens)} tokens",
        f"🔍 Embedding (last token): [{c(log.first('embd', 5, 'r', said=-1))}]",
    ]
    for n in log.layers:
        out.append(f"🔍 Layer {n} output (last token): [{c(log.first(f'l_out-{n}', 5, 'r', said=-1))}]")
    out.append(f"🔍 After final RMSNorm (last token): [{c(log.first('result_norm', 5, 'r', said=-1))}]")
    t = log.top("result_output", 5, "r")
    out.append("🎯 Top 5 logits: " + c(f"{i}: {v}" for i, v in t))
    out.append(f'💬 Generated: "{word(t[0][0])}"')
    return text(out)


@form("node console.log of Float32Array, broken over lines")
def _(log: Log) -> str:
    out = ["> tinyllm-js@0.0.3 debug", "> node --experimental-wasm-memory64 src/cli.mjs --debug", ""]

    def arr(label, node):
        out.extend([f"{label} Float32Array(5) [", ",\n".join("  " + v for v in log.first(node, 5, ".17g")), "]"])

    for n in log.layers:
        arr(f"layer {n} after attn_norm", f"attn_norm-{n}")
        arr(f"layer {n} attn_out", f"attn_out-{n}")
        arr(f"layer {n} hidden state out", f"l_out-{n}")
    arr("logits", "result_output")
    return text(out)


@form("webgpu browser console with source refs")
def _(log: Log) -> str:
    out = [
        "gpu.ts:41 [webgpu] adapter: apple / metal-3, maxBufferSize 4294967296",
        "gpu.ts:77 [webgpu] pipeline cache: 11 shaders",
        "DevTools failed to load source map: Could not load content for http://localhost:5173/node_modules/.vite/deps/chunk.js.map",
    ]
    for n in log.layers:
        for label, node in (
            ("rmsnorm1", "attn_norm"),
            ("attn_proj", "attn_out"),
            ("rmsnorm2", "ffn_norm"),
            ("mlp_down", "ffn_out"),
            ("residual2", "l_out"),
        ):
            m = f"{node}-{n}"
            out.append(
                f"debug.ts:18 [readback] layers.{n}.{label} len={width(log, m)} min={log.stat(m, 'min', '.4f')} max={log.stat(m, 'max', '.4f')} mean={log.stat(m, 'mean', '.4f')} first4=[{c(log.first(m, 4, '.4f'), ',')}]"
            )
    out.append(
        f"debug.ts:18 [readback] logits len={width(log, 'result_output')} min={log.stat('result_output', 'min', '.4f')} max={log.stat('result_output', 'max', '.4f')} mean={log.stat('result_output', 'mean', '.4f')} first4=[{c(log.first('result_output', 4, '.4f'), ',')}]"
    )
    return text(out)


@form("torch forward hooks, own module names")
def _(log: Log) -> str:
    count = len(log.run.tokens)
    out = [">>> out = model(ids)   # hooks print out[0, -1, :5]"]

    def hook(name, node):
        v = c(log.first(node, 5, "7.4f", said=-1))
        out.append(f"{name:<36} [1, {count}, {width(log, node)}]  tensor([{v}])")

    hook("tok_embeddings", "embd")
    for n in log.layers:
        for name, node in (
            ("attention_norm", "attn_norm"),
            ("attention.wq", "Qcur_proj"),
            ("attention.wk", "Kcur_proj"),
            ("attention.wv", "Vcur"),
            ("attention.wo", "attn_out"),
            ("ffn_norm", "ffn_norm"),
            ("feed_forward.w1", "ffn_gate"),
            ("feed_forward.w3", "ffn_up"),
            ("feed_forward.w2", "ffn_out"),
            ("", "l_out"),
        ):
            hook(f"layers.{n}.{name}".rstrip("."), f"{node}-{n}")
    hook("norm", "result_norm")
    hook("output", "result_output")
    return text(out)


@form("numpy array print, summarised, all positions")
def _(log: Log) -> str:
    count, out = len(log.run.tokens), ["(venv) $ python run_np.py --debug", "loading weights.npz ..."]

    def arr(label, node):
        out.append(f"{label} ({count}, {width(log, node)}) float32")
        body = []
        for r in rows(count):
            if r is None:
                body.append("...")
                continue
            body.append(
                "["
                + c(log.first(node, 3, "11.8f", row=r, said=r), " ")
                + " ... "
                + c(log.final(node, 3, "11.8f", row=r, said=r), " ")
                + "]"
            )
        out.append("[" + "\n ".join(body) + "]")

    arr("embeddings", "embd")
    for n in log.layers:
        arr(f"block {n} output", f"l_out-{n}")
    arr("after ln_f", "result_norm")
    return text(out)


@form("jax.debug.print, short paths")
def _(log: Log) -> str:
    out = [
        "INFO:jax._src.xla_bridge:Unable to initialize backend 'tpu': INTERNAL: Failed to open libtpu.so",
        "jit(forward): tracing... compiled in 6.12s",
    ]
    for n in log.layers:
        for label, node in (
            ("attn/q_rot", "Qcur"),
            ("attn/k_rot", "Kcur"),
            ("attn/o_proj", "attn_out"),
            ("mlp/down_proj", "ffn_out"),
            ("resid_post", "l_out"),
        ):
            out.append(f"h[{n}]/{label}[-1,:4] = [{c(log.first(f'{node}-{n}', 4, '.7f', said=-1), ' ')}]")
    out.append(f"final_norm[-1,:4] = [{c(log.first('result_norm', 4, '.7f', said=-1), ' ')}]")
    return text(out)


@form("mlx array repr, last position")
def _(log: Log) -> str:
    out = ["Fetching 7 files: 100%|██████████████████| 7/7 [00:00<00:00, 31812.76it/s]"]

    def arr(label, node):
        out.append(
            f"{label}: array([{c(log.first(node, 3, 'r', said=-1))}, ..., {c(log.final(node, 3, 'r', said=-1))}], dtype=float32)"
        )

    out.append("# h[0, -1] everywhere")
    arr("embed", "embd")
    for n in log.layers:
        arr(f"layer {n} r = self_attn(...)", f"attn_out-{n}")
        arr(f"layer {n} h = x + r", f"ffn_inp-{n}")
        arr(f"layer {n} mlp(...)", f"ffn_out-{n}")
        arr(f"layer {n} out", f"l_out-{n}")
    arr("logits", "result_output")
    return text(out)


@form("tinygrad kernel noise between prints")
def _(log: Log) -> str:
    out, t = (
        [
            "ram used:  0.44 GB, layers.0.attention.wq.weight                         : 100%|████| 29/29 [00:00<00:00, 212.4it/s]",
            "loaded weights in 139.22 ms, 0.44 GB loaded at 3.17 GB/s",
        ],
        40,
    )
    for n in log.layers:
        t += 1
        out.append(
            f"*** METAL  {t:4d} r_{16 + n}_32_4_128                       arg  3 mem  0.46 GB tm     {31.5 + n:.2f}us/     0.{t}ms (  1040.25 GFLOPS    12.1|44.9   GB/s)"
        )
        t += 1
        out.append(
            f"*** METAL  {t:4d} E_{8}_32_4n{n + 1}                          arg  3 mem  0.46 GB tm      {4.25 + n:.2f}us/     0.{t}ms (     0.97 GFLOPS     7.8|7.8    GB/s)"
        )
        out.append(f"block {n} h[0,-1,:6] [{c(log.first(f'l_out-{n}', 6, '11.8f', said=-1), ' ')}]")
    out.append(f"logits[0,-1,:6] [{c(log.first('result_output', 6, '11.8f', said=-1), ' ')}]")
    return text(out)


@form("julia @info blocks, layers from 1")
def _(log: Log) -> str:
    out, total = ['julia> generate(model, "Hello"; debug=true)'], log.run.n_layer
    for n in log.layers:
        out += [
            f"┌ Info: layer {n + 1}/{total}",
            f"│   xnorm[1:4] = Float32[{c(log.first(f'attn_norm-{n}', 4, 'r'))}]",
            f"│   attn_out[1:4] = Float32[{c(log.first(f'attn_out-{n}', 4, 'r'))}]",
            f"│   ffn_out[1:4] = Float32[{c(log.first(f'ffn_out-{n}', 4, 'r'))}]",
            f"└   x_out[1:4] = Float32[{c(log.first(f'l_out-{n}', 4, 'r'))}]",
        ]
    out += ["┌ Info: output", f"└   logits[1:4] = Float32[{c(log.first('result_output', 4, 'r'))}]"]
    return text(out)


@form("java slf4j, Arrays.toString")
def _(log: Log) -> str:
    out = [
        "WARNING: Using incubator modules: jdk.incubator.vector",
        "14:03:21.774 [main] INFO  c.g.jllama.ModelLoader - Parsed GGUF header in 88 ms",
    ]
    for n in log.layers:
        for k, (label, node) in enumerate(
            (
                ("queries (pre-RoPE)", "Qcur_proj"),
                ("keys (pre-RoPE)", "Kcur_proj"),
                ("values", "Vcur"),
                ("attention projection", "attn_out"),
                ("post-attention residual", "ffn_inp"),
                ("ffn down", "ffn_out"),
            )
        ):
            out.append(
                f"14:03:22.{110 + 20 * n + 3 * k} [main] DEBUG c.g.jllama.Transformer - Layer {n} {label}: [{c(log.first(f'{node}-{n}', 5, 'r'))}]"
            )
    out.append(
        f"14:03:22.301 [main] DEBUG c.g.jllama.Transformer - Final hidden state (normed): [{c(log.first('result_norm', 5, 'r'))}]"
    )
    return text(out)


@form("android logcat from the JNI side")
def _(log: Log) -> str:
    out = [
        "--------- beginning of main",
        "05-14 10:22:33.102  4521  4540 I LlmEngine: nativeLoad ok, 4 threads, dotprod=1 i8mm=0",
    ]
    for n in log.layers:
        m = f"l_out-{n}"
        out.append(
            f"05-14 10:22:33.{215 + 41 * n}  4521  4540 D LlmEngine: layer[{n}] out: {c(log.first(m, 4, '.3f'), ' ')} ... {c(log.final(m, 2, '.3f'), ' ')}  l2={log.stat(m, 'norm', '.3f')}"
        )
        if n == 0:
            out.append(
                "05-14 10:22:33.231  4521  4533 I om.example.chat: Background concurrent copying GC freed 3211(412KB) AllocSpace objects"
            )
    t = log.top("result_output", 3, ".3f")
    out.append("05-14 10:22:33.377  4521  4540 D LlmEngine: logits top3: " + " ".join(f"({i}, {v})" for i, v in t))
    return text(out)


@form("c# console, string.Join")
def _(log: Log) -> str:
    out = [
        "[INF] Model: 3 blocks, F32, CPU (AVX2)".replace("3", str(log.run.n_layer), 1),
        "[DBG] Token ids: " + c(map(str, log.run.tokens)),
    ]
    for n in log.layers:
        out += [
            f"[DBG] Layer {n}",
            f"[DBG]   RMSNorm (attn)  -> {c(log.first(f'attn_norm-{n}', 5, '.4f'), '; ')}",
            f"[DBG]   Attention       -> {c(log.first(f'attn_out-{n}', 5, '.4f'), '; ')}",
            f"[DBG]   + residual      -> {c(log.first(f'ffn_inp-{n}', 5, '.4f'), '; ')}",
            f"[DBG]   RMSNorm (ffn)   -> {c(log.first(f'ffn_norm-{n}', 5, '.4f'), '; ')}",
            f"[DBG]   FeedForward     -> {c(log.first(f'ffn_out-{n}', 5, '.4f'), '; ')}",
            f"[DBG]   + residual      -> {c(log.first(f'l_out-{n}', 5, '.4f'), '; ')}",
        ]
    out += [
        f"[DBG] Output norm -> {c(log.first('result_norm', 5, '.4f'), '; ')}",
        f"[DBG] Logits -> {c(log.first('result_output', 5, '.4f'), '; ')}",
        "[INF] 1 token in 00:00:00.3127",
    ]
    return text(out)


@form("cuda c++ statistics table")
def _(log: Log) -> str:
    out = [
        "ggml-free backend: NVIDIA GeForce RTX 3060, cc 8.6",
        f"decode step, pos = {log.run.last}",
        "",
        "layer  tensor            min          max         mean          std",
        "-----  ----------  -----------  -----------  -----------  -----------",
    ]

    def row(n, label, m):
        out.append(
            f"{n:>5}  {label:<10}  "
            + "  ".join(f"{log.stat(m, s, '.5e', said=log.run.last):>11}" for s in ("min", "max", "mean", "std"))
        )

    row("-", "embed", "embd")
    for n in log.layers:
        row(n, "q_rope", f"Qcur-{n}")
        row(n, "k_rope", f"Kcur-{n}")
        row(n, "v", f"Vcur-{n}")
        row(n, "o_proj", f"attn_out-{n}")
        row(n, "gate", f"ffn_gate-{n}")
        row(n, "up", f"ffn_up-{n}")
        row(n, "down", f"ffn_out-{n}")
    row("-", "final_norm", "result_norm")
    row("-", "lm_head", "result_output")
    return text(out)


@form("json lines trace")
def _(log: Log) -> str:
    p, out = log.run.last, ['{"event":"load","path":"model.safetensors","dtype":"bf16","ms":812}']
    for n in log.layers:
        for op, node in (
            ("input_layernorm", "attn_norm"),
            ("self_attn", "attn_out"),
            ("post_attention_layernorm", "ffn_norm"),
            ("mlp", "ffn_out"),
            ("layer_output", "l_out"),
        ):
            m = f"{node}-{n}"
            out.append(
                f'{{"event":"act","layer":{n},"op":"{op}","pos":{p},"shape":[{width(log, m)}],"mean":{log.stat(m, "mean", ".6f", said=p)},"absmax":{log.stat(m, "absmax", ".6f", said=p)},"head":[{c(log.first(m, 4, ".6f", said=p), ",")}]}}'
            )
    out.append(
        f'{{"event":"act","op":"lm_head","pos":{p},"shape":[{width(log, "result_output")}],"mean":{log.stat("result_output", "mean", ".6f", said=p)},"absmax":{log.stat("result_output", "absmax", ".6f", said=p)},"head":[{c(log.first("result_output", 4, ".6f", said=p), ",")}]}}'
    )
    return text(out)


@form("c++ cout with section banners")
def _(log: Log) -> str:
    out = [
        "Model loaded.",
        f"n_layers = {log.run.n_layer}, hidden = {width(log, 'embd')}, vocab = {width(log, 'result_output')}",
        "",
    ]
    for n in log.layers:
        out.append(f"========== Layer {n} ==========")
        for label, node in (
            ("Input norm", "attn_norm"),
            ("Q (roped)", "Qcur"),
            ("K (roped)", "Kcur"),
            ("V", "Vcur"),
            ("Attn heads concat", "kqv_out"),
            ("O proj", "attn_out"),
            ("Post-attn norm", "ffn_norm"),
            ("SwiGLU act", "ffn_swiglu"),
            ("MLP out", "ffn_out"),
            ("Block out", "l_out"),
        ):
            out.append(f"{label + ':':<20}{c(log.first(f'{node}-{n}', 4, '.6g'), ' ')} ...")
        out.append("")
    out.append("========== Head ==========")
    out += [
        f"{'Final norm:':<20}{c(log.first('result_norm', 4, '.6g'), ' ')} ...",
        f"{'Logits:':<20}{c(log.first('result_output', 4, '.6g'), ' ')} ...",
    ]
    return text(out)


@form("rust dbg! of the first layers")
def _(log: Log) -> str:
    out = [
        "warning: unused variable: `mask`",
        "   --> src/attention.rs:88:13",
        "",
        'warning: `tinfer` (bin "tinfer") generated 1 warning',
    ]

    def dbg(line, expr, node):
        out.extend(
            [f"[src/model.rs:{line}:13] &{expr}[..4] = ["] + [f"    {v}," for v in log.first(node, 4, "r")] + ["]"]
        )

    for n in list(log.layers)[:2]:
        out.append(f"[src/model.rs:140:13] layer_idx = {n}")
        dbg(147, "attn_normed", f"attn_norm-{n}")
        dbg(161, "q_rotated", f"Qcur-{n}")
        dbg(162, "k_rotated", f"Kcur-{n}")
        dbg(175, "attn_proj_out", f"attn_out-{n}")
        dbg(193, "mlp_out", f"ffn_out-{n}")
    out += [
        "thread 'main' panicked at src/main.rs:57:5:",
        "not yet implemented",
        "note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace",
    ]
    return text(out)


@form("candle tensor display")
def _(log: Log) -> str:
    count, out = len(log.run.tokens), ["loaded the model in 1.004s"]

    def arr(label, node):
        body = []
        for r in rows(count):
            if r is None:
                body.append("...")
                continue
            body.append(
                "["
                + c(log.first(node, 3, "7.4f", row=r, said=r))
                + ", ..., "
                + c(log.final(node, 3, "7.4f", row=r, said=r))
                + "]"
            )
        out.extend([label, "[[" + ",\n  ".join(body) + "]]", f"Tensor[[1, {count}, {width(log, node)}], f32]"])

    for n in log.layers:
        arr(f"block {n}: after attention + residual", f"ffn_inp-{n}")
        arr(f"block {n}: after mlp + residual", f"l_out-{n}")
    return text(out)


@form("several positions, token by token, in C")
def _(log: Log) -> str:
    out, toks = ["prefill one token at a time"], log.run.tokens
    for p in (0, 1, log.run.last):
        out.append(f"pos={p} tok={toks[p]}")
        for n in log.layers:
            out.append(f"  layer {n:02d} out  " + " ".join(log.first(f"l_out-{n}", 5, "+.4f", row=p, said=p)))
        out.append("  logits        " + " ".join(log.first("result_output", 5, "+.4f", row=p, said=p)))
        if p == 1 and log.run.last > 2:
            out.append("  (...)")
    return text(out)


@form("issue text with markdown table")
def _(log: Log) -> str:
    out = [
        "Hi! I'm porting the model to my own engine and the output is garbage after a few tokens. Below is what I get",
        "for the hidden state after every decoder layer (last token of the prompt):",
        "",
        "| Layer | first 3 values | L2 norm |",
        "|------:|:---------------|--------:|",
    ]
    for n in log.layers:
        m = f"l_out-{n}"
        out.append(f"| {n} | {c(log.first(m, 3, '.4f', said=-1))} | {log.stat(m, 'norm', '.3f', said=-1)} |")
    out += [
        "",
        f"After the final norm: `{c(log.first('result_norm', 3, '.4f', said=-1))}`",
        "",
        "Does anyone see what is wrong? RoPE theta is 10000, eps 1e-5.",
    ]
    return text(out)


@form("csv with statistics")
def _(log: Log) -> str:
    out = ["layer,tensor,numel,mean,rms,absmax,v0,v1,v2,v3"]
    for n in log.layers:
        for name, node in (
            ("attn_norm", "attn_norm"),
            ("q_proj", "Qcur_proj"),
            ("k_proj", "Kcur_proj"),
            ("v_proj", "Vcur"),
            ("o_proj", "attn_out"),
            ("ffn_norm", "ffn_norm"),
            ("gate_proj", "ffn_gate"),
            ("up_proj", "ffn_up"),
            ("down_proj", "ffn_out"),
            ("layer_out", "l_out"),
        ):
            m = f"{node}-{n}"
            out.append(
                f"{n},{name},{width(log, m)},"
                + ",".join(
                    [
                        log.stat(m, "mean", ".6f"),
                        log.stat(m, "rms", ".6f"),
                        log.stat(m, "absmax", ".6f"),
                        *log.first(m, 4, ".6f"),
                    ]
                )
            )
    return text(out)


@form("top logits with token texts only")
def _(log: Log) -> str:
    out = [
        "llm.zig v0.2 — greedy, seed 42",
        f"prompt eval: {len(log.run.tokens)} tokens, 38.1 ms",
        "",
        "Top 10 next-token candidates:",
    ]
    for k, (i, v) in enumerate(log.top("result_output", 10, ".4f")):
        out.append(f"  {k + 1:>2}. id={i:<6} logit={v:>9}  '{word(i)}'")
    out += ["", f"-> picked '{word(log.run.values['result_output'][-1].argmax())}'"]
    return text(out)


@form("single elements by index")
def _(log: Log) -> str:
    out = ["[TRACE] forward() begin"]
    for n in log.layers:
        for i in (0, 1, 7, width(log, f"l_out-{n}") - 1):
            out.append(f"[TRACE] layer {n} hidden_out[{i}] = {log.at(f'l_out-{n}', i, '.8f')}")
    for i in (0, 1, 2, 13):
        out.append(f"[TRACE] logits[{i}] = {log.at('result_output', i, '.8f')}")
    out.append("[TRACE] forward() end, 96.4 ms")
    return text(out)


@form("github actions log of a rust test")
def _(log: Log) -> str:
    stamp, k = "2025-01-19T03:12:5", 1201933
    lines = [
        "##[group]Run cargo test --release -- --nocapture forward",
        "cargo test --release -- --nocapture forward",
        "##[endgroup]",
        "running 1 test",
    ]
    for n in log.layers:
        lines.append(
            f"L{n}: attn |x|={log.stat(f'attn_out-{n}', 'norm', '.4f')} ffn |x|={log.stat(f'ffn_out-{n}', 'norm', '.4f')} resid |x|={log.stat(f'l_out-{n}', 'norm', '.4f')} resid[0..3]={c(log.first(f'l_out-{n}', 3, '.4f'), ',')}"
        )
    t = log.top("result_output", 3, ".3f")
    lines += [
        "top3: " + c(f"{i}={v}" for i, v in t),
        "test tests::forward_tiny ... ok",
        "",
        "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 11 filtered out; finished in 2.31s",
    ]
    return text(f"{stamp}{4 + i // 6}.{k + 38117 * i}Z {l}" for i, l in enumerate(lines))


@form("python logging, sum and first/last values")
def _(log: Log) -> str:
    out = [
        "INFO:engine.weights:dequantized 22 tensors",
        f"DEBUG:engine.model:embed_tokens x[-1]: sum={log.stat('embd', 'sum', '.5f', said=-1)} first=[{c(log.first('embd', 3, '.5f', said=-1))}] last=[{c(log.final('embd', 3, '.5f', said=-1))}]",
    ]
    for n in log.layers:
        for label, node in (
            ("attn.out_proj", "attn_out"),
            ("ffn.silu(gate)*up", "ffn_swiglu"),
            ("ffn.down", "ffn_out"),
            ("output", "l_out"),
        ):
            m = f"{node}-{n}"
            out.append(
                f"DEBUG:engine.model:layers[{n}].{label} x[-1]: sum={log.stat(m, 'sum', '.5f', said=-1)} first=[{c(log.first(m, 3, '.5f', said=-1))}] last=[{c(log.final(m, 3, '.5f', said=-1))}]"
            )
    out.append("INFO:engine.model:forward took 0.882s")
    return text(out)
