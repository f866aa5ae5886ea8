"""Log formats kept apart from those the reader was built with: written without sight of the reader.

Each is a way in which the author of an engine prints activations while debugging and pastes them into an issue. A
format here is one function that writes its text and, beside each piece, what that piece means.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from tests.verify.dumps.formats import Array, Format, Meant, Run, rms

FORMATS: list[Format] = []

STATISTICS: dict[str, Callable[[Array], float]] = {
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


class Log:
    """The text so far and what it means; `first`, `tail` and `stats` note a meaning and hand back the numbers."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.lines: list[str] = []
        self.meant: list[Meant] = []

    def say(self, *lines: str) -> None:
        self.lines += lines

    def _note(self, node: str, kind: str, said: int | None, values: Iterable[float]) -> list[float]:
        kept = [float(v) for v in values]
        self.meant.append((node, kind, said, tuple(kept)))
        return kept

    def first(self, node: str, k: int, said: int | None, row: int = -1) -> list[float]:
        return self._note(node, "first", said, self.run.values[node][row][:k])

    def tail(self, node: str, k: int, said: int | None, row: int = -1) -> list[float]:
        return self._note(node, "last", said, self.run.values[node][row][-k:])

    def stats(self, node: str, kinds: Sequence[str], said: int | None, row: int = -1) -> list[float]:
        x = self.run.values[node][row]
        return [self._note(node, kind, said, (STATISTICS[kind](x),))[0] for kind in kinds]


def kept(name: str) -> Callable[[Callable[[Log], None]], Callable[[Log], None]]:
    def add(body: Callable[[Log], None]) -> Callable[[Log], None]:
        def done(run: Run) -> Log:
            log = Log(run)
            body(log)
            return log

        FORMATS.append(Format(name, lambda run: "\n".join(done(run).lines) + "\n", lambda run: done(run).meant))
        return body

    return add


def join(values: Iterable[float], f: str = ".6f", by: str = ", ") -> str:
    return by.join(f"{v:{f}}" for v in values)


@kept("rust tracing, fields")
def _(log: Log) -> None:
    pos = log.run.last
    log.say("2024-11-03T14:22:06.871220Z  INFO rllama::loader: loaded 291 tensors in 1.84s")
    for n in range(log.run.n_layer):
        x = log.first(f"l_out-{n}", 6, pos, pos)
        at = f"2024-11-03T14:22:07.1{13942 + 771 * n}Z"
        log.say(f"{at} DEBUG rllama::model: block output layer={n} pos={pos} x=[{join(x)}, ..]")
    x = log.first("result_norm", 6, pos, pos)
    log.say(f"2024-11-03T14:22:07.120113Z DEBUG rllama::model: final norm output pos={pos} x=[{join(x)}, ..]")


@kept("candle tensors under captions")
def _(log: Log) -> None:
    log.say("    Finished `release` profile [optimized] target(s) in 0.31s", "     Running `target/release/tiny-llm`")
    stages = [("embd", "token embeddings")]
    stages += [(f"l_out-{n}", f"output of layer {n}") for n in range(log.run.n_layer)]
    stages += [("result_output", "logits")]
    for node, words in stages:
        log.say(f"{words}, last token, first 8 values:")
        log.say(f"[{join(log.first(node, 8, -1), '7.4f')}]", "Tensor[[8], f32]")


@kept("rust dbg, one number a line")
def _(log: Log) -> None:
    for n in range(log.run.n_layer):
        log.say(f"=== layer {n} ===")
        for line, name, node in ((88, "attn_out", "attn_out"), (103, "ffn_out", "ffn_out")):
            x = log.first(f"{node}-{n}", 4, None)
            log.say(f"[src/forward.rs:{line}:13] &{name}[..4] = [", *(f"    {v:.8f}," for v in x), "]")


