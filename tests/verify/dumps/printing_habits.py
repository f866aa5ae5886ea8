"""Logs of one run in habits of printing that are drawn at random: a seed gives a form.

A form is a layout (tables of statistics, lines of statistics, arrays as a language or a tool prints them), with words
of some language for the nodes, a notation of numbers, a logger's prefix, and measurements of the engine (times, sizes,
rates, addresses) beside the values. `form(family, seed)` makes a function from the values of a run to a text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Values = Mapping[str, Array]  # by node: a row for each token
Show = Callable[[float], str]

ROLES = ("attn_norm", "attn_out", "ffn_inp", "ffn_norm", "ffn_out", "l_out")
ENDS = ("embd", "result_norm", "result_output")
WORDS: dict[str, tuple[str, ...]] = {  # the word for a layer, then the roles, then the ends
    "english": ("layer", "attn norm", "attn out", "after attention residual", "ffn norm", "ffn out", "layer out",
                "embedding", "final norm", "logits"),
    "camel": ("Block", "attnNorm", "attnOutput", "residual1", "ffnNorm", "ffnOutput", "blockOutput", "tokenEmbedding",
              "outputNorm", "logits"),
    "modules": ("layers", "input_layernorm", "self_attn.o_proj", "resid_mid",
                "post_attention_layernorm", "mlp.down_proj", "output", "embed_tokens", "norm", "lm_head"),
    "ggml": ("blk", "attn_norm", "attn_out", "ffn_inp", "ffn_norm", "ffn_out", "l_out", "inp_embd", "result_norm",
             "result_output"),
    "german": ("Schicht", "Attention-Norm", "Attention-Ausgabe", "Residuum nach Attention", "FFN-Norm", "FFN-Ausgabe",
               "Schichtausgabe", "Einbettung", "Endnorm", "Logits"),
    "french": ("couche", "norme attention", "sortie attention", "résidu après attention", "norme ffn", "sortie ffn",
               "sortie couche", "plongement", "norme finale", "logits"),
    "spanish": ("capa", "norma atención", "salida atención", "residuo tras atención", "norma ffn", "salida ffn",
                "salida capa", "embedding", "norma final", "logits"),
    "portuguese": ("camada", "norma atenção", "saída atenção", "resíduo após atenção", "norma ffn", "saída ffn",
                   "saída camada", "embedding", "norma final", "logits"),
    "chinese": ("层", "注意力归一化", "注意力输出", "注意力后残差", "前馈归一化", "前馈输出", "层输出",
                "词嵌入", "最终归一化", "logits"),
    "japanese": ("層", "注意正規化", "注意出力", "注意後残差", "FFN正規化", "FFN出力", "層出力",
                 "埋め込み", "最終正規化", "ロジット"),
    "russian": ("слой", "норма внимания", "выход внимания", "остаток после внимания", "норма ffn", "выход ffn",
                "выход слоя", "эмбеддинг", "финальная норма", "логиты"),
    "both": ("Schicht/layer", "Attention-Norm (attn norm)", "Attention-Ausgabe (attn out)",
             "Residuum (residual after attention)", "FFN-Norm (ffn norm)", "FFN-Ausgabe (ffn out)",
             "Ausgabe (layer output)", "Einbettung (embedding)", "Endnorm (final norm)", "Logits (logits)"),
    "private": ("L", "n1", "o", "r1", "n2", "d", "r2", "e", "nf", "lg"),
}  # fmt: skip


def word(language: str, role: str) -> str:
    return WORDS[language][1:][(*ROLES, *ENDS).index(role)]


# -- notations of numbers --------------------------------------------------------------------------------------------


def _grouped(v: float, group: str, point: str, digits: int) -> str:
    whole, _, rest = f"{abs(v):,.{digits}f}".partition(".")
    return ("-" if v < 0 else "") + whole.replace(",", group) + point + rest


def _fortran(v: float) -> str:
    mantissa, _, exponent = f"{v:.6e}".partition("e")
    digits = mantissa.replace("-", "").replace(".", "")
    return f"{'-' if v < 0 else ''}0.{digits}E{int(exponent) + 1:+03d}"


NOTATIONS: dict[str, Show] = {
    "fixed": lambda v: f"{v:.6f}",
    "short": lambda v: f"{v:.4g}",
    "four": lambda v: f"{v:.4f}",
    "signed": lambda v: f"{v:+.5f}",
    "exponent": lambda v: f"{v:.5e}",
    "upper exponent": lambda v: f"{v:.6E}",
    "float32": lambda v: str(np.float32(v)),
    "minus sign": lambda v: f"{v:.5f}".replace("-", "−"),
    "fortran": _fortran,
    "comma": lambda v: f"{v:.5f}".replace(".", ","),
    "german": lambda v: _grouped(v, ".", ",", 4),
    "french": lambda v: _grouped(v, "\u202f", ",", 5),
    "swiss": lambda v: _grouped(v, "'", ".", 5),
    "english groups": lambda v: _grouped(v, ",", ".", 5),
    "no zero": lambda v: f"{v:.5f}".replace("0.", ".", 1) if abs(v) < 1 else f"{v:.5f}",
    "hex": lambda v: float(np.float32(v)).hex(),
}
PLAIN = ("fixed", "short", "four", "signed", "exponent", "float32", "minus sign")
COMMAS = ("comma", "german", "french")

# -- prefixes of loggers ---------------------------------------------------------------------------------------------

Prefix = Callable[[int, Random], str]
PREFIXES: dict[str, Prefix] = {
    "none": lambda i, r: "",
    "iso": lambda i, r: f"2026-11-19T08:41:{i % 60:02d}.{i * 37 % 1000:03d}Z ",
    "level": lambda i, r: f"{r.choice(('DEBUG', 'INFO'))}: ",
    "python": lambda i, r: f"2026-11-19 08:41:{i % 60:02d},{i * 37 % 1000:03d} [DEBUG] engine.model: ",
    "thread": lambda i, r: f"[{i * 0.0137:9.6f}] [tid {r.randint(1000, 9999)}] ",
    "thread hex": lambda i, r: f"[0x{r.randint(1 << 44, 1 << 47):012x}] [INFO ] ",
    "spdlog": lambda i, r: f"[2026-11-19 08:41:{i % 60:02d}.{i * 37 % 1000:03d}] [engine] [debug] ",
    "colour": lambda i, r: "\x1b[90m08:41:07\x1b[0m \x1b[32mINF\x1b[0m ",
    "zerolog": lambda i, r: f"8:41AM DBG src/forward.go:{80 + i} > ",
    "rank": lambda i, r: "[rank0]: ",
    "worker": lambda i, r: f"(EngineCore pid={r.choice((4711, 4712))}) ",
    "docker": lambda i, r: "engine-1  | ",
    "kernel": lambda i, r: f"[{2101 + i * 0.01:12.6f}] engine: ",
    "goroutine": lambda i, r: f"2026/11/19 08:41:{i % 60:02d} forward.go:{40 + i}: ",
    "counter": lambda i, r: f"{i:04d} | ",
    "ms": lambda i, r: f"+{i * 3 + 1}ms ",
    "elapsed": lambda i, r: f"({i * 0.41 + 0.2:.2f}s) ",
    "comment": lambda i, r: "# ",
    "file": lambda i, r: f"src/forward.c:{100 + i}: ",
    "rust": lambda i, r: f"[2026-11-19T08:41:{i % 60:02d}Z DEBUG engine::forward] ",
}


def prefixed(text: str, name: str, rng: Random) -> str:
    make = PREFIXES[name]
    return "\n".join(make(i, rng) + line if line.strip() else line for i, line in enumerate(text.split("\n")))


# -- what a page holds -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Page:
    """What is printed: nodes in the order of the graph, and how."""

    values: Values
    tokens: tuple[int, ...]
    roles: tuple[str, ...]
    language: str
    show: Show
    comma: bool
    rng: Random

    @property
    def layers(self) -> range:
        return range(1 + max(int(name.rpartition("-")[2]) for name in self.values if "-" in name))

    def nodes(self) -> list[tuple[int | None, str, Array]]:
        out: list[tuple[int | None, str, Array]] = [(None, "embd", self.values["embd"])]
        out += [(n, role, self.values[f"{role}-{n}"]) for n in self.layers for role in self.roles]
        return out + [(None, end, self.values[end]) for end in ENDS[1:] if end in self.values]

    def word(self, role: str) -> str:
        return word(self.language, role)

    def ids(self) -> str:
        joined = (" " if self.rng.random() < 0.5 else ", ").join(map(str, self.tokens))
        return self.rng.choice((f"tokens: {joined}", f"prompt ids = [{joined}]", f"input_ids: [{joined}]"))


STATS: dict[str, tuple[tuple[str, ...], Callable[[Array], float]]] = {
    "mean": (("mean", "avg", "μ"), lambda x: float(x.mean())),
    "std": (("std", "stddev", "σ"), lambda x: float(x.std())),
    "min": (("min", "Min"), lambda x: float(x.min())),
    "max": (("max", "Max"), lambda x: float(x.max())),
    "rms": (("rms", "RMS"), lambda x: float(np.sqrt(np.mean(x * x)))),
    "norm": (("l2", "L2", "norm", "‖x‖"), lambda x: float(np.linalg.norm(x))),
    "absmax": (("absmax", "max|x|", "amax"), lambda x: float(np.abs(x).max())),
    "sum": (("sum", "Σ"), lambda x: float(x.sum())),
}
GERMAN_STATS = {"mean": "Mittelwert", "std": "Streuung", "min": "Minimum",
    "max": "Maximum", "norm": "L2-Norm", "rms": "RMS",
                "sum": "Summe", "absmax": "Betragsmax"}  # fmt: skip


@dataclass(frozen=True)
class Measurement:
    """A column that says nothing of values."""

    head: str
    unit: str
    draw: Callable[[Random], str]


MEASUREMENTS = (
    Measurement("time", "µs", lambda r: f"{r.uniform(3, 900):.1f}"),
    Measurement("elapsed", "ms", lambda r: f"{r.uniform(0.01, 9):.3f}"),
    Measurement("dur", "us", lambda r: f"{r.randint(5, 900)}"),
    Measurement("bytes", "", lambda r: f"{r.choice((1536, 2304, 9216))}"),
    Measurement("mem", "KiB", lambda r: f"{r.uniform(1, 90):.2f}"),
    Measurement("size", "KB", lambda r: f"{r.uniform(1, 90):.1f}"),
    Measurement("flops", "GFLOPS", lambda r: f"{r.uniform(1, 90):.2f}"),
    Measurement("bw", "GB/s", lambda r: f"{r.uniform(1, 40):.1f}"),
    Measurement("share", "%", lambda r: f"{r.uniform(0, 20):.1f}"),
    Measurement("calls", "", lambda r: "1"),
    Measurement("dtype", "", lambda r: "f32"),
    Measurement("shape", "", lambda r: "6x64"),
    Measurement("addr", "", lambda r: f"0x{r.randint(1 << 44, 1 << 47):x}"),
    Measurement("device", "", lambda r: r.choice(("cpu0", "cuda:0"))),
    Measurement("nan", "", lambda r: "0"),
    Measurement("ticks", "", lambda r: f"{r.randint(10000, 99999)}"),
    Measurement("threads", "", lambda r: "4"),
)


# -- tables ----------------------------------------------------------------------------------------------------------


def table(page: Page) -> str:
    """Statistics of nodes, with measurements beside them, in columns of any order."""
    rng = page.rng
    german = page.language == "german"
    kinds = rng.sample(sorted(STATS), rng.randint(2, 4))
    heads = {k: GERMAN_STATS[k] if german else rng.choice(STATS[k][0]) for k in kinds}
    others = rng.sample(MEASUREMENTS, rng.randint(0, 3))
    in_head = rng.random() < 0.5
    of_layer = rng.choice(("column", "name", "heading", "index"))
    last = rng.random() < 0.5
    n_first = rng.choice((0, 0, 2, 3))
    middle: list[tuple[str, Callable[[Array], str]]] = []
    for k in kinds:
        middle.append((heads[k], lambda x, k=k: page.show(STATS[k][1](x))))  # type: ignore[misc]
    for m in others:
        told = f"{m.head} ({m.unit})" if m.unit and in_head else m.head
        if rng.random() < 0.3 and m.unit and in_head:
            told = m.unit if m.unit != "%" else "%"
        made = page.comma

        def cell(_x: Array, m: Measurement = m, made: bool = made) -> str:
            text = m.draw(rng) if not made or m.head in ("shape", "addr", "dtype") else m.draw(rng).replace(".", ",")
            return text if in_head or not m.unit else f"{text} {m.unit}"

        middle.append((told, cell))
    rng.shuffle(middle)
    for i in range(n_first):
        middle.append(
            (
                f"{rng.choice('xv')}{i}" if i == 0 else f"{middle[-1][0][0]}{i}",
                lambda x, i=i: page.show(float(x[-1].ravel()[i])),
            )
        )  # type: ignore[misc]
    node_head = rng.choice(("op", "node", "tensor", "stage", "name", "Operator"))
    layer_head = (page.language == "private" and "layer") or WORDS[page.language][0]
    lead = {"column": [layer_head, node_head], "index": ["#", layer_head, node_head]}.get(of_layer, [node_head])
    rows: list[list[str]] = []
    groups: list[tuple[int, str]] = []
    before: int | None = -1
    for n, role, x in page.nodes():
        what = page.word(role)
        if of_layer == "name" and n is not None:
            what = rng_name(page, n, what)
        if n != before:
            title = f"{layer_head} {n}" if n is not None else rng.choice(("---", "global"))
            groups.append((len(rows), title))
            before = n
        number = "-" if n is None else str(n)
        cells = {"column": [number, what], "index": [str(len(rows)), number, what]}.get(of_layer, [what])
        rows.append([*cells, *(make(x[-1:] if last else x) for _, make in middle)])
    title = "statistics of the last token's row" if last else "statistics over all tokens"
    head = [*lead, *(h for h, _ in middle)]
    body = drawn_table(head, rows, groups if of_layer == "heading" else [], page.comma, rng)
    return f"{page.ids()}\n{title}\n{body}\n"


def rng_name(page: Page, n: int, what: str) -> str:
    lay = WORDS[page.language][0]
    if page.language == "modules":
        return f"model.layers.{n}.{what}"
    if page.language == "ggml":
        return f"{what}-{n}"
    if page.language == "private":
        return f"L{n}.{what}"
    return f"{lay} {n} {what}"


def drawn_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], groups: Sequence[tuple[int, str]], comma: bool, rng: Random
) -> str:
    styles = ["pipes", "markdown", "blanks", "tabs", "semicolons", "box", "right", "dashes", "double", "plus"]
    style = rng.choice(styles if comma else [*styles, "csv"])
    widths = [max(len(r[i]) for r in [list(head), *map(list, rows)]) for i in range(len(head))]
    right = style in ("right", "box", "plus")

    def padded(row: Sequence[str]) -> list[str]:
        return [c.rjust(w) if right and i else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]

    joined: dict[str, Callable[[Sequence[str]], str]] = {
        "pipes": lambda r: " | ".join(padded(r)),
        "markdown": lambda r: "| " + " | ".join(padded(r)) + " |",
        "blanks": lambda r: "  ".join(padded(r)).rstrip(),
        "right": lambda r: "  ".join(padded(r)),
        "dashes": lambda r: "  ".join(padded(r)).rstrip(),
        "tabs": "\t".join,
        "semicolons": ";".join,
        "csv": ",".join,
        "box": lambda r: "│ " + " │ ".join(padded(r)) + " │",
        "double": lambda r: "║ " + " ║ ".join(padded(r)) + " ║",
        "plus": lambda r: "| " + " | ".join(padded(r)) + " |",
    }
    rule = {
        "pipes": "-+-".join("-" * w for w in widths), "markdown": "|" + "|".join("-" * (w + 2) for w in widths) + "|",
        "box": "├" + "┼".join("─" * (w + 2) for w in widths) + "┤", "dashes": "  ".join("-" * w for w in widths),
        "double": "╠" + "╬".join("═" * (w + 2) for w in widths) + "╣",
        "plus": "+" + "+".join("-" * (w + 2) for w in widths) + "+",
    }.get(style)  # fmt: skip
    starts = dict(groups)
    out = [rule] if style == "plus" and rule else []
    out += [joined[style](head), *([rule] if rule else [])]
    for i, row in enumerate(rows):
        if i in starts:
            out += ["", starts[i]] if style not in ("box", "double", "plus", "markdown") else [starts[i]]
            if style == "markdown":
                out += [joined[style](head), rule or ""]
        out.append(joined[style](row))
    return "\n".join(out + ([rule] if style == "plus" and rule else []))


# -- lines of statistics ---------------------------------------------------------------------------------------------


def lines(page: Page) -> str:
    """A line for each node: statistics by name, some values, and measurements between them."""
    rng = page.rng
    kinds = rng.sample(sorted(STATS), rng.randint(1, 3))
    names = {k: rng.choice(STATS[k][0][:1]) for k in kinds}
    others = rng.sample(MEASUREMENTS, rng.randint(0, 2))
    join = rng.choice((" ", ", ", " | ", "; ", "  "))
    equals = rng.choice(("=", ": ", " = ", ":"))
    n_first = rng.choice((0, 3, 4, 8))
    last = rng.random() < 0.5
    name = rng.choice(("prefix", "heading", "dotted", "brackets"))
    lead = rng.random() < 0.3
    out = [page.ids(), "last token only" if last else "statistics over all tokens", ""]
    before: int | None = -1
    for n, role, x in page.nodes():
        seen = x[-1:] if last else x
        parts = [f"{names[k]}{equals}{page.show(STATS[k][1](seen))}" for k in kinds]
        told = []
        for m in others:
            text = m.draw(rng).replace(".", ",") if page.comma else m.draw(rng)
            told.append(f"{m.head}{equals}{text}{' ' if rng.random() < 0.5 else ''}{m.unit}")
        parts = [*told, *parts] if lead else [*parts, *told]
        if n_first:
            sep = "; " if page.comma else rng.choice((", ", " "))
            shown = sep.join(page.show(v) for v in x[-1].ravel()[:n_first])
            parts.append(f"{rng.choice(('first', 'head', 'x[:]'))}{equals}[{shown}]")
        lay = WORDS[page.language][0]
        what = page.word(role)
        if name == "heading" and n != before:
            out.append(f"== {lay} {n} ==" if n is not None else "== global ==")
        before = n
        if n is not None and name == "prefix":
            what = f"{lay} {n} {what}"
        elif n is not None and name == "dotted":
            what = rng_name(page, n, what)
        elif n is not None and name == "brackets":
            what = f"[{lay} {n}] {what}"
        pad = what.ljust(34) if rng.random() < 0.5 else what + ":"
        out.append(f"{'  ' if name == 'heading' else ''}{pad} {join.join(parts)}")
    return "\n".join(out) + "\n"


# -- arrays ----------------------------------------------------------------------------------------------------------

Draw = Callable[[Array, Page], str]


def _cut(x: Array, show: Show, n: int, dots: str, join: str) -> list[str]:
    """The row's texts with its middle left out."""
    texts = [show(float(v)) for v in x]
    return texts if len(texts) <= 2 * n else [*texts[:n], dots, *texts[-n:]]


