"""Log formats written by a stranger to the reader: of these 30 it understood 21 at first sight."""

from __future__ import annotations

import re

from tests.verify.dumps.formats import Format
from tests.verify.dumps.unseen_formats import Log, adding_to, text

FORMATS: list[Format] = []
form = adding_to(FORMATS)


def dim(log, node):
    return int(log.run.values[node].shape[1])


def short_exp(t):
    """Rust and Zig print 1.5e-1 and 1.5e0."""
    return re.sub(r"e([+-])0*(\d+)$", lambda m: "e" + ("-" if m[1] == "-" and m[2] != "0" else "") + m[2], t)


def ntok(log):
    return len(log.run.tokens)


def ids(log, sep=", "):
    return sep.join(str(t) for t in log.run.tokens)


# ------------------------------------------------------------------ Rust


@form("rust dbg! macro, multi-line arrays")
def _(log: Log) -> str:
    out = [
        "    Finished `release` profile [optimized + debuginfo] target(s) in 6.41s",
        "     Running `target/release/tinyllm --model model.gguf --prompt hello`",
        f"mmap ok, {log.run.n_layer} layers",
        f"prompt ids = [{ids(log)}]",
    ]
    for n in log.layers:
        for where, node in (("after_attn_residual", "ffn_inp"), ("after_mlp_residual", "l_out")):
            line = 221 if node == "ffn_inp" else 247
            out.append(f"[src/model.rs:{line - 1}:13] layer_idx = {n}")
            out.append(f"[src/model.rs:{line}:13] &{where}[..4] = [")
            out += [f"    {v}," for v in log.first(f"{node}-{n}", 4, "r")]
            out.append("]")
    out.append("[src/model.rs:260:9] &final_norm[..4] = [")
    out += [f"    {v}," for v in log.first("result_norm", 4, "r")]
    out.append("]")
    out.append("thread 'main' panicked at src/main.rs:71:5:")
    out.append("stop here")
    return text(out)


@form("rust tracing subscriber with spans")
def _(log: Log) -> str:
    p = log.run.last
    out = [
        '2025-02-11T14:03:21.004518Z  INFO ferrum::loader: opened weights path="./weights/model.safetensors" shards=1',
        f"2025-02-11T14:03:21.911020Z  INFO ferrum: prompt tokenized n={ntok(log)}",
        "2025-02-11T14:03:21.911407Z  WARN ferrum::kv: cache not preallocated, growing on demand",
    ]
    us = 22118345
    for n in log.layers:
        pre = f"forward{{pos={p}}}:block{{idx={n}}}: ferrum::block:"
        for msg, node in (
            ("input layernorm", "attn_norm"),
            ("o_proj", "attn_out"),
            ("post attention layernorm", "ffn_norm"),
            ("down_proj", "ffn_out"),
            ("block output", "l_out"),
        ):
            us += 1837
            nm = f"{node}-{n}"
            out.append(
                f"2025-02-11T14:03:{us // 1000000}.{us % 1000000:06d}Z DEBUG {pre} {msg} "
                f"rms={log.stat(nm, 'rms', '.5f', said=p)} head=[{', '.join(log.first(nm, 4, '.5f', said=p))}]"
            )
    out.append(
        f"2025-02-11T14:03:22.151551Z DEBUG forward{{pos={p}}}: ferrum::head: final norm rms={log.stat('result_norm', 'rms', '.5f', said=p)} "
        f"head=[{', '.join(log.first('result_norm', 4, '.5f', said=p))}]"
    )
    out.append(
        f"2025-02-11T14:03:22.154210Z DEBUG forward{{pos={p}}}: ferrum::head: logits max={log.stat('result_output', 'max', '.5f', said=p)} "
        f"head=[{', '.join(log.first('result_output', 4, '.5f', said=p))}]"
    )
    return text(out)


