"""Models with a state against llama.cpp: every node, prompt and decode, states after every call, a long prompt.

Bounds. llama.cpp computes in float32, the definition in float64. Every value is computed from the tokens alone, so the
errors of all layers and calls before it add up: 1e-14 to 1e-11. Its GELU is a table of halves (1e-7).
"""

from __future__ import annotations

import numpy as np
import pytest

from assay.cli import main
from assay.engines.contract import Chunk
from assay.engines.reference import ReferenceEngine, interpret
from assay.engines.reference.weights import Weights
from assay.errors import AssayError
from assay.models.arch_keys import ArchKeys
from assay.models.blocks import Builder
from assay.models.nemotron import nemotron_h
from assay.verify.dumps.draft_tracing import trace_draft_head
from tests.models import golden, recurrent
from tests.models.test_architectures import has_gelu

FROM_TOKENS, AFTER_GELU = 5e-11, 1e-6


@pytest.mark.parametrize("name", recurrent.NAMES)
def test_every_recorded_value(name: str) -> None:
    """The prompt and two further tokens: every recorded node has its name in the graph, and its value."""
    calls = recurrent.calls(name)
    assert not calls.missing()
    errors = calls.errors()
    assert len(errors) > 40
    bound = AFTER_GELU if has_gelu(calls.model) else FROM_TOKENS
    assert not {node: error for node, error in errors.items() if error > bound}


@pytest.mark.parametrize("name", recurrent.STATEFUL)
def test_states_are_nodes(name: str) -> None:
    """Every state that llama.cpp keeps is shown after every call; before a call it is that of the call before."""
    calls = recurrent.calls(name)
    states = [n for n in calls.names("") if n.startswith(("cache_r_l", "cache_s_l"))]
    assert states and all(f"{state}{end}" in calls.recorded.files for state in states for end in calls.ends)
    before = {s: f"{s.rpartition('_')[0]}_before-{s.rpartition('_l')[2]}" for s in states}
    engine, start, last = ReferenceEngine(calls.model, n_pages=5), 0, dict.fromkeys(states, 0.0)
    for end in calls.ends:
        chunk = calls.chunk(end, start)
        found = engine.forward([chunk], [*states, *before.values()])[0].nodes
        for state in states:
            assert found[state].shape == calls.recorded[state + end].shape
            assert np.array_equal(found[before[state]], np.broadcast_to(last[state], found[state].shape))
            last[state] = found[state]
        start = chunk.end
    kept = {name for n in states for name in calls.model.graph[n].inputs}
    assert kept == {k.node for k in calls.model.graph.state.per_sequence}, "no state is hidden"


@pytest.mark.parametrize("name", [n for n in recurrent.NAMES if "bert" not in n])
def test_rows_of_a_long_prompt(name: str) -> None:
    calls = recurrent.calls(name)
    assert calls.long_error() < (AFTER_GELU if has_gelu(calls.model) else FROM_TOKENS)


@pytest.mark.parametrize("name", recurrent.DRAFTS)
def test_draft_heads(name: str) -> None:
    """Every recorded value, given llama.cpp's hidden rows; and these rows are the model's, one token late."""
    calls = recurrent.calls(name)
    errors = calls.draft_errors()
    assert len(errors) == 4 and max(errors.values()) < FROM_TOKENS
    hidden = calls.recorded["mtp/hidden"]
    assert not hidden[0].any() and np.array_equal(hidden[1:], calls.recorded["result_norm"][:-1])
    assert calls.model.draft is not None
    assert not set(calls.model.draft.weights) - set(calls.model.file.tensors)


def test_the_draft_layers_own_values_of_an_array() -> None:
    """Heads and experts of the draft layer are the last of arrays that go on to it (Nemotron 3)."""
    file = recurrent.calls("nemotron_h_moe-mtp").model.file
    shapes = {name: info.shape for name, info in file.tensors.items()}
    plain: dict[str, object] = {"expert_used_count": 2, "attention.head_count": 2}
    for keys, used in ((plain, 2), ({**plain, "expert_used_count": [0, 2, 0, 3]}, 3),
                       ({**plain, "expert_used_count": [0, 2, 0, 0]}, 2)):  # fmt: skip
        values = {**file.metadata, **{f"nemotron_h_moe.{key}": value for key, value in keys.items()}}
        b = Builder(ArchKeys(values, "nemotron_h_moe"), shapes)
        nemotron_h(b)
        assert b.draft is not None, b.draft_fault
        assert [node.attr("k") for node in b.draft if node.op == "topk"] == [used]
    heads = {"nemotron_h_moe.attention.head_count": [2, 2, 2, 1], "nemotron_h_moe.attention.key_length": 8}
    b = Builder(ArchKeys({**file.metadata, **heads}, "nemotron_h_moe"), shapes)
    nemotron_h(b)
    assert b.draft is None and "expected 8: 1 heads over 1" in b.draft_fault


