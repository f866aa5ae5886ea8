"""The ways in which people print layers: each row makes a log of a run and says what it must be understood as.

A format is a function from a run (tokens, and the rows of every node) to text. `means` are the observations that a
reader must find, and no others: (node, kind, row, data), the row None where the text does not tell it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Meant = tuple[str, str, int | None, tuple[float, ...]]


@dataclass(frozen=True)
class Run:
    """Values by node, rows of tokens first."""

    tokens: tuple[int, ...]
    values: dict[str, Array]
    n_layer: int

    @property
    def last(self) -> int:
        return len(self.tokens) - 1


def rms(x: Array) -> float:
    return float(np.sqrt(np.mean(x * x)))


@dataclass(frozen=True)
class Format:
    name: str
    write: Callable[[Run], str]
    means: Callable[[Run], list[Meant]]


FORMATS: list[Format] = []


def layers(
    name: str, line: Callable[[int, Array], str], *, k: int = 5, row: int = -1, said: int | None = None,
    stats: Sequence[str] = (), first: bool = True, fmt: Callable[[float], float] = float, head: str = "",
    node: str = "l_out-{n}", kind: str = "first",
) -> None:  # fmt: skip
    """A format of one line (or block) a layer, of one token's row."""

    def write(run: Run) -> str:
        rows = [line(n, run.values[node.format(n=n)][row]) for n in range(run.n_layer)]
        return head + "\n".join(rows) + "\n"

    def means(run: Run) -> list[Meant]:
        found: list[Meant] = []
        for n in range(run.n_layer):
            x = run.values[node.format(n=n)][row]
            if first:
                part = x[:k] if kind == "first" else x[-k:]
                found.append((node.format(n=n), kind, said, tuple(map(float, part))))
            table = {"rms": rms(x), "mean": float(x.mean()), "min": float(x.min()), "max": float(x.max()),
                     "std": float(x.std()), "norm": float(np.linalg.norm(x)), "sum": float(x.sum()),
                     "absmax": float(np.abs(x).max())}  # fmt: skip
            found += [(node.format(n=n), s, said, (table[s],)) for s in stats]
        return found

    FORMATS.append(Format(name, write, means))


def csv(x: Array, k: int = 5, f: str = ".6f") -> str:
    return ", ".join(f"{v:{f}}" for v in x[:k])


def cols(x: Array, k: int = 5, f: str = ".6f") -> str:
    return " ".join(f"{v:{f}}" for v in x[:k])


layers("layer 0: [..]", lambda n, x: f"layer {n}: [{csv(x)}]")
layers("l_out-0: [..]", lambda n, x: f"l_out-{n}: [{csv(x)}]")
layers("first_10=", lambda n, x: f"layer {n} output: first_10=[{csv(x, 10)}]", k=10)
layers("first 5 values:", lambda n, x: f"Layer {n} output first 5 values: [{csv(x)}]")
layers("[engine] after block", lambda n, x: f"[engine] after block {n}: [{csv(x)}]")
layers("number first", lambda n, x: f"[{n}] layer output: {cols(x)} rms={rms(x):.6f}", stats=("rms",))
layers("number and colon first", lambda n, x: f"{n}: block output {cols(x)}")
layers("hash first", lambda n, x: f"#{n} layer: [{csv(x)}]")
layers("number after the words", lambda n, x: f"layer output [{n}]: {csv(x)}")
layers("rust debug", lambda n, x: f"layer {n} out: {[float(np.float32(v)) for v in x[:5]]!r}")
layers("rust with a place", lambda n, x: f"[src/model.rs:{40 + n}:9] layer {n} hidden = [{csv(x, 5, '.7f')}]")
layers("zig any", lambda n, x: f"debug: layer {n} = {{ {', '.join(f'{v:.6e}' for v in x[:5])} }}")
layers("c columns", lambda n, x: f"layer {n}: {cols(x)}")
layers("c columns, tabs", lambda n, x: f"L{n}\t" + "\t".join(f"{v:.6f}" for v in x[:5]))
layers("numpy repr", lambda n, x: f"layer {n} " + np.array2string(x.astype(np.float32)[:5], precision=6))
layers("numpy array()", lambda n, x: f"l_out-{n} = array([{csv(x)}], dtype=float32)")
layers("torch 1-d", lambda n, x: f"Layer {n}: tensor([{csv(x, 5, '.4f')}])")
layers("torch with device", lambda n, x: f"layer {n}: tensor([{csv(x, 5, '.4f')}], device='cuda:0', grad_fn=<X>)")
layers("stats", lambda n, x: f"layer {n}: min={x.min():.5f} max={x.max():.5f} mean={x.mean():.6f} std={x.std():.5f}",
       first=False, stats=("min", "max", "mean", "std"))  # fmt: skip
