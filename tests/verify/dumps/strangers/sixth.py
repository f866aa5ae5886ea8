"""Log formats written by a stranger to the reader: of these 30 it understood 22 at first sight."""

from __future__ import annotations

from tests.verify.dumps.formats import Format
from tests.verify.dumps.unseen_formats import Log, adding_to, text

FORMATS: list[Format] = []
form = adding_to(FORMATS)


def width(log, node):
    return log.run.values[node].shape[1]


# ---------------------------------------------------------------- printf-like lines


@form("llama2.c fork, fprintf stderr with C names")
def _(log: Log) -> str:
    p = log.run.last
    out = ["Checkpoint: stories.bin  steps=1  temp=0.00", f"dim={width(log, 'embd')} n_layers={log.run.n_layer}"]
    out.append(f"[pos={p}] x = tok_emb: " + " ".join(log.first("embd", 6, "f", row=p, said=p)) + " ...")
    for n in log.layers:
        for label, role in (
            ("xb = rmsnorm(x, rms_att_weight)", "attn_norm"),
            ("xb2 = wo @ xb", "attn_out"),
            ("x += xb2", "ffn_inp"),
            ("xb = rmsnorm(x, rms_ffn_weight)", "ffn_norm"),
            ("xb = w2 @ hb", "ffn_out"),
            ("x += xb", "l_out"),
        ):
            out.append(
                f"[pos={p}] l={n} {label}: " + " ".join(log.first(f"{role}-{n}", 6, "f", row=p, said=p)) + " ..."
            )
    out.append(f"[pos={p}] final rmsnorm: " + " ".join(log.first("result_norm", 6, "f", row=p, said=p)) + " ...")
    out.append(f"[pos={p}] logits: " + " ".join(log.first("result_output", 6, "f", row=p, said=p)) + " ...")
    out.append("achieved tok/s: 41.237113")
    return text(out)


@form("rust println with {:?} slices")
def _(log: Log) -> str:
    out = [
        "    Finished `release` profile [optimized + debuginfo] target(s) in 0.09s",
        "     Running `target/release/llama-rs -m model.safetensors -p 'Once'`",
        "mmap: 12 tensors",
        f"prompt tokens: {list(log.run.tokens)}",
    ]
    out.append(f"embedding (last token)[..5] = [{', '.join(log.first('embd', 5, 'r', said=-1))}]")
    for n in log.layers:
        out.append(
            f"layers[{n}] attn_out (last token)[..5] = [{', '.join(log.first(f'attn_out-{n}', 5, 'r', said=-1))}]"
        )
        out.append(f"layers[{n}] mlp_out (last token)[..5] = [{', '.join(log.first(f'ffn_out-{n}', 5, 'r', said=-1))}]")
        out.append(f"layers[{n}] hidden (last token)[..5] = [{', '.join(log.first(f'l_out-{n}', 5, 'r', said=-1))}]")
    out.append(f"logits (last token)[..5] = [{', '.join(log.first('result_output', 5, 'r', said=-1))}]")
    return text(out)


@form("zig std.debug.print {any}")
def _(log: Log) -> str:
    out = ["info: loaded gguf v3, alignment 32", "info(threads): spawned 7 workers"]
    for n in log.layers:
        for label, role in (
            ("q", "Qcur_proj"),
            ("k", "Kcur_proj"),
            ("v", "Vcur"),
            ("q_roped", "Qcur"),
            ("k_roped", "Kcur"),
        ):
            out.append(
                f"debug(transformer): block {n} {label}[0..4] = {{ {', '.join(log.first(f'{role}-{n}', 4, '.8e'))} }}"
            )
    out.append(f"debug(transformer): out_norm[0..4] = {{ {', '.join(log.first('result_norm', 4, '.8e'))} }}")
    return text(out)


@form("go log.Printf with %v slices, one line per layer")
def _(log: Log) -> str:
    p = log.run.last
    out = ["2024/03/09 21:14:02 main.go:58: tokenizer ready, bos=1 eos=2"]
    for n in log.layers:
        out.append(
            f"2024/03/09 21:14:0{3 + n % 6} forward.go:131: pos={p} layer={n} resid_mid=[{' '.join(log.first(f'ffn_inp-{n}', 4, 'r', row=p, said=p))}]"
            f" resid_post=[{' '.join(log.first(f'l_out-{n}', 4, 'r', row=p, said=p))}]"
        )
    out.append(
        f"2024/03/09 21:14:09 forward.go:170: pos={p} logits=[{' '.join(log.first('result_output', 4, 'r', row=p, said=p))}]"
    )
    return text(out)


