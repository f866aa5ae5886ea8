"""Makes docs/reference/models.md: every architecture, what it was checked against, and how exactly it agrees.

Touch it when a new kind of check or figure belongs on the page; rows come from the catalogue and the records.
"""

from __future__ import annotations

import inspect
import json
import textwrap
from pathlib import Path
from typing import Any

from missing_models import MISSING
from missing_models import lines as missing_lines

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "tests" / "data" / "models.json"
FAMILIES = ROOT / "tests" / "data" / "families.json"

INTRO = """\
# Models

The table has every architecture that assay runs, and says how exactly it computes what llama.cpp computes. A GGUF file
names its architecture under `general.architecture`; `assay show FILE` prints it. *Names* can be typed as they are:
`assay run NAME` downloads the file once; `assay search` lists all names with sizes and licences.

*To float32 rounding* means that llama.cpp and assay differ only as two orders of the same float32 sums do. By such a
difference none of 20 greedy texts of two real files changed ([below](#real-files)). *To llama.cpp's GELU table* means
that llama.cpp looks the function up in 65,536 entries of 16 bits, and assay computes it. The difference is that of the
table.
"""

NUMBERS = """\
## In numbers

The table is made from `models/catalogue.py` and from `tests/data/models.json`, which
`python tests/models/measure.py` measures anew. `assay inspect FILE --graph` prints the graph of a file.

The witness is llama.cpp in llama-cpp-python 0.3.36 (CPU, float32 cache, no flash attention) on small random models; for
files with biases or one matrix for q, k and v, or with groups of experts, in `qwen35`, `qwen35moe`, `lfm2moe`,
`nemotron_h_moe` and `kimi-linear`, that in xllamacpp 2026.10.11549.
Errors are NMSE, sum (x - y)² / sum y², of the reference engine against it, as the power of ten that is not exceeded.

- *nodes*: the number of nodes whose values in llama.cpp were recorded, in tiny models that use every operation of the
  architecture. Each node is judged on llama.cpp's own values of its inputs. Models with a state, and those recorded
  with them, are judged from the tokens alone instead: a prompt of 24, two further tokens, and the states after each.
- *logits*: the same models from the tokens alone, at every position; for an encoder, the pooled embedding. Models
  with a state also have 15 rows of a prompt of 150 tokens, around the borders of chunks.
- *other files*: the number of further files with other dimensions, ratios of heads, windows, scalings and optional
  tensors, judged at the logits (`tests/models/others.py` lists them).

llama.cpp computes in float32 and the reference in float64, so 1e-14 to 1e-12 is rounding. GELU is coarser, 1e-7 a
node: llama.cpp reads it from a table of halves. `llama4` is judged around position 8190, where llama.cpp's float32
angles are off by 1e-9.
"""

CHECKED = """\
`assay check FILE --engine llamacpp` gives exit code 0 on the last two files as published: all nodes at the lengths 1,
2, 7 and 33, prefill and decode. (2 cores of a Sapphire Rapids server, 2026-11-16; Gemma took 4.4 minutes of CPU time,
Qwen 6.) The 37 tiny models pass as well; `command-r-plus`, of 64 layers, was run at the lengths 1, 2, 7 and 33. On Arm
(two Neoverse-N1 cores, llama.cpp with its NEON kernels, 2026-11-16) the first 13 of them pass at the lengths 2 and 7.
Gemma and Qwen pass there at 1, 2, 7 and 33, 12 of 12 checks each with exit code 0.
"""

