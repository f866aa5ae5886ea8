"""Log formats that the reader was not built with, written by someone who had not seen it.

Each row is how a person who writes an engine in some language prints activations. The text and its meaning are made
in one pass: asking a `Log` for numbers gives them as printed and notes them, as rounded in print, as meant.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from tests.verify.dumps.formats import Format, Meant, Run, rms

Array = NDArray[np.float64]

STATS: dict[str, Callable[[Array], float]] = {
    "rms": rms,
    "mean": lambda x: float(x.mean()),
    "min": lambda x: float(x.min()),
    "max": lambda x: float(x.max()),
    "sum": lambda x: float(x.sum()),
    "std": lambda x: float(x.std()),
    "norm": lambda x: float(np.linalg.norm(x)),
    "absmax": lambda x: float(np.abs(x).max()),
    "absmean": lambda x: float(np.abs(x).mean()),
}


def show(v: float, f: str) -> str:
    """A number as printed; the format "r" is the shortest text of a float32 (Rust, Go, Swift, Java)."""
    return str(np.float32(v)) if f == "r" else format(float(v), f)


class Log:
    """What a format prints, noted as it is printed. `row` is the row taken, `said` the row that the text tells."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.found: list[Meant] = []

    @property
    def layers(self) -> range:
        return range(self.run.n_layer)

    def note(self, node: str, kind: str, said: int | None, texts: Iterable[str]) -> None:
        self.found.append((node, kind, said, tuple(float(t) for t in texts)))

    def first(self, node: str, k: int = 5, f: str = ".6f", *, row: int = -1, said: int | None = None) -> list[str]:
        texts = [show(v, f) for v in self.run.values[node][row][:k]]
        self.note(node, "first", said, texts)
        return texts

    def final(self, node: str, k: int = 3, f: str = ".6f", *, row: int = -1, said: int | None = None) -> list[str]:
        texts = [show(v, f) for v in self.run.values[node][row][-k:]]
        self.note(node, "last", said, texts)
        return texts

    def stat(self, node: str, kind: str, f: str = ".6f", *, row: int = -1, said: int | None = None) -> str:
        text = show(STATS[kind](self.run.values[node][row]), f)
        self.note(node, kind, said, [text])
        return text

    def at(self, node: str, index: int, f: str = ".6f", *, row: int = -1, said: int | None = None) -> str:
        """One element: its data are (index, value)."""
        text = show(self.run.values[node][row][index], f)
        self.note(node, "at", said, [str(index), text])
        return text

    def top(self, node: str, k: int = 5, f: str = ".4f", *, row: int = -1, said: int | None = None) -> list[list[str]]:
        """The greatest elements: their data are (index, value, index, value, ...)."""
        x = self.run.values[node][row]
        pairs = [[str(i), show(x[i], f)] for i in np.argsort(-x, kind="stable")[:k]]
        self.note(node, "top", said, [t for pair in pairs for t in pair])
        return pairs


Writer = Callable[[Log], str]
FORMATS: list[Format] = []


def adding_to(formats: list[Format]) -> Callable[[str], Callable[[Writer], Writer]]:
    """A decorator that makes a writer of text a row of `formats`."""

    def form(name: str) -> Callable[[Writer], Writer]:
        def add(writer: Writer) -> Writer:
            def means(run: Run) -> list[Meant]:
                log = Log(run)
                writer(log)
                return log.found

            formats.append(Format(name, lambda run: writer(Log(run)), means))
            return writer

        return add

    return form


form = adding_to(FORMATS)


def text(lines: Iterable[str]) -> str:
    return "\n".join(lines) + "\n"


# Rust


@form("rust tracing with a span of the position")
def _(log: Log) -> str:
    p = log.run.last
    out = [f"2024-05-11T09:14:02.098113Z  INFO llama_rs: model loaded n_layers={log.run.n_layer} elapsed=1.24s"]
    for n in log.layers:
        v = ", ".join(log.first(f"l_out-{n}", 4, "r", said=p))
        out.append(
            f"2024-05-11T09:14:02.11348{n}Z DEBUG forward{{pos={p}}}: llama_rs::block: "
            f"block output layer={n} head=[{v}]"
        )
    return text(out)