@form("java logger, position in a header line")
def _(log: Log) -> str:
    out = ["WARNING: Using incubator modules: jdk.incubator.vector", "Parse model.gguf: 312 millis"]
    for p in (0, log.run.last):
        out.append(f">>> Llama.forward(token={log.run.tokens[p]}, position={p})")
        for n in log.layers:
            out.append(
                f"    layer {n} attention norm   {', '.join(log.first(f'attn_norm-{n}', 3, '.5f', row=p, said=p))}"
            )
            out.append(
                f"    layer {n} ffn norm         {', '.join(log.first(f'ffn_norm-{n}', 3, '.5f', row=p, said=p))}"
            )
        out.append(f"    final norm               {', '.join(log.first('result_norm', 3, '.5f', row=p, said=p))}")
        out.append("<<< forward took 18 ms")
    return text(out)


@form("c# Console.WriteLine F4 with semicolons")
def _(log: Log) -> str:
    out = ["LlamaSharpLite 0.3.1 (.NET 8.0.4, Vector<float>.Count = 8)"]
    for n in log.layers:
        out.append(f"Layer {n} | GateProj   | {'; '.join(log.first(f'ffn_gate-{n}', 6, '.4f'))}; …")
        out.append(f"Layer {n} | UpProj     | {'; '.join(log.first(f'ffn_up-{n}', 6, '.4f'))}; …")
        out.append(f"Layer {n} | SiLU(g)*u  | {'; '.join(log.first(f'ffn_swiglu-{n}', 6, '.4f'))}; …")
        out.append(f"Layer {n} | DownProj   | {'; '.join(log.first(f'ffn_out-{n}', 6, '.4f'))}; …")
    out.append("Elapsed: 00:00:01.4419277")
    return text(out)


@form("kotlin key=value statistics, arrow")
def _(log: Log) -> str:
    out = ["D/LlamaKt: ctx created, nThreads=4"]

    def line(label, node):
        return (
            f"D/LlamaKt: {label} -> min={log.stat(node, 'min', '.4f', said=-1)} max={log.stat(node, 'max', '.4f', said=-1)}"
            f" mean={log.stat(node, 'mean', '.4f', said=-1)} std={log.stat(node, 'std', '.4f', said=-1)}"
        )

    out.append("D/LlamaKt: dumping stats for the last token of the prompt only")
    out.append(line("tokenEmbedding", "embd"))
    for n in log.layers:
        out.append(line(f"block[{n}].attnNorm", f"attn_norm-{n}"))
        out.append(line(f"block[{n}].attnOutput", f"attn_out-{n}"))
        out.append(line(f"block[{n}].output", f"l_out-{n}"))
    out.append(line("outputNorm", "result_norm"))
    out.append(line("logits", "result_output"))
    return text(out)


@form("swift print with prefix and suffix on one line")
def _(log: Log) -> str:
    out = ["[SwiftLM] weights mapped in 0.412s (Accelerate BLAS)"]
    for n in log.layers:
        out.append(
            f"[SwiftLM] after block \\{n}: [{', '.join(log.first(f'l_out-{n}', 3, 'r'))}, ..., {', '.join(log.final(f'l_out-{n}', 3, 'r'))}]".replace(
                "\\", "#"
            )
        )
    out.append(
        f"[SwiftLM] after final norm: [{', '.join(log.first('result_norm', 3, 'r'))}, ..., {', '.join(log.final('result_norm', 3, 'r'))}]"
    )
    out.append(
        f"[SwiftLM] lm_head: [{', '.join(log.first('result_output', 3, 'r'))}, ..., {', '.join(log.final('result_output', 3, 'r'))}]"
    )
    return text(out)