layers("stats with slashes", lambda n, x: f"layer {n} min/max/mean/std: {x.min():.5f} / {x.max():.5f} / "
       f"{x.mean():.6f} / {x.std():.5f}", first=False, stats=("min", "max", "mean", "std"))  # fmt: skip
layers("rms and values", lambda n, x: f"layer {n} rms={rms(x):.6f} [{csv(x)}]", stats=("rms",))
layers("rms colon", lambda n, x: f"Layer {n}: rms: {rms(x):.6f}, first 5: [{csv(x)}]", stats=("rms",))
layers("json line", lambda n, x: json.dumps({"layer": n, "rms": round(rms(x), 6),
       "values": [round(float(v), 6) for v in x[:5]]}), stats=("rms",))  # fmt: skip
layers("json in a log line", lambda n, x: "2026-01-02 03:04:05,678 DEBUG engine.layers " + json.dumps(
       {"name": f"l_out-{n}", "first": [round(float(v), 6) for v in x[:5]]}))  # fmt: skip
layers("timestamp", lambda n, x: f"2026-11-01T12:30:0{n % 10}.123Z INFO  layer {n} output: [{csv(x)}]")
layers("glog", lambda n, x: f"I1101 12:30:00.123456 4242 model.cc:{100 + n}] layer {n}: [{csv(x)}]")
layers("colours", lambda n, x: f"\x1b[32mlayer {n}\x1b[0m: \x1b[1m[{csv(x)}]\x1b[0m")
layers("markdown table", lambda n, x: f"| {n} | {rms(x):.6f} | {x.mean():.6f} |",
       head="| layer | rms | mean |\n|---|---|---|\n", first=False, stats=("rms", "mean"))  # fmt: skip
layers("csv table", lambda n, x: f"{n},{x[0]:.6f},{x[1]:.6f},{x[2]:.6f}", head="layer,v0,v1,v2\n", k=3)
layers("aligned table", lambda n, x: f"{n:>5}  {x[0]:>10.6f}  {x[1]:>10.6f}  {x[2]:>10.6f}  {rms(x):>9.6f}",
       head="layer         v0          v1          v2        rms\n", k=3, stats=("rms",))  # fmt: skip
layers("ellipsis", lambda n, x: f"layer {n}: [{csv(x, 3)}, ...]", k=3)
layers("last row said", lambda n, x: f"layer {n} last token: [{csv(x)}]", said=-1)
layers("position said", lambda n, x: f"layer {n} pos 2: [{csv(x)}]", row=2, said=2)
layers("row said", lambda n, x: f"l_out-{n}[row 1] = {cols(x)}", row=1, said=1)
layers("after layer", lambda n, x: f"x after layer {n}: {csv(x)}")
layers("heading", lambda n, x: f"### Layer {n} output\n[{csv(x)}, ...]")
layers("heading with colon", lambda n, x: f"Layer {n}:\n  rms = {rms(x):.6f}\n  first = [{csv(x)}]", stats=("rms",))
layers("blocks with a hash", lambda n, x: f"block #{n} output [{csv(x)}]")
layers("hidden_states[n+1]", lambda n, x: f"hidden after layers[{n}]: [{csv(x)}]")
layers("equals signs", lambda n, x: f"=== layer {n} ===\n{cols(x)}")
layers("l2 norm", lambda n, x: f"layer {n} l2={np.linalg.norm(x):.5f} absmax={np.abs(x).max():.5f}", first=False,
       stats=("norm", "absmax"))  # fmt: skip
layers("last values", lambda n, x: f"layer {n} last 4 values: [{', '.join(f'{v:.6f}' for v in x[-4:])}]", k=4,
       kind="last")  # fmt: skip
