"""Faults of the families beside Llama: how often they are named, and whether a right engine is ever called wrong.

    python bench/families.py --jobs 2             # everything that is not graded yet; results in build/families.jsonl
    python bench/families.py --only "gemma2;qwen3" --again
    python bench/families.py --page               # writes tests/data/families.json, for docs/reference/models.md

A model is a golden file or a case of tests/models/others.py. Its row names the faults that its description warns of;
each variant that applies and moves a value is planted in the reference engine, dumped in three styles and diagnosed.
Right engines are llama.cpp, as recorded with every golden file, and the second engine's families
(tests/second_families.py) in four arithmetics.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

import grading  # noqa: E402
import numpy as np  # noqa: E402
from tests.models import golden, others  # noqa: E402
from tests.planting import grade  # noqa: E402
from tests.second_families import Family  # noqa: E402

from assay.engines.reference import interpret  # noqa: E402
from assay.engines.reference.weights import Weights  # noqa: E402
from assay.gguf import open_file  # noqa: E402
from assay.models import Model, load  # noqa: E402
from assay.verify.diagnosis.diagnose_dump import diagnose  # noqa: E402
from assay.verify.dumps.load import load_dump  # noqa: E402
from assay.verify.dumps.observation import inputs_of, token_axis  # noqa: E402
from assay.verify.faults import FAULTS, Context, Variant, planted  # noqa: E402

RECORD = ROOT / "tests" / "data" / "families.json"
STYLES = {"full": 97, "last": 90, "layers": 80}  # dump style -> goal in percent
FINE = ("healthy", "undecided")  # verdicts that are not an alarm
ALARM = ("model", "how", "style", "answer")
ARITHMETICS = ("f32", "kv16", "f16", "bf16")  # of the second engine's families
SECOND = (
    "qwen2", "qwen2, yarn", "qwen3", "qwen3, wide heads", "gemma2", "gemma3", "qwen3moe", "qwen2moe", "gpt-oss", "phi3",
    "mistral3", "mistral3, betas and c", "smollm3", "granite", "granitemoe", "deepseek2", "glm4", "glm4moe",
)  # fmt: skip
OUTPUTS = ("l_out", "result_norm", "result_output", "result_embd", "result_embd_pooled")

PLANTED = {
    "qwen2": "qkv-bias-missing rope-type",
    "qwen2, yarn": "rope-yarn-factor",
    "qwen3": "qknorm-order qknorm-across-heads qknorm-missing",
    "qwen3, wide heads": "scale-wrong-dim",
    "qwen3moe": "moe-no-renorm",
    "qwen2moe": "moe-shared-gate moe-topk-norm",
    "gemma2": "embd-scale-missing norm-plus1-double attn-softcap head-softcap swa-layers-inverted",
    "gemma3": "rope-per-layer-base scale-wrong-dim",
    "gpt-oss": "sink-missing ffn-oai-swiglu moe-topk-norm bias-missing mxfp4-nibble",
    "phi3-long": "gateup-split rope-longrope-set",
    "mistral3": "attn-temp",
    "smollm3": "rope-nope-layer",
    "granite": "head-logit-scale res-multiplier scale-wrong-dim",
    "granitemoe": "moe-shared-missing",
    "deepseek2": """mla-scale mla-rope-first mla-norm-width moe-router-bias moe-groups moe-routed-scale
        moe-shared-missing""",
    "deepseek2-lite": "moe-topk-norm",
    "glm4": "rope-type rope-partial gateup-split",
    "glm4moe": "rope-type rope-partial moe-router-bias",
    "glm4moe, draft layer": "gguf-draft-layer",
    "olmo2": "qknorm-across-heads norm-position",
    "olmo3": "rope-per-layer-base",
    "exaone4": "postnorm-missing qknorm-order",
    "command-r": "res-serial norm-rms-for-layernorm head-logit-scale",
    "cohere2": "rope-nope-layer swa-layers-inverted",
    "llama4": "moe-weight-place swa-chunk qknorm-missing attn-temp",
    "gemma4": "v-norm-missing kv-shared-layer res-layer-scale norm-plus1-double",
    "gemma4-moe": "moe-router-input",
    "starcoder2": "bias-missing norm-bias-missing ffn-act-family",
    "gpt2": "pos-embd-offset qkv-bias-missing",
    "stablelm": "rope-partial norm-bias-missing",
    "falcon": "norm-rms-for-layernorm norm-bias-missing res-serial",
    "mpt": "clamp-missing alibi-slopes",
    "bert": "causal-in-encoder norm-position pool-kind pos-embd-offset",
    "nomic-bert": "causal-in-encoder pool-kind",
    "gemma-embedding": "causal-in-encoder rope-per-layer-base",
}


class Subject:
    """A tiny model and tokens for it."""

    def __init__(self, model: Model, weights: Weights, tokens: Any, positions: Any) -> None:
        self.model, self.weights = model, weights
        self.tokens, self.positions = tuple(map(int, tokens)), tuple(map(int, positions))
        self.names = [node.name for node in model.graph if node.op != "cache"]
        self.given = inputs_of(self.tokens, self.positions)

    def variants(self, id: str) -> Iterator[tuple[str, Variant, float]]:
        """Every variant of a fault that applies here."""
        for variant in FAULTS[id].variants:
            p = variant.search.grid()[0] if variant.search else 0.0
            if planted(Context(self.model, (len(self.tokens),)), variant, p).touched:
                yield variant.text(p), variant, p

    def plant(self, id: str, how: str) -> dict[str, np.ndarray] | None:
        """The nodes' values with this variant planted, or None if nothing changes or a value is not finite."""
        variant, p = next((v, p) for text, v, p in self.variants(id) if text == how)
        made = planted(Context(self.model, (len(self.tokens),)), variant, p)
        with np.errstate(all="ignore"):
            values = interpret(made.graph, self.weights, self.given, self.names, functions=made.functions)
        right = interpret(self.model.graph, self.weights, self.given, self.names)
        same = all(
            values[n].shape == right[n].shape and np.allclose(values[n], right[n], rtol=1e-4) for n in self.names
        )
        finite = all(np.isfinite(v).all() or "mask" in n for n, v in values.items())
        return values if finite and not same else None

    def second(self, arithmetic: str) -> dict[str, np.ndarray]:
        """The second engine's values, in the shapes of the graph."""
        with np.errstate(all="ignore"):
            trace = Family(self.model.file.path, (), arithmetic).run(list(self.tokens))
        shapes = self.model.graph.shapes
        n = len(self.tokens)
        return {
            name: value.reshape([n if isinstance(d, str) else d for d in shapes[name]])
            for name, value in trace.items()
            if name in self.model.graph
        }

    def dump(self, values: dict[str, np.ndarray], style: str, folder: Path) -> Path:
        """The values as a stranger's file: JSON lines, with raw floats beside them where whole tensors are given."""
        head = {"assay_dump": 1, "engine": "planted", "tokens": self.tokens, "phase": "prefill"}
        lines = [json.dumps(head | {"positions": self.positions})]
        for name, value in values.items():
            if name.startswith("cache_") or (style == "layers" and name.rsplit("-", 1)[0] not in OUTPUTS):
                continue
            with np.errstate(over="ignore"):
                value = value.astype("<f4")
            if style == "last":
                row = np.take(value, -1, axis=token_axis(self.model.graph, name)).reshape(-1)
                rms = float(np.sqrt(np.mean(row.astype(np.float64) ** 2)))
                if np.isfinite(rms):
                    at = value.shape[token_axis(self.model.graph, name)] - 1
                    lines.append(json.dumps({"name": name, "row": at, "first": row[:10].tolist(), "rms": rms}))
                continue
            (folder / f"{name}.bin").write_bytes(np.ascontiguousarray(value).tobytes())
            lines.append(json.dumps({"name": name, "shape": value.shape, "file": f"{name}.bin", "dtype": "f32"}))
        (folder / "dump.jsonl").write_text("\n".join(lines) + "\n")
        return folder / "dump.jsonl"