@form("ocaml Printf.eprintf, array literal")
def _(log: Log) -> str:
    out = ["llama.ml: bigarray mapped", "seed: 42"]
    arr = lambda t: "[|" + "; ".join(t) + "; ...|]"
    for n in log.layers:
        out.append(f"attention out, before wo (layer {n}): {arr(log.first(f'kqv_out-{n}', 5, '.6f'))}")
        out.append(f"attention out, after wo (layer {n}): {arr(log.first(f'attn_out-{n}', 5, '.6f'))}")
        out.append(f"residual after attention (layer {n}): {arr(log.first(f'ffn_inp-{n}', 5, '.6f'))}")
    return text(out)


@form("haskell Debug.Trace, camelCase and take 4")
def _(log: Log) -> str:
    out = ["[1 of 4] Compiling Llama.Types", "[4 of 4] Compiling Main", "Linking llama-hs ..."]
    for n in log.layers:
        out.append(f"runLayer {n}: normed for attention = fromList [{','.join(log.first(f'attn_norm-{n}', 4, 'r'))}]")
        out.append(f"runLayer {n}: normed for mlp = fromList [{','.join(log.first(f'ffn_norm-{n}', 4, 'r'))}]")
        out.append(f"runLayer {n}: mlp result = fromList [{','.join(log.first(f'ffn_out-{n}', 4, 'r'))}]")
    out.append(f"classifier logits = fromList [{','.join(log.first('result_output', 4, 'r'))}]")
    return text(out)


@form("nim echo with sum checksum")
def _(log: Log) -> str:
    out = ["Hint: mm: orc; threads: on; opt: speed; options: -d:danger", "model: 3 tensors groups"]
    out.append(f"inpEmb @[{', '.join(log.first('embd', 4, '.5f'))}] sum={log.stat('embd', 'sum', '.5f')}")
    for n in log.layers:
        out.append(
            f"L{n}.attnOut @[{', '.join(log.first(f'attn_out-{n}', 4, '.5f'))}] sum={log.stat(f'attn_out-{n}', 'sum', '.5f')}"
        )
        out.append(
            f"L{n}.ffnOut @[{', '.join(log.first(f'ffn_out-{n}', 4, '.5f'))}] sum={log.stat(f'ffn_out-{n}', 'sum', '.5f')}"
        )
        out.append(
            f"L{n}.out @[{', '.join(log.first(f'l_out-{n}', 4, '.5f'))}] sum={log.stat(f'l_out-{n}', 'sum', '.5f')}"
        )
    return text(out)


@form("mojo print with spaces, rms of residual per layer")
def _(log: Log) -> str:
    p = log.run.last
    out = [
        "num parallel workers: 6  SIMD width: 16",
        f"pos {p} start, rms of the embedding: {log.stat('embd', 'rms', '.7f', row=p, said=p)}",
    ]
    for n in log.layers:
        out.append(
            f"pos {p} layer {n} rms of residual: after attention {log.stat(f'ffn_inp-{n}', 'rms', '.7f', row=p, said=p)} after mlp {log.stat(f'l_out-{n}', 'rms', '.7f', row=p, said=p)}"
        )
    out.append(f"pos {p} rms of normed output: {log.stat('result_norm', 'rms', '.7f', row=p, said=p)}")
    return text(out)


@form("tinygrad, DEBUG=2 noise and indexed expression labels")
def _(log: Log) -> str:
    out = [
        "*** CUDA    1 r_32_32_4n2          arg  3 mem  0.05 GB tm     12.29us/     0.01ms (    5.33 GFLOPS    2.7|2.7     GB/s)"
    ]
    out.append(
        "tok_embeddings(tokens)[0,-1,:6] = [" + " ".join(f"{t:>8}" for t in log.first("embd", 6, ".4f", said=-1)) + "]"
    )
    for n in log.layers:
        out.append(
            f"*** CUDA  {12 + 9 * n:3d} E_128_32_4             arg  2 mem  0.05 GB tm      4.10us/     0.{n + 1:02d}ms (    0.99 GFLOPS    7.9|7.9     GB/s)"
        )
        out.append(
            f"layers[{n}](h)[0,-1,:6] = ["
            + " ".join(f"{t:>8}" for t in log.first(f"l_out-{n}", 6, ".4f", said=-1))
            + "]"
        )
    out.append("norm(h)[0,-1,:6] = [" + " ".join(f"{t:>8}" for t in log.first("result_norm", 6, ".4f", said=-1)) + "]")
    out.append(
        "output(norm(h))[0,-1,:6] = ["
        + " ".join(f"{t:>8}" for t in log.first("result_output", 6, ".4f", said=-1))
        + "]"
    )
    return text(out)


