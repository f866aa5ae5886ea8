"""Habits of printing in other languages, tools and tables, written beside the reader: a row for each.

The rows that no word explains, private names and numbered buffers, are told by their values.
"""

from __future__ import annotations

import json

from tests.verify.dumps.formats import Format
from tests.verify.dumps.unseen_formats import Log, adding_to, text

FORMATS: list[Format] = []
form = adding_to(FORMATS)


@form("jupyter cells")
def _(log: Log) -> str:
    out = []
    k = 3
    for n in log.layers:
        out += [
            f'In [{k}]: cache["resid_post", {n}][0, -1, :5]',
            f"Out[{k}]: tensor([{', '.join(log.first(f'l_out-{n}', 5, '.4f', said=-1))}])",
            "",
        ]
        k += 1
    return text(out)


@form("R vectors with row prefixes")
def _(log: Log) -> str:
    out = []
    for n in log.layers:
        v = log.first(f"l_out-{n}", 12, ".6f")
        out += [f"> h[[{n + 1}]][1:12]   # output of layer {n + 1}"]
        out += [f"{f'[{i + 1}]':>5} " + " ".join(f"{x:>9}" for x in v[i : i + 5]) for i in range(0, 12, 5)]
    return text(out)


@form("octave columns")
def _(log: Log) -> str:
    out = []
    for n in log.layers:
        v = log.first(f"l_out-{n}", 12, ".6f")
        out += [
            f"layer = {n + 1}",
            "x =",
            "",
            " Columns 1 through 8:",
            "",
            "  " + "".join(f"{x:>11}" for x in v[:8]),
            "",
            " Columns 9 through 12:",
            "",
            "  " + "".join(f"{x:>11}" for x in v[8:]),
            "",
        ]
    return text(out)


@form("pandas describe of hidden states")
def _(log: Log) -> str:
    out = []
    for n in log.layers:
        d = f"l_out-{n}"
        out += [
            f"hidden state after layer {n}, last token",
            "count    16.000000",
            f"mean      {log.stat(d, 'mean', '.6f', said=-1)}",
            f"std       {log.stat(d, 'std', '.6f', said=-1)}",
            f"min      {log.stat(d, 'min', '.6f', said=-1)}",
            f"max       {log.stat(d, 'max', '.6f', said=-1)}",
            "dtype: float64",
            "",
        ]
    return text(out)


@form("elixir inspect")
def _(log: Log) -> str:
    out = []
    for n in log.layers:
        out.append(
            f"[debug] %{{layer: {n}, stage: :ffn_norm, token: :last, values: [{', '.join(log.first(f'ffn_norm-{n}', 4, 'r', said=-1))}]}}"
        )
        out.append(
            f"[debug] %{{layer: {n}, stage: :block_out, token: :last, values: [{', '.join(log.first(f'l_out-{n}', 4, 'r', said=-1))}]}}"
        )
    return text(out)


@form("php var_dump")
def _(log: Log) -> str:
    out = []
    for n in log.layers:
        out += [f"layer {n} output", "array(4) {"]
        for i, v in enumerate(log.first(f"l_out-{n}", 4, "r")):
            out += [f"  [{i}]=>", f"  float({v})"]
        out += ["}"]
    return text(out)


@form("perl data dumper")
def _(log: Log) -> str:
    out = []
    for n in log.layers:
        out += [
            "$VAR1 = {",
            f"          'layer' => {n},",
            "          'name' => 'attn_norm',",
            "          'values' => [",
        ]
        v = log.first(f"attn_norm-{n}", 4, ".6f")
        out += [f"                        '{x}'" + ("," if i < 3 else "") for i, x in enumerate(v)]
        out += ["                      ]", "        };"]
    return text(out)


@form("common lisp plists")
def _(log: Log) -> str:
    out = ["CL-USER> (trace-forward *model*)"]
    for n in log.layers:
        out.append(f"(:LAYER {n} :NODE :ATTN-NORM :FIRST #({' '.join(log.first(f'attn_norm-{n}', 4, 'r'))}))")
        out.append(f"(:LAYER {n} :NODE :FFN-OUT :FIRST #({' '.join(log.first(f'ffn_out-{n}', 4, 'r'))}))")
    return text(out)


@form("fortran with d exponents")
def _(log: Log) -> str:
    out = []
    for n in log.layers:
        v = log.first(f"attn_out-{n}", 4, ".6e")
        out.append(f" layer {n}  attention out: " + "  ".join(x.replace("e", "D") for x in v))
    return text(out)


@form("opencl printf by work item")
def _(log: Log) -> str:
    out = []
    for n in log.layers:
        for i in range(4):
            out.append(f"gid {i} layer {n} ffn_out = {log.at(f'ffn_out-{n}', i, 'f')}")
    return text(out)