@form("rust println {:?}, one line a block")
def _(log: Log) -> str:
    out = [
        "Loaded tokenizer (bpe)",
        "Loaded 1 file in 312.44ms",
        f"emb      -> [{', '.join(log.first('embd', 6, 'r'))}]",
    ]
    for n in log.layers:
        out.append(f"block {n} out -> [{', '.join(log.first(f'l_out-{n}', 6, 'r'))}]")
    out.append(f"norm     -> [{', '.join(log.first('result_norm', 6, 'r'))}]")
    out.append(f"logits   -> [{', '.join(log.first('result_output', 6, 'r'))}]")
    out.append("forward took 48.731ms")
    return text(out)


@form("rust candle Tensor display")
def _(log: Log) -> str:
    out = [
        "avx: true, neon: false, simd128: false, f16c: true",
        "temp: 0.00 repeat-penalty: 1.10 repeat-last-n: 64",
        "retrieved the files in 1.204us",
        "loaded the model in 872.118ms",
    ]
    rows = list(range(ntok(log)))

    def dump(node):
        lines = []
        for i in rows:
            a = log.first(node, 3, "7.4f", row=i, said=i)
            b = log.final(node, 3, "7.4f", row=i, said=i)
            lines.append(f"[{', '.join(a)}, ..., {', '.join(b)}]")
        body = ",\n  ".join(lines)
        return [f"[[{body}]]", f"Tensor[[1, {ntok(log)}, {dim(log, node)}], f32]"]

    out.append("xs after wte:")
    out += dump("embd")
    for n in log.layers:
        out.append(f"xs after block {n}:")
        out += dump(f"l_out-{n}")
    out.append("xs after ln_f:")
    out += dump("result_norm")
    return text(out)


@form("rust tap! macro, aligned stats")
def _(log: Log) -> str:
    out = ["[init] threads=8 simd=avx2", "[init] rope theta=10000 ", "[tap] enabled (TAP=1), last token only"]
    taps = (
        ("attn.rmsnorm", "attn_norm"),
        ("attn.q", "Qcur_proj"),
        ("attn.k", "Kcur_proj"),
        ("attn.v", "Vcur"),
        ("attn.q_rot", "Qcur"),
        ("attn.k_rot", "Kcur"),
        ("attn.heads_concat", "kqv_out"),
        ("attn.wo", "attn_out"),
        ("mlp.rmsnorm", "ffn_norm"),
        ("mlp.gate", "ffn_gate"),
        ("mlp.up", "ffn_up"),
        ("mlp.silu_mul", "ffn_swiglu"),
        ("mlp.down", "ffn_out"),
    )
    for n in log.layers:
        for lab, node in taps:
            nm = f"{node}-{n}"
            out.append(
                f"[tap] L{n:02d} {lab:<18} n={dim(log, nm):<6} min={log.stat(nm, 'min', '>+10.5f', said=-1)} max={log.stat(nm, 'max', '>+10.5f', said=-1)} "
                f"mean={log.stat(nm, 'mean', '>+10.5f', said=-1)} l2={log.stat(nm, 'norm', '>10.5f', said=-1)}"
            )
    out.append("[done] 1 step")
    return text(out)


@form("rust enum stage names, key=value")
def _(log: Log) -> str:
    out = ["warning: unused variable: `scratch`", " --> src/forward.rs:88:9", "", "running 1 test"]
    for n in log.layers:
        for st, node in (
            ("PreAttnNorm", "attn_norm"),
            ("QAfterRope", "Qcur"),
            ("KAfterRope", "Kcur"),
            ("PostAttnResidual", "ffn_inp"),
            ("PostMlpResidual", "l_out"),
        ):
            v = [short_exp(t) for t in log.first(f"{node}-{n}", 3, ".6e", row=0, said=0)]
            out.append(f"Checkpoint {{ layer: {n}, stage: {st}, token: 0, first: ({v[0]}, {v[1]}, {v[2]}) }}")
    out += [
        "test forward::tests::dump_prompt ... ok",
        "",
        "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 14 filtered out; finished in 0.83s",
    ]
    return text(out)


# ------------------------------------------------------------------ C


