"""The second engine's families: healthy ones raise no alarm, and what is planted in them is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from assay.engines.weights import Weights
from assay.gguf import open_file
from assay.models import Model, load
from assay.verify.diagnosis.diagnose import diagnose
from assay.verify.dumps.observation import Dump, Observation
from assay.verify.judge.text import text
from assay.verify.judge.verdict import judge
from tests.models import others
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


def dumped(model: Model, path: Path, *bugs: str, arithmetic: str = "f32") -> Dump:
    with np.errstate(all="ignore"):
        trace = Family(path, bugs, arithmetic).run(list(TOKENS))
    trace = {name: value for name, value in trace.items() if name in model.graph}
    shapes = {name: [len(TOKENS) if isinstance(d, str) else d for d in model.graph.shapes[name]] for name in trace}
    seen = tuple(
        Observation(name, "values", value.reshape(shapes[name]), shape=tuple(shapes[name]), foreign=name)
        for name, value in trace.items()
    )
    return Dump("second", TOKENS, tuple(range(len(TOKENS))), (len(TOKENS),), seen, "second")


@pytest.mark.parametrize("name", BUGS)
@pytest.mark.parametrize("arithmetic", ["f32", "kv16", "f16"])
def test_a_healthy_family_raises_no_alarm(name: str, arithmetic: str, path: Path) -> None:
    others.make(name, path)
    model = load(open_file(path))
    dump = dumped(model, path, arithmetic=arithmetic)
    assert len(dump.observations) > 40
    diff = judge(model, dump, cache=False)
    assert diff, text(diff, model)


@pytest.mark.parametrize(
    ("name", "bug"), [p if p[1] in QUICK else pytest.param(*p, marks=pytest.mark.slow) for p in PLANTS]
)
def test_a_planted_bug_is_named(name: str, bug: str, path: Path) -> None:
    others.make(name, path)
    model = load(open_file(path))
    found = diagnose(model, dumped(model, path, bug), weights=Weights(model.file), cache=False)
    assert grade(found, (bug,)) in ("right", "tied"), (found.verdict, [(c.fault, c.how) for c in found.causes])