@form("rust tracing with colours")
def _(log: Log) -> str:
    out = []
    for n in log.layers:
        r, m = log.stat(f"l_out-{n}", "rms"), log.stat(f"l_out-{n}", "absmax")
        out.append(
            f"\x1b[2m2024-05-11T09:14:02.21348{n}Z\x1b[0m \x1b[34mDEBUG\x1b[0m "
            f"\x1b[2mengine::layer\x1b[0m\x1b[2m:\x1b[0m "
            f"residual stream after layer \x1b[3mlayer\x1b[0m\x1b[2m=\x1b[0m{n} \x1b[3mrms\x1b[0m\x1b[2m=\x1b[0m{r} "
            f"\x1b[3mmax_abs\x1b[0m\x1b[2m=\x1b[0m{m}"
        )
    return text(out)


@form("rust env_logger, every piece of a block")
def _(log: Log) -> str:
    pieces = (
        ("attn_norm", "attn_norm"), ("q", "Qcur"), ("k", "Kcur"), ("v", "Vcur"), ("attn_out", "attn_out"),
        ("ffn_norm", "ffn_norm"), ("gate", "ffn_gate"), ("up", "ffn_up"), ("ffn_out", "ffn_out"), ("out", "l_out"),
    )  # fmt: skip
    out = []
    for n in log.layers:
        for word, node in pieces:
            v = ", ".join(log.first(f"{node}-{n}", 4, ".5f"))
            out.append(f"[2024-05-11T09:14:02Z TRACE minillama::transformer] block {n} {word}: [{v}]")
    return text(out)


@form("rust dbg! of slices under a heading")
def _(log: Log) -> str:
    out = []
    for n in log.layers:
        out.append(f"--- layer {n} ---")
        for place, name, node in ((118, "attn_norm", "attn_norm"), (141, "ffn_out", "ffn_out")):
            out.append(f"[src/forward.rs:{place}:9] &{name}[..4] = [")
            out += [f"    {v}," for v in log.first(f"{node}-{n}", 4, "r")]
            out.append("]")
    return text(out)


@form("candle tensor with its shape")
def _(log: Log) -> str:
    out = []
    for n in log.layers:
        node = f"l_out-{n}"
        t, w = log.run.values[node].shape
        rows = []
        for r in (0, 1, 2, t - 3, t - 2, t - 1):
            a = ", ".join(f"{v:>7}" for v in log.first(node, 3, ".4f", row=r, said=r))
            b = ", ".join(f"{v:>7}" for v in log.final(node, 3, ".4f", row=r, said=r))
            rows.append(f"[{a}, ... {b}]")
        rows.insert(3, "...")
        out += [
            f"layer {n} output:",
            "[" + ",\n ".join(rows).replace("...,\n", "...\n") + "]",
            f"Tensor[[{t}, {w}], f32]",
        ]
    return text(out)


@form("burn tensor of one token")
def _(log: Log) -> str:
    out = []
    for n in log.layers:
        w = log.run.values[f"ffn_out-{n}"].shape[1]
        v = ", ".join(log.first(f"ffn_out-{n}", w, "r", said=-1))
        out += [
            f"feed_forward output, layer {n}, last token: Tensor {{", "  data:", f"[{v}],", f"  shape:  [{w}],",
            "  device:  Wgpu(DefaultDevice),", '  backend:  "fusion<cubecl<wgpu<wgsl>>>",', '  kind:  "Float",',
            '  dtype:  "f32",', "}",
        ]  # fmt: skip
    return text(out)


