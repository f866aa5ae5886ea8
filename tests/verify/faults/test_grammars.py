"""What the generators of the grammar describe: computed apart, in loops, and compared with the planted edit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from assay.engines.reference.functions import softmax
from assay.gguf import open_file
from assay.models import Model, load
from assay.verify.faults import FAULTS, Context
from assay.verify.faults.block_grammar import mixed_blocks
from assay.verify.faults.edit_grammar import descriptions
from assay.verify.faults.fault import standard
from assay.verify.faults.rotation_grammar import pairs
from assay.verify.faults.statistic_grammar import statistics
from assay.verify.faults.tensor_grammar import norm_weights
from assay.verify.faults.visible_grammar import hidden_scores, seen_keys
from assay.verify.faults.window_grammar import windows
from tests.models import others


def model_of(shared_dir: Path, name: str) -> Model:
    path = shared_dir / "data" / f"{name}.gguf"
    if not path.exists():
        pytest.skip(f"no such model in the reference data: {path}")
    return load(open_file(path))


def edit(found: object, words: str) -> object:
    """The one description with these words."""
    variants = [v for _, v in found if words in v.label]
    assert len(variants) == 1, [v.label for v in variants]
    return variants[0]


def test_a_scale_of_the_block_before(shared_dir: Path) -> None:
    """Q8_0: 34 bytes a block, a half and 32 signed bytes."""
    model = model_of(shared_dir, "models/stories15M-q8_0")
    c, node = Context(model, (3,)), model.graph["ffn_up-0"]
    info = model.file.tensors[node.weights[0]]
    raw = np.frombuffer(bytes(np.ascontiguousarray(model.file.raw(info.name))), np.uint8).reshape(-1, 34)
    d = raw[:, :2].copy().view("<f2").astype(np.float32).reshape(info.shape[0], -1, 1)
    q = raw[:, 2:].view(np.int8).reshape(info.shape[0], -1, 32).astype(np.float32)
    d[:, 1:] = d[:, :-1].copy()
    x = np.random.default_rng(0).standard_normal((3, info.shape[1]))
    change = edit(mixed_blocks(c, [node]), "the blocks of ffn_up take the scale of the block before").at(c, node)
    assert np.allclose(change.function(x), x @ (q * d).reshape(info.shape).T)
    first = change.preview(x)
    assert np.allclose(first, change.function(x)[:, : first.shape[1]])


def test_a_mask_before_the_cap(shared_dir: Path) -> None:
    model = model_of(shared_dir, "arch/gemma2")
    c, node = Context(model, (7,)), model.graph["kq_soft_max-0"]
    scores = np.random.default_rng(1).uniform(-3, 3, (4, 7, 7))
    at = np.arange(7)
    found = edit(hidden_scores(c, [node]), "keys before the window get the score -3").at(c, node)
    hidden = np.where(at[:, None] - at[None, :] >= node.attr("window"), -3.0, scores)
    assert np.allclose(found.function(scores, at, at), softmax(np.where(at[None, :] > at[:, None], -np.inf, hidden)))


def test_rules_that_agree_on_these_tokens_are_one(stories260k: Path) -> None:
    """Five tokens: a tile of 8 hides nothing, which the catalogue has; of 4 the last token is alone."""
    model = load(open_file(stories260k))
    words = [v.label for _, v in seen_keys(Context(model, (5,)), [model.graph["kq_soft_max-0"]])]
    assert any("own tile of 4" in w for w in words) and not any("own tile of 8" in w for w in words)


def test_a_ring_in_the_order_of_its_slots(shared_dir: Path) -> None:
    model = model_of(shared_dir, "recurrent/qwen35")
    c = Context(model, (4, 1, 1))
    node = next(n for n in model.graph if n.op == "causal_conv")
    channels, past = node.attr("state")
    rng = np.random.default_rng(2)
    x, w = rng.standard_normal((6, channels)), rng.standard_normal((channels, past + 1))
    found = edit(windows(c, [node]), "window is a ring that is read in the order of its slots, not").at(c, node)
    made, _ = found.function(x, w, np.zeros((channels, past)))
    ring = np.zeros((past, channels))
    for t in range(6):
        before = ring if t >= 4 else np.stack([x[s] if s >= 0 else 0 * x[0] for s in range(t - past, t)])
        assert np.allclose(made[t], (np.concatenate([before, x[t : t + 1]]) * w.T).sum(0)), t
        ring[t % past] = x[t]


def _steps(x: np.ndarray, w: np.ndarray, slots: np.ndarray, ring: bool) -> list[np.ndarray]:
    """What decode steps from position 4 on make of these slots."""
    found, slots = [], slots.copy()
    for t in range(4, len(x)):
        order = [(t + i) % len(slots) for i in range(len(slots))] if ring else range(len(slots))
        found.append((np.concatenate([slots[list(order)], x[t : t + 1]]) * w.T).sum(0))
        if ring:
            slots[t % len(slots)] = x[t]
        else:
            slots = np.concatenate([slots[1:], x[t : t + 1]])
    return found


@pytest.mark.parametrize(
    ("words", "rows", "ring"),
    [
        ("ends one token early", (0, 1, 2), False),
        ("has its first rows", (0, 1, 2), False),
        ("has the newest row first", (3, 2, 1), False),
        ("leaves its window as a ring", (3, 1, 2), False),  # row p in slot p % 3
        ("take it for a ring", (1, 2, 3), True),
    ],
)
def test_what_the_prompt_leaves_in_the_window(shared_dir: Path, words: str, rows: tuple[int, ...], ring: bool) -> None:
    model = model_of(shared_dir, "recurrent/qwen35")
    c = Context(model, (4, 1, 1, 1))
    node = next(n for n in model.graph if n.op == "causal_conv")
    channels, past = node.attr("state")
    rng = np.random.default_rng(2)
    x, w = rng.standard_normal((7, channels)), rng.standard_normal((channels, past + 1))
    made, _ = edit(windows(c, [node]), words).at(c, node).function(x, w, np.zeros((channels, past)))
    right, _ = standard(node)(x, w, np.zeros((channels, past)))
    assert np.allclose(made[:4], right[:4]) and not np.allclose(made[4:], right[4:])
    assert np.allclose(made[4:], _steps(x, w, x[list(rows)], ring))


@pytest.mark.parametrize("name", ["gemma2", "qwen3moe", "gpt-oss", "glm4"])
def test_a_statistic_over_n_less_one(tmp_path: Path, name: str) -> None:
    others.make(name, tmp_path / "model.gguf")
    model = load(open_file(tmp_path / "model.gguf"))
    c, node = Context(model, (3,)), next(n for n in model.graph if n.op == "rms_norm")
    n = int(model.graph.shapes[node.name][-1])
    x, w = np.random.default_rng(3).standard_normal((3, n)), np.ones(n)
    found = edit(statistics(c, [node]), f"{node.name.split('-')[0]} is divided by n - 1").at(c, node)
    root = np.sqrt((x * x).sum(-1, keepdims=True) / (n - 1) + node.attr("eps"))
    assert np.allclose(found.function(x, w), x / root)


def test_the_weight_and_bias_of_another_norm(shared_dir: Path) -> None:
    model = model_of(shared_dir, "arch/starcoder2")
    c, node = Context(model, (3,)), model.graph["attn_norm-0"]
    other = model.graph["ffn_norm-0"]
    found = {v.label: v.at(c, node).node.weights for _, v in norm_weights(c, [node]) if v.at(c, node) is not None}
    assert found["attn_norm takes the weight and bias of ffn_norm"] == other.weights
    assert found["attn_norm takes the bias of ffn_norm"] == (node.weights[0], other.weights[1])


@pytest.mark.parametrize(
    ("words", "formula"),
    [
        ("(a cos + b sin, a sin + b cos)", lambda a, b, c, s: (a * c + b * s, a * s + b * c)),
        ("(a cos - b sin, b cos - a sin)", lambda a, b, c, s: (a * c - b * s, b * c - a * s)),
        ("(a sin - b cos, a cos + b sin)", lambda a, b, c, s: (a * s - b * c, a * c + b * s)),
        ("(a cos - b sin, b)", lambda a, b, c, s: (a * c - b * s, b)),
    ],
)
@pytest.mark.parametrize("name", ["arch/glm4", "arch/stablelm"])
def test_another_formula_of_a_rotation(shared_dir: Path, name: str, words: str, formula: object) -> None:
    """Neighbours in glm4, halves in stablelm; both rotate a part of each head."""
    model = model_of(shared_dir, name)
    c, node = Context(model, (5,)), model.graph["Kcur-0"]
    n, heads, at = node.attr("n_rot"), node.attr("n_head"), np.arange(5)
    x = np.random.default_rng(4).standard_normal((5, heads, int(model.graph.shapes[node.name][-1])))
    angle = at[:, None] * float(node.attr("base")) ** (-2.0 * np.arange(n // 2) / n)
    right = x.copy()
    for i in range(n // 2):
        a, b = (2 * i, 2 * i + 1) if node.attr("mode") == "norm" else (i, i + n // 2)
        turned = formula(x[..., a], x[..., b], np.cos(angle[:, [i]]), np.sin(angle[:, [i]]))
        right[..., a], right[..., b] = turned
    variants = [v for _, v in pairs(c, [node]) if v.label.startswith(f"Kcur turns (a, b) to {words}")]
    assert len(variants) == 1
    assert np.allclose(variants[0].at(c, node).function(x.reshape(5, -1), at), right)


def test_signed_bytes_read_as_unsigned(shared_dir: Path) -> None:
    model = model_of(shared_dir, "models/stories15M-q8_0")
    c, node = Context(model, (2,)), model.graph["ffn_up-0"]
    info = model.file.tensors[node.weights[0]]
    raw = np.frombuffer(bytes(np.ascontiguousarray(model.file.raw(info.name))), np.uint8).reshape(-1, 34)
    w = (raw[:, 2:].astype(np.float32) * raw[:, :2].copy().view("<f2").astype(np.float32)).reshape(info.shape)
    variant = next(v for v in FAULTS["q8_0-sign"].variants if v.label.startswith("signed bytes read as unsigned"))
    x = np.random.default_rng(5).standard_normal((2, info.shape[1]))
    assert np.allclose(variant.at(c, node).function(x), x @ w.T)


def test_rows_of_a_table_are_misread_as_the_whole_table_is(shared_dir: Path) -> None:
    """An embedding is looked up row by row: each misreading of the file gives the rows that it gives for the table."""
    model = model_of(shared_dir, "models/stories15M-q8_0")
    c, node = Context(model, (4,)), model.graph["embd"]
    head = next(n for n in model.graph if n.op == "linear" and n.weights == node.weights)
    ids = np.array([5, 0, 47, 5])
    checked = 0
    for fault in FAULTS.values():
        for variant in fault.variants:
            if variant.search is None and fault.stage in ("gguf parsing", "dequantisation"):
                rows, table = variant.at(c, node), variant.at(c, head)
                if rows is None or table is None or rows.function is None or table.preview is None:
                    continue
                whole = table.preview(np.eye(int(model.graph.weights[node.weights[0]][1])))
                finite = np.isfinite(whole.T[ids]).all(1)  # the product makes a row NaN where one value is
                with np.errstate(all="ignore"):
                    assert np.allclose(rows.function(ids)[finite], whole.T[ids][finite]), variant.label
                checked += bool(finite.any())
    assert checked > 10


def test_every_recurrent_model_is_described(shared_dir: Path) -> None:
    """Layers without attention, of which rwkv6 counts no heads, have descriptions as well."""
    files = sorted((shared_dir / "data" / "recurrent").glob("*.gguf"))
    if not files:
        pytest.skip("no recurrent models in the reference data")
    for path in files:
        model = load(open_file(path))
        found = list(
            descriptions(Context(model, (9, 1, 1), tokens=tuple(range(11))), [n.name for n in model.graph.nodes])
        )
        assert len(found) > 50, path.name


def test_decode_past_an_empty_row_of_the_cache(stories260k: Path) -> None:
    """The prompt is right. In decode, positions are one late, and a key of zeros takes its share of the probability."""
    model = load(open_file(stories260k))
    variant = next(v for v in FAULTS["pos-off-by-one-decode"].variants if "empty row" in v.label)
    assert variant.at(Context(model, (3,)), model.graph["kq_soft_max-0"], 0.0) is None  # a prompt alone
    context, at = Context(model, (3, 1, 1)), np.arange(5)
    scores = np.random.default_rng(1).standard_normal((8, 5, 5))
    node = model.graph["kq_soft_max-0"]
    found, right = variant.at(context, node, 0.0).function(scores, at, at), standard(node)(scores, at, at)
    assert np.array_equal(found[:, :3], right[:, :3]) and found.shape == right.shape
    e = np.exp(scores[:, 4] * node.attr("scale"))
    assert np.allclose(found[:, 4], e / (1 + e.sum(-1, keepdims=True)))
    rope, x = model.graph["Qcur-0"], np.random.default_rng(2).standard_normal((5, 64))
    turned, plain = variant.at(context, rope, 0.0).function(x, at), standard(rope)(x, at + 1)
    assert np.allclose(turned[3:], plain[3:]) and np.allclose(turned[:3], standard(rope)(x, at)[:3])