GREEDY = """\
Greedy text compared with llama.cpp's, 20 prompts (`python bench/greedy.py FILE -n TOKENS`, 2 cores of a Sapphire Rapids
server). Counted are the positions of llama.cpp's text where its two best logits differ by more than 0.05:

| file | tokens a prompt | the same | of the others, the exact gap favours assay's token at | llama.cpp's at |
|---|---:|---:|---|---|
| gemma-3-270m-Q4_K_M, 2026-11-16 | 12 | 225 of 232 | 4, by 0.01 to 0.42 | 3, by 0.04, 0.05 and 0.12 |
| qwen2.5-coder-0.5b-instruct-Q4_K_M, 2026-11-15 | 24 | 447 of 452 | 3, by 0.07 to 0.12 | 2, by 0.01 and 0.02 |

The exact gap is the float64 definition's for Gemma, and that of `--precision exact` for Qwen. A bound of 0.05 is below
the rounding of both engines: over all positions of Gemma's texts the gap is off by 0.187 (rms) in llama.cpp and by
0.148 in assay. The definition with llama.cpp's rules of rounding (eight-bit activations, a half cache, GELU by a
table) is off by 0.178: those rules alone give an error of that size. It is 0.197 away from llama.cpp itself: even
the same rules, with sums in another order, decide differently when two tokens are this close.

llama.cpp with other kernels of its own does not give all of these tokens either
(`python bench/greedy.py --itself FILE -n 12`, two Neoverse-N1 cores, 2026-11-16; beside llama.cpp's plain kernels):

| tokens with a gap above 0.05 that are the same, and the difference of gaps (rms) | Gemma | Qwen |
|---|---|---|
| llama.cpp with flash attention | 226 of 231, 0.216 | 227 of 227, 0.088 |
| llama.cpp with repacked weights, its default | 225, 0.162 | 226, 0.085 |
| assay | 224, 0.214 | 226, 0.111 |
| assay, where all three of llama.cpp agree with such a gap | 215 of 218 | 225 of 225 |

With float32 rounding alone (`--float32`: both engines on a copy of the file in float32, with a float32 cache) all
20 texts are equal to their end, including close tokens. That is 240 tokens of Gemma, 228 of them more than 0.05
apart, and 469 of Qwen, 456 of them (two Neoverse-N1 cores, 2026-11-16). The gaps differ by 0.002 (rms) in Gemma, whose
GELU is a table in llama.cpp, and by less than 0.0001 in Qwen.
"""

VECTORS = """\
## Vectors

Embedding models are compared with llama.cpp's pooled vectors of length 1, and with those of `transformers`
(`tests/library/test_embed.py`). The cpu engine in precision `exact` is within 2e-7 of the definition. The
remaining difference to llama.cpp is its table of halves for GELU: the definition with that table is within 4e-5 of
llama.cpp on every file. The table changes a value by up to 1.8e-4 in the tiny random models (`bert`, first token) and
by up to 6e-5 in all-MiniLM-L6-v2. A bound of 1e-4 holds without the table on the real file, and with it on all.
"""

NOTES = """\
## Where llama.cpp and the papers differ

The reference follows llama.cpp, because its files are the ones people run. Known differences from `transformers`:

- `phi3`, `starcoder2`: the file's sliding window is not used.
- `gpt-oss`: the bounds of YaRN's ramp are rounded to whole dimensions.
- `phi3` and other files with long and short RoPE factors: the choice is made by the context size in use, not by the
  length of the text. `--ctx-size` decides, as llama.cpp's `-c` does.
- `bert`, `falcon`, `mpt`: GELU is the tanh form, not erf.
- `glm4`: text only; M-RoPE with equal positions.

`qwen2vl` is not followed in one thing: llama.cpp of llama-cpp-python 0.3.36 does not read the epsilon of its norms and
computes with 0. `assay check --engine llamacpp` says so: `attn_norm-0` is wrong, by 5e-6 of its size.

Draft layers (`nextn_predict_layers`) are no part of the model's graph. `qwen35`, `qwen35moe`, `qwen3next`,
`nemotron_h_moe`, `glm4moe` and `deepseek2` files with one draft layer have a second graph for it (`Model.draft`,
`models/draft_head.py`). `eagle3` and `gemma4-assistant` files are no models: `--draft` gives such a head to its model
([EAGLE-3 heads](../explanation/lookahead.md#eagle-3-heads),
[Gemma 4's assistants](../explanation/lookahead.md#gemma-4s-assistants)).

`gemma3n` keeps llama.cpp's constants: four streams, per-layer rows of 256, ten sparse layers, a final cap of 30.
Its sparse gate divides the spread of a row by n - 1, as llama.cpp does; transformers divides by n.
`lfm2` with `attention.causal` false is refused: its convolution looks ahead, and no file was there to check it.

## Not supported

llama.cpp of llama-cpp-python 0.3.36 knows KNOWN architectures: the HAVE of the table above, HEADS that are draft heads,
and the MISSING below. A file of one of these is refused with one line that names the known architectures and the
nearest one. The table says what each needs, read off the operations of its graph in llama.cpp. *Builder*: every
operation exists, so a function in `models/`, a row of the catalogue and golden data are left to write.

MISSING_TABLE
"""