layers("attention norm", lambda n, x: f"layer {n} attn_norm: [{csv(x)}]", node="attn_norm-{n}")
layers("ffn norm words", lambda n, x: f"Layer {n} FFN norm output: {cols(x)}", node="ffn_norm-{n}")
layers("mlp out", lambda n, x: f"[layer {n}] mlp output = [{csv(x)}]", node="ffn_out-{n}")
layers("attn residual", lambda n, x: f"layer {n} after attention residual: [{csv(x)}]", node="ffn_inp-{n}")
layers("swiglu", lambda n, x: f"layer {n} silu(gate)*up: [{csv(x)}]", node="ffn_swiglu-{n}")
layers("under a layer", lambda n, x: f"Layer {n}\n  attn_norm: [{csv(x)}]", node="attn_norm-{n}")
layers("q rope", lambda n, x: f"layer {n} q after rope: [{csv(x)}]", node="Qcur-{n}")
layers("scientific", lambda n, x: f"layer {n}: [{', '.join(f'{v:.5e}' for v in x[:5])}]")
layers("go slices", lambda n, x: f"layer {n}: [{cols(x)}]")
layers("js console", lambda n, x: f"layer {n} Float32Array(5) [ {csv(x)} ]")
layers("swift", lambda n, x: f"Layer {n} output: Optional([{csv(x)}])")
layers("f32 suffixes", lambda n, x: f"layer {n}: [{', '.join(f'{v:.6f}f32' for v in x[:5])}]")
layers("semicolons", lambda n, x: f"layer {n}: {'; '.join(f'{v:.6f}' for v in x[:5])}")
layers("candle", lambda n, x: f"layer {n}: Tensor[[1, 5, {len(x)}], f32] first: [{csv(x)}]")
layers("printf lines", lambda n, x: "\n".join(f"layer {n} [{i}] = {v:.6f}" for i, v in enumerate(x[:4])), first=False)


def _add(name: str, write: Callable[[Run], str], means: Callable[[Run], list[Meant]]) -> None:
    FORMATS.append(Format(name, write, means))


def _at_lines(run: Run) -> list[Meant]:
    return [(f"l_out-{n}", "at", None, tuple(map(float, run.values[f"l_out-{n}"][-1][:4]))) for n in range(run.n_layer)]


FORMATS[-1] = Format(FORMATS[-1].name, FORMATS[-1].write, _at_lines)


def _numpy_2d(run: Run) -> str:
    with np.printoptions(threshold=8, edgeitems=3, precision=6, suppress=True):
        return "\n".join(
            f"layer {n} output:\n{run.values[f'l_out-{n}'].astype(np.float32)}" for n in range(run.n_layer)
        )


def _means_2d(run: Run, every: bool = False) -> list[Meant]:
    found: list[Meant] = []
    n_rows = len(run.tokens)
    shown = range(n_rows) if n_rows <= 6 or every else [0, 1, 2, -3, -2, -1]
    for n in range(run.n_layer):
        for r in shown:
            x = run.values[f"l_out-{n}"][r]
            found.append((f"l_out-{n}", "first", r, tuple(map(float, x[:3]))))
            found.append((f"l_out-{n}", "last", r, tuple(map(float, x[-3:]))))
    return found


def _torch_2d(run: Run) -> str:
    def row(x: Array) -> str:
        return f"[{csv(x, 3, '7.4f')},  ..., {', '.join(f'{v:7.4f}' for v in x[-3:])}]"

    return "\n".join(
        f"l_out-{n}: tensor([" + ",\n        ".join(map(row, run.values[f"l_out-{n}"])) + "])"
        for n in range(run.n_layer)
    )


_add("numpy 2-d with dots", _numpy_2d, _means_2d)
_add("torch 2-d with dots", _torch_2d, lambda run: _means_2d(run, every=True))
_add(
    "top logits",
    lambda run: "Top 3: [" + ", ".join(f'({i}, "{run.values["result_output"][-1][i]:.4f}")' for i in (3, 1, 2)) + "]\n",
    lambda run: [("result_output", "top", None, tuple(float(run.values["result_output"][-1][i]) for i in (3, 1, 2)))],
)
_add(
    "embedding and logits",
    lambda run: (
        f"token embedding: [{csv(run.values['embd'][-1])}]\nlogits[:5] = [{csv(run.values['result_output'][-1])}]\n"
    ),
    lambda run: [
        ("embd", "first", None, tuple(map(float, run.values["embd"][-1][:5]))),
        ("result_output", "first", None, tuple(map(float, run.values["result_output"][-1][:5]))),
    ],
)
_add(
    "final norm",
    lambda run: f"after final norm: {cols(run.values['result_norm'][-1])}\n",
    lambda run: [("result_norm", "first", None, tuple(map(float, run.values["result_norm"][-1][:5])))],
)
_add(
    "hf paths",
    lambda run: "\n".join(f"model.layers.{n}.mlp: [{csv(run.values[f'ffn_out-{n}'][-1])}]" for n in range(run.n_layer)),
    lambda run: [
        (f"model.layers.{n}.mlp", "first", None, tuple(map(float, run.values[f"ffn_out-{n}"][-1][:5])))
        for n in range(run.n_layer)
    ],
)