@form("torch forward hooks, HF module paths with shape and tolist")
def _(log: Log) -> str:
    t = len(log.run.tokens)
    out = [
        "Loading checkpoint shards: 100%|██████████| 2/2 [00:03<00:00,  1.61s/it]",
        "hooks: printing output[0, -1, :4] of every module",
    ]

    def line(path, node):
        out.append(
            f"model.{path:<36} torch.Size([1, {t}, {width(log, node)}])  [{', '.join(log.first(node, 4, '.5f', said=-1))}]"
        )

    line("embed_tokens", "embd")
    for n in log.layers:
        for path, role in (
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
            line(f"layers.{n}.{path}", f"{role}-{n}")
    line("norm", "result_norm")
    return text(out)


@form("cuda host-side dump after each kernel launch")
def _(log: Log) -> str:
    out = ["Device 0: NVIDIA GeForce RTX 3060, CC 8.6, 28 SMs", "cublasCreate ok"]
    d = width(log, "embd")

    def line(kernel, l, what, node):
        out.append(
            f"[DBG] {kernel:<18} L{l:02d} {what:<8} n={width(log, node):<6d} first8: "
            + " ".join(f"{t:>9}" for t in log.first(node, 8, ".5f"))
        )

    for n in log.layers:
        line("rmsnorm_kernel", n, "attn_in", f"attn_norm-{n}")
        line("gemv_q", n, "q", f"Qcur_proj-{n}")
        line("rope_kernel", n, "q_rot", f"Qcur-{n}")
        line("mha_kernel", n, "heads", f"kqv_out-{n}")
        line("gemv_o", n, "attn_prj", f"attn_out-{n}")
        line("swiglu_kernel", n, "act", f"ffn_swiglu-{n}")
        line("gemv_down", n, "mlp_out", f"ffn_out-{n}")
    out.append(f"[DBG] cudaDeviceSynchronize: no error, d_model={d}")
    return text(out)


@form("opencl buffer elements one by one")
def _(log: Log) -> str:
    out = ["platform[0]: Portable Computing Language", "clBuildProgram: 0 (CL_SUCCESS)"]
    for n in log.layers:
        for buf, role in (("ffn_gate", "ffn_gate"), ("ffn_up", "ffn_up"), ("layer_out", "l_out")):
            d = width(log, f"{role}-{n}")
            out.append(
                f"layer {n} {buf}: "
                + ", ".join(f"{buf}[{i}]={log.at(f'{role}-{n}', i, '.6f')}" for i in (0, 1, d // 2, d - 1))
            )
    d = width(log, "result_output")
    out.append(
        "logits: " + ", ".join(f"logits[{i}]={log.at('result_output', i, '.6f')}" for i in (0, 1, d // 2, d - 1))
    )
    return text(out)


@form("vulkan dispatch readback with l2 norm and peak")
def _(log: Log) -> str:
    out = ["vk: selected AMD Radeon RX 6700 XT (RADV NAVI22)", "vk: pipeline cache hit (14 pipelines)"]
    k = 0
    for n in log.layers:
        for what, role in (
            ("attn.norm", "attn_norm"),
            ("attn.o_proj", "attn_out"),
            ("ffn.norm", "ffn_norm"),
            ("ffn.down", "ffn_out"),
            ("residual.end", "l_out"),
        ):
            node = f"{role}-{n}"
            out.append(
                f"vk: dispatch #{k:03d} layer={n} op={what} readback last row: ||x||2={log.stat(node, 'norm', '.5e', said=-1)} max|x|={log.stat(node, 'absmax', '.5e', said=-1)} nan=0 inf=0"
            )
            k += 4
    out.append(
        f"vk: dispatch #{k:03d} op=lm_head readback last row: ||x||2={log.stat('result_output', 'norm', '.5e', said=-1)} max|x|={log.stat('result_output', 'absmax', '.5e', said=-1)} nan=0 inf=0"
    )
    return text(out)


@form("esp32 monitor, ESP_LOGI")
def _(log: Log) -> str:
    p = log.run.last
    out = [
        "rst:0x1 (POWERON),boot:0x8 (SPI_FAST_FLASH_BOOT)",
        "I (312) cpu_start: Pro cpu up.",
        "I (845) LLM: PSRAM free 6291012",
        f"I (2210) LLM: fwd tok={log.run.tokens[p]} pos={p}",
    ]
    ms = 2214
    for n in log.layers:
        out.append(
            f"I ({ms}) LLM: lyr{n} att {' '.join(log.first(f'attn_out-{n}', 3, '.3f', row=p, said=p))} | ffn {' '.join(log.first(f'ffn_out-{n}', 3, '.3f', row=p, said=p))}"
            f" | x {' '.join(log.first(f'l_out-{n}', 3, '.3f', row=p, said=p))}"
        )
        ms += 37
    out.append(f"I ({ms}) LLM: logits {' '.join(log.first('result_output', 3, '.3f', row=p, said=p))}")
    out.append(f"I ({ms + 5}) LLM: heap 201344 stack hwm 1820")
    return text(out)


@form("c++ layers counted from one, residual norm and top logits")
def _(log: Log) -> str:
    out = [
        "model loaded: 3 layers" if log.run.n_layer == 3 else f"model loaded: {log.run.n_layer} layers",
        "prefill done, showing last position",
    ]
    for n in log.layers:
        out.append(
            f"({n + 1}/{log.run.n_layer}) layer output  L2={log.stat(f'l_out-{n}', 'norm', '.3f', said=-1)}  avg|x|={log.stat(f'l_out-{n}', 'absmean', '.5f', said=-1)}"
        )
    out.append("top-5 logits:")
    for r, (i, v) in enumerate(log.top("result_output", 5, ".4f", said=-1)):
        out.append(f"  #{r + 1}  id={i:>6}  logit={v:>9}")
    return text(out)


@form("log4j-ish python logger, heads of q and k in one line for each token")
def _(log: Log) -> str:
    out = ["09:41:22,117 INFO  engine  weights: q8_0 -> f32 dequantised"]
    for n in log.layers:
        for p in range(min(3, len(log.run.tokens))):
            out.append(
                f"09:41:22,{131 + 7 * n + p} DEBUG engine.attn  layer={n} tok_idx={p} q_post_rope[:4]=({', '.join(log.first(f'Qcur-{n}', 4, '+.5f', row=p, said=p))})"
                f" k_post_rope[:4]=({', '.join(log.first(f'Kcur-{n}', 4, '+.5f', row=p, said=p))})"
            )
    return text(out)


# ---------------------------------------------------------------- reprs, tables, blocks


@form("node console.log of Float32Array subarrays")
def _(log: Log) -> str:
    out = ["(node:48213) ExperimentalWarning: WASI is an experimental feature", "tokenizer: 32000 pieces"]

    def dump(label, node):
        t = log.first(node, 6, ".16g")
        out.append(f"{label} Float32Array(6) [")
        for a in range(0, 6, 2):
            out.append("  " + ", ".join(f"{v:>21}" for v in t[a : a + 2]) + ("," if a < 4 else ""))
        out.append("]")

    dump("embedding", "embd")
    for n in log.layers:
        dump(f"block {n} attention output (after Wo)", f"attn_out-{n}")
        dump(f"block {n} output", f"l_out-{n}")
    dump("logits", "result_output")
    return text(out)


@form("julia @show/display of a column vector")
def _(log: Log) -> str:
    out = ["julia> transformer!(tok, pos, cfg, state, weights; debug=true)"]

    def dump(label, node):
        out.append(label)
        out.append(f"{width(log, node)}-element Vector{{Float32}}:")
        out.extend(f" {t:>12}" for t in log.first(node, 4, "r"))
        out.append("  ⋮")
        out.extend(f" {t:>12}" for t in log.final(node, 3, "r"))
        out.append("")

    for n in log.layers:
        dump(f"[ Info: layer {n} (0-based), x after the FFN residual", f"l_out-{n}")
    dump("[ Info: x after rmsnorm with rms_final_weight", "result_norm")
    return text(out)


@form("candle Display of the whole prompt")
def _(log: Log) -> str:
    t = len(log.run.tokens)
    out = ["avx: true, neon: false, simd128: false, f16c: true", "retrieved the files in 2.31ms"]

    def dump(label, node):
        out.append(label)
        rows = list(range(3)) + [None] + list(range(t - 3, t)) if t > 6 else list(range(t))
        for j, p in enumerate(rows):
            lead = "[[[" if j == 0 else "  ["
            if p is None:
                out.append("  ...")
                continue
            a = ", ".join(f"{v:>7}" for v in log.first(node, 3, ".4f", row=p, said=p))
            b = ", ".join(f"{v:>7}" for v in log.final(node, 3, ".4f", row=p, said=p))
            out.append(f"{lead}{a}, ... {b}]" + ("]]" if p == t - 1 else "" if rows[j + 1] is None else ","))
        out.append(f"Tensor[[1, {t}, {width(log, node)}], f32]")

    for n in log.layers:
        dump(f"block {n}: rms_1.forward(x)", f"attn_norm-{n}")
        dump(f"block {n}: mlp.forward(..) + residual", f"l_out-{n}")
    return text(out)


@form("burn Tensor debug blocks of a slice of the last token")
def _(log: Log) -> str:
    out = ["burn-ndarray backend"]
    for n in log.layers:
        for label, role in (("attention", "attn_out"), ("feed_forward", "ffn_out")):
            out += [
                f"decoder layer {n}: {label} output, last token, dims 0..5",
                "Tensor {",
                "  data:",
                f"[[{', '.join(log.first(f'{role}-{n}', 5, 'r', said=-1))}]],",
                "  shape:  [1, 5],",
                "  device:  Cpu,",
                '  backend:  "ndarray",',
                '  kind:  "Float",',
                '  dtype:  "f32",',
                "}",
            ]
    return text(out)


@form("mlx array repr with name in front")
def _(log: Log) -> str:
    out = [
        "Fetching 8 files: 100%|████████████| 8/8 [00:00<00:00, 91428.36it/s]",
        "mx.default_device() = Device(gpu, 0)",
    ]

    def rep(node):
        return f"array([{', '.join(log.first(node, 3, '.6g', said=-1))}, ..., {', '.join(log.final(node, 3, '.6g', said=-1))}], dtype=float32)"

    out.append(f"embed[-1] {rep('embd')}")
    for n in log.layers:
        out.append(f"layer_{n}.h[-1] {rep(f'ffn_inp-{n}')}   # x + attn(norm(x))")
        out.append(f"layer_{n}.out[-1] {rep(f'l_out-{n}')}   # h + mlp(norm(h))")
    out.append(f"logits[-1] {rep('result_output')}")
    return text(out)


@form("numpy print of 2-d arrays, precision 5")
def _(log: Log) -> str:
    t = len(log.run.tokens)
    out = [">>> python llama_np.py --prompt 'hello' --debug"]

    def dump(label, node):
        out.append(f"--- {label} {(t, width(log, node))} float32")
        rows = list(range(3)) + [None] + list(range(t - 3, t)) if t > 6 else list(range(t))
        for j, p in enumerate(rows):
            if p is None:
                out.append(" ...")
                continue
            a = " ".join(f"{v:>8}" for v in log.first(node, 3, ".5f", row=p, said=p))
            b = " ".join(f"{v:>8}" for v in log.final(node, 3, ".5f", row=p, said=p))
            out.append(("[[" if j == 0 else " [") + f"{a} ... {b}]" + ("]" if p == t - 1 else ""))

    dump("token embeddings", "embd")
    for n in log.layers:
        dump(f"layer {n} V projection", f"Vcur-{n}")
        dump(f"layer {n} output hidden states", f"l_out-{n}")
    return text(out)


@form("metal app, JSON lines trace")
def _(log: Log) -> str:
    p = log.run.last
    out = ["MTLDevice: Apple M1 Pro, recommendedMaxWorkingSetSize 11453 MB"]

    def line(ev, layer, node):
        lay = "null" if layer is None else layer
        out.append(
            f'{{"event":"activation","layer":{lay},"name":"{ev}","pos":{p},"head":[{",".join(log.first(node, 4, ".6f", row=p, said=p))}],'
            f'"stats":{{"mean":{log.stat(node, "mean", ".6f", row=p, said=p)},"rms":{log.stat(node, "rms", ".6f", row=p, said=p)}}}}}'
        )

    for n in log.layers:
        line("attention_norm", n, f"attn_norm-{n}")
        line("attention_wo", n, f"attn_out-{n}")
        line("ffn_norm", n, f"ffn_norm-{n}")
        line("ffn_w2", n, f"ffn_out-{n}")
        line("block_output", n, f"l_out-{n}")
    line("final_norm", None, "result_norm")
    line("logits", None, "result_output")
    out.append('{"event":"sampled","id":' + str(log.run.tokens[1]) + ',"ms":23.8}')
    return text(out)


@form("webgpu console.table box")
def _(log: Log) -> str:
    out = [
        "[webgpu] adapter: vendor=nvidia arch=ampere, maxStorageBufferBindingSize=2147483644",
        "hidden state leaving each layer, last token",
    ]
    cells = []
    for n in log.layers:
        t = log.first(f"l_out-{n}", 4, ".4f", said=-1)
        cells.append(
            [str(n), *t, log.stat(f"l_out-{n}", "min", ".4f", said=-1), log.stat(f"l_out-{n}", "max", ".4f", said=-1)]
        )
    head = ["layer", "x[0]", "x[1]", "x[2]", "x[3]", "min", "max"]
    w = [max(len(head[i]), *(len(c[i]) for c in cells)) + 2 for i in range(7)]
    bar = lambda a, b, c: a + b.join("─" * k for k in w) + c
    row = lambda c: "│" + "│".join(v.center(k) for v, k in zip(c, w)) + "│"
    out += [bar("┌", "┬", "┐"), row(head), bar("├", "┼", "┤"), *map(row, cells), bar("└", "┴", "┘")]
    return text(out)


@form("python block per layer, layers from one, indented stages")
def _(log: Log) -> str:
    out = [
        "minillama 0.1 - verbose forward",
        f"input ids: {' '.join(map(str, log.run.tokens))}",
        "(values: first 3 dims of the last token)",
        "",
    ]
    for n in log.layers:
        out.append(f"=== Transformer block {n + 1} of {log.run.n_layer} ===")
        out.append("  self-attention")
        for label, role in (
            ("pre-norm", "attn_norm"),
            ("query (no rope)", "Qcur_proj"),
            ("query (rope)", "Qcur"),
            ("value", "Vcur"),
            ("concat heads", "kqv_out"),
            ("out proj", "attn_out"),
            ("+ residual", "ffn_inp"),
        ):
            out.append(f"    {label:<18}" + "".join(f"{t:>10}" for t in log.first(f"{role}-{n}", 3, ".4f", said=-1)))
        out.append("  feed-forward")
        for label, role in (
            ("pre-norm", "ffn_norm"),
            ("silu(gate) * up", "ffn_swiglu"),
            ("down proj", "ffn_out"),
            ("+ residual", "l_out"),
        ):
            out.append(f"    {label:<18}" + "".join(f"{t:>10}" for t in log.first(f"{role}-{n}", 3, ".4f", said=-1)))
        out.append("")
    return text(out)


@form("csv written by a fortran port")
def _(log: Log) -> str:
    p = log.run.last
    out = ["# llama.f90 activation trace, gfortran 13.2 -O3", "token_pos,layer,stage,v0,v1,v2,std,absmax"]
    for n in log.layers:
        for stage, role in (
            ("attn_rmsnorm", "attn_norm"),
            ("attn_wo", "attn_out"),
            ("ffn_rmsnorm", "ffn_norm"),
            ("ffn_w2", "ffn_out"),
            ("layer_out", "l_out"),
        ):
            node = f"{role}-{n}"
            out.append(
                f"{p},{n},{stage},{','.join(log.first(node, 3, '.6E', row=p, said=p))},{log.stat(node, 'std', '.6E', row=p, said=p)},{log.stat(node, 'absmax', '.6E', row=p, said=p)}"
            )
    return text(out)