def subject(name: str, how: str = "") -> tuple[Model, Weights]:
    """A golden model, else (or for the second engine) a case of tests/models/others.py, made in build/families."""
    if name in golden.NAMES and how not in ARITHMETICS:
        return golden.golden(name).model, golden.golden(name).weights
    return _other(name)


@cache
def _other(name: str) -> tuple[Model, Weights]:
    path = ROOT / "build" / "families" / f"{name.replace(', ', '-')}.gguf"
    path.parent.mkdir(parents=True, exist_ok=True)
    case = others.make(name, path)
    model = load(open_file(path), case.n_ctx)
    return model, Weights(model.file)


def asked(name: str, how: str = "") -> tuple[Any, Any]:
    """Tokens and positions."""
    if name in golden.NAMES and how not in ARITHMETICS:
        return golden.golden(name).tokens, golden.golden(name).positions
    n = 12 if how in ARITHMETICS else 10
    return others.IDS[:n], range(n)


def graded(model: Model, weights: Weights, name: str, fault: str, how: str, style: str) -> dict[str, Any] | None:
    """One case; without a fault `how` says which right engine it is."""
    started = time.process_time()
    at = Subject(model, weights, *asked(name, how))
    values = at.plant(fault, how) if fault else golden.golden(name).values if how == "llama.cpp" else at.second(how)
    if values is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        dump = load_dump(at.dump(values, style, Path(folder)), at.model)
        found = diagnose(at.model, dump, weights=at.weights, cache=False)
    first = found.causes[0] if found.causes else None
    return {
        "model": name, "kind": name, "fault": fault, "how": how, "bug": f"{fault} {how}"[:58], "style": style,
        "grade": grade(found, (fault,)) if fault else found.verdict,
        "answer": f"{first.fault} ({first.how})" if first else found.verdict,
        "confidence": first.confidence if first else None, "seconds": round(time.process_time() - started, 2),
    }  # fmt: skip


