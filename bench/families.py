"""How often a mistake of the families beside Llama is named: planted in tiny models, dumped in three styles, diagnosed.

    python bench/families.py                      # everything that is not graded yet; results in build/families.jsonl
    python bench/families.py --only "gemma2;qwen3"  # these models, graded anew
    python bench/families.py --page               # the shares into tests/data/families.json, for docs/models.md

A model is a golden file or a case of tests/models/others.py. Its row names the faults that its description warns of;
each variant that applies and moves a value is planted in the reference engine. Beside them the same models are run
healthy, in several arithmetics, by the second engine's families (tests/second_families.py) where it knows them.
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
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
from tests.models import golden, others  # noqa: E402
from tests.planting import grade  # noqa: E402

from assay.engines.reference import interpret  # noqa: E402
from assay.engines.weights import Weights  # noqa: E402
from assay.gguf import open_file  # noqa: E402
from assay.models import Model, load  # noqa: E402
from assay.verify.diagnosis.diagnose import diagnose  # noqa: E402
from assay.verify.dumps.load import load_dump  # noqa: E402
from assay.verify.dumps.observation import inputs_of, token_axis  # noqa: E402
from assay.verify.faults import FAULTS, Context, planted  # noqa: E402

RESULTS, RECORD = ROOT / "build" / "families.jsonl", ROOT / "tests" / "data" / "families.json"
STYLES = {"full": 97, "last": 90, "layers": 80}  # and the share that is wanted, in percent
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
    """A tiny model, tokens for it, and the definition's values of every node."""

    def __init__(self, name: str, folder: Path) -> None:
        if name in golden.NAMES:
            known = golden.golden(name)
            self.model: Model = known.model
            self.tokens, self.positions = tuple(map(int, known.tokens)), tuple(map(int, known.positions))
        else:
            case = others.make(name, folder / "model.gguf")
            self.model = load(open_file(folder / "model.gguf"), case.n_ctx)
            self.tokens, self.positions = tuple(map(int, others.IDS[:10])), tuple(range(10))
        self.weights = Weights(self.model.file)
        self.names = [node.name for node in self.model.graph if node.op != "cache"]
        self.given = inputs_of(self.tokens, self.positions)
        self.right = interpret(self.model.graph, self.weights, self.given, self.names)

    def plants(self, id: str) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
        """Every variant of a fault that applies and shows: its name, and what it makes of the nodes."""
        context = Context(self.model, (len(self.tokens),))
        for variant in FAULTS[id].variants:
            p = variant.search.grid()[0] if variant.search else 0.0
            made = planted(context, variant, p)
            if not made.touched:
                continue
            with np.errstate(all="ignore"):
                values = interpret(made.graph, self.weights, self.given, self.names, functions=made.functions)
            same = all(
                values[n].shape == self.right[n].shape and np.allclose(values[n], self.right[n], rtol=1e-4)
                for n in self.names
            )
            if not same and all(np.isfinite(v).all() or "mask" in n for n, v in values.items()):
                yield variant.text(p), values

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


def graded(subject: Subject, model: str, fault: str, how: str, style: str, values: dict[str, Any]) -> dict[str, Any]:
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        dump = load_dump(subject.dump(values, style, Path(folder)), subject.model)
        found = diagnose(subject.model, dump, weights=subject.weights, cache=False)
    first = found.causes[0] if found.causes else None
    return {
        "model": model, "fault": fault, "how": how, "style": style, "grade": grade(found, (fault,)),
        "answer": f"{first.fault} ({first.how})" if first else found.verdict,
        "confidence": first.confidence if first else None, "seconds": round(time.monotonic() - started, 2),
    }  # fmt: skip


def run(names: list[str], styles: list[str]) -> None:
    RESULTS.parent.mkdir(exist_ok=True)
    done = {(r["model"], r["fault"], r["how"], r["style"]) for r in read()}
    for name in names:
        with tempfile.TemporaryDirectory() as folder, RESULTS.open("a") as log:
            subject = Subject(name, Path(folder))
            for fault in PLANTED[name].split():
                for how, values in subject.plants(fault):
                    for style in styles:
                        if (name, fault, how, style) in done:
                            continue
                        row = graded(subject, name, fault, how, style, values)
                        log.write(json.dumps(row) + "\n")
                        log.flush()
                        shown = "" if row["grade"] in ("right", "tied") else f"{row['answer']} {row['confidence']}"
                        print(f"{name:18}{fault:22}{how[:34]:36}{style:8}{row['grade']:12}{row['seconds']:5.1f} s  "
                              f"{shown}", flush=True)  # fmt: skip


def read() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def confident(row: dict[str, Any]) -> bool:
    """A wrong name that is meant seriously."""
    return row["grade"] == "wrong" and (row["confidence"] or 0) > 0.5


def page(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What docs/models.md shows: shares by style, and everything that was not named."""
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
    return {"models": len({r["model"] for r in rows}), "faults": len({r["fault"] for r in rows}), "shares": shares,
            "missed": missed}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="NAME;…", help="these models, graded anew")
    parser.add_argument("--styles", default=",".join(STYLES), metavar="STYLE,…")
    parser.add_argument("--page", action="store_true", help=f"write {RECORD.relative_to(ROOT)}")
    args = parser.parse_args()
    if not args.page:
        names = [name.strip() for name in args.only.split(";")] if args.only else list(PLANTED)
        if args.only:
            kept = [r for r in read() if r["model"] not in names]
            RESULTS.write_text("".join(json.dumps(r) + "\n" for r in kept))
        run(names, args.styles.split(","))
    found = page(read())
    for style, share in found["shares"].items():
        if share["planted"]:
            print(f"{style:8}{share['named']} of {share['planted']} = {100 * share['named'] / share['planted']:.1f} % "
                  f"(wanted {share['wanted']}), confident and wrong: {share['confident']}")  # fmt: skip
    if args.page:
        RECORD.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