@form("pretty json, a record a tensor")
def _(log: Log) -> str:
    recs = []
    for n in log.layers:
        for name, node in (("attn_out", "attn_out"), ("mlp_out", "ffn_out")):
            recs.append(
                {
                    "name": name,
                    "layer": n,
                    "pos": log.run.last,
                    "values": [float(x) for x in log.first(f"{node}-{n}", 4, ".6f", said=log.run.last)],
                }
            )
    return json.dumps(recs, indent=2) + "\n"


@form("pretty json, nested")
def _(log: Log) -> str:
    doc = {"tokens": list(log.run.tokens), "layers": {}}
    for n in log.layers:
        doc["layers"][str(n)] = {
            "attn": {
                "norm": [float(x) for x in log.first(f"attn_norm-{n}", 3, ".6f")],
                "out": [float(x) for x in log.first(f"attn_out-{n}", 3, ".6f")],
            },
            "mlp": {
                "norm": [float(x) for x in log.first(f"ffn_norm-{n}", 3, ".6f")],
                "out": [float(x) for x in log.first(f"ffn_out-{n}", 3, ".6f")],
            },
        }
    return json.dumps(doc, indent=4) + "\n"


@form("json lines, many nodes a line")
def _(log: Log) -> str:
    out = []
    for n in log.layers:
        e = {
            "layer": n,
            **{
                k: [float(x) for x in log.first(f"{node}-{n}", 3, ".6f")]
                for k, node in (
                    ("input_norm", "attn_norm"),
                    ("attn", "attn_out"),
                    ("post_attn_norm", "ffn_norm"),
                    ("mlp", "ffn_out"),
                    ("hidden", "l_out"),
                )
            },
        }
        out.append(json.dumps(e))
    return text(out)


@form("table with a column a node")
def _(log: Log) -> str:
    out = ["| layer | attn rms | ffn rms | out rms |", "|---|---|---|---|"]
    for n in log.layers:
        out.append(
            f"| {n} | {log.stat(f'attn_out-{n}', 'rms', '.5f')} | {log.stat(f'ffn_out-{n}', 'rms', '.5f')} | {log.stat(f'l_out-{n}', 'rms', '.5f')} |"
        )
    return text(out)


@form("rms by layer below a heading")
def _(log: Log) -> str:
    out = ["RMS of the residual stream after each layer (last token):"]
    out += [f"  {n}: {log.stat(f'l_out-{n}', 'rms', '.6f', said=-1)}" for n in log.layers]
    return text(out)


@form("values by layer below a heading")
def _(log: Log) -> str:
    out = ["Attention output per layer, first 4 values, last token", ""]
    out += [
        f"{n:>3}  " + "  ".join(f"{v:>10}" for v in log.first(f"attn_out-{n}", 4, ".6f", said=-1)) for n in log.layers
    ]
    return text(out)


@form("german decimal commas")
def _(log: Log) -> str:
    out = []
    for n in log.layers:
        v = log.first(f"l_out-{n}", 5, ".6f", said=-1)
        out.append(f"Schicht {n}, Ausgabe (letztes Token): {'; '.join(x.replace('.', ',') for x in v)}")
    return text(out)


@form("mean plus minus std")
def _(log: Log) -> str:
    out = []
    for n in log.layers:
        d = f"l_out-{n}"
        out.append(
            f"block {n} out: mean±std = {log.stat(d, 'mean', '.5f')} ± {log.stat(d, 'std', '.5f')}, min/max = {log.stat(d, 'min', '.4f')}/{log.stat(d, 'max', '.4f')}"
        )
    return text(out)


@form("greek and bars")
def _(log: Log) -> str:
    out = []
    for n in log.layers:
        d = f"l_out-{n}"
        out.append(
            f"h{n}: ‖x‖={log.stat(d, 'norm', '.4f')}  max|x|={log.stat(d, 'absmax', '.4f')}  Σx={log.stat(d, 'sum', '.4f')}"
        )
    return text(out)


@form("transformer lens cache names")
def _(log: Log) -> str:
    out = []
    for n in log.layers:
        for name, node in (
            ("ln1.hook_normalized", "attn_norm"),
            ("attn.hook_q", "Qcur_proj"),
            ("attn.hook_z", "kqv_out"),
            ("hook_attn_out", "attn_out"),
            ("hook_resid_mid", "ffn_inp"),
            ("hook_mlp_out", "ffn_out"),
            ("hook_resid_post", "l_out"),
        ):
            out.append(f"blocks.{n}.{name:<20} {' '.join(f'{v:>8}' for v in log.first(f'{node}-{n}', 4, '.4f'))}")
    return text(out)