@kept("zig std.log, scientific")
def _(log: Log) -> None:
    log.say(
        "info(main): prompt is 8 tokens", f"debug(forward): embedding: {{ {join(log.first('embd', 5, None), 'e')} }}"
    )
    for n in range(log.run.n_layer):
        a, b = log.first(f"ffn_norm-{n}", 5, None), log.first(f"l_out-{n}", 5, None)
        log.say(f"debug(forward): layer {n} ffn norm output: {{ {join(a, 'e')} }}")
        log.say(f"debug(forward): layer {n} output: {{ {join(b, 'e')} }}")


@kept("zig print, residual streams")
def _(log: Log) -> None:
    for n in range(log.run.n_layer):
        log.say(f"[layer {n}] x after attention residual: {join(log.first(f'ffn_inp-{n}', 4, None), '.5f', ' ')} ...")
        log.say(f"[layer {n}] x after ffn residual:       {join(log.first(f'l_out-{n}', 4, None), '.5f', ' ')} ...")


@kept("c, llama2.c fork, with sums")
def _(log: Log) -> None:
    p = log.run.last
    for n in range(log.run.n_layer):
        x, (total,) = log.first(f"attn_norm-{n}", 4, p, p), log.stats(f"attn_norm-{n}", ("sum",), p, p)
        log.say(f"[pos={p} layer={n}] attn rmsnorm: {join(x, '.6f', ' ')} | sum={total:.6f}")
        x, (total,) = log.first(f"ffn_out-{n}", 4, p, p), log.stats(f"ffn_out-{n}", ("sum",), p, p)
        log.say(f"[pos={p} layer={n}] ffn output:   {join(x, '.6f', ' ')} | sum={total:.6f}")
    log.say("achieved tok/s: 41.379310")


@kept("c, an element a line")
def _(log: Log) -> None:
    log.say("After the final RMSNorm (last token):")
    log.say(*(f"  x[{i}] = {v: .6f}" for i, v in enumerate(log.first("result_norm", 5, -1))), "")
    log.say("Logits (last token):")
    log.say(*(f"  logits[{i}] = {v: .6f}" for i, v in enumerate(log.first("result_output", 5, -1))))


@kept("cuda, bars and L2")
def _(log: Log) -> None:
    log.say("Device 0: NVIDIA GeForce RTX 3090, compute capability 8.6, 24 GB")
    for n in range(log.run.n_layer):
        for node, words in (("Qcur", "Q after RoPE"), ("Kcur", "K after RoPE"), ("Vcur", "V")):
            x, (l2,) = log.first(f"{node}-{n}", 4, None), log.stats(f"{node}-{n}", ("norm",), None)
            log.say(f"[GPU0] layer {n:2d} | {words:<12} | {join(x, '9.5f', ' ')} ... | L2 norm = {l2:.5f}")


@kept("swift NSLog on metal")
def _(log: Log) -> None:
    for n in range(log.run.n_layer):
        head = f"2024-06-01 10:22:31.{123 + 4 * n} LlamaMetal[4711:99120]"
        log.say(f"{head} Layer {n} attention output (last token): [{join(log.first(f'attn_out-{n}', 5, -1))}]")
        log.say(f"{head} Layer {n} MLP output (last token): [{join(log.first(f'ffn_out-{n}', 5, -1))}]")
        log.say(f"{head} Layer {n} GPU time: {0.81 + 0.01 * n:.2f} ms")


@kept("mlx arrays, ends of a row")
def _(log: Log) -> None:
    stages = [("embd", "Embeddings")]
    stages += [(f"l_out-{n}", f"Transformer block {n} output") for n in range(log.run.n_layer)]
    stages += [("result_norm", "After final norm")]
    for node, words in stages:
        a, b = log.first(node, 3, -1), log.tail(node, 3, -1)
        log.say(f"{words}, last token: array([{join(a, '.6g')}, ..., {join(b, '.6g')}], dtype=float32)")


