"""The grammar of edits: every composed mistake can be planted, and one that happened is described."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from assay.engines.reference import interpret
from assay.engines.reference.weights import Weights
from assay.gguf import open_file
from assay.models import Model, load
from assay.verify.diagnosis.by_runs import _most_certain
from assay.verify.diagnosis.diagnose_dump import diagnose
from assay.verify.dumps.load import load_dump
from assay.verify.dumps.observation import Dump, Observation, inputs_of
from assay.verify.dumps.resolve import resolve
from assay.verify.faults import Context, planted
from assay.verify.faults.edit_grammar import descriptions
from assay.verify.thresholds import A_GUESS
from tests import tiny

TOKENS = (1, 270, 280, 17, 300, 281)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load(open_file(tiny.make(tmp_path_factory.mktemp("grammar") / "tiny.gguf", type="F32")))


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = tiny.make(tmp_path_factory.mktemp("grammar") / "experts.gguf", type="F32", n_expert=4)
    return load(open_file(path))


@pytest.mark.parametrize("kind", ["model", "experts"])
def test_every_kind_of_description_runs_and_shows(kind: str, request: pytest.FixtureRequest) -> None:
    model: Model = request.getfixturevalue(kind)
    graph, weights, env = model.graph, Weights(model.file), inputs_of(TOKENS, range(len(TOKENS)))
    right = interpret(graph, weights, env, ["result_output"])["result_output"]
    names = [n.name for n in graph]
    context = Context(model, (3, 1, 1, 1), tokens=TOKENS)
    kinds = {re.sub(r"\d+", "#", v.label): v for _, v in descriptions(context, names)}
    later = {label for label in kinds if label.endswith("those of the last layer")}  # a run computes its rows later
    assert len(later) == 3
    silent = []
    for label, variant in kinds.items():
        if label in later:
            continue
        made = planted(context, variant)
        value = interpret(made.graph, weights, env, ["result_output"], functions=made.functions)["result_output"]
        if value.shape == right.shape and np.allclose(value, right):
            silent.append(label)
    assert len(kinds) > 60 and len(silent) < 5, silent


def last_rows(model: Model, values: dict[str, np.ndarray], names: list[str]) -> Dump:
    """Eight values of the last row of each node, as a log shows them."""
    n = len(TOKENS)
    seen = tuple(Observation(name, "first", tuple(values[name][-1, :8].tolist()), (n - 1, n)) for name in names)
    return resolve(Dump("test", TOKENS, tuple(range(n)), (n,), seen, "test"), model)


def test_an_operand_of_one_layer_is_described(model: Model) -> None:
    """The up projection of layer 1 reads the residual stream, not its norm; no row of the catalogue says so."""
    env = inputs_of(TOKENS, range(len(TOKENS)))
    graph = model.graph.rewrite(
        lambda n: None if n.name != "ffn_up-1" else type(n)(n.name, n.op, ("ffn_inp-1",), n.weights, n.attrs)
    )
    names = [n.name for n in graph if n.name.split("-")[0] in ("attn_out", "ffn_out", "l_out", "result_output")]
    found = diagnose(model, last_rows(model, interpret(graph, Weights(model.file), env, names), names))
    assert [(c.fault, c.how) for c in found.causes] == [
        ("operand-other", "ffn_up reads ffn_inp in place of ffn_norm, from layer 1 on")
    ], found


def test_a_fault_that_explains_few_of_the_wrong_nodes_is_a_guess() -> None:
    assert _most_certain(8, 89) == A_GUESS and _most_certain(89, 89) == 1.0


@pytest.mark.parametrize("second", [False, True])
def test_of_two_prints_of_a_name_the_nearest_is_read(model: Model, second: bool, tmp_path: Path) -> None:
    env = inputs_of(TOKENS, range(len(TOKENS)))
    value = interpret(model.graph, Weights(model.file), env, ["ffn_out-0"])["ffn_out-0"][-1, :6]
    prints = [value, value + 1.0][:: -1 if second else 1]
    lines = [f"layer 0 ffn_out: {[round(float(x), 5) for x in p]}" for p in prints]
    path = tmp_path / "log.txt"
    path.write_text(f"tokens: {list(TOKENS)}\n" + "\n".join(lines) + "\n")
    dump = load_dump(path, model)
    assert [o.name for o in dump.observations] == ["ffn_out-0"]
    assert np.allclose(dump.observations[0].target(), value, atol=1e-5)
    assert any(f"print {1 + second} of 2 is read" in note for note in dump.notes), dump.notes


def test_logits_of_the_token_before_are_described(model: Model) -> None:
    names = [n.name for n in model.graph if n.op != "cache"]
    values = dict(interpret(model.graph, Weights(model.file), inputs_of(TOKENS, range(len(TOKENS))), names))
    values["result_output"] = np.roll(values["result_output"], 1, axis=0)
    seen = tuple(Observation(name, "values", value.astype(np.float32)) for name, value in values.items())
    n = len(TOKENS)
    found = diagnose(model, resolve(Dump("test", TOKENS, tuple(range(n)), (n,), seen, "test"), model))
    assert [(c.fault, c.how) for c in found.causes] == [("index-off", "row t of result_output holds token t - 1")]