@form("llama2.c descendant, every pos")
def _(log: Log) -> str:
    out = ["vocab ok", f"n_layers = {log.run.n_layer}"]
    for p, t in enumerate(log.run.tokens):
        out.append(f"== pos {p} token {t}")
        for n in log.layers:
            out.append(f"  l={n} end, x: {' '.join(log.first(f'l_out-{n}', 4, '.5f', row=p, said=p))}")
    out.append("achieved tok/s: 11.782")
    return text(out)


@form("c fixed-width rms table on stderr")
def _(log: Log) -> str:
    cols = (
        ("norm1", "attn_norm"),
        ("q+rope", "Qcur"),
        ("k+rope", "Kcur"),
        ("v", "Vcur"),
        ("attn@wo", "attn_out"),
        ("mlp_out", "ffn_out"),
        ("x_out", "l_out"),
    )
    out = [
        "model.bin: 4 KB header, version 3",
        "RMS of activations per layer (last prompt token)",
        "",
        "layer |" + "".join(f"{c:>10}" for c, _ in cols),
        "------+" + "-" * 10 * len(cols),
    ]
    for n in log.layers:
        out.append(f"{n:5d} |" + "".join(log.stat(f"{node}-{n}", "rms", "10.5f", said=-1) for _, node in cols))
    out += ["", "hmm"]
    return text(out)


@form("c DBG macro with file:line")
def _(log: Log) -> str:
    out = ["forward.c:97: kv cache 2.00 MiB"]
    steps = (
        (141, "rmsnorm1", "attn_norm"),
        (149, "q = wq*xn", "Qcur_proj"),
        (150, "k = wk*xn", "Kcur_proj"),
        (151, "v = wv*xn", "Vcur"),
        (163, "q roped", "Qcur"),
        (164, "k roped", "Kcur"),
        (190, "softmax(qk)*v", "kqv_out"),
        (197, "wo", "attn_out"),
        (201, "x += attn", "ffn_inp"),
        (205, "rmsnorm2", "ffn_norm"),
        (210, "w1 (gate)", "ffn_gate"),
        (211, "w3 (up)", "ffn_up"),
        (219, "silu(w1)*w3", "ffn_swiglu"),
        (224, "w2 (down)", "ffn_out"),
        (228, "x += ffn", "l_out"),
    )
    for n in log.layers:
        for line, lab, node in steps:
            out.append(f"forward.c:{line}: l{n} {lab}: " + " ".join(log.first(f"{node}-{n}", 4, "g", row=0)))
    out.append("forward.c:240: final rmsnorm: " + " ".join(log.first("result_norm", 4, "g", row=0)))
    out.append("forward.c:246: logits: " + " ".join(log.first("result_output", 4, "g", row=0)))
    out.append("Segmentation fault (core dumped)")
    return text(out)


@form("c one-based layer k/N")
def _(log: Log) -> str:
    N = log.run.n_layer
    out = ["* weights: fp16 -> fp32 on load", f"* tokens ({ntok(log)}): {ids(log, ' ')}", f"* running {N} layers"]
    for n in log.layers:
        out.append(
            f"layer {n + 1}/{N} done, hidden = {{ {', '.join(log.first(f'l_out-{n}', 5, '.4f'))}, ... }}  (3.{n + 1} ms)"
        )
    out.append(f"final norm done, hidden = {{ {', '.join(log.first('result_norm', 5, '.4f'))}, ... }}")
    best = log.top("result_output", 3, ".4f")
    out.append("best logits: " + "  ".join(f"id {i} ({v})" for i, v in best))
    return text(out)


@form("c dump_vec helper, first and last elements")
def _(log: Log) -> str:
    out = ["tensor count 30", "using 4 threads"]

    def dump(lab, node):
        a, b = log.first(node, 3, "f", said=-1), log.final(node, 3, "f", said=-1)
        return f"dump_vec({lab}, {dim(log, node)}) [{a[0]} {a[1]} {a[2]} .. {b[0]} {b[1]} {b[2]}]"

    out.append(f"processing last prompt token (pos={log.run.last})")
    out.append(dump("tok_emb", "embd"))
    for n in log.layers:
        out.append(f"-> layer {n}")
        for lab, node in (
            ("attn_in_norm", "attn_norm"),
            ("attn_wo", "attn_out"),
            ("ffn_in_norm", "ffn_norm"),
            ("ffn_w2", "ffn_out"),
            ("resid_end", "l_out"),
        ):
            out.append("   " + dump(lab, f"{node}-{n}"))
    out.append(dump("out_norm", "result_norm"))
    out.append(dump("logits", "result_output"))
    return text(out)