def _nested(open_: str, close: str, join: str, rows: str, dots: str = "...", cut: int = 3) -> Draw:
    def draw(x: Array, page: Page) -> str:
        inner = [open_ + join.join(_cut(r, page.show, cut, dots, join)) + close for r in x]
        return open_ + rows.join(inner) + close

    return draw


def _matlab(title: str) -> Draw:
    """Blocks of columns: MATLAB, Octave."""

    def draw(x: Array, page: Page) -> str:
        per = page.rng.choice((6, 8, 9))
        scale = 1.0
        out: list[str] = []
        if title == "matlab" and page.rng.random() < 0.4:
            scale = 10.0 ** page.rng.choice((1, 3))
            out.append(f"   1.0e+{int(np.log10(scale)):02d} *\n")
        width = x.shape[1]
        for a in range(0, width, per):
            b = min(a + per, width)
            verb = "and" if b - a == 2 else "through" if title == "matlab" or page.rng.random() < 0.8 else "to"
            end = ":" if title == "octave" else ""
            head = f" Column {b}{end}" if b - a == 1 else f" Columns {a + 1} {verb} {b}{end}"
            out += [(" " if title == "matlab" else "") + head, ""]
            out += [
                "".join(f"{f'{v / scale:.4f}' if title == 'matlab' else f'{v:.5f}':>11}" for v in row[a:b]) for row in x
            ]
            out.append("")
        return "x =\n\n" + "\n".join(out)

    return draw


