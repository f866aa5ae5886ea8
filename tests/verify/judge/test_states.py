"""States of recurrent layers: judged call by call, in other engines' layouts, and named where they have 16 bits."""

from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np
import pytest

from assay.errors import AssayError
from assay.gguf import open_file
from assay.models import load
from assay.verify.diagnosis.diagnose_dump import diagnose
from assay.verify.dumps.load import load_dump
from assay.verify.judge.state_evidence import narrow_type
from assay.verify.judge.verdict import judge
from tests import recurrent_planting as planting
from tests.planting import Case

FOLDER = planting.folder()
pytestmark = pytest.mark.skipif(FOLDER is None, reason="no golden recurrent models; set ASSAY_SHARED")
PROMPT = (24,)


def opened(name):
    path = FOLDER / f"{name}.gguf"
    return load(open_file(path)), path


def judged(tmp_path, name, *bugs, steps=PROMPT, change=None, keep=None, **options):
    """The verdict on the second engine's run; `change` alters the dumped states."""
    model, path = opened(name)
    ids = planting.tokens_of(path)[: sum(steps)]
    case = planting.planted(path, *bugs, tokens=ids, steps=steps, **options)
    if keep is not None:
        case = Case(case.name, case.faults, tuple({k: v for k, v in p.items() if keep(k)} for p in case.parts))
    if change is not None:
        parts = tuple({k: change(k, v) if k.startswith("cache_") else v for k, v in p.items()} for p in case.parts)
        case = Case(case.name, case.faults, parts)
    dump = load_dump(planting.full(case, tmp_path, ids, steps), model)
    return judge(model, dump, cache=False), dump, model


def states_of(diff):
    return {n.name: n for n in diff.nodes if n.name.startswith(("cache_r_l", "cache_s_l"))}


@pytest.mark.parametrize("name", ["lfm2", "nemotron_h_moe-mtp", "rwkv7"])
def test_the_states_of_a_right_engine_are_the_same_after_every_call(tmp_path, name):
    diff, dump, _ = judged(tmp_path, name, steps=planting.STEPS)
    assert diff.verdict == "same"
    assert len(states_of(diff)) >= 2
    assert {o.rows for o in dump.states} == {(0, 1), (1, 2), (2, 3)}


def _transformers(name, value):
    """A batch axis, matrices transposed, windows as wide as the kernel."""
    if name.startswith("cache_s"):
        return value.swapaxes(-1, -2)[None]
    return np.concatenate([np.full_like(value[:, :1], 7.0), value], 1)[None]


def _rows(name, value):
    return value.T if name.startswith("cache_r") else value


def _two_cells(name, value):
    return np.stack([np.ones_like(value), value])


def _value_heads(name, value):
    """Two key heads, two value heads of each: those of a key head side by side."""
    return value[[0, 2, 1, 3]] if name.startswith("cache_s") else value


@pytest.mark.parametrize("change", [_transformers, _rows, _two_cells, _value_heads])
def test_other_layouts_of_a_right_state_are_found_and_noted(tmp_path, change):
    keep = lambda name: name.startswith("cache_") or name.endswith("-0")  # noqa: E731
    diff, dump, _ = judged(tmp_path, "qwen35", change=change, keep=keep)
    assert diff.verdict == "same", diff.summary
    assert any(note.startswith("cache_") for note in dump.notes)


def test_a_state_that_no_value_shows_yet_is_the_first_wrong_thing(tmp_path):
    diff, dump, model = judged(tmp_path, "nemotron_h_moe-mtp", "conv-state-padded")
    assert diff.first_name == "cache_r_l0" and diff.first_wrong.own
    assert "cache_r_l0 is wrong after call 1; the dumped values do not show it, those of the next call would" in (
        diff.notes
    )
    found = diagnose(model, dump, cache=False)
    assert found.verdict == "unexplained" and found.first_wrong == "cache_r_l0" and "call" in found.next_observation


def test_a_state_that_parts_before_its_node_is_at_fault_beside_it(tmp_path):
    diff, _, _ = judged(tmp_path, "nemotron_h_moe-mtp", "st-pad-decays", steps=planting.STEPS)
    assert diff.first_name == "y_ssm-0"
    assert states_of(diff)["cache_s_l0"].own is True
    assert "cache_s_l0 is wrong after call 1" in diff.notes
    assert states_of(diff)["cache_r_l0"].verdict == "same"


def test_a_state_whose_operation_is_wrong_passes_it_on(tmp_path):
    diff, _, _ = judged(tmp_path, "nemotron_h_moe-mtp", "ssm-decay-late")
    assert [n.name for n in diff.at_fault] == ["y_ssm-0"]
    assert states_of(diff)["cache_s_l0"].verdict == "wrong" and states_of(diff)["cache_s_l0"].own is False


@pytest.mark.parametrize(("bug", "type_"), [("st-bf16", "bfloat16"), ("st-f16", "float16")])
def test_a_state_in_sixteen_bits_is_seen_by_its_digits(tmp_path, bug, type_):
    diff, _, _ = judged(tmp_path, "nemotron_h_moe-mtp", bug)
    assert any(f"every value is a {type_}" in note for note in diff.notes)


def test_the_narrow_type_of_values():
    values = np.random.default_rng(1).standard_normal(64).astype(np.float32)
    assert narrow_type(values) is None
    assert narrow_type(values.astype(np.float16).astype(np.float32)) == "f16"
    assert narrow_type(np.zeros(64, np.float32)) is None


def test_a_state_of_another_shape_is_refused(tmp_path):
    with pytest.raises(AssayError, match=r"cache_r_l0: shape \[3\] does not fit the state"):
        judged(tmp_path, "nemotron_h_moe-mtp", change=lambda name, value: np.zeros(3, np.float32))


def test_states_that_a_tracer_puts_among_the_observations_are_judged_as_states(tmp_path):
    diff, dump, model = judged(tmp_path, "nemotron_h_moe-mtp")
    flat = tuple(replace(o, data=o.array()[0], rows=None) for o in dump.states)
    mixed = replace(dump, states=(), observations=(*dump.observations, *flat))
    again = judge(model, mixed, cache=False)
    assert [n.name for n in again.nodes] == [n.name for n in diff.nodes] and again.verdict == "same"


def test_a_float32_state_of_a_thousand_tokens_is_right(tmp_path):
    """A state adds up rounding over all tokens: a right engine stays within the noise that is allowed for it."""
    path = tmp_path / "long.gguf"
    field = b"mamba2.context_length" + struct.pack("<I", 4)
    data = (FOLDER / "mamba2.gguf").read_bytes()
    path.write_bytes(data.replace(field + struct.pack("<I", 128), field + struct.pack("<I", 2048)))
    model = load(open_file(path))
    ids = [int(t) for t in np.random.default_rng(5).integers(0, 160, 1000)]
    kept = ("attn_norm-0", "zxBCdt-0", "y_ssm-0", "l_out-0", "cache_r_l0", "cache_s_l0", "cache_s_l2", "result_output")
    part = planting.planted(path, tokens=ids, steps=(1000,)).parts[0]
    case = Case("f32", (), ({k: part[k] for k in kept},))
    diff = judge(model, load_dump(planting.full(case, tmp_path, ids, (1000,)), model), cache=False)
    assert len(diff.nodes) == len(kept)
    assert "wrong" not in {n.verdict for n in diff.nodes}