# ------------------------------------------------------------------ C++


@form("c++ iostream, Layer N output (first 8)")
def _(log: Log) -> str:
    out = [
        "[INFO] Reading GGUF v3",
        "[INFO] KV pairs: 24, tensors: 30",
        "Embedding (first 8): " + ", ".join(log.first("embd", 8, ".6g")),
    ]
    for n in log.layers:
        out.append(f"Layer {n}")
        out.append("  attention output after Wo (first 8): " + ", ".join(log.first(f"attn_out-{n}", 8, ".6g")))
        out.append("  feed forward output (first 8): " + ", ".join(log.first(f"ffn_out-{n}", 8, ".6g")))
        out.append("  layer output (first 8): " + ", ".join(log.first(f"l_out-{n}", 8, ".6g")))
    out.append("[INFO] Total: 93 ms")
    return text(out)


@form("c++ shape and two corner rows")
def _(log: Log) -> str:
    out = ["backend: cpu (openblas)", "ctx: 512"]
    last = log.run.last

    def blk(name, node):
        r = [f"{name} <{ntok(log)} x {dim(log, node)}>"]
        for row in (0, last):
            r.append(f"   row {row}: " + " ".join(log.first(node, 4, "9.5f", row=row, said=row)) + "  ...")
        return r

    for n in log.layers:
        out += blk(f"decoder.{n}.norm1", f"attn_norm-{n}")
        out += blk(f"decoder.{n}.attn.proj_out", f"attn_out-{n}")
        out += blk(f"decoder.{n}.residual1", f"ffn_inp-{n}")
        out += blk(f"decoder.{n}.norm2", f"ffn_norm-{n}")
        out += blk(f"decoder.{n}.residual2", f"l_out-{n}")
    out += blk("final_norm", "result_norm")
    return text(out)


@form("c++ spdlog with HF module names")
def _(log: Log) -> str:
    out = [
        "[2025-04-19 10:22:41.118] [info] [main.cpp:52] loading /models/tiny",
        "[2025-04-19 10:22:41.733] [warning] [tokenizer.cpp:210] added_tokens ignored",
    ]
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
    ms = 801
    for n in log.layers:
        for m, node in mods:
            ms += 3
            nm = f"{node}-{n}"
            out.append(
                f"[2025-04-19 10:22:41.{ms}] [debug] [decoder.cpp:118] layers.{n}.{m} out[-1]: [{', '.join(log.first(nm, 5, '.6f', said=-1))}] "
                f"absmax={log.stat(nm, 'absmax', '.6f', said=-1)}"
            )
    out.append(
        f"[2025-04-19 10:22:41.{ms + 4}] [debug] [decoder.cpp:160] norm out[-1]: [{', '.join(log.first('result_norm', 5, '.6f', said=-1))}] "
        f"absmax={log.stat('result_norm', 'absmax', '.6f', said=-1)}"
    )
    out.append(
        f"[2025-04-19 10:22:41.{ms + 9}] [debug] [decoder.cpp:171] lm_head out[-1]: [{', '.join(log.first('result_output', 5, '.6f', said=-1))}] "
        f"absmax={log.stat('result_output', 'absmax', '.6f', said=-1)}"
    )
    return text(out)


@form("c++ csv to stdout")
def _(log: Log) -> str:
    p = log.run.last
    out = ["layer,op,pos,v0,v1,v2,v3,mean,std"]

    def line(l, op, node):
        return (
            f"{l},{op},{p},"
            + ",".join(log.first(node, 4, ".7g", said=p))
            + f",{log.stat(node, 'mean', '.7g', said=p)},{log.stat(node, 'std', '.7g', said=p)}"
        )

    for n in log.layers:
        for op, node in (
            ("q_rope", "Qcur"),
            ("k_rope", "Kcur"),
            ("v", "Vcur"),
            ("attn_ctx_before_wo", "kqv_out"),
            ("attn_proj", "attn_out"),
            ("act_mul", "ffn_swiglu"),
            ("ffn_down", "ffn_out"),
            ("layer_out", "l_out"),
        ):
            out.append(line(n, op, f"{node}-{n}"))
    return text(out)