@form("rust eprintln with {:?} and {:.3?} timings")
def _(log: Log) -> str:
    out = ["tok_embd[..5] = [" + ", ".join(log.first("embd", 5, "r")) + "]"]
    for n in log.layers:
        v = ", ".join(log.first(f"l_out-{n}", 5, "r"))
        out.append(f"layer {n:>2} ({1.25 + n / 8:.3f}ms) x[..5] = [{v}]")
    out.append("after final norm: x[..5] = [" + ", ".join(log.first("result_norm", 5, "r")) + "]")
    out.append("logits[..5] = [" + ", ".join(log.first("result_output", 5, "r")) + "]")
    return text(out)


# Zig


@form("zig scoped log with stages")
def _(log: Log) -> str:
    out = []
    for n in log.layers:
        for stage, node in (("attn_norm", "attn_norm"), ("attn_out", "attn_out"), ("ffn_norm", "ffn_norm"),
                            ("ffn_out", "ffn_out")):  # fmt: skip
            v = ", ".join(log.first(f"{node}-{n}", 4, ".6e"))
            out.append(f"debug(llama): layer={n} stage={stage} x[0..4]={{ {v} }}")
    return text(out)


@form("zig print of a token's position")
def _(log: Log) -> str:
    out = ["info: loaded weights in 412ms (mmap @ 0x7f10a2c00000)"]
    for p in (0, 3):
        out.append(f"token {p}: embedding = {{ " + ", ".join(log.first("embd", 4, ".5e", row=p, said=p)) + " }")
        for n in log.layers:
            v = ", ".join(log.first(f"l_out-{n}", 4, ".5e", row=p, said=p))
            out.append(f"token {p}: block {n} = {{ {v} }}")
    return text(out)


# C, C++, CUDA


@form("llama2.c port, printf after each step")
def _(log: Log) -> str:
    p = log.run.last
    out = [f"pos={p} token={log.run.tokens[-1]}"]
    out.append("  embedding:       " + " ".join(f"{v:>10}" for v in log.first("embd", 6, "f", said=p)))
    for n in log.layers:
        for word, node in (("att rmsnorm", "attn_norm"), ("q", "Qcur"), ("k", "Kcur"), ("v", "Vcur"),
                           ("attn out", "attn_out"), ("ffn rmsnorm", "ffn_norm"), ("ffn out", "ffn_out")):  # fmt: skip
            v = " ".join(f"{v:>10}" for v in log.first(f"{node}-{n}", 6, "f", said=p))
            out.append(f"  l={n} {word + ':':<13}{v}")
    out.append("  final rmsnorm:   " + " ".join(f"{v:>10}" for v in log.first("result_norm", 6, "f", said=p)))
    out.append("  logits:          " + " ".join(f"{v:>10}" for v in log.first("result_output", 6, "f", said=p)))
    return text(out)


@form("c macro with the file, the count and the statistics")
def _(log: Log) -> str:
    out = []
    for n in log.layers:
        for line, node in ((231, "attn_out"), (268, "ffn_out"), (274, "l_out")):
            a, b, c = (log.stat(f"{node}-{n}", s, "+.6f") for s in ("min", "max", "mean"))
            w = log.run.values[f"{node}-{n}"].shape[1]
            out.append(f"transformer.c:{line} {node}[{n}] n={w} min {a} max {b} avg {c} nan 0 inf 0")
    return text(out)


@form("c chosen elements")
def _(log: Log) -> str:
    out = []
    for n in log.layers:
        a, b, c = (log.at(f"l_out-{n}", i) for i in (0, 7, 15))
        out.append(f"layer {n}: x[0]={a} x[7]={b} x[15]={c}")
    return text(out)


@form("cuda copies back with pointers")
def _(log: Log) -> str:
    out = ["CUDA device 0: NVIDIA GeForce RTX 4090, compute capability 8.9"]
    for n in log.layers:
        for i, node in enumerate(("attn_norm", "attn_out", "ffn_norm", "ffn_out")):
            v = " ".join(log.first(f"{node}-{n}", 5, ".5f"))
            w = log.run.values[f"{node}-{n}"].shape[1]
            out.append(f"[gpu dump] blk.{n}.{node:<10} d_ptr=0x7f3a5c{n:01x}{i:01x}0000 n={w}: {v} ...")
    return text(out)