@kept("vulkan readback among dispatches")
def _(log: Log) -> None:
    for n in range(log.run.n_layer):
        for i, (node, shader, words) in enumerate(
            (("ffn_gate", "mul_mat_q4", "gate proj"), ("ffn_up", "mul_mat_q4", "up proj"),
             ("ffn_swiglu", "silu_mul", "silu(gate) * up"))
        ):  # fmt: skip
            log.say(f"vk: dispatch #{14 * n + i + 9} {shader} (32,1,1) 0.11{i} ms")
            x = log.first(f"{node}-{n}", 5, 2, 2)
            log.say(f"vk: readback layer {n} {words}, row 2: {join(x, '.5f')}")


@kept("go log, %v")
def _(log: Log) -> None:
    log.say(f"2024/05/09 18:03:44 embeddings: [{join(log.first('embd', 4, None), '.7g', ' ')}]")
    for n in range(log.run.n_layer):
        log.say(f"2024/05/09 18:03:44 layer {n}: attn out: [{join(log.first(f'attn_out-{n}', 4, None), '.7g', ' ')}]")
        log.say(f"2024/05/09 18:03:44 layer {n}: ffn out: [{join(log.first(f'ffn_out-{n}', 4, None), '.7g', ' ')}]")
        log.say(f"2024/05/09 18:03:44 layer {n}: took {1.2 + n / 10:.6f}ms")


@kept("go slog, statistics")
def _(log: Log) -> None:
    kinds = ("mean", "std", "min", "max")
    p = log.run.last
    for n in range(log.run.n_layer):
        fields = " ".join(
            f"{k}={v:.6f}" for k, v in zip(kinds, log.stats(f"l_out-{n}", kinds, p, p), strict=True)
        )  # fmt: skip
        log.say(f'time=2025-01-17T09:41:02.{300 + n}+01:00 level=DEBUG msg="layer output" layer={n} pos={p} {fields}')


@kept("kotlin logcat, layers counted of a total")
def _(log: Log) -> None:
    tag = "05-12 09:14:55.2{:02d}  8123  8150 D LlamaKt :"
    for n in range(log.run.n_layer):
        x = join(log.first(f"l_out-{n}", 5, -1), ".5f")
        log.say(f"{tag.format(n)} Decoder layer {n + 1} of {log.run.n_layer}, output for last token: {x}")
    log.say(f"{tag.format(40)} Final RMSNorm, last token: {join(log.first('result_norm', 5, -1), '.5f')}")
    log.say(f"{tag.format(41)} Logits, last token: {join(log.first('result_output', 5, -1), '.5f')}")


@kept("node typed arrays over lines")
def _(log: Log) -> None:
    def typed(words: str, node: str) -> None:
        x = [f"{v:.8f}" for v in log.first(node, 8, None)]
        log.say(f"{words} Float32Array(8) [", *(f"  {', '.join(x[i : i + 3])}," for i in (0, 3)))
        log.say(f"  {', '.join(x[6:])}", "]")

    for n in range(log.run.n_layer):
        typed(f"layer {n} output", f"l_out-{n}")
    typed("logits", "result_output")


@kept("json lines, tensor names")
def _(log: Log) -> None:
    for n in range(log.run.n_layer):
        for node in ("attn_norm", "ffn_gate", "ffn_up"):
            x = [round(v, 6) for v in log.first(f"{node}-{n}", 5, 2, 2)]
            log.say(json.dumps({"layer": n, "tensor": node, "row": 2, "shape": [8, 16], "first": x}))


@kept("webgpu console, statistics by row")
def _(log: Log) -> None:
    p = log.run.last
    kinds = ("min", "max", "mean", "rms")
    for node, words in (("embd", "embedding"), ("result_norm", "final norm"), ("result_output", "logits")):
        said = " ".join(f"{k} {v:.5f}" for k, v in zip(kinds, log.stats(node, kinds, p, p), strict=True))
        log.say(f"[webgpu] {words} readback, row {p}: {said}")
    log.say("[webgpu] submit -> mapAsync 6.40 ms")