def _matlab_column(x: Array, page: Page) -> str:
    return "x =\n\n" + "\n".join(f"{v:>11.4f}" for v in x[-1]) + "\n"


def _r_matrix(x: Array, page: Page) -> str:
    per = page.rng.choice((5, 7))
    out = []
    for a in range(0, min(x.shape[1], 20), per):
        b = min(a + per, x.shape[1], 20)
        out.append("     " + "".join(f"{f'[,{i + 1}]':>11}" for i in range(a, b)))
        out += [f"[{r + 1},]" + "".join(f"{v:>11.6f}" for v in row[a:b]) for r, row in enumerate(x)]
    return "\n".join(out)


def _r_vector(x: Array, page: Page) -> str:
    v = [f"{t:.6f}" for t in x[-1]]
    return "\n".join(f"{f'[{i + 1}]':>5} " + " ".join(f"{t:>10}" for t in v[i : i + 6]) for i in range(0, len(v), 6))


def _julia_matrix(x: Array, page: Page) -> str:
    rows = [
        " " + "  ".join(f"{v:>10.6f}" for v in r[:4]) + "  …  " + "  ".join(f"{v:>10.6f}" for v in r[-2:]) for r in x
    ]
    return f"{x.shape[0]}×{x.shape[1]} Matrix{{Float32}}:\n" + "\n".join(rows)