@form("c++ streams with bars")
def _(log: Log) -> str:
    out = []
    for n in log.layers:
        for word, node in (("RMSNorm (attn)", "attn_norm"), ("Q", "Qcur"), ("K", "Kcur"), ("V", "Vcur"),
                           ("Attention output", "attn_out"), ("Residual 1", "ffn_inp"), ("RMSNorm (ffn)", "ffn_norm"),
                           ("FFN output", "ffn_out"), ("Residual 2", "l_out")):  # fmt: skip
            v = " ".join(log.first(f"{node}-{n}", 4, ".6g"))
            out.append(f"Layer {n} | {word:<16} | {v}")
    return text(out)


@form("c++ spdlog")
def _(log: Log) -> str:
    out = []
    for n in log.layers:
        v = ", ".join(log.first(f"l_out-{n}", 5, ".5f", said=-1))
        out.append(f"[2024-05-11 09:14:02.{113 + n}] [engine] [debug] decoder layer {n} output (last token): {{{v}}}")
    v = ", ".join(log.first("result_norm", 5, ".5f", said=-1))
    out.append(f"[2024-05-11 09:14:02.131] [engine] [debug] final norm output (last token): {{{v}}}")
    return text(out)


@form("llm.c checks by sums")
def _(log: Log) -> str:
    out = [f"encoded: sum {log.stat('embd', 'sum')} absmean {log.stat('embd', 'absmean')}"]
    for n in log.layers:
        out.append(
            f"layer {n} residual3: sum {log.stat(f'l_out-{n}', 'sum')} absmean {log.stat(f'l_out-{n}', 'absmean')}"
        )
    out.append(f"lnf: sum {log.stat('result_norm', 'sum')} absmean {log.stat('result_norm', 'absmean')}")
    out.append(f"logits: sum {log.stat('result_output', 'sum')} absmean {log.stat('result_output', 'absmean')}")
    return text(out)


@form("top logits, numbered")
def _(log: Log) -> str:
    p = log.run.last
    out = [f"layer {n} |x|={log.stat(f'l_out-{n}', 'norm', '.4f', said=p)} (pos {p})" for n in log.layers]
    out.append(f"top-5 logits at pos {p}:")
    out += [f"  #{i + 1}  id={a:<6} logit={b}" for i, (a, b) in enumerate(log.top("result_output", said=p))]
    return text(out)


# Go


@form("go log.Printf %v")
def _(log: Log) -> str:
    out = ["2024/05/11 09:14:01 main.go:41: prompt tokens: " + str(list(log.run.tokens)).replace(",", "")]
    for n in log.layers:
        for i, (word, node) in enumerate((("attention out", "attn_out"), ("mlp out", "ffn_out"), ("hidden", "l_out"))):
            v = " ".join(log.first(f"{node}-{n}", 5, "r"))
            out.append(f"2024/05/11 09:14:02 model.go:{88 + 9 * i}: layer {n} {word}: [{v}]")
    return text(out)


@form("go slog text")
def _(log: Log) -> str:
    out = []
    for n in log.layers:
        node = f"l_out-{n}"
        v = " ".join(log.first(node, 4, "r"))
        m, s = log.stat(node, "mean", "r"), log.stat(node, "std", "r")
        out.append(
            f'time=2024-05-11T09:14:02.11{n}+02:00 level=DEBUG msg="decoder layer" layer={n} '
            f'head="[{v}]" mean={m} std={s}'
        )
    return text(out)


@form("go slog json")
def _(log: Log) -> str:
    out = []
    for n in log.layers:
        for node in ("attn_norm", "ffn_norm", "l_out"):
            p = 3
            v = [float(t) for t in log.first(f"{node}-{n}", 4, ".6f", row=p, said=p)]
            entry = {
                "time": f"2024-05-11T09:14:02.11{n}Z",
                "level": "DEBUG",
                "msg": node,
                "layer": n,
                "pos": p,
                "values": v,
            }
            out.append(json.dumps(entry, separators=(",", ":")))
    return text(out)