STYLES = {
    "full": "every node, whole",
    "last": "of every node the last row's first ten values and its rms",
    "layers": "layer outputs and results only",
}


def faults() -> list[str]:
    """The share of planted mistakes of these families that diagnosis names."""
    found = json.loads(FAMILIES.read_text())
    out = [
        "## Mistakes that are named\n",
        f"Mistakes that ports of these families make, planted in {found['models']} tiny models: {found['faults']} "
        "faults, each in every variant that applies",
        "(`python bench/families.py`). *Named*: the fault is the first cause, or in the class of those that give the "
        "same values.\n",
        "| what was dumped | planted | named | wanted | a wrong name with high confidence |",
        "|---|---:|---:|---:|---:|",
    ]
    for style, share in found["shares"].items():
        part = f"{share['named']} ({100 * share['named'] / share['planted']:.1f} %)"
        out.append(f"| {STYLES[style]} | {share['planted']} | {part} | {share['wanted']} % | {share['confident']} |")
    if found["missed"]:
        out += ["\nNot named:\n", "| model | fault | how | dumped | answer |", "|---|---|---|---|---|"]
        out += [
            f"| {m['model']} | [{m['fault']}](faults.md#{m['fault']}) | {m['how']} | {m['style']} | {m['answer']} |"
            for m in found["missed"]
        ]
    right = found["healthy"]
    alarms = "; ".join(f"{a['model']}, {a['how']}, {a['style']}: {a['answer']}" for a in right["alarms"])
    told = (
        f"Right engines, dumped in the same three ways: llama.cpp as recorded with every golden model, and the second "
        f"engine's families in float32, with a half cache, in float16 and in bfloat16. There were {right['runs']} runs "
        f"of {right['models']} models: {len(right['alarms'])} false alarms{f' ({alarms})' if alarms else ''}, and "
        f"{right['undecided']} `undecided`, because the dump cannot separate a small fault from the engine's rounding."
    )
    out += ["", *textwrap.wrap(told, 118)]
    return [line.replace("*p*", "p") for line in out] + [""]


def cost() -> list[str]:
    """Lines of code and files of each architecture."""
    from assay.models.catalogue import ARCHITECTURES

    files: dict[str, list[str]] = {}
    lines = []
    for name, row in ARCHITECTURES.items():
        source = inspect.getsourcefile(row.build)
        assert source
        files.setdefault(Path(source).name, []).append(name)
        lines.append(len(inspect.getsource(row.build).splitlines()))
    folder = ROOT / "src" / "assay" / "models"
    size = {path.name: len(path.read_text().splitlines()) for path in sorted(folder.glob("*.py"))}
    shared = ", ".join(f"`{name}` {n}" for name, n in size.items() if name not in files and n > 10)
    out = [
        "## What an architecture costs\n",
        "One function in `models/` and one row of `models/catalogue.py`. The median function has "
        f"{sorted(lines)[len(lines) // 2]} lines, the longest {max(lines)}. No",
        "engine, operation, or rule of verifying, serving or running names an architecture; "
        "`tests/models/test_architectures.py`",
        "checks that. A new kind of attention or feed-forward is an operation: "
        "[add an operation](../howto/add-an-operation.md).\n",
        "| file | lines | architectures |",
        "|---|---:|---|",
    ]
    out += [f"| `{file}` | {size[file]} | {', '.join(names)} |" for file, names in sorted(files.items())]
    out.append(f"\nShared: {shared}. Together {sum(size.values())} lines.\n")
    return out


def _power(decades: list[int]) -> str:
    return f"1e{max(decades)}" if decades else ""


# Why llama.cpp rounds more coarsely, where the reason is not its table of GELU.
COARSER = {"llama4": "llama.cpp's float32 angles, judged around position 8190"}