def cases(names: list[str]) -> Iterator[tuple[str, str, str, str]]:
    for name in names:
        engines = ["llama.cpp"] * (name in golden.NAMES) + [*ARITHMETICS] * (name in SECOND)
        plants = []
        if name in PLANTED:
            at = Subject(*subject(name), *asked(name))
            plants = [(fault, how) for fault in PLANTED[name].split() for how, *_ in at.variants(fault)]
        for fault, how in [*(("", engine) for engine in engines), *plants]:
            for style in STYLES:
                yield name, fault, how, style


def confident(row: dict[str, Any]) -> bool:
    """Whether a wrong fault was named with high confidence."""
    return row["grade"] == "wrong" and (row["confidence"] or 0) > 0.5


def page(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The record for docs/reference/models.md: shares by style, and every fault that was not named."""
    healthy, rows = [r for r in rows if not r["fault"]], [r for r in rows if r["fault"]]
    shares = {}
    for style, wanted in STYLES.items():
        mine = [r for r in rows if r["style"] == style]
        counts = Counter(r["grade"] for r in mine)
        shares[style] = {
            "wanted": wanted, "planted": len(mine), "named": counts["right"] + counts["tied"],
            "confident": sum(map(confident, mine)),
        }  # fmt: skip
    missed = [
        {k: r[k] for k in ("model", "fault", "how", "style", "grade", "answer")}
        for r in rows
        if r["grade"] not in ("right", "tied")
    ]
    return {
        "models": len({r["model"] for r in rows}), "faults": len({r["fault"] for r in rows}), "shares": shares,
        "missed": missed,
        "healthy": {
            "runs": len(healthy), "models": len({r["model"] for r in healthy}),
            "undecided": sum(r["grade"] == "undecided" for r in healthy),
            "alarms": [{k: r[k] for k in ALARM} for r in healthy if r["grade"] not in FINE],
        },
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    grading.add_arguments(parser)
    parser.add_argument("--only", metavar="NAME;…", help="these models")
    parser.add_argument("--page", action="store_true", help=f"write {RECORD.relative_to(ROOT)}")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "families.jsonl", help="keep the results here")
    args = parser.parse_args()
    args.out.parent.mkdir(exist_ok=True)
    if not args.page:
        every = list(dict.fromkeys((*PLANTED, *golden.NAMES, *SECOND)))
        names = [name.strip() for name in args.only.split(";")] if args.only else every
        kept = [r for r in grading.read(args.out) if not (args.again and r["model"] in names)]
        args.out.write_text("".join(json.dumps(r) + "\n" for r in kept))
        done = {(r["model"], r["fault"], r["how"], r["style"]) for r in kept}
        todo = [partial(graded, *subject(case[0], case[2]), *case) for case in cases(names) if case not in done][
            :: args.every
        ]
        grading.side_by_side(todo, args.out, args)
    found = page(grading.read(args.out))
    for style, share in found["shares"].items():
        if share["planted"]:
            print(f"{style:8}{share['named']} of {share['planted']} = {100 * share['named'] / share['planted']:.1f} % "
                  f"(wanted {share['wanted']}), confident and wrong: {share['confident']}")  # fmt: skip
    right = found["healthy"]
    print(f"right engines: {len(right['alarms'])} false alarms in {right['runs']} runs, {right['undecided']} undecided")
    for alarm in right["alarms"]:
        print("  ", *alarm.values(), sep=", ")
    if args.page:
        RECORD.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