# Swift


@form("swift unified logging")
def _(log: Log) -> str:
    out = []
    for n in log.layers:
        for word, node in (("self attention out", "attn_out"), ("mlp out", "ffn_out")):
            v = ", ".join(log.first(f"{node}-{n}", 5, "r"))
            out.append(f"2024-05-11 09:14:02.1134{n}2+0200 LlamaKit[4312:81920] [inference] layer {n} {word}: [{v}]")
    return text(out)


@form("swift with greek statistics")
def _(log: Log) -> str:
    out = []
    for n in log.layers:
        node = f"l_out-{n}"
        v = ", ".join(log.first(node, 4, "r"))
        out.append(
            f"🔹 Block {n} output → [{v}, …] (μ={log.stat(node, 'mean', '.5f')}, σ={log.stat(node, 'std', '.5f')})"
        )
    v = ", ".join(log.first("result_output", 4, "r"))
    out.append(f"🔹 LM head logits → [{v}, …]")
    return text(out)


# JavaScript, WebGPU


@form("node console.log of a Float32Array over lines")
def _(log: Log) -> str:
    out = []
    for n in log.layers:
        w = log.run.values[f"l_out-{n}"].shape[1]
        v = [f"{t:>21}" for t in log.first(f"l_out-{n}", w, "r")]
        lines = [", ".join(v[i : i + 3]) for i in range(0, w, 3)]
        out += [f"Layer {n} output: Float32Array({w}) [", ",\n".join("  " + line for line in lines), "]"]
    return text(out)


@form("console.table of statistics")
def _(log: Log) -> str:
    kinds = ("min", "max", "mean", "rms")
    heads = ("(index)", "layer", *kinds)
    rows = [
        [str(n), str(n), *(log.stat(f"l_out-{n}", s, ".5f") for s in kinds)]
        for n in log.layers
    ]  # fmt: skip
    bar = ["─" * 11] * len(heads)

    def line(cells: Iterable[str]) -> str:
        return "│" + "│".join(f"{c:^11}" for c in cells) + "│"

    return text(
        ["residual stream per layer", "┌" + "┬".join(bar) + "┐", line(heads), "├" + "┼".join(bar) + "┤"]
        + [line(r) for r in rows]
        + ["└" + "┴".join(bar) + "┘"]
    )


@form("webgpu readback of named buffers")
def _(log: Log) -> str:
    out = []
    for n in log.layers:
        for word, node in (("attn_norm", "attn_norm"), ("attn_output", "attn_out"), ("ffn_norm", "ffn_norm"),
                           ("ffn_down", "ffn_out")):  # fmt: skip
            w = log.run.values[f"{node}-{n}"].shape[1]
            v = ",".join(log.first(f"{node}-{n}", 6, ".5f"))
            out.append(f'[readback] buffer "blk.{n}.{word}" ({4 * w} bytes, 0.{31 + n} ms): {v}')
    return text(out)


# Python: MLX, JAX, tinygrad, torch, numpy


@form("mlx array with both ends of the rows")
def _(log: Log) -> str:
    out = []
    for n in log.layers:
        node = f"l_out-{n}"
        t, w = log.run.values[node].shape
        rows = []
        for r in (0, 1, 2, t - 3, t - 2, t - 1):
            a = ", ".join(log.first(node, 3, ".6g", row=r, said=r))
            b = ", ".join(log.final(node, 3, ".6g", row=r, said=r))
            rows.append(f"[{a}, ..., {b}]")
        rows.insert(3, "...")
        body = ",\n        ".join(rows)
        out.append(f"layer {n} out (1, {t}, {w})\narray([[{body}]], dtype=float32)")
    return text(out)


@form("python f-string with = and a slice of the last token")
def _(log: Log) -> str:
    out = []
    for n in log.layers:
        out.append(
            f"layer={n} h[0, -1, :5]=Array([{', '.join(log.first(f'l_out-{n}', 5, '.6f', said=-1))}], dtype=float32)"
        )
    return text(out)