def _julia_compact(x: Array, page: Page) -> str:
    return "Float32[" + ", ".join(_cut(x[-1], page.show, 5, "…", ", ")) + "]"


def _numpy_whole(x: Array, page: Page) -> str:
    return np.array2string(x.astype(np.float32), threshold=10**6, max_line_width=page.rng.choice((75, 100, 120)))


def _numpy_cut(x: Array, page: Page) -> str:
    return np.array2string(x.astype(np.float32), threshold=10, edgeitems=page.rng.choice((2, 3)))


def _lua_torch(x: Array, page: Page) -> str:
    out = []
    for a in range(0, x.shape[1], 8):
        b = min(a + 8, x.shape[1])
        out += [f"Columns {a + 1} to {b}", *(" ".join(f"{v:8.4f}" for v in row[a:b]) for row in x), ""]
    return "\n".join(out) + f"[torch.FloatTensor of size {x.shape[0]}x{x.shape[1]}]"


def _libtorch(x: Array, page: Page) -> str:
    out = []
    for a in range(0, x.shape[1], 8):
        b = min(a + 8, x.shape[1])
        out += [f"Columns {a + 1} to {b}", *(" ".join(f"{v:8.4f}" for v in row[a:b]) for row in x), ""]
    return "\n".join(out).rstrip() + f"\n[ CPUFloatType{{{x.shape[0]},{x.shape[1]}}} ]"