@kept("hugging face module hooks")
def _(log: Log) -> None:
    def hook(path: str, node: str) -> None:
        x = join(log.first(node, 5, -1), ".4f")
        log.say(f"{path:<32} (1, 8, 16)  last token [:5]: tensor([{x}])")

    hook("model.embed_tokens", "embd")
    for n in range(log.run.n_layer):
        hook(f"model.layers.{n}.input_layernorm", f"attn_norm-{n}")
        hook(f"model.layers.{n}.self_attn.o_proj", f"attn_out-{n}")
        hook(f"model.layers.{n}.post_attention_layernorm", f"ffn_norm-{n}")
        hook(f"model.layers.{n}.mlp.down_proj", f"ffn_out-{n}")
    hook("model.norm", "result_norm")
    hook("lm_head", "result_output")


@kept("markdown table of statistics")
def _(log: Log) -> None:
    kinds = ("mean", "std", "absmax")
    log.say("Activations of the last token:", "", "| stage | mean | std | abs max |", "|---|---:|---:|---:|")
    stages = [("embd", "token embedding")]
    stages += [(f"l_out-{n}", f"layer {n} output") for n in range(log.run.n_layer)]
    stages += [("result_norm", "final norm"), ("result_output", "logits")]
    for node, words in stages:
        log.say(f"| {words} | {join(log.stats(node, kinds, -1), '.5f', ' | ')} |")


@kept("jax.debug.print, sliced names")
def _(log: Log) -> None:
    for n in range(log.run.n_layer):
        log.say(f"layer {n} | attn_out[-1, :4] = [{join(log.first(f'attn_out-{n}', 4, -1), '.6f', '  ')}]")
        log.say(f"layer {n} | mlp_out[-1, :4] = [{join(log.first(f'ffn_out-{n}', 4, -1), '.6f', '  ')}]")
    log.say(f"logits[-1, :4] = [{join(log.first('result_output', 4, -1), '.6f', '  ')}]")


@kept("numpy, the first two rows")
def _(log: Log) -> None:
    for n in range(log.run.n_layer):
        for node, words in (("Kcur", "K (after rope)"), ("Vcur", "V")):
            a, b = (join(log.first(f"{node}-{n}", 4, r, r), "11.8f", " ") for r in (0, 1))
            log.say(f"Layer {n} {words}, shape (8, 16), first 2 rows, first 4 columns:", f"[[{a}]", f" [{b}]]")


@kept("c# logger, semicolons")
def _(log: Log) -> None:
    for n in range(log.run.n_layer):
        log.say("dbug: SharpLlama.Forward[0]")
        log.say(f"      Layer {n} - V projection (row 2): {join(log.first(f'Vcur-{n}', 5, 2, 2), '.6f', '; ')}")
        log.say("dbug: SharpLlama.Forward[0]")
        log.say(f"      Layer {n} - Layer output (row 2): {join(log.first(f'l_out-{n}', 5, 2, 2), '.6f', '; ')}")


@kept("nim seqs")
def _(log: Log) -> None:
    log.say("Hint: /home/me/nimllm/main [Exec]", f"embedding -> @[{join(log.first('embd', 4, None), '.8g')}]")
    for n in range(log.run.n_layer):
        log.say(f"block {n} / attention norm -> @[{join(log.first(f'attn_norm-{n}', 4, None), '.8g')}]")
        log.say(f"block {n} / ffn norm -> @[{join(log.first(f'ffn_norm-{n}', 4, None), '.8g')}]")
        log.say(f"block {n} / output -> @[{join(log.first(f'l_out-{n}', 4, None), '.8g')}]")


@kept("ocaml arrays")
def _(log: Log) -> None:
    for n in range(log.run.n_layer):
        for node, words in (("ffn_gate", "gate projection"), ("ffn_up", "up projection"), ("ffn_out", "ffn output")):
            log.say(f"[layer {n}] {words}: [|{join(log.first(f'{node}-{n}', 5, None), '.6f', '; ')}|]")