@form("tinygrad numpy of blocks, DEBUG lines between")
def _(log: Log) -> str:
    out = []
    for n in log.layers:
        out.append(
            f"*** METAL {40 + n:>6} \x1b[34mr_16_16\x1b[0m  arg  3 mem  0.02 GB "
            f"tm  12.{n}1us/ 4.18ms ( 311 GFLOPS  8.2 GB/s)"
        )
        out.append(f"blk {n} attn: [{' '.join(f'{v:>9}' for v in log.first(f'attn_out-{n}', 5, '.5f'))}]")
        out.append(f"blk {n} ff:   [{' '.join(f'{v:>9}' for v in log.first(f'ffn_out-{n}', 5, '.5f'))}]")
    return text(out)


@form("hugging face module names under a heading")
def _(log: Log) -> str:
    names = (
        ("input_layernorm", "attn_norm"), ("self_attn.q_proj", "Qcur"), ("self_attn.k_proj", "Kcur"),
        ("self_attn.v_proj", "Vcur"), ("self_attn.o_proj", "attn_out"), ("post_attention_layernorm", "ffn_norm"),
        ("mlp.gate_proj", "ffn_gate"), ("mlp.up_proj", "ffn_up"), ("mlp.down_proj", "ffn_out"),
    )  # fmt: skip
    out = ["model.embed_tokens: [" + ", ".join(log.first("embd", 4, ".4f")) + "]"]
    for n in log.layers:
        out.append(f"========== Layer {n} ==========")
        out += [f"  {w:<26}: [{', '.join(log.first(f'{node}-{n}', 4, '.4f'))}]" for w, node in names]
    out.append("model.norm: [" + ", ".join(log.first("result_norm", 4, ".4f")) + "]")
    out.append("lm_head: [" + ", ".join(log.first("result_output", 4, ".4f")) + "]")
    return text(out)


@form("torch hooks with full paths and statistics")
def _(log: Log) -> str:
    out = []
    for n in log.layers:
        for name, node in (("self_attn", "attn_out"), ("mlp", "ffn_out")):
            a, b = log.stat(f"{node}-{n}", "mean", ".6f", said=-1), log.stat(f"{node}-{n}", "std", ".6f", said=-1)
            m = log.stat(f"{node}-{n}", "absmax", ".6f", said=-1)
            out.append(f"[hook] model.layers.{n}.{name} last token: mean={a} std={b} abs_max={m}")
    return text(out)


@form("python logging with L2 norms")
def _(log: Log) -> str:
    out = ["DEBUG:llama:embeddings: ||x||=" + log.stat("embd", "norm", ".5f")]
    for n in log.layers:
        a, b = log.stat(f"ffn_inp-{n}", "norm", ".5f"), log.stat(f"l_out-{n}", "norm", ".5f")
        out.append(f"DEBUG:llama:layer {n}: after attention residual: ||x||={a}")
        out.append(f"DEBUG:llama:layer {n}: after ffn residual: ||x||={b}")
    out.append("DEBUG:llama:final norm: ||x||=" + log.stat("result_norm", "norm", ".5f"))
    return text(out)


@form("numpy array over lines, whole rows")
def _(log: Log) -> str:
    out = []
    for n in log.layers:
        node = f"attn_norm-{n}"
        t, w = log.run.values[node].shape
        rows = []
        for r in range(t):
            v = [f"{x:>11}" for x in log.first(node, w, ".6f", row=r, said=r)]
            rows.append("[" + "\n   ".join(" ".join(v[i : i + 6]) for i in range(0, w, 6)) + "]")
        out += [f"attn_norm layer {n} shape=({t}, {w})", "[" + "\n ".join(rows) + "]"]
    return text(out)