def _ndarray_rust(x: Array, page: Page) -> str:
    rows = ["[" + ", ".join(_cut(r, page.show, 5, "...", ", ")) + "]" for r in x]
    return (
        "["
        + ",\n ".join(rows)
        + f"], shape=[{x.shape[0]}, {x.shape[1]}], strides=[{x.shape[1]}, 1], layout=Cc (0x5), const ndim=2"
    )


def _rust_pretty(x: Array, page: Page) -> str:
    return "[\n" + "".join(f"    {page.show(v)},\n" for v in x[-1][:8]) + "]"


def _candle(x: Array, page: Page) -> str:
    rows = ["[" + ", ".join(_cut(r, page.show, 3, "...", ", ")) + "]" for r in x]
    return "[" + ",\n ".join(rows) + f"]\nTensor[[{x.shape[0]}, {x.shape[1]}], f32]"


def _zig(x: Array, page: Page) -> str:
    return "{ " + ", ".join(f"{v:e}" for v in map(np.float32, x[-1][:8])) + " }"


def _grid(x: Array, page: Page) -> str:
    return "\n".join(f"  [{r}] " + " ".join(f"{page.show(v):>12}" for v in row[:6]) for r, row in enumerate(x))


def _grid_bare(x: Array, page: Page) -> str:
    return "\n".join(" ".join(f"{page.show(v):>12}" for v in row[:6]) for row in x)