def test_a_state_is_judged_on_given_inputs() -> None:
    """A state after a step follows from what llama.cpp had before it, even where the node's own value is given."""
    calls = recurrent.calls("qwen35")
    graph, values = calls.model.graph, calls.recorded
    env = {"inp_tokens": values["tokens"].astype(np.int64), "inp_pos": np.arange(24), "inp_kpos": np.arange(24)}
    env |= {n: values[n].astype(np.float64).reshape([24 if d == "T" else d for d in graph.shapes[n]])
            for n in ("attn_norm-0", "attn_output-0", "conv_output_raw-0")}  # fmt: skip
    weights = Weights(calls.model.file)
    found = interpret(graph, weights, env, {"cache_s_l0", "attn_output-0"})
    assert golden.nmse(found["cache_s_l0"], values["cache_s_l0"]) < 1e-12
    assert found["attn_output-0"] is env["attn_output-0"]
    given = {**env, "cache_s_before-0": values["cache_s_l0"].astype(np.float64)}
    other = interpret(graph, weights, given, {"cache_s_l0", "cache_s_before-0"})
    assert golden.nmse(other["cache_s_l0"], values["cache_s_l0"]) > 1e-3
    assert other["cache_s_before-0"] is given["cache_s_before-0"]


def test_the_draft_head_drafts_in_steps() -> None:
    """Its keys and values are its own: a prompt in pieces gives the same rows as the whole."""
    calls = recurrent.calls("qwen35moe-mtp")
    draft = calls.model.draft
    assert draft is not None and draft.state.rows and not draft.state.per_sequence
    tokens, hidden = calls.recorded["tokens"].astype(np.int32), calls.recorded["mtp/hidden"].astype(np.float64)

    def run(cuts: list[int]) -> np.ndarray:
        engine = ReferenceEngine(calls.model, n_pages=5, graph=draft)
        parts = [
            engine.forward([Chunk(tokens[a:b], a, calls.pages, "all", rows={"mtp_hidden": hidden[a:b]})])[0].logits
            for a, b in zip([0, *cuts], [*cuts, 24], strict=True)
        ]
        return np.concatenate(parts)

    assert np.allclose(run([]), run([1, 2, 17]), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["qwen35", "rwkv6", "mamba2"])
def test_a_dump_of_llama_cpp_is_right(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Its float32 values lie within the noise that is expected of recurrences, and its states are no node's value."""
    file = golden.path(name)
    assert main(["diff", str(file), str(file.with_suffix(".npz"))]) == 0, capsys.readouterr().err
    assert "wrong" not in capsys.readouterr().out


@pytest.mark.parametrize("name", ["lfm2", "rwkv7"])
def test_the_cpu_engine_passes_its_check(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Also with a cache of half precision: the state is not in it."""
    assert main(["check", str(golden.path(name)), "--lengths", "9"]) == 0, capsys.readouterr().out


@pytest.mark.parametrize("name", recurrent.DRAFTS)
def test_a_draft_head_is_traced_from_the_tokens(name: str) -> None:
    """The model and its head together, without llama.cpp's rows."""
    calls = recurrent.calls(name)
    found = trace_draft_head(calls.model, calls.recorded["tokens"].tolist())
    recorded = [key for key in calls.recorded.files if key.startswith("mtp/")]
    assert len(recorded) == 5
    assert all(golden.nmse(found[key], calls.recorded[key].astype(np.float64)) < FROM_TOKENS for key in recorded)


def test_a_file_without_a_draft_head_says_so() -> None:
    with pytest.raises(AssayError, match="no draft head that can be run"):
        trace_draft_head(recurrent.calls("qwen35").model, [1, 2, 3])
