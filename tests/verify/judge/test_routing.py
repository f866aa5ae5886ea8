"""A token that gets another expert by rounding is noted and is no fault; one that gets it by a fault is."""

from __future__ import annotations

import numpy as np
import pytest

from assay.engines.reference import interpret
from assay.engines.reference.functions import topk
from assay.engines.reference.weights import Weights
from assay.gguf import open_file
from assay.models import Model, load
from assay.verify.dumps.observation import Dump, Observation, inputs_of
from assay.verify.judge.routing import disorder, other_choice
from assay.verify.judge.text import text
from assay.verify.judge.verdict import judge
from tests import tiny

TOKENS = (1, 5, 9, 7, 3, 2)
TOKEN, LAYER = 3, 1


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = tiny.make(tmp_path_factory.mktemp("moe") / "moe.gguf", type="F32", n_expert=6, n_expert_used=2)
    return load(open_file(path))


@pytest.fixture(scope="module")
def close(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """The same file with two experts of one token's router brought together: 1e-8 apart."""
    x, scores = (run(model, [f"{role}-{LAYER}"]).popitem()[1][TOKEN] for role in ("ffn_norm", "ffn_moe_logits"))
    chosen, first_left = np.argsort(-scores)[1:3]
    name = f"blk.{LAYER}.ffn_gate_inp.weight"
    router = model.file.decode(name).astype(np.float64)
    router[first_left] += (scores[chosen] - scores[first_left] - 1e-8) * x / (x @ x)
    data = bytearray(model.file.path.read_bytes())
    old, new = model.file.decode(name).tobytes(), router.astype(np.float32).tobytes()
    assert data.count(old) == 1
    path = tmp_path_factory.mktemp("close") / "moe.gguf"
    path.write_bytes(data.replace(old, new))
    return load(open_file(path))


def run(model: Model, names: list[str], swap: bool = False) -> dict[str, np.ndarray]:
    """The definition in float64; with `swap`, one token of one layer gets the next best expert."""

    def otherwise(order: np.ndarray) -> np.ndarray:
        chosen = topk(order, k=2).copy()
        chosen[TOKEN, 1] = order[TOKEN, 2]
        return chosen

    functions = {f"ffn_moe_topk-{LAYER}": otherwise} if swap else {}
    given = inputs_of(TOKENS, range(len(TOKENS)))
    return dict(interpret(model.graph, Weights(model.file), given, names, functions=functions))


def dump_of(values: dict[str, np.ndarray]) -> Dump:
    kept = {n: v.astype(np.float32) if v.dtype.kind == "f" else v for n, v in values.items()}
    seen = tuple(Observation(n, "values", v, shape=v.shape, foreign=n) for n, v in kept.items())
    return Dump("swapped", TOKENS, tuple(range(len(TOKENS))), (len(TOKENS),), seen, "swapped")


def everything(model: Model) -> list[str]:
    return [node.name for node in model.graph if node.op != "cache"]


OUTPUTS = ["l_out-0", "l_out-1", "result_output"]


def test_a_choice_within_the_noise_is_told(close: Model) -> None:
    diff = judge(close, dump_of(run(close, everything(close), swap=True)), cache=False)
    assert diff and diff.nodes, text(diff, close)
    assert any(f"token {TOKEN}: expert" in n and f"in layer {LAYER}" in n and "margin" in n for n in diff.notes)


def test_a_choice_that_was_not_dumped_may_be_either(close: Model) -> None:
    for swap in (False, True):
        diff = judge(close, dump_of(run(close, OUTPUTS, swap)), cache=False)
        assert diff, text(diff, close)
        assert any(f"token {TOKEN}: experts" in n and "either is right" in n for n in diff.notes)


@pytest.mark.parametrize("whole", [True, False])
def test_another_expert_by_a_fault_is_wrong(model: Model, whole: bool) -> None:
    names = everything(model) if whole else OUTPUTS
    assert judge(model, dump_of(run(model, names)), cache=False)
    diff = judge(model, dump_of(run(model, names, swap=True)), cache=False)
    assert not diff and diff.first_wrong is not None and diff.first_wrong.own
    assert diff.first_wrong.name == (f"ffn_moe_topk-{LAYER}" if whole else f"l_out-{LAYER}")
    assert not any("within" in note for note in diff.notes)


@pytest.mark.parametrize("kind", ["values", "at"])
def test_a_ranking_is_judged_down_to_the_experts_that_are_used(model: Model, kind: str) -> None:
    """Two of six experts are used: the order of the others has no reader, that of the first has."""
    name = f"ffn_moe_argsort-{LAYER}"
    right = run(model, [name])[name]
    for ranks, healthy in (((4, 5), True), ((0, 5), False)):
        found = right.copy()
        found[:, ranks] = found[:, ranks[::-1]]
        data = found if kind == "values" else tuple((i, float(v)) for i, v in enumerate(found.reshape(-1)))
        seen = Observation(name, kind, data, shape=found.shape, foreign=name)
        dump = Dump("ranked", TOKENS, tuple(range(len(TOKENS))), (len(TOKENS),), (seen,), "ranked")
        assert bool(judge(model, dump, cache=False)) == healthy, ranks


def test_the_open_choice_excuses_its_token_alone(close: Model) -> None:
    """Another token of the same layer is still judged by the noise."""
    values = run(close, OUTPUTS, swap=True)
    values["l_out-1"] = values["l_out-1"].copy()
    values["l_out-1"][TOKEN + 1, 0] *= 1.01
    diff = judge(close, dump_of(values), cache=False)
    assert diff.first_wrong is not None and diff.first_wrong.name == "l_out-1"


def test_disorder_and_the_other_choice() -> None:
    scores = np.array([[0.1, 0.4, 0.3, 0.2]])
    assert disorder(scores, np.array([[1, 2]]))[0] == 0
    assert disorder(scores, np.array([[2, 1]]))[0] == pytest.approx(0.1)
    assert disorder(scores, np.array([[1, 0]]))[0] == pytest.approx(0.2)
    assert np.isinf(disorder(scores, np.array([[1, 1]]))[0]) and np.isinf(disorder(scores, np.array([[1, 9]]))[0])
    margin, other = other_choice(scores, np.array([[1, 2]]))
    assert margin[0] == pytest.approx(0.1) and other.tolist() == [[1, 3]]