@form("slices of both ends")
def _(log: Log) -> str:
    out = []
    for n in log.layers:
        d = f"l_out-{n}"
        out.append(f"h[{n}][-1,:3] = {', '.join(log.first(d, 3, '.5f', said=-1))}".replace(f"h[{n}]", f"layer{n}_out"))
        out.append(f"layer{n}_out[-1,-3:] = {', '.join(log.final(d, 3, '.5f', said=-1))}")
    return text(out)


@form("top logits on one line")
def _(log: Log) -> str:
    out = [f"layer {n} rms={log.stat(f'l_out-{n}', 'rms', '.5f')}" for n in log.layers]
    out.append("top5 logits: " + ", ".join(f"{i}:{v}" for i, v in log.top("result_output", 5, ".4f")))
    return text(out)


@form("delve")
def _(log: Log) -> str:
    out = []
    for n in log.layers:
        out += [
            "> main.(*Model).forward() ./model.go:211 (PC: 0x4c1e2f)",
            "(dlv) p l",
            str(n),
            "(dlv) p x[:4]",
            f"[]float32 len: 4, cap: 2048, [{','.join(log.first(f'l_out-{n}', 4, 'r'))}]",
        ]
    return text(out)


@form("visual studio watch window")
def _(log: Log) -> str:
    out = []
    for n in log.layers:
        out += [f"layer\t{n}\tint", "-\tffn_out\t{ size=16 }\tstd::vector<float>"]
        out += [f"\t[{i}]\t{v}\tfloat" for i, v in enumerate(log.first(f"ffn_out-{n}", 4, ".7g"))]
    return text(out)


@form("step numbers before names")
def _(log: Log) -> str:
    out = []
    for n in log.layers:
        out.append(f"--- layer {n}")
        for s, (w, node) in enumerate(
            (
                ("rms1", "attn_norm"),
                ("q", "Qcur_proj"),
                ("q_rot", "Qcur"),
                ("attn", "kqv_out"),
                ("proj", "attn_out"),
                ("res1", "ffn_inp"),
                ("rms2", "ffn_norm"),
                ("gate", "ffn_gate"),
                ("up", "ffn_up"),
                ("act", "ffn_swiglu"),
                ("down", "ffn_out"),
                ("res2", "l_out"),
            )
        ):
            out.append(f"{s + 1:2d}. {w:<6} {' '.join(f'{v:>9}' for v in log.first(f'{node}-{n}', 4, '.5f'))}")
    return text(out)


@form("unnamed layers in order")
def _(log: Log) -> str:
    out = []
    for n in log.layers:
        out += [
            f"attn_norm: {' '.join(log.first(f'attn_norm-{n}', 4, '.5f'))}",
            f"ffn_norm: {' '.join(log.first(f'ffn_norm-{n}', 4, '.5f'))}",
        ]
    return text(out)


@form("private names only")
def _(log: Log) -> str:
    out = []
    for n in log.layers:
        out += [
            f"stage A/{n}: {' '.join(log.first(f'attn_norm-{n}', 5, '.5f'))}",
            f"stage B/{n}: {' '.join(log.first(f'attn_out-{n}', 5, '.5f'))}",
            f"stage C/{n}: {' '.join(log.first(f'ffn_out-{n}', 5, '.5f'))}",
        ]
    return text(out)


@form("buffer names of a runtime")
def _(log: Log) -> str:
    out = []
    for n in log.layers:
        out += [
            f"buf17 (l={n}) {' '.join(log.first(f'ffn_gate-{n}', 5, '.5f'))}",
            f"buf18 (l={n}) {' '.join(log.first(f'ffn_up-{n}', 5, '.5f'))}",
            f"buf21 (l={n}) {' '.join(log.first(f'ffn_out-{n}', 5, '.5f'))}",
        ]
    return text(out)


@form("prometheus metrics")
def _(log: Log) -> str:
    out = ["# HELP act_rms rms of activations", "# TYPE act_rms gauge"]
    for n in log.layers:
        out.append(f'act_rms{{layer="{n}",node="attn_out"}} {log.stat(f"attn_out-{n}", "rms", ".6f")}')
        out.append(f'act_rms{{layer="{n}",node="ffn_out"}} {log.stat(f"ffn_out-{n}", "rms", ".6f")}')
    return text(out)


@form("transposed spreadsheet, statistics down and layers across")
def _(log: Log) -> str:
    out = ["stat," + ",".join(f"layer {n}" for n in log.layers)]
    for s in ("mean", "std", "absmax"):
        out.append(f"{s}," + ",".join(log.stat(f"l_out-{n}", s, ".5f") for n in log.layers))
    return text(out)


@form("grid of tokens and layers, norms")
def _(log: Log) -> str:
    out = ["l2 norm of the residual stream", "pos    " + "".join(f"{f'L{n}':>10}" for n in log.layers)]
    for p in range(8):
        out.append(
            f"{p:>3}    " + "".join(f"{log.stat(f'l_out-{n}', 'norm', '.4f', row=p, said=p):>10}" for n in log.layers)
        )
    return text(out)


