"""Verdicts: healthy engines of every arithmetic pass, a single changed value is found and blamed on its own node."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from assay.engines.reference import ReferenceEngine
from assay.gguf import open_file
from assay.models import Model, load
from assay.verify.dumps.load import load_dump
from assay.verify.dumps.observation import Dump, Observation
from assay.verify.dumps.tracing import take_trace
from assay.verify.judge.compare_nodes import Diff
from assay.verify.judge.text import text
from assay.verify.judge.verdict import judge
from tests import planting
from tests.second_engine import Engine as SecondEngine
from tests.verify.conftest import NODES, TOKENS, changed, run_in


def names(diff: Diff, verdict: str) -> list[str]:
    return [n.name for n in diff.nodes if n.verdict == verdict]


def second(model: Model, *bugs: str, steps: tuple[int, ...] = (6,)) -> Dump:
    """The other engine, which shares no code with the package, as a dump."""
    nodes = SecondEngine(str(model.file.path), bugs=set(bugs)).run(TOKENS, steps=steps)
    kept = {name: value for name, value in nodes.items() if name in model.graph and model.graph[name].op != "cache"}
    observations = tuple(Observation(n, "values", v, shape=v.shape, foreign=n) for n, v in kept.items())
    return Dump("second", tuple(TOKENS), tuple(range(6)), steps, observations, "second engine")


# -- healthy engines -----------------------------------------------------------------------------------------


def test_the_definition_is_the_same_as_itself(model: Model, truth: Dump) -> None:
    diff = judge(model, truth)
    assert diff and diff.verdict == "same" and len(names(diff, "same")) == len(truth.by_name)


@pytest.mark.parametrize("decode", [0, 3])
def test_float32_is_the_same(model: Model, decode: int) -> None:
    diff = judge(model, take_trace(ReferenceEngine(model, np.float32), TOKENS, decode=decode, nodes=NODES))
    assert diff.verdict == "same", text(diff)


@pytest.mark.parametrize("steps", [(6,), (2, 1, 1, 1, 1)])
def test_another_float32_engine_is_the_same(model: Model, steps: tuple[int, ...]) -> None:
    diff = judge(model, second(model, steps=steps))
    assert diff.verdict == "same", text(diff)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_a_half_precision_engine_is_noise(model: Model, kind: str) -> None:
    diff = judge(model, run_in(model, kind))
    assert diff.verdict == "noise" and diff.arithmetic.name == kind, text(diff)
    assert {n.explained_by for n in diff.nodes if n.verdict == "noise"} == {kind}


def test_partial_evidence_of_a_half_precision_engine_is_noise(model: Model) -> None:
    diff = judge(model, summary(run_in(model, "f16"), "l_out|result"))
    assert diff.verdict == "noise" and "f16" in diff.arithmetic.name, text(diff)


# -- one value ------------------------------------------------------------------------------------------------

ROLES = ("embd", "attn_norm-1", "Qcur_proj-0", "Kcur_proj-1", "Vcur-1", "Qcur-0", "Kcur-0", "kq-1", "kq_soft_max-0",
         "kqv-1", "kqv_out-0", "attn_out-1", "ffn_inp-0", "ffn_norm-1", "ffn_gate-0", "ffn_up-1", "ffn_swiglu-0",
         "ffn_out-1", "l_out-0", "result_norm", "result_output")  # fmt: skip


@pytest.mark.parametrize("name", ROLES)
def test_one_percent_of_one_value_is_that_nodes_own_fault(model: Model, truth: Dump, name: str) -> None:
    def one_percent(value: np.ndarray) -> None:
        row = (slice(None), 4) if name.startswith("kq") and name != "kqv_out-0" else (4,)
        part = value[row]
        part.flat[int(np.argsort(np.abs(part), axis=None)[part.size // 2])] *= 1.01  # a value of median size

    diff = judge(model, changed(truth, name, one_percent))
    assert not diff and names(diff, "wrong") == [name]
    assert diff.first_wrong is not None and diff.first_wrong.own is True
    assert "the fault is its own" in text(diff) or "between" in text(diff)


def test_two_faults_are_both_found_and_nobody_else_is_blamed(model: Model) -> None:
    diff = judge(model, second(model, "norm-weight-twice"))
    blamed = {n.name for n in diff.at_fault}
    assert blamed == {n.name for n in model.graph if n.op == "rms_norm"}
    assert all(n.own is False for n in diff.nodes if n.verdict == "wrong" and n.name not in blamed)


@pytest.mark.parametrize(
    ("bug", "first"),
    [
        ("rope-type", "Qcur-0"),
        ("rope-missing", "Qcur-0"),
        ("norm-no-weight", "attn_norm-0"),
        ("eps-place", "attn_norm-0"),
    ],
)
def test_a_known_bug_of_another_engine_is_located(model: Model, bug: str, first: str) -> None:
    diff = judge(model, second(model, bug))
    assert diff.first_wrong is not None and diff.first_wrong.name == first and diff.first_wrong.own


def test_a_fault_smaller_than_carried_noise_is_still_found(model: Model) -> None:
    """In a float16 run, a late node off by 1 % everywhere: invisible in the carried noise, clear on its own inputs."""
    dump = run_in(model, "f16")

    def one_percent(value: np.ndarray) -> None:
        value *= 1.01

    diff = judge(model, changed(dump, "ffn_out-1", one_percent))
    assert [n.name for n in diff.at_fault] == ["ffn_out-1"]


# -- partial evidence ------------------------------------------------------------------------------------------


def summary(dump: Dump, pattern: str, row: int | None = None) -> Dump:
    """Only the first ten values and the rms of the chosen nodes."""
    import re

    found = []
    for obs in dump.observations:
        if re.search(pattern, obs.name):
            value = obs.array() if row is None else obs.array()[row : row + 1]
            rows = None if row is None else (row, row + 1)
            found.append(Observation(obs.name, "first", tuple(value.flat[:10]), rows, foreign=obs.name))
            rms = float(np.sqrt(np.mean(np.square(value, dtype=np.float64))))
            found.append(Observation(obs.name, "rms", rms, rows, foreign=obs.name))
    return replace(dump, observations=tuple(found))


@pytest.mark.parametrize("row", [None, 5])
@pytest.mark.parametrize("layer", [0, 1, 2])
def test_ten_values_and_an_rms_per_layer_find_the_layer(tmp_path: Path, layer: int, row: int | None) -> None:
    from tests import tiny

    model = load(open_file(tiny.make(tmp_path / "m.gguf", n_layer=4)))
    faulty = model.graph.rewrite(lambda n: n.with_attrs(act="gelu_tanh") if n.name == f"ffn_swiglu-{layer}" else None)
    dump = take_trace(ReferenceEngine(model, np.float32, graph=faulty), TOKENS, nodes=NODES)
    diff = judge(model, summary(dump, "^l_out", row))
    assert names(diff, "same") == [f"l_out-{i}" for i in range(layer)]
    assert diff.first_wrong is not None and diff.first_wrong.name == f"l_out-{layer}" and diff.first_wrong.own
    assert all(n.own is None for n in diff.nodes if n.verdict == "wrong" and n is not diff.first_wrong)


def test_whole_layer_outputs_tell_which_layers_are_at_fault(tmp_path: Path) -> None:
    from tests import tiny

    model = load(open_file(tiny.make(tmp_path / "m.gguf", n_layer=4)))
    faulty = model.graph.rewrite(lambda n: n.with_attrs(eps=1e-2) if n.name in ("attn_norm-1", "ffn_norm-3") else None)
    dump = take_trace(ReferenceEngine(model, np.float32, graph=faulty), TOKENS, nodes="^l_out")
    diff = judge(model, dump)
    assert [n.name for n in diff.at_fault] == ["l_out-1", "l_out-3"]
    assert diff.at_fault[0].evidence.segment[0] == "attn_norm-1"
    assert [n.own for n in diff.nodes] == [None, True, False, True]


def test_the_last_row_alone_is_judged(model: Model, truth: Dump) -> None:
    cut = tuple(
        replace(o, data=o.array()[-1:], rows=(5, 6), shape=o.array()[-1:].shape)
        for o in truth.observations
        if model.graph.shapes[o.name][0] == "T"
    )
    assert judge(model, replace(truth, observations=cut)).verdict == "same"
    wrong = tuple(replace(o, data=o.data * 1.05) if o.name == "ffn_gate-1" else o for o in cut)
    diff = judge(model, replace(truth, observations=wrong))
    assert names(diff, "wrong") == ["ffn_gate-1"]


# -- against llama.cpp's recorded values ---------------------------------------------------------------------------


@pytest.mark.slow
def test_llamacpp_smollm2_is_the_same_at_every_node(shared_dir: Path, smollm2: Path) -> None:
    model = load(open_file(smollm2))
    dump = load_dump(shared_dir / "data/golden/trace_llamacpp_smollm2.npz", model)
    assert len(dump.observations) == 545 and not dump.unmatched
    assert sorted(n.split(":")[0] for n in dump.notes) == ["node_1073", "node_1074"]  # matched by value, with a note
    diff = judge(model, dump)
    assert len(diff.nodes) == 543 and {n.verdict for n in diff.nodes} == {"same"}

    def one_percent(value: np.ndarray) -> None:
        value[3, 100] *= 1.01

    diff = judge(model, changed(dump, "ffn_gate-17", one_percent))
    assert names(diff, "wrong") == ["ffn_gate-17"] and diff.nodes[0].verdict == "same"
    assert diff.first_wrong is not None and diff.first_wrong.own and diff.first_wrong.evidence.where == (3, 100)


# -- a trained model, whose few huge activations decide some sums -----------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arithmetic", "explained_by"), [("q8", "Q8 activations"), ("kv16", "f16 KV"), ("f16", "f16"), ("f32", None)]
)
def test_healthy_engines_on_a_trained_model(
    smollm2: Path, tmp_path: Path, arithmetic: str, explained_by: str | None
) -> None:
    model = load(open_file(smollm2))
    case = planting.second(smollm2, tokens=planting.SMOL_TOKENS, arithmetic=arithmetic)
    diff = judge(model, planting.dump(case, "full", model, tmp_path, planting.SMOL_TOKENS))
    assert diff, text(diff)
    assert {n.explained_by for n in diff.nodes if n.verdict == "noise"} <= {explained_by}


@pytest.mark.slow
def test_ten_values_that_the_simulation_spared(smollm2: Path, tmp_path: Path) -> None:
    """Ten probabilities of one head are printed, and the simulated noise happens to move these very little."""
    model = load(open_file(smollm2))
    case = planting.second(smollm2, tokens=planting.SMOL_TOKENS, arithmetic="q8")
    diff = judge(model, planting.dump(case, "last", model, tmp_path, planting.SMOL_TOKENS))
    assert diff, text(diff)


@pytest.mark.slow
def test_what_the_noise_of_a_run_would_hide_is_located(smollm2: Path, tmp_path: Path) -> None:
    """The last pair is not rotated: this moves values by 1e-4, within the noise of a run, beyond that of one step."""
    model = load(open_file(smollm2))
    case = planting.second(smollm2, "x-rope-last-pair", tokens=planting.SMOL_TOKENS)
    diff = judge(model, planting.dump(case, "full", model, tmp_path, planting.SMOL_TOKENS))
    assert diff.first_wrong is not None and diff.first_wrong.name == "Qcur-0"
    assert {n.name.split("-")[0] for n in diff.at_fault} == {"Qcur", "Kcur"}