def _js_inspect(x: Array, page: Page) -> str:
    show = [str(np.float32(v)) for v in x[-1]]
    n = page.rng.choice((6, 12, len(show)))
    body = [", ".join(show[i : i + 3]) for i in range(0, min(n, len(show)), 3)]
    more = [f"... {len(show) - n} more items"] if n < len(show) else []
    return f"Float32Array({len(show)}) [\n  " + ",\n  ".join([*body, *more]) + "\n]"


def _js_nested(x: Array, page: Page) -> str:
    rows = []
    for r in x:
        show = [str(np.float32(v)) for v in r[:4]]
        rows.append(
            "  [\n    "
            + ",\n    ".join([", ".join(show[:2]), ", ".join(show[2:]), f"... {len(r) - 4} more items"])
            + "\n  ]"
        )
    return "[\n" + ",\n".join(rows) + "\n]"


def _pandas(x: Array, page: Page) -> str:
    n = x.shape[1]
    cols = [0, 1, 2, n - 2, n - 1]
    texts = [["", *(str(c) for c in cols[:3]), "...", *(str(c) for c in cols[3:])]]
    for i, r in enumerate(x):
        texts.append([str(i), *(f"{r[c]:.6f}" for c in cols[:3]), "...", *(f"{r[c]:.6f}" for c in cols[3:])])
    widths = [max(len(t[i]) for t in texts) for i in range(len(texts[0]))]
    return (
        "\n".join("  ".join(c.rjust(w) for c, w in zip(t, widths, strict=True)) for t in texts)
        + f"\n\n[{x.shape[0]} rows x {n} columns]"
    )


def _go_hash(x: Array, page: Page) -> str:
    return "[]float32{" + ", ".join(str(np.float32(v)) for v in x[-1][:8]) + "}"


def _cpp_stream(x: Array, page: Page) -> str:
    return "[" + ", ".join(page.show(v) for v in x[-1][:8]) + f", ... ({x.shape[1] - 8} more)]"


def _eigen(x: Array, page: Page) -> str:
    return "\n".join(" ".join(f"{v:>10.6g}" for v in row[:8]) for row in x)


def _nalgebra(x: Array, page: Page) -> str:
    rows = ["  │ " + " ".join(f"{v:>10.5f}" for v in row[:6]) + " │" for row in x]
    wide = len(rows[0]) - 4
    return "\n".join(["", "  ┌" + " " * wide + "┐", *rows, "  └" + " " * wide + "┘", ""])


