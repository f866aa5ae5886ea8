"""Metadata and tensors from strangers: one line that names the key, or a model; never a traceback, a hang or a loop."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.engines.reference.functions import alibi_slopes, rope_angles
from assay.errors import AssayError
from assay.graph import Graph
from assay.models.arch_keys import ArchKeys
from assay.models.blocks import Builder, Shapes
from assay.models.catalogue import ARCHITECTURES, Arch, example, metadata, tensor_shapes

ROWS = list(ARCHITECTURES.values())

numbers = st.one_of(
    st.integers(-3, 300),
    st.sampled_from([2**31 - 1, 2**31, 2**63, -(2**31)]),
    st.floats(),
    st.booleans(),
    st.text(max_size=5),
    st.lists(st.integers(-1, 9), max_size=6).map(lambda x: np.array(x, np.int64)),
    st.lists(st.booleans(), max_size=6).map(lambda x: np.array(x, np.bool_)),
)


def build(row: Arch, keys: dict[str, Any], shapes: Shapes) -> Graph:
    return row.build(Builder(ArchKeys(keys, row.name, "m.gguf"), shapes)).check()


# Keys that no example has: every one that a builder asks for.
ASKED = [
    "attention.causal", "attention.clamp_kqv", "attention.max_alibi_bias", "attention.scale",
    "attention.shared_kv_layers", "attention.sliding_window", "attention.sliding_window_pattern",
    "attention.temperature_length",
    "attention.temperature_scale", "attn_logit_softcapping", "embedding_scale", "expert_gating_func",
    "expert_group_count", "expert_group_used_count", "expert_weights_norm", "expert_weights_scale",
    "final_logit_softcapping", "interleave_moe_layer_step", "leading_dense_block_count", "logit_scale",
    "nextn_predict_layers", "pooling_type", "residual_scale", "rope.freq_base", "rope.freq_base_swa",
    "rope.scaling.alpha", "rope.scaling.attn_factor", "rope.scaling.factor", "rope.scaling.finetuned",
    "rope.scaling.original_context_length", "rope.scaling.type", "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_log_multiplier",
]  # fmt: skip


@given(data=st.data(), row=st.sampled_from(ROWS))
@settings(max_examples=400)
def test_any_value_under_any_key(data: st.DataObject, row: Arch) -> None:
    keys = metadata(row)
    known = [key.removeprefix(f"{row.name}.") for key in keys if key.startswith(row.name)]
    for key in data.draw(st.lists(st.sampled_from([*known, *ASKED]), min_size=1, max_size=3)):
        keys[f"{row.name}.{key}"] = data.draw(numbers)
    try:
        build(row, keys, tensor_shapes(row))
    except AssayError as error:
        assert "\n" not in str(error) and len(str(error)) < 400


@given(data=st.data(), row=st.sampled_from(ROWS))
@settings(max_examples=400)
def test_any_tensor_of_any_shape(data: st.DataObject, row: Arch) -> None:
    shapes = dict(tensor_shapes(row))
    for name in data.draw(st.lists(st.sampled_from(sorted(shapes)), min_size=1, max_size=3, unique=True)):
        shape = data.draw(st.none() | st.lists(st.integers(1, 70), max_size=4).map(tuple))
        if shape is None:
            del shapes[name]
        else:
            shapes[name] = shape
    try:
        build(row, metadata(row), shapes)
    except AssayError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("arch", "change", "message"),
    [
        ("qwen3", {"attention.head_count": [4, 4, 4]}, "found 3 values, expected one, or 2, one a layer"),
        ("qwen3", {"attention.head_count_kv": [2, 3]}, "found 3, expected a divisor of head_count 4"),
        ("qwen3", {"nextn_predict_layers": 2}, "layers: bad value (found 2, expected less than the 2 blocks)"),
        ("qwen3", {"attention.layer_norm_rms_epsilon": None}, "qwen3.attention.layer_norm_rms_epsilon: missing"),
        ("gpt2", {"attention.layer_norm_epsilon": None}, "gpt2.attention.layer_norm_epsilon: missing"),
        ("qwen3", {"attention.head_count": True}, "found True, expected a whole number"),
        ("qwen3", {"rope.freq_base": 1.0}, "expected another number than 1"),
        ("qwen3", {"rope.scaling.factor": float("inf")}, "expected a finite number"),
        ("qwen3", {"rope.freq_base": 1e300}, "expected a finite number of float32's range"),
        ("qwen3", {"rope.freq_base": 1e-300}, "expected a number from 1e-20 to 1e+20"),
        ("gemma3", {"attention.sliding_window_pattern": [True]}, "expected 6 booleans, one a layer, or a number"),
        ("gemma4", {"attention.sliding_window_pattern": None}, "sliding_window_pattern: missing"),
        ("gemma4", {"attention.shared_kv_layers": 2}, "shared_kv_layers: bad value (found 2, expected at most 1)"),
        ("deepseek2", {"expert_group_count": 3}, "8 experts do not make 3 groups"),
        ("deepseek2", {"expert_gating_func": 3}, "expected 1 softmax or 2 sigmoid"),
        ("deepseek2", {"rope.dimension_count": 24}, "rope.dimension_count: bad value (found 24, expected less than"),
        ("llama4", {"interleave_moe_layer_step": 0}, "interleave_moe_layer_step: bad value (found 0"),
        ("bert", {"pooling_type": 4}, "expected cls.output.weight or cls.weight in a file that ranks"),
        ("bert", {"pooling_type": 5}, "expected 0 none, 1 mean, 2 first, 3 last or 4 rank"),
        ("granite", {"logit_scale": 0.0}, "logit_scale: bad value (found 0.0, expected a number from 1e-20"),
        ("granite", {"logit_scale": None}, "granite.logit_scale: missing"),
    ],
)  # fmt: skip
def test_what_is_said(arch: str, change: dict[str, Any], message: str) -> None:
    row = ARCHITECTURES[arch]
    keys = {**metadata(row), **{f"{arch}.{key}": value for key, value in change.items()}}
    with pytest.raises(AssayError) as caught:
        build(row, {key: value for key, value in keys.items() if value is not None}, tensor_shapes(row))
    assert message in str(caught.value)


@given(data=st.data(), arch=st.sampled_from(["mistral3", "hunyuan-dense", "deepseek2", "gpt-oss", "mpt"]))
@settings(max_examples=100)
def test_numbers_at_the_edge_still_turn(data: st.DataObject, arch: str) -> None:
    """Any number that is let in gives angles and slopes without an exception."""
    row = ARCHITECTURES[arch]
    edge = st.sampled_from([1e-38, 1e-30, 1e-3, 0.999, 1.001, 1e30, 3.4e38]) | st.floats(1e-38, 3.4e38)
    names = ["rope.freq_base", "rope.scaling.factor", "rope.scaling.attn_factor", "rope.scaling.alpha",
             "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow", "rope.scaling.yarn_log_multiplier",
             "attention.max_alibi_bias"]  # fmt: skip
    keys = metadata(row) | {f"{arch}.{name}": data.draw(edge) for name in names if data.draw(st.booleans())}
    try:
        graph = build(row, keys, tensor_shapes(row))
    except AssayError:
        return
    with np.errstate(all="ignore"):
        for node in graph:
            if node.op == "rope":
                attrs = {k: v for k, v in node.all_attrs().items() if k not in ("n_head", "mode", "offset")}
                rope_angles(np.arange(3), None, **attrs)
            elif node.op == "attn_softmax":
                alibi_slopes(6, node.attr("max_bias"))


def test_an_expert_is_never_read_past_the_end() -> None:
    """A tensor with fewer experts than the router chooses from."""
    row = ARCHITECTURES["gpt-oss"]
    for name in ("ffn_up_exps.weight", "ffn_gate_exps.bias", "ffn_gate_inp.bias", "ffn_gate_inp.weight"):
        shapes = dict(tensor_shapes(row))
        shapes[f"blk.1.{name}"] = (4, *shapes[f"blk.1.{name}"][1:])
        with pytest.raises(AssayError, match="not one row an expert"):
            build(row, metadata(row), shapes)


@pytest.mark.parametrize(("count", "drafts", "name"), [
    (2**31 - 1, 2**31 - 3, "blk.1.x"), (10**9, 0, "blk.999999999.x"), (10**9, 10**9 - 2, "blk.999999999.x"),
    (2, 0, "blk.2.x"), (1, 0, "blk.0.x"), (3, 0, "blk.1.x"),
])  # fmt: skip
def test_no_loop_over_blocks_that_are_not_there(count: int, drafts: int, name: str) -> None:
    """A count, and a single tensor with a number to match it: refused, or run without them, and either at once."""
    row = ARCHITECTURES["qwen3"]
    keys = {**metadata(row), "qwen3.block_count": count, "qwen3.nextn_predict_layers": drafts}
    shapes = {**tensor_shapes(row), name: (1,)}
    try:
        assert len(build(row, keys, shapes)) == len(example(row)[1])
    except AssayError as error:
        assert "the blocks whose tensors are present" in str(error)


def test_heads_that_do_not_turn_may_be_odd() -> None:
    sizes = replace(ARCHITECTURES["gpt2"].sizes, n_embd=60, n_embd_head=15, n_embd_head_v=15)
    row = replace(ARCHITECTURES["gpt2"], sizes=sizes)
    keys = metadata(row)
    del keys["gpt2.rope.dimension_count"]
    assert build(row, keys, tensor_shapes(row)).shapes["kqv-0"] == (4, "T", 15)
    with pytest.raises(AssayError, match="node Qcur-0: rope: n_rot must be even"):
        odd = replace(ARCHITECTURES["qwen2"], sizes=replace(sizes, n_head_kv=2))
        build(odd, {k: v for k, v in metadata(odd).items() if "rope" not in k}, tensor_shapes(odd))


def test_draft_layers_are_skipped() -> None:
    """Their tensors may be there or not; they are not run."""
    row = ARCHITECTURES["glm4moe"]
    keys, shapes = metadata(row), dict(tensor_shapes(row))
    plain = build(row, keys, shapes)
    keys |= {"glm4moe.block_count": 3, "glm4moe.nextn_predict_layers": 1}
    assert build(row, keys, shapes).nodes == plain.nodes
    extra = {f"blk.2.{name}": (64, 64) for name in ("nextn.eh_proj.weight", "attn_q.weight")}
    assert build(row, keys, {**shapes, **extra}).nodes == plain.nodes


def test_values_by_layer() -> None:
    """Heads and widths from arrays, in a graph that fits the tensors."""
    row = ARCHITECTURES["qwen2"]
    arrays = {"attention.head_count": [4, 2], "attention.head_count_kv": [2, 1], "feed_forward_length": [128, 32]}
    hp, graph = example(replace(row, keys=arrays))
    assert [(r.n_head, r.n_head_kv, r.n_ff) for r in hp.layers] == [(4, 2, 128), (2, 1, 32)]
    assert graph.shapes["Qcur-1"] == ("T", 2, 16) and graph.shapes["ffn_up-1"] == ("T", 32)
    arrays = {"expert_used_count": [2, 5], "expert_feed_forward_length": [32, 24]}
    _, graph = example(replace(ARCHITECTURES["qwen3moe"], keys=arrays))
    assert graph.shapes["ffn_moe_up-0"] == ("T", 2, 32) and graph.shapes["ffn_moe_up-1"] == ("T", 5, 24)
    leading = replace(ARCHITECTURES["deepseek2"], keys={**ARCHITECTURES["deepseek2"].keys, "expert_used_count": [0, 2]})
    assert "ffn_swiglu-0" in example(leading)[1] and "ffn_moe_out-1" in example(leading)[1]


def test_an_architecture_is_one_file_and_one_row() -> None:
    """Of all that computes, only the table knows an architecture's name; its builder lies in one file of models/."""
    import assay

    root = Path(assay.__file__).parent
    sources = [p for package in ("graph", "models", "engines", "runtime") for p in (root / package).rglob("*.py")]
    towers = root / "models" / "vision"  # it names projectors, and some have the name of an architecture
    texts = {p: p.read_text() for p in sources if towers not in p.parents}
    for name, row in ARCHITECTURES.items():
        assert [p for p, text in texts.items() if f'"{name}"' in text] == [root / "models" / "catalogue.py"], name
        assert row.build.__module__.startswith("assay.models."), name