@form("c++ fmt box table")
def _(log: Log) -> str:
    w = 44
    bar = "+-------+-----------------+" + "-" * (w + 2) + "+"
    out = [
        "Engine 0.3.1-dev (debug build)",
        f"Prompt: {ntok(log)} tokens",
        bar,
        f"| {'layer':<5} | {'tensor':<15} | {'first 4 values':<{w}} |",
        bar,
    ]
    for n in log.layers:
        for i, (lab, node) in enumerate((("hidden after attn", "ffn_inp"), ("hidden after ffn", "l_out"))):
            vals = " ".join(log.first(f"{node}-{n}", 4, "10.6f"))
            lab = {"ffn_inp": "h + attn(h)", "l_out": "h + ffn(h)"}[node]
            out.append(f"| {n if i == 0 else '':<5} | {lab:<15} | {vals:<{w}} |")
        out.append(bar)
    out.append(f"| {'':<5} | {'final rmsnorm':<15} | {' '.join(log.first('result_norm', 4, '10.6f')):<{w}} |")
    out.append(f"| {'':<5} | {'logits':<15} | {' '.join(log.first('result_output', 4, '10.6f')):<{w}} |")
    out.append(bar)
    return text(out)


# ------------------------------------------------------------------ Python


@form("numpy port, array repr of last position")
def _(log: Log) -> str:
    out = [
        f">>> x.shape ({ntok(log)}, {dim(log, 'embd')})",
        f"embed x[-1, :5] = array([{', '.join(log.first('embd', 5, '11.8f', said=-1))}], dtype=float32)",
    ]
    for n in log.layers:
        out.append(
            f"layer {n} out x[-1, :5] = array([{', '.join(log.first(f'l_out-{n}', 5, '11.8f', said=-1))}], dtype=float32)"
        )
    out.append("/home/jo/np_llm/model.py:71: RuntimeWarning: overflow encountered in exp")
    out.append("  return x / (1 + np.exp(-x))")
    out.append(f"ln_f x[-1, :5] = array([{', '.join(log.first('result_norm', 5, '11.8f', said=-1))}], dtype=float32)")
    return text(out)