@form("json file of layers")
def _(log: Log) -> str:
    def nums(node: str) -> list[float]:
        return [float(t) for t in log.first(node, 4, ".6f")]

    doc = {
        "prompt_tokens": list(log.run.tokens),
        "embedding": nums("embd"),
        "layers": [
            {
                "layer": n,
                "attn_out": nums(f"attn_out-{n}"),
                "ffn_out": nums(f"ffn_out-{n}"),
                "output": nums(f"l_out-{n}"),
            }
            for n in log.layers
        ],
        "final_norm": nums("result_norm"),
        "logits": nums("result_output"),
    }
    return json.dumps(doc, indent=2) + "\n"


@form("json lines of statistics")
def _(log: Log) -> str:
    out = []
    for n in log.layers:
        node = f"l_out-{n}"
        stats = {s: float(log.stat(node, s, ".6f")) for s in ("mean", "std", "min", "max")}
        out.append(
            json.dumps({"event": "layer_output", "layer": n, **stats, "l2": float(log.stat(node, "norm", ".5f"))})
        )
    return text(out)


# Java


@form("java slf4j")
def _(log: Log) -> str:
    out = []
    for n in log.layers:
        v = ", ".join(log.first(f"attn_out-{n}", 5, "r"))
        out.append(f"09:14:02.11{n} [main] DEBUG c.e.llama.Transformer - Layer {n}: attention output (first 5) = [{v}]")
        v = ", ".join(log.first(f"l_out-{n}", 5, "r"))
        out.append(f"09:14:02.11{n} [main] DEBUG c.e.llama.Transformer - Layer {n}: layer output (first 5) = [{v}]")
    return text(out)


@form("java util logging on two lines")
def _(log: Log) -> str:
    out = []
    for n in log.layers:
        v = ", ".join(log.first(f"ffn_out-{n}", 4, "r", row=3, said=3))
        out += ["May 11, 2024 9:14:02 AM com.example.llama.Model forward", f"FINE: position=3 layer={n} ffnOut=[{v}]"]
    return text(out)


# Julia


@form("julia @debug block")
def _(log: Log) -> str:
    out = []
    for n in log.layers:
        out += [
            "┌ Debug: layer output", f"│   layer = {n}", f"│   mean = {log.stat(f'l_out-{n}', 'mean', 'r')}",
            f"│   std = {log.stat(f'l_out-{n}', 'std', 'r')}", "└ @ Llama ~/dev/Llama.jl/src/forward.jl:142",
        ]  # fmt: skip
    return text(out)


@form("julia vector shown down the page")
def _(log: Log) -> str:
    out = []
    for n in log.layers:
        w = log.run.values[f"ffn_norm-{n}"].shape[1]
        out += [f"layer {n} ffn_norm:", f"{w}-element Vector{{Float32}}:"]
        out += [f" {v:>12}" for v in log.first(f"ffn_norm-{n}", 4, "r")]
        out += ["  ⋮"]
        out += [f" {v:>12}" for v in log.final(f"ffn_norm-{n}", 3, "r")]
        out += [""]
    return text(out)


# C#


@form("dotnet console logger")
def _(log: Log) -> str:
    out = []
    for n in log.layers:
        v = "; ".join(log.first(f"l_out-{n}", 5, ".6f"))
        out += ["dbug: LlamaSharp.Native.DecoderStack[0]", f"      Layer {n} Output: {v}"]
    out += ["dbug: LlamaSharp.Native.DecoderStack[0]", f"      FinalNorm: {'; '.join(log.first('result_norm', 5))}"]
    out += ["dbug: LlamaSharp.Native.DecoderStack[0]", f"      Logits: {'; '.join(log.first('result_output', 5))}"]
    return text(out)


@form("c# camel case names")
def _(log: Log) -> str:
    names = (("AttnNorm", "attn_norm"), ("Query", "Qcur"), ("Key", "Kcur"), ("Value", "Vcur"),
             ("AttnOutput", "attn_out"), ("FfnNorm", "ffn_norm"), ("FfnOutput", "ffn_out"))  # fmt: skip
    return text(
        f"[Layer{n}.{w}] {' '.join(log.first(f'{node}-{n}', 5, '.5f'))}" for n in log.layers for w, node in names
    )