def _mathematica(x: Array, page: Page) -> str:
    return "{" + ", ".join("{" + ", ".join(f"{v:.6g}" for v in row[:5]) + f", <<{len(row) - 5}>>}}" for row in x) + "}"


def _ocaml(x: Array, page: Page) -> str:
    return "[|" + "; ".join(page.show(v) for v in x[-1][:8]) + "|]"


def _php(x: Array, page: Page) -> str:
    return "Array\n(\n" + "".join(f"    [{i}] => {page.show(v)}\n" for i, v in enumerate(x[-1][:6])) + ")\n"


def _tensorflow(x: Array, page: Page) -> str:
    return "tf.Tensor(\n" + _numpy_cut(x, page) + f", shape=({x.shape[0]}, {x.shape[1]}), dtype=float32)"


def _jax(x: Array, page: Page) -> str:
    rows = ["[" + ", ".join(_cut(r, page.show, 3, "...", ", ")) + "]" for r in x]
    return "Array([" + ",\n       ".join(rows) + "], dtype=float32)"


def _gdb(x: Array, page: Page) -> str:
    return "{" + ", ".join(f"{v:.9g}" for v in x[-1][:8]) + "...}"


def _lldb(x: Array, page: Page) -> str:
    return "([0] = " + ", ".join(f"[{i}] = {v:.9g}" if i else f"{v:.9g}" for i, v in enumerate(x[-1][:6])) + ")"


def _colon_pairs(x: Array, page: Page) -> str:
    return "  ".join(f"{i}:{page.show(v)}" for i, v in enumerate(x[-1][:6]))


def _with_units(x: Array, page: Page) -> str:
    measured = f"({page.rng.uniform(5, 90):.1f} µs, {page.rng.randint(1, 9)}.0 KiB)"
    return f"[{', '.join(page.show(v) for v in x[-1][:6])}] {measured}"


def _ggml_text(x: Array, page: Page) -> str:
    rows = ["          [" + ", ".join(_cut(r, lambda v: f"{v:12.4f}", 3, "...", ", ")) + "]," for r in x]
    return "[\n    [\n" + "\n".join(rows) + "\n    ]\n]"


def _transposed(x: Array, page: Page) -> str:
    rows = [f"  {d:>3} " + " ".join(f"{page.show(v):>12}" for v in x[:, d]) for d in range(6)]
    return "  dim " + " ".join(f"{f't{t}':>12}" for t in range(len(x))) + "\n" + "\n".join(rows)


def _token_lines(x: Array, page: Page) -> str:
    return "\n".join(f"  tok {t}: " + " ".join(page.show(v) for v in row[:5]) + " ..." for t, row in enumerate(x))


def _elements(x: Array, page: Page) -> str:
    return "\n".join(f"  x[{i}] = {page.show(v)}" for i, v in enumerate(x[-1][:6]))


ARRAYS: dict[str, Draw] = {
    "matlab": _matlab("matlab"), "octave": _matlab("octave"), "matlab column": _matlab_column, "R matrix": _r_matrix,
    "R vector": _r_vector, "julia matrix": _julia_matrix, "julia compact": _julia_compact, "numpy": _numpy_whole,
    "numpy cut": _numpy_cut, "lua torch": _lua_torch, "libtorch": _libtorch, "rust ndarray": _ndarray_rust,
    "rust pretty": _rust_pretty, "candle": _candle, "zig": _zig, "grid": _grid, "bare grid": _grid_bare,
    "js inspect": _js_inspect, "js nested": _js_nested, "pandas": _pandas, "go %v": _nested("[", "]", " ", " ", cut=99),
    "go %#v": _go_hash, "c++ more": _cpp_stream, "eigen": _eigen, "nalgebra": _nalgebra, "mathematica": _mathematica,
    "ocaml": _ocaml, "php": _php, "tensorflow": _tensorflow, "jax": _jax, "gdb": _gdb, "lldb": _lldb,
    "pairs": _colon_pairs, "units": _with_units, "ggml": _ggml_text, "transposed": _transposed,
    "token lines": _token_lines, "elements": _elements, "java": _nested("[", "]", ", ", ", ", cut=99),
    "scala": _nested("Array(", ")", ", ", ", "), "haskell": _nested("[", "]",
        ",", ","), "lisp": _nested("(", ")", " ", " "),
    "lua": _nested("{", "}", ", ", ", "), "swift": _nested("[", "]", ", ",
        ",\n "), "csv rows": _nested("", "", ",", "\n", cut=99),
}  # fmt: skip
WHOLE = {"php", "rust pretty", "elements", "transposed"}  # these say themselves which row is printed