def test_a_new_architecture_needs_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A builder of six lines and a row: the file loads, runs, and is described."""
    from assay.engines.contract import Chunk
    from assay.engines.reference import ReferenceEngine
    from assay.gguf import Tensor, by_name, open_file, write
    from assay.models import load
    from assay.models.file_report import describe

    def build_mine(b: Builder) -> Graph:
        b.read(mode="neox")
        x = b.embedding(2.0)
        for _ in b.blocks():
            x = b.add("l_out", b.attention(b.norm("attn_norm", x)), x)
        return b.head(x)

    mine = Arch("mine", build_mine, "attention only", "attn_norm QKV", top="token_embd output_norm")
    monkeypatch.setitem(ARCHITECTURES, "mine", mine)
    rng = np.random.default_rng(0)
    tensors = [
        Tensor(name, shape, by_name("F32"), rng.standard_normal(shape).astype(np.float32))
        for name, shape in tensor_shapes(mine).items()
    ]
    write(tmp_path / "m.gguf", metadata(mine), tensors)
    model = load(open_file(tmp_path / "m.gguf"))
    out = ReferenceEngine(model).forward([Chunk(np.arange(5, dtype=np.int32), 0, np.zeros(1, np.int32), "all")])
    assert out[0].logits.shape == (5, 256)
    assert describe(model.file)["memory"]["kv_cache"] == 2 * 2048 * 2 * 2 * (2 * 16)


RECURRENT = ("lfm2moe", "qwen35", "qwen3next", "nemotron_h_moe", "kimi-linear", "jamba", "rwkv7", "rwkv6", "gemma3n")
VALUES = (0, -1, 3, 2**31 - 1, 1.5, "x", True, [], [0], [1, 2, 3], np.array(["a"]), np.array([1e30]), math.nan)


@pytest.mark.parametrize("name", RECURRENT)
def test_keys_and_shapes_that_make_no_state(name: str) -> None:
    """Every key with every kind of value, and every tensor missing or of another shape: refused with one line."""
    row = ARCHITECTURES[name]
    keys, shapes = metadata(row), tensor_shapes(row)
    more = ("rope.dimension_sections", "attention.recurrent_layers", "nextn_predict_layers", "moe_latent_size")
    files = [({**keys, key: value}, shapes) for key in keys for value in VALUES if key != "general.architecture"]
    files += [({**keys, f"{name}.{key}": value}, shapes) for key in more for value in VALUES]
    files += [(keys, {**shapes, tensor: shape}) for tensor in shapes for shape in ((3,), (2, 3), (1, 1, 1, 1))]
    files += [(keys, {t: s for t, s in shapes.items() if t != tensor}) for tensor in shapes]
    refused = 0
    for meta, tensors in files:
        try:
            row.build(Builder(ArchKeys(meta, name), tensors)).check()
        except AssayError as error:
            assert "\n" not in str(error)
            refused += 1
    assert refused > len(files) // 3