def _works(name: str, record: dict[str, Any]) -> str:
    """How exactly an architecture agrees with llama.cpp, in words."""
    tiny, more = record["golden"].values(), list(record["others"].values())
    nodes = sum(model["nodes"] for model in tiny)
    worst = max([m[key] for m in tiny for key in ("node", "logits")] + more)
    rounding = "float32 rounding" if worst <= -9 else COARSER.get(name, "llama.cpp's GELU table")
    files = len(tiny) + len(more)
    logits = f"the logits of {files} small file{'s' if files != 1 else ''}"
    said = f"works, to {rounding}: {f'all {nodes} nodes and ' if nodes else ''}{logits}"
    for file, seen in record["files"].items():
        said += f"; {file} as published has the same best token at {seen['best']} of 24 positions"
    return said


def _names(architecture: str) -> str:
    """Families of known names with this architecture."""
    from assay.runtime.model_names import named_models

    families = dict.fromkeys(m.family for m in named_models() if m.architecture == architecture)
    return ", ".join(f"`{family}`" for family in families)


def families() -> list[str]:
    """Every architecture: its models, how exactly it works in words, and names to type."""
    from assay.models.catalogue import ARCHITECTURES

    record = json.loads(RECORD.read_text())
    out = ["| architecture | models | how exactly it works | names |", "|---|---|---|---|"]
    for name, row in ARCHITECTURES.items():
        out.append(f"| `{name}` | {row.models} | {_works(name, record[name])} | {_names(name)} |")
    return [*out, ""]


def not_yet() -> list[str]:
    """Known names whose architecture is not supported."""
    from assay.runtime.model_names import named_models

    missing: dict[str, list[str]] = {}
    for model in named_models():
        if not model.is_supported:
            missing.setdefault(model.architecture, []).append(f"`{model.name}`")
    if not missing:
        return []
    listed = "; ".join(f"{', '.join(names)} (`{architecture}`)" for architecture, names in missing.items())
    return [*textwrap.wrap(f"Names that are known and not supported: {listed}.", 118), ""]


def _notes() -> str:
    """The notes, with the table of what is missing and the counts."""
    from assay.models.catalogue import ARCHITECTURES
    from assay.models.draft_head import HEAD_FILES

    parts = {"HAVE": len(ARCHITECTURES), "HEADS": len(HEAD_FILES), "MISSING": len(MISSING)}
    text = NOTES.replace("MISSING_TABLE", "\n".join(missing_lines())).replace("KNOWN", str(sum(parts.values())))
    for word, count in parts.items():
        text = text.replace(word, str(count))
    return text


def page() -> str:
    from assay.models.catalogue import ARCHITECTURES

    record = json.loads(RECORD.read_text())
    out = [INTRO, *families(), NUMBERS, "| architecture | nodes | worst node | logits | other files | worst logits |"]
    out.append("|---|---:|---:|---:|---:|---:|")
    for name in ARCHITECTURES:
        tiny, more = record[name]["golden"].values(), list(record[name]["others"].values())
        nodes = sum(model["nodes"] for model in tiny)
        cells = [f"`{name}`", str(nodes or "–"), _power([m["node"] for m in tiny]),
                 _power([m["logits"] for m in tiny]), str(len(more)), _power(more)]  # fmt: skip
        out.append(f"| {' | '.join(cells)} |")
    models = sum(len(record[name]["golden"]) for name in ARCHITECTURES)
    nodes = sum(m["nodes"] for name in ARCHITECTURES for m in record[name]["golden"].values())
    files = sum(len(record[name]["others"]) for name in ARCHITECTURES)
    out.append(f"\n{len(ARCHITECTURES)} architectures; {models} models with {nodes} nodes, and {files} other files.\n")
    out += ["## Real files\n", "The logits of 24 random tokens, on a copy of the file in float32.\n"]
    out += ["| file | architecture | logits | best token agrees at |", "|---|---|---:|---:|"]
    for name in ARCHITECTURES:
        for file, seen in record[name]["files"].items():
            out.append(f"| {file} | `{name}` | 1e{seen['logits']} | {seen['best']} of 24 |")
    return "\n".join(
        [
            *out,
            "",
            CHECKED,
            GREEDY,
            VECTORS,
            *faults(),
            *cost(),
            _notes(),
            *not_yet(),
        ]
    )