def arrays(page: Page, kind: str) -> str:
    """Arrays as a language or a tool prints them, below or behind a name."""
    rng, draw = page.rng, ARRAYS[kind]
    place = rng.choice(("same", "below", "heading", "shape"))
    last = rng.random() < 0.3 and kind not in WHOLE
    out = [page.ids(), ""]
    before: int | None = -1
    lay = WORDS[page.language][0]
    for n, role, x in page.nodes():
        shown = x[-1:] if last else x
        what = page.word(role)
        if place == "heading" and n != before:
            out.append(f"### {lay} {n}" if n is not None else "### global")
        before = n
        if n is not None and place != "heading":
            what = rng_name(page, n, what)
        text = draw(shown, page)
        if last:
            what += " (last token)" if page.language == "english" else ""
        if place == "shape":
            what += f" [{x.shape[0]}, {x.shape[1]}]"
        behind = place == "same" or (place == "heading" and "\n" not in text)
        out.append(f"{what} = {text}" if behind else f"{what}:\n{text}")
        if "\n" in text:
            out.append("")
    return "\n".join(out) + "\n"


# -- forms -----------------------------------------------------------------------------------------------------------

# -- statistics in signs before the first values -----------------------------------------------------------------------

SIGNS: tuple[tuple[str, str], ...] = (
    ("|.|", "norm"), ("||.||", "norm"), ("‖·‖", "norm"), ("∥x∥", "norm"), ("|·|₂", "norm"), ("‖x‖_2", "norm"),
    ("ℓ2", "norm"), ("√Σx²", "norm"), ("max|.|", "absmax"), ("|x|max", "absmax"), ("‖x‖∞", "absmax"),
    ("√⟨x²⟩", "rms"), ("Σ", "sum"), ("σ", "std"), ("µ", "mean"), ("@@", "norm"), ("¤", "rms"), ("", "norm"),
)  # fmt: skip


def signed(page: Page) -> str:
    """A line for each node and token: a statistic under a sign, or under none, then the first values and the last."""
    rng = page.rng
    sign, kind = rng.choice(SIGNS)
    equals = rng.choice(("=", "= ", ": ", " ")) if sign.isascii() is False or "|" in sign else "= "
    dots = rng.choice((" ..", " ...", " …"))
    count = rng.choice(("n={}  ", "[{}]  ", ""))
    out = [f"prompt ({len(page.tokens)}): {' '.join(map(str, page.tokens))}"]
    for t in range(len(page.tokens)):
        out += ["", f"== pos {t} =="]
        for n, role, x in page.nodes():
            row = x[t].ravel()
            label = f"L{n} {page.word(role)}" if n is not None else page.word(role)
            shown = " ".join(f"{v:9.5f}" for v in row[:4])
            said = f"{sign}{equals if sign else ''}{STATS[kind][1](row):.5f}"
            out.append(f"{label:<26} {count.format(row.size)}{said}  {shown}{dots} {row[-1]:9.5f}")
    return "\n".join(out) + "\n"


FAMILIES = ("table", "line", "signs", *ARRAYS)


def form(family: str, seed: int) -> tuple[str, Callable[[Values, Sequence[int]], str]]:
    """What was drawn, in words, and the function that prints."""
    rng = Random(f"{family} {seed}")
    language = rng.choice(sorted(WORDS)) if family != "signs" else rng.choice(("english", "ggml"))
    statistics = family in ("table", "line")
    notation = rng.choice(sorted(NOTATIONS)) if statistics else rng.choice(PLAIN)
    if language in ("german", "french") and statistics and rng.random() < 0.7:
        notation = rng.choice(COMMAS)
    if notation == "english groups":
        notation = "fixed"
    prefix = rng.choice(sorted(PREFIXES)) if rng.random() < 0.5 else "none"
    roles = tuple(r for r in ROLES if rng.random() < 0.6) or ("l_out",)
    roles = roles if "l_out" in roles or "ffn_out" in roles else (*roles, "l_out")

    def write(values: Values, tokens: Sequence[int]) -> str:
        page = Page(
            values,
            tuple(tokens),
            roles,
            language,
            NOTATIONS[notation],
            notation in COMMAS,
            Random(f"{family} {seed} x"),
        )
        whole = {"table": table, "line": lines, "signs": signed}
        made: Any = whole[family](page) if family in whole else arrays(page, family)
        return prefixed(made, prefix, Random(seed))

    return f"{language}, {notation}, {prefix}, {'+'.join(roles)}", write