@form("html table cells")
def _(log: Log) -> str:
    out = ["<table>", "<tr><th>layer</th><th>mean</th><th>std</th></tr>"]
    for n in log.layers:
        d = f"l_out-{n}"
        out.append(f"<tr><td>{n}</td><td>{log.stat(d, 'mean', '.5f')}</td><td>{log.stat(d, 'std', '.5f')}</td></tr>")
    out.append("</table>")
    return text(out)


@form("protobuf text format")
def _(log: Log) -> str:
    out = []
    for n in log.layers:
        out += ["activation {", f"  layer: {n}", '  name: "ffn_norm"']
        out += [f"  value: {v}" for v in log.first(f"ffn_norm-{n}", 4, ".6f")]
        out += ["}"]
    return text(out)


@form("einsum style comments")
def _(log: Log) -> str:
    out = []
    for n in log.layers:
        out += [
            f"# layer {n}",
            f"h = rmsnorm(x) * w      -> {' '.join(log.first(f'attn_norm-{n}', 4, '.5f'))}",
            f"q = h @ Wq              -> {' '.join(log.first(f'Qcur_proj-{n}', 4, '.5f'))}",
            f"a = softmax(q k^T) v    -> {' '.join(log.first(f'kqv_out-{n}', 4, '.5f'))}",
            f"x = x + a @ Wo          -> {' '.join(log.first(f'ffn_inp-{n}', 4, '.5f'))}",
            f"x = x + mlp(rmsnorm(x)) -> {' '.join(log.first(f'l_out-{n}', 4, '.5f'))}",
        ]
    return text(out)


@form("numbered checkpoints with a legend")
def _(log: Log) -> str:
    out = ["legend: cp1 = after attn norm, cp2 = after attention (o_proj), cp3 = after ffn norm, cp4 = after down proj"]
    for n in log.layers:
        for i, node in enumerate(("attn_norm", "attn_out", "ffn_norm", "ffn_out")):
            out.append(f"L{n} cp{i + 1} {' '.join(log.first(f'{node}-{n}', 5, '.5f'))}")
    return text(out)


@form("decode steps")
def _(log: Log) -> str:
    out = []
    for p in range(8):
        out.append(f"step {p}: token_in={log.run.tokens[p]}")
        for n in (0, 2):
            out.append(f"  layer {n} out {' '.join(log.first(f'l_out-{n}', 3, '.5f', row=p, said=p))}")
    return text(out)


@form("stack overflow question with inline code")
def _(log: Log) -> str:
    out = ["I print the first four values after every stage of layer N for the last token.", ""]
    for n in log.layers:
        out += [
            f"**Layer {n}**",
            "",
            f"- after attention norm: `{', '.join(log.first(f'attn_norm-{n}', 4, '.4f', said=-1))}`",
            f"- attention out (before residual): `{', '.join(log.first(f'attn_out-{n}', 4, '.4f', said=-1))}`",
            f"- ffn out (before residual): `{', '.join(log.first(f'ffn_out-{n}', 4, '.4f', said=-1))}`",
            "",
        ]
    return text(out)


@form("opencl buffers by enqueueReadBuffer")
def _(log: Log) -> str:
    out = []
    for n in log.layers:
        for w, node in (
            ("xb", "attn_norm"),
            ("q", "Qcur"),
            ("k", "Kcur"),
            ("v", "Vcur"),
            ("xb2", "attn_out"),
            ("x_mid", "ffn_inp"),
            ("hb", "ffn_swiglu"),
            ("xb_ffn", "ffn_out"),
            ("x", "l_out"),
        ):
            out.append(f"readBuffer layer={n} buf={w:<7} [{', '.join(log.first(f'{node}-{n}', 4, '.5f'))}]")
    return text(out)


@form("columns by node, one layer at a time")
def _(log: Log) -> str:
    nodes = ("attn_out", "ffn_out", "l_out")
    out = []
    for n in log.layers:
        cols = [log.first(f"{node}-{n}", 4, ".5f") for node in nodes]
        out += [f"=== layer {n} ===", "  i    attn_out     ffn_out       l_out"]
        out += [f"{i:>3}" + "".join(f"{c[i]:>12}" for c in cols) for i in range(4)]
        out.append("")
    return text(out)


@form("binary diff tool style offsets")
def _(log: Log) -> str:
    out = []
    for n in log.layers:
        out.append(f"tensor layer_{n}_hidden, row {log.run.last}:")
        v = log.first(f"l_out-{n}", 8, ".5f", said=log.run.last)
        out += [f"  [0000] {' '.join(v[:4])}", f"  [0004] {' '.join(v[4:])}"]
    return text(out)