@form("torch forward hooks, tensor repr")
def _(log: Log) -> str:
    out = [
        "Loading checkpoint shards: 100%|##########| 1/1 [00:00<00:00,  2.41it/s]",
        "registered hooks, printing out[0, -1, :4]",
        f"input_ids: tensor([[{ids(log)}]])",
    ]

    def hook(name, node):
        shape = f"(1, {ntok(log)}, {dim(log, node)})"
        return f"{name:<48} {shape:<16} tensor([{', '.join(log.first(node, 4, '7.4f', said=-1))}])"

    out.append(hook("model.embed_tokens", "embd"))
    for n in log.layers:
        for m, node in (
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
            out.append(hook(f"model.layers.{n}.{m}", f"{node}-{n}"))
        out.append(hook(f"model.layers.{n}", f"l_out-{n}"))
    out.append(hook("model.norm", "result_norm"))
    out.append(hook("lm_head", "result_output"))
    return text(out)


@form("python json lines")
def _(log: Log) -> str:
    p = log.run.last
    out = [f'{{"event": "start", "model": "tiny", "tokens": [{ids(log)}]}}']

    def line(layer, name, node):
        return (
            f'{{"event": "act", "layer": {layer}, "name": "{name}", "pos": {p}, "l2": {log.stat(node, "norm", ".6f", said=p)}, '
            f'"head": [{", ".join(log.first(node, 4, ".6f", said=p))}], "tail": [{", ".join(log.final(node, 2, ".6f", said=p))}]}}'
        )

    out.append(line("null", "token_embedding", "embd"))
    for n in log.layers:
        for name, node in (
            ("attn_output_proj", "attn_out"),
            ("resid_mid", "ffn_inp"),
            ("mlp_output", "ffn_out"),
            ("resid_post", "l_out"),
        ):
            out.append(line(n, name, f"{node}-{n}"))
    out.append(line("null", "final_norm", "result_norm"))
    out.append(line("null", "logits", "result_output"))
    out.append('{"event": "end", "elapsed_s": 0.412}')
    return text(out)


@form("python markdown table pasted in an issue")
def _(log: Log) -> str:
    out = [
        "Same prompt, greedy, fp32. Hidden state leaving each decoder layer, last token:",
        "",
        "| layer | h[0] | h[1] | h[2] | h[3] | mean abs |",
        "|---:|---:|---:|---:|---:|---:|",
    ]
    for n in log.layers:
        nm = f"l_out-{n}"
        out.append(
            "| "
            + " | ".join([str(n), *log.first(nm, 4, ".5f", said=-1), log.stat(nm, "absmean", ".5f", said=-1)])
            + " |"
        )
    out += ["", "Top logits at the last token:", "", "| id | logit |", "|---:|---:|"]
    out += [f"| {i} | {v} |" for i, v in log.top("result_output", 5, ".4f", said=-1)]
    return text(out)


@form("python self-documenting f-strings")
def _(log: Log) -> str:
    out = ["$ python run.py --debug", "using device: cpu"]
    for n in log.layers:
        nm, q = f"l_out-{n}", f"Qcur-{n}"
        out.append(f"i={n} q_rot[0, -1].flatten()[:3].tolist()=[{', '.join(log.first(q, 3, '.10g', said=-1))}]")
        out.append(
            f"i={n} h[0, -1].mean().item()={log.stat(nm, 'mean', '.10g', said=-1)} h[0, -1].std(correction=0).item()={log.stat(nm, 'std', '.10g', said=-1)} "
            f"h[0, -1, :4].tolist()=[{', '.join(log.first(nm, 4, '.10g', said=-1))}]  # end of block"
        )
    out.append(f"logits[0, -1].max().item()={log.stat('result_output', 'max', '.10g', said=-1)}")
    return text(out)


# ------------------------------------------------------------------ Go


@form("go log.Printf %v slices, attn and ffn on one line")
def _(log: Log) -> str:
    out = [
        "2025/03/02 21:14:06 loading weights from ./model.bin",
        f"2025/03/02 21:14:07 prompt tokens: [{ids(log, ' ')}]",
    ]
    for n in log.layers:
        out.append(
            f"2025/03/02 21:14:07 layer {n}: attnProj=[{' '.join(log.first(f'attn_out-{n}', 3, 'r'))}] ffnDown=[{' '.join(log.first(f'ffn_out-{n}', 3, 'r'))}] "
            f"hiddenOut=[{' '.join(log.first(f'l_out-{n}', 3, 'r'))}]"
        )
    out.append(f"2025/03/02 21:14:07 finalNorm=[{' '.join(log.first('result_norm', 3, 'r'))}]")
    out.append(f"2025/03/02 21:14:07 logits=[{' '.join(log.first('result_output', 3, 'r'))}]")
    return text(out)


@form("go slog text handler")
def _(log: Log) -> str:
    p = log.run.last
    out = [
        'time=2025-06-30T08:41:12.300+02:00 level=INFO msg="model ready" arch=llama quant=none',
        f'time=2025-06-30T08:41:12.301+02:00 level=DEBUG msg=embedding pos={p} x="[{" ".join(log.first("embd", 4, ".5f", said=p))}]"',
    ]
    ms = 302
    for n in log.layers:
        for msg, node in (
            ("rope applied to query", "Qcur"),
            ("rope applied to key", "Kcur"),
            ("attention residual added", "ffn_inp"),
            ("mlp residual added", "l_out"),
        ):
            out.append(
                f'time=2025-06-30T08:41:12.{ms}+02:00 level=DEBUG msg="{msg}" layer={n} pos={p} x="[{" ".join(log.first(f"{node}-{n}", 4, ".5f", said=p))}]"'
            )
            ms += 2
    out.append(f'time=2025-06-30T08:41:12.{ms}+02:00 level=INFO msg="sampled" token=29871')
    return text(out)


# ------------------------------------------------------------------ Zig


@form("zig {any} slices in scientific notation")
def _(log: Log) -> str:
    out = ["info: mapped 1 file", f"info: {log.run.n_layer} layers, {ntok(log)} prompt tokens"]
    for n in log.layers:
        out.append(
            f"debug: [{n}] norm_attn  {{ {', '.join(map(short_exp, log.first(f'attn_norm-{n}', 3, '.7e', row=0)))} }}"
        )
        out.append(
            f"debug: [{n}] norm_ffn   {{ {', '.join(map(short_exp, log.first(f'ffn_norm-{n}', 3, '.7e', row=0)))} }}"
        )
        out.append(
            f"debug: [{n}] ffn_down   {{ {', '.join(map(short_exp, log.first(f'ffn_out-{n}', 3, '.7e', row=0)))} }}"
        )
        out.append(
            f"debug: [{n}] layer_end  {{ {', '.join(map(short_exp, log.first(f'l_out-{n}', 3, '.7e', row=0)))} }}"
        )
    out.append(f"debug: norm_final {{ {', '.join(map(short_exp, log.first('result_norm', 3, '.7e', row=0)))} }}")
    return text(out)


@form("zig scoped log, nested lines")
def _(log: Log) -> str:
    out = [
        "debug(gguf): alignment 32",
        "debug(transformer): prefill start",
        f"debug(transformer): embedding row 0: {' | '.join(log.first('embd', 5, '.5f', row=0, said=0))}",
    ]
    for n in log.layers:
        out.append(f"debug(transformer): entering blk {n}")
        for lab, node in (
            ("query (no rope)", "Qcur_proj"),
            ("key (no rope)", "Kcur_proj"),
            ("value", "Vcur"),
            ("gate", "ffn_gate"),
            ("up", "ffn_up"),
            ("residual out", "l_out"),
        ):
            out.append(
                f"debug(transformer):   {lab} row 0: {' | '.join(log.first(f'{node}-{n}', 5, '.5f', row=0, said=0))}"
            )
        out.append(f"debug(transformer): leaving blk {n} after {411 + 7 * n}us")
    return text(out)


# ------------------------------------------------------------------ Swift


@form("swift print with prefix arrays")
def _(log: Log) -> str:
    out = [
        "Model loaded in 0.9312 seconds",
        f"Prompt tokens: [{ids(log)}]",
        f"Token embedding (last token) prefix(5): [{', '.join(log.first('embd', 5, 'r', said=-1))}]",
    ]
    for n in log.layers:
        out.append(
            f"🔍 TransformerBlock #{n} output (last token) prefix(5): [{', '.join(log.first(f'l_out-{n}', 5, 'r', said=-1))}]"
        )
    out.append(
        "Top candidates: " + ", ".join(f"(id: {i}, logit: {v})" for i, v in log.top("result_output", 4, "r", said=-1))
    )
    out.append("Program ended with exit code: 0")
    return text(out)


@form("swift metal buffer readback")
def _(log: Log) -> str:
    out = [
        "2025-05-08 17:55:20.601 MetalLM[4127:88120] GPU: Apple M2",
        "2025-05-08 17:55:20.640 MetalLM[4127:88120] MTLHeap 64 MB",
    ]
    for n in log.layers:
        out.append(f"──── layer {n} ────")
        for lab, node in (
            ("rmsNormAttn", "attn_norm"),
            ("qRope", "Qcur"),
            ("kRope", "Kcur"),
            ("vProj", "Vcur"),
            ("attnContext (pre-Wo)", "kqv_out"),
            ("attnOutProj", "attn_out"),
            ("siluGateTimesUp", "ffn_swiglu"),
            ("downProj", "ffn_out"),
        ):
            nm = f"{node}-{n}"
            out.append(f"  {lab} • {'  '.join(log.first(nm, 4, '.4f'))} … {log.final(nm, 1, '.4f')[0]}")
    out.append("──── head ────")
    out.append(
        f"  rmsNormFinal • {'  '.join(log.first('result_norm', 4, '.4f'))} … {log.final('result_norm', 1, '.4f')[0]}"
    )
    out.append(
        f"  logits • {'  '.join(log.first('result_output', 4, '.4f'))} … {log.final('result_output', 1, '.4f')[0]}"
    )
    return text(out)


# ------------------------------------------------------------------ TypeScript


@form("typescript console.group and Float32Array")
def _(log: Log) -> str:
    out = ["[webgpu] adapter: dawn / vulkan", "[webgpu] 41 pipelines compiled in 233ms"]

    def arr(node, ind):
        v = log.first(node, 6, ".9g", said=-1)
        pad = " " * (ind + 2)
        return [
            "Float32Array(6) [",
            f"{pad}{v[0]}, {v[1]},",
            f"{pad}{v[2]}, {v[3]},",
            f"{pad}{v[4]}, {v[5]}",
            " " * ind + "]",
        ]

    out.append(f"reading back last token (index {log.run.last})")
    for n in log.layers:
        out.append(f"layer {n}")
        for lab, node in (("afterAttention (residual)", "ffn_inp"), ("mlpOut", "ffn_out"), ("layerOut", "l_out")):
            a = arr(f"{node}-{n}", 2)
            out.append(f"  {lab}: {a[0]}")
            out += a[1:]
    a = arr("result_output", 0)
    out.append(f"logits: {a[0]}")
    out += a[1:]
    out.append("forward: 61.204ms")
    return text(out)


# ------------------------------------------------------------------ Java


@form("java.util.logging two-line records")
def _(log: Log) -> str:
    p = log.run.last
    out = ["WARNING: Using incubator modules: jdk.incubator.vector", "Parse ./model.gguf: 402 millis"]
    for n in log.layers:
        out.append("Feb 11, 2025 3:04:05 PM com.example.jllm.Llama forward")
        out.append(
            f"FINE: layer {n}, position {p}: xb after attention rmsnorm = [{', '.join(log.first(f'attn_norm-{n}', 4, 'r', said=p))}]"
        )
        out.append("Feb 11, 2025 3:04:05 PM com.example.jllm.Llama forward")
        out.append(
            f"FINE: layer {n}, position {p}: xb2 after wo matmul = [{', '.join(log.first(f'attn_out-{n}', 4, 'r', said=p))}]"
        )
        out.append("Feb 11, 2025 3:04:05 PM com.example.jllm.Llama forward")
        out.append(
            f"FINE: layer {n}, position {p}: x after ffn residual = [{', '.join(log.first(f'l_out-{n}', 4, 'r', said=p))}]"
        )
    out.append("Feb 11, 2025 3:04:05 PM com.example.jllm.Llama forward")
    out.append(f"FINE: position {p}: x after final rmsnorm = [{', '.join(log.first('result_norm', 4, 'r', said=p))}]")
    return text(out)


# ------------------------------------------------------------------ CUDA


@form("cuda device printf, single elements")
def _(log: Log) -> str:
    p = log.run.last
    out = ["Device 0: NVIDIA GeForce RTX 3060, sm_86", "cudaMallocAsync pool: 512 MB"]
    for n in log.layers:
        for k, node in (
            ("rmsnorm_attn", "attn_norm"),
            ("q_rope", "Qcur"),
            ("k_rope", "Kcur"),
            ("gemv_wo", "attn_out"),
            ("swiglu", "ffn_swiglu"),
            ("gemv_down", "ffn_out"),
            ("residual_ffn", "l_out"),
        ):
            nm = f"{node}-{n}"
            out.append(
                f"[{k}] layer={n} pos={p} " + " ".join(f"out[{i}]={log.at(nm, i, 'f', said=p)}" for i in (0, 1, 7))
            )
    out.append(
        f"[rmsnorm_final] pos={p} " + " ".join(f"out[{i}]={log.at('result_norm', i, 'f', said=p)}" for i in (0, 1, 7))
    )
    out.append("cudaDeviceSynchronize: no error")
    return text(out)
