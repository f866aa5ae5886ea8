"""Mistakes of families other than Llama, planted in golden models with the feature, are named from a full dump."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from assay.engines.reference import interpret
from assay.engines.reference.weights import Weights
from assay.gguf import open_file
from assay.models import Model, load
from assay.verify.diagnosis.diagnose_dump import diagnose
from assay.verify.dumps.observation import Dump, Observation, inputs_of
from assay.verify.faults import FAULTS, Context, planted
from tests.models import others
from tests.verify.judge.test_architectures import golden

PLANTED = {
    "falcon": "norm-rms-for-layernorm norm-bias-missing res-serial ffn-act-family ffn-gelu-variant",
    "qwen2": "qkv-bias-missing rope-type scale-missing rope-base",
    "bert": "pos-embd-offset norm-position bias-missing causal-in-encoder pool-kind",
    "cohere2": "rope-nope-layer swa-layers-inverted head-logit-scale",
    "deepseek2": """norm-plus1-missing norm-plus1-double rope-yarn-factor mla-rope-first mla-scale mla-norm-width
        moe-no-renorm moe-raw-logits moe-router-bias moe-shared-missing moe-groups moe-routed-scale""",
    "deepseek2-lite": "moe-topk-norm",
    "exaone4": "postnorm-missing norm-position qknorm-missing qknorm-order qknorm-across-heads",
    "gemma-embedding": "embd-scale-missing embd-scale-rounded rope-per-layer-base scale-missing scale-wrong-dim",
    "gemma2": "attn-softcap head-softcap swa-layers-inverted",
    "gemma3": "rope-per-layer-base",
    "gemma4": "v-norm-missing kv-shared-layer res-layer-scale",
    "gemma4-moe": "moe-router-input",
    "glm4": "gateup-split rope-partial",
    "gpt-oss": "bias-missing sink-missing ffn-oai-swiglu moe-topk-norm",
    "gpt2": "pos-embd-offset qkv-bias-missing",
    "granite": "res-multiplier head-logit-scale",
    "llama4": "attn-temp swa-chunk moe-weight-place qknorm-missing",
    "mpt": "clamp-missing alibi-slopes",
    "nomic-bert": "pool-kind",
    "olmo2": "qknorm-across-heads",
    "phi3-long": "rope-longrope-set gateup-split",
    "qwen2moe": "moe-shared-gate moe-topk-norm",
    "smollm3": "rope-nope-layer",
}
ALWAYS = ("falcon", "qwen2")  # their files are in tests/data


def named(model: Model, tokens: tuple[int, ...], positions: tuple[int, ...], ids: list[str]) -> tuple[int, list[str]]:
    """How many variants of these faults move the result, and those of them that a full dump does not name."""
    context, weights, given = Context(model, (len(tokens),)), Weights(model.file), inputs_of(tokens, positions)
    names = [node.name for node in model.graph if node.op != "cache"]
    right, tried, missed = interpret(model.graph, weights, given, names), 0, []
    for id in ids:
        for variant in FAULTS[id].variants:
            p = variant.search.grid()[0] if variant.search else 0.0
            made = planted(context, variant, p)
            if not made.touched:
                continue
            with np.errstate(all="ignore"):
                values = interpret(made.graph, weights, given, names, functions=made.functions)
            if all(np.allclose(values[n], right[n], rtol=1e-5) for n in names):
                continue  # these tokens do not show it
            seen = tuple(
                Observation(n, "values", v.astype(np.float32) if v.dtype.kind == "f" else v, shape=v.shape, foreign=n)
                for n, v in values.items()
            )
            dump = Dump("planted", tokens, positions, (len(tokens),), seen, "planted")
            found = diagnose(model, dump, weights=weights)
            tried += 1
            if not any(id == cause.fault or id in cause.equivalent for cause in found.causes):
                missed.append(f"{id}: {variant.text(p)} ({found.verdict}, {[cause.fault for cause in found.causes]})")
    return tried, missed


@pytest.mark.parametrize("name", [n if n in ALWAYS else pytest.param(n, marks=pytest.mark.slow) for n in PLANTED])
def test_faults_of_the_families_are_named(shared_dir: Path, name: str) -> None:
    model, dump = golden(shared_dir, name)
    ids = PLANTED[name].split()
    tried, missed = named(model, dump.tokens, dump.positions, ids)
    assert tried >= len(ids) and not missed


@pytest.mark.slow
def test_slopes_of_six_heads(tmp_path: Path) -> None:
    """ALiBi where the number of heads is no power of two, which no golden model has."""
    others.make("mpt", tmp_path / "mpt.gguf")
    model = load(open_file(tmp_path / "mpt.gguf"))
    tried, missed = named(model, tuple(range(3, 11)), tuple(range(8)), ["alibi-slopes"])
    assert tried == 3 and not missed


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gemma4, heads and widths by layer", "gemma4, experts"])
def test_every_edit_runs_where_layers_differ(name: str, tmp_path: Path) -> None:
    """Heads and widths differ by layer: an edit uses those of its own layer."""
    others.make(name, tmp_path / "model.gguf")
    model = load(open_file(tmp_path / "model.gguf"))
    context, weights, given = Context(model, (6,)), Weights(model.file), inputs_of(range(6), range(6))
    names, tried = [node.name for node in model.graph if node.op != "cache"], 0
    for fault in FAULTS.values():
        for variant in fault.variants:
            for p in variant.search.grid()[:1] if variant.search else [0.0]:
                made = planted(context, variant, p)
                if made.touched:
                    with np.errstate(all="ignore"):
                        interpret(made.graph, weights, given, names, functions=made.functions)
                    tried += 1
    assert tried > 100
