"""The second engine's families: a healthy engine is called healthy, and a planted fault is named."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.engines.reference.weights import Weights
from assay.gguf import open_file
from assay.models import Model, load
from assay.verify.diagnosis.diagnose_dump import diagnose
from assay.verify.dumps.observation import Dump, Observation, token_axis
from assay.verify.judge.text import text
from assay.verify.judge.verdict import judge
from tests.models import golden, others
from tests.planting import grade
from tests.second_families import Family

TOKENS = tuple(int(i) for i in others.IDS[:12])
# A case of tests/models/others.py, and the bugs of the second engine that it can have.
BUGS = {
    "qwen2": "qkv-bias-missing rope-type",
    "qwen2, yarn": "rope-yarn-factor",
    "qwen3": "qknorm-order qknorm-across-heads qknorm-missing",
    "qwen3, wide heads": "scale-wrong-dim",
    "gemma2": "embd-scale-missing norm-plus1-double attn-softcap head-softcap swa-layers-inverted postnorm-missing",
    "gemma3": "rope-per-layer-base",
    "qwen3moe": "moe-no-renorm",
    "qwen2moe": "moe-shared-gate moe-topk-norm",
    "gpt-oss": "sink-missing ffn-oai-swiglu moe-topk-norm",
    "phi3": "gateup-split rope-longrope-set",
    "mistral3": "",
    "mistral3, betas and c": "attn-temp",
    "smollm3": "rope-nope-layer",
    "granite": "head-logit-scale res-multiplier",
    "granitemoe": "moe-shared-missing",
    "deepseek2": """mla-scale mla-norm-width mla-rope-first moe-router-bias moe-groups moe-routed-scale
        moe-shared-missing""",
    "glm4": "rope-type rope-partial gateup-split",
    "glm4moe": "rope-type rope-partial moe-router-bias",
}
PLANTS = [(name, bug) for name, bugs in BUGS.items() for bug in bugs.split()]
QUICK = ("sink-missing", "mla-scale", "qknorm-order")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("families") / "model.gguf"


def dumped(model: Model, path: Path, *bugs: str, arithmetic: str = "f32", style: str = "full") -> Dump:
    with np.errstate(all="ignore"):
        trace = Family(path, bugs, arithmetic).run(list(TOKENS))
    trace = {name: value for name, value in trace.items() if name in model.graph}
    return seen(model, trace, TOKENS, range(len(TOKENS)), style)


def seen(model: Model, trace: Mapping[str, np.ndarray], tokens: Any, positions: Any, style: str) -> Dump:
    """The part of the values that is dumped: all, layer outputs, or the last row's first ten."""
    found = []
    for name, value in trace.items():
        shape = tuple(len(tokens) if isinstance(d, str) else d for d in model.graph.shapes[name])
        value = value.reshape(shape)
        if style == "last":
            axis = token_axis(model.graph, name)
            last, row = shape[axis] - 1, np.take(value, -1, axis=axis).reshape(-1)
            found.append(Observation(name, "first", row[:10].astype(np.float64), (last, last + 1), shape, foreign=name))
        elif style == "full" or name.split("-")[0] in ("l_out", "result_norm", "result_output"):
            value = value.astype(np.float32) if value.dtype.kind == "f" else value
            found.append(Observation(name, "values", value, shape=shape, foreign=name))
    return Dump("second", tuple(map(int, tokens)), tuple(map(int, positions)), (len(tokens),), tuple(found), "second")


@pytest.mark.parametrize("name", BUGS)
@pytest.mark.parametrize("arithmetic", ["f32", "kv16", "f16"])
def test_a_healthy_family_raises_no_alarm(name: str, arithmetic: str, path: Path) -> None:
    others.make(name, path)
    model = load(open_file(path))
    dump = dumped(model, path, arithmetic=arithmetic)
    assert len(dump.observations) > 40
    diff = judge(model, dump)
    assert diff, text(diff, model)


@pytest.mark.parametrize(
    ("name", "arithmetic", "style"),
    [("qwen3, wide heads", "kv16", "last"), ("gemma2", "bf16", "layers"), ("qwen3moe", "bf16", "last")],
)
def test_a_rounding_that_fell_otherwise_is_no_fault(name: str, arithmetic: str, style: str, path: Path) -> None:
    others.make(name, path)
    model = load(open_file(path))
    found = diagnose(model, dumped(model, path, arithmetic=arithmetic, style=style), cache=False)
    assert found.verdict in ("healthy", "undecided"), found.to_dict()


def test_far_into_a_text_the_angles_are_rounded() -> None:
    """llama.cpp's own values at positions around 8,192, where a float32 angle is off by half a thousandth."""
    known = golden.golden("llama4")
    values = {n: v for n, v in known.values.items() if v.dtype.kind == "f"}
    assert judge(known.model, seen(known.model, values, known.tokens, known.positions, "layers"), cache=False)


@pytest.mark.parametrize(
    ("name", "bug"), [p if p[1] in QUICK else pytest.param(*p, marks=pytest.mark.slow) for p in PLANTS]
)
def test_a_planted_bug_is_named(name: str, bug: str, path: Path) -> None:
    others.make(name, path)
    model = load(open_file(path))
    found = diagnose(model, dumped(model, path, bug), weights=Weights(model.file))
    assert grade(found, (bug,)) in ("right", "tied"), (found.verdict, [(c.fault, c.how) for c in found.causes])