@kept("spdlog, norm and absmax and values")
def _(log: Log) -> None:
    for n in range(log.run.n_layer):
        for node, words in (("ffn_inp", "residual after attention"), ("l_out", "residual after mlp")):
            norm, top = log.stats(f"{node}-{n}", ("norm", "absmax"), None)
            x = log.first(f"{node}-{n}", 3, None)
            head = f"[2024-08-14 21:02:10.{334 + n}] [llama] [debug] L{n:02d} {words:<26}"
            log.say(f"{head} norm={norm:.4f} absmax={top:.4f} first=[{join(x, '.4f')}]")


@kept("positions under a layer's heading")
def _(log: Log) -> None:
    for n in range(log.run.n_layer):
        log.say(f"---- Layer {n} output ----")
        for p in (0, 3, log.run.last):
            log.say(f"  pos {p}: {join(log.first(f'l_out-{n}', 5, p, p), '+.5f', ' ')}")
        log.say("")


@kept("psql-like table with values")
def _(log: Log) -> None:
    log.say(
        "layer outputs, last token only", "   layer |      rms | first 4 values", "---------+----------+" + "-" * 44
    )
    stages = [("embd", "embed")] + [(f"l_out-{n}", f"{n}") for n in range(log.run.n_layer)]
    stages += [("result_norm", "norm"), ("result_output", "logits")]
    for node, words in stages:
        (r,), x = log.stats(node, ("rms",), -1), log.first(node, 4, -1)
        log.say(f" {words:>7} | {r:8.5f} | {join(x, '9.5f', '  ')}")


@kept("pytorch script, logits from both ends")
def _(log: Log) -> None:
    log.say("Prompt: 'The capital of France is'", f"Tokens: {list(log.run.tokens)}", "")
    log.say(f"Final hidden state (after norm), last token, first 5: [{join(log.first('result_norm', 5, -1))}]")
    log.say(f"Logits, last token, first 5: [{join(log.first('result_output', 5, -1))}]")
    log.say(f"Logits, last token, last 5: [{join(log.tail('result_output', 5, -1))}]")
    low, high, mean = log.stats("result_output", ("min", "max", "mean"), -1)
    log.say(f"Logits, last token, min: {low:.6f}, max: {high:.6f}, mean: {mean:.6f}", "Elapsed: 0.53 s")


@kept("yaml of a layer's pieces")
def _(log: Log) -> None:
    pieces = ("attn_norm", "attn_out", "ffn_norm", "ffn_out")
    for n in range(log.run.n_layer):
        log.say(f"layer_{n}:")
        for piece in pieces:
            mean, absmean = log.stats(f"{piece}-{n}", ("mean", "absmean"), None)
            x = log.first(f"{piece}-{n}", 3, None)
            log.say(f"  {piece}:", f"    mean: {mean:.6f}", f"    abs_mean: {absmean:.6f}", f"    first: [{join(x)}]")


@kept("a tree with timings")
def _(log: Log) -> None:
    pieces = (
        ("attn_norm", "├─ attention norm"),
        ("Qcur", "├─ Q (with RoPE)"),
        ("attn_out", "├─ attention out (after Wo)"),
        ("ffn_inp", "├─ + residual (after attention)"),
        ("ffn_norm", "├─ FFN norm"),
        ("ffn_out", "├─ FFN out (down proj)"),
        ("l_out", "└─ layer output"),
    )
    log.say("forward pass, last token, first 4 values", f"Embedding: {join(log.first('embd', 4, -1), '.5f', ' ')}")
    for n in range(log.run.n_layer):
        log.say(f"Layer {n} (1.{27 + n} ms)")
        log.say(*(f"  {words}: {join(log.first(f'{node}-{n}', 4, -1), '.5f', ' ')}" for node, words in pieces))
    log.say(f"Output norm: {join(log.first('result_norm', 4, -1), '.5f', ' ')}")
    log.say(f"Logits: {join(log.first('result_output', 4, -1), '.5f', ' ')}")