# Any language


@form("markdown table of statistics")
def _(log: Log) -> str:
    kinds = ("min", "max", "mean", "rms")
    out = ["| layer | min | max | mean | rms |", "|------:|----:|----:|-----:|----:|"]
    out += ["| " + " | ".join([str(n), *(log.stat(f"l_out-{n}", s, ".5f") for s in kinds)]) + " |" for n in log.layers]
    return text(out)


@form("csv with a header")
def _(log: Log) -> str:
    out = ["layer,name,v0,v1,v2,v3"]
    for n in log.layers:
        out += [f"{n},{node}," + ",".join(log.first(f"{node}-{n}", 4)) for node in ("attn_out", "ffn_out", "l_out")]
    return text(out)


@form("indented tree")
def _(log: Log) -> str:
    out = ["embed: " + " ".join(log.first("embd", 4, ".5f"))]
    for n in log.layers:
        out.append(f"block {n}:")
        out.append("  attn:")
        out += [f"    {w}: {' '.join(log.first(f'{node}-{n}', 4, '.5f'))}"
                for w, node in (("norm", "attn_norm"), ("q", "Qcur"), ("k", "Kcur"), ("v", "Vcur"),
                                ("out", "attn_out"))]  # fmt: skip
        out.append("  mlp:")
        out += [f"    {w}: {' '.join(log.first(f'{node}-{n}', 4, '.5f'))}"
                for w, node in (("norm", "ffn_norm"), ("gate", "ffn_gate"), ("up", "ffn_up"), ("swiglu", "ffn_swiglu"),
                                ("down", "ffn_out"))]  # fmt: skip
    out.append("norm: " + " ".join(log.first("result_norm", 4, ".5f")))
    out.append("logits: " + " ".join(log.first("result_output", 4, ".5f")))
    return text(out)


@form("every token through every layer")
def _(log: Log) -> str:
    out = []
    for p, token in enumerate(log.run.tokens):
        out.append(f">>> token {p} (id {token})")
        for n in log.layers:
            v = ", ".join(log.first(f"l_out-{n}", 3, ".4f", row=p, said=p))
            out.append(f"    layer {n:02d} -> [{v}, ...]")
    return text(out)


@form("timings and rms")
def _(log: Log) -> str:
    out = []
    for n in log.layers:
        r = log.stat(f"l_out-{n}", "rms", ".6f")
        out.append(f"[  0.{1234 + 17 * n}s] transformer block {n} done in 1.{n}7 ms, rms {r}")
    out.append("[  0.1399s] 8 tokens in 0.14 s (57.2 tok/s)")
    return text(out)


@form("mlp pieces by the names of llama2.c")
def _(log: Log) -> str:
    out = []
    for n in log.layers:
        for word, node in (
            ("w1(x)", "ffn_gate"),
            ("w3(x)", "ffn_up"),
            ("silu(w1)*w3", "ffn_swiglu"),
            ("w2 out", "ffn_out"),
        ):
            out.append(f"[layer {n}] FFN {word}: {', '.join(log.first(f'{node}-{n}', 5, '.6f'))}")
    return text(out)


@form("argmax and best logits on one line")
def _(log: Log) -> str:
    x = "[" + ", ".join(log.first("result_norm", 5, ".5f", said=-1)) + "]"
    best = ", ".join(f"({a}, {b})" for a, b in log.top("result_output", 5, ".4f", said=-1))
    return text([f"output_norm (last token): {x}", f"Top 5 logits (last token): [{best}]", "sampled in 0.02ms"])


@form("both ends of the hidden state")
def _(log: Log) -> str:
    out = []
    for n in log.layers:
        a, b = ", ".join(log.first(f"l_out-{n}", 3, ".5f")), ", ".join(log.final(f"l_out-{n}", 3, ".5f"))
        out.append(f"hidden state after layer {n}: first 3: [{a}] last 3: [{b}]")
    return text(out)
