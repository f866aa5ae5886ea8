"""Vision towers in precision `tensor` of the cuda engine: near the reference, one set of bits, a name of their own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from assay.engines.contract import Chunk
from assay.engines.cuda import CudaEngine
from assay.errors import AssayError
from assay.gguf import Tensor, by_name, codecs, open_file, write
from assay.graph import Graph, Node
from assay.models import Model
from assay.models.hparams import HParams, RopeParams
from assay.models.vision import load_tower
from assay.vision.encode import encode_pictures, trace_picture
from assay.vision.projector import Projector, open_projector, precision_of
from assay.vision.rows import ImageRows
from tests.engines.on_cuda import Shim, device, pages
from tests.vision.golden import DATA, HERE, NAMES, golden, nmse, rows

# Squared error of rounding one operand to f16. A tower of two layers rounds some thirty times on its way; half of these
# errors reach the result, and a norm or a softmax may double one.
HALF = 2.0**-22
MOST = 32 * HALF


TYPES = (("gemma3", "F16"), ("qwen3vl", "F16"), ("internvl", "BF16"), ("pixtral", "Q8_0"))


def tensor_tower(path: Path, **limits: int) -> Projector:
    return open_projector(path, "cuda", precision="tensor", device=device(), **limits)


def in_type(name: str, kind: str, path: Path) -> Path:
    """The golden file with its matrices in this type, where their rows are whole blocks."""
    file, tensors = open_file(DATA / f"{name}-mmproj.gguf"), []
    for old in file.tensors:
        values = file.decode(old)
        fits = values.ndim > 1 and values.shape[-1] % by_name(kind).block_size == 0
        type_ = by_name(kind if fits and "position" not in old else "F32")
        tensors.append(Tensor(old, values.shape, type_, codecs.encode(type_, values.astype("<f4"))))
    write(path, {key: file.metadata[key] for key in file.metadata}, tensors)
    return path


def kernels(projector: Projector) -> set[str]:
    engines = [engine for engine in projector._engines if isinstance(engine, CudaEngine)]
    return {launch.kernel for engine in engines for program in engine._programs.values() for launch in program.launches}


@pytest.mark.parametrize("name", NAMES)
def test_a_tower_in_tensor_is_close_to_the_reference(name: str) -> None:
    wanted = golden(name)
    projector = tensor_tower(wanted.path, **wanted.limits)
    for image, exact, fast in zip(
        rows(projector, wanted.image), wanted.embeddings, rows(wanted.open(), wanted.image), strict=True
    ):
        assert not np.array_equal(image.rows, fast.rows) and nmse(image.rows, exact) < MOST
        assert image.digest != fast.digest  # other bits are cached under another name
    assert projector.arithmetic == "cuda tensor" and "attend_patches_64" in kernels(projector)
    projector.close()


@pytest.mark.parametrize(
    ("name", "kind"), [*((name, "F16") for name in HERE), ("gemma3", "BF16"), ("qwen3vl", "Q8_0"), ("pixtral", "Q8_0")]
)
def test_matrices_in_16_and_8_bits_are_multiplied_in_16(name: str, kind: str, tmp_path: Path) -> None:
    """bf16 has three bits less than f16, so that its squared errors are 64 times as large."""
    path = in_type(name, kind, tmp_path / "tower.gguf")
    projector = tensor_tower(path)
    exact = rows(open_projector(path, "reference"), golden(name).image)
    for found, image in zip(rows(projector, golden(name).image), exact, strict=True):
        assert 0 < nmse(found.rows, image.rows) < MOST * (64 if kind == "BF16" else 1)
    products = {"F16": "halves", "BF16": "halves", "Q8_0": ("tensor", "turns")}[kind]
    assert any(kernel.startswith(products) for kernel in kernels(projector))
    projector.close()


@pytest.mark.parametrize(("name", "kind"), TYPES)
def test_bits_depend_neither_on_the_batch_nor_on_a_trace(name: str, kind: str, tmp_path: Path) -> None:
    """A trace keeps every node, so that no operation is folded into the one beside it."""
    projector, image = tensor_tower(in_type(name, kind, tmp_path / "tower.gguf")), golden(name).image
    alone = rows(projector, image)
    other = np.ascontiguousarray(image[::-1, ::-1])
    prompts = encode_pictures(projector, [other, image, other])
    first, batch, last = ([p for p in prompt.pieces if isinstance(p, ImageRows)] for prompt in prompts)
    names = list(projector.tower.graph.by_name)
    traced = trace_picture(projector, image, names)
    for one, two, three in zip(alone, batch, traced.rows, strict=True):
        assert np.array_equal(one.rows, two.rows) and np.array_equal(one.rows, three) and one.digest == two.digest
    assert all(np.array_equal(a.rows, b.rows) for a, b in zip(first, last, strict=True))
    assert not np.array_equal(first[0].rows, alone[0].rows)
    weights = traced.nodes[0]["kq_soft_max-0"]
    assert np.allclose(weights.sum(-1), 1.0, atol=1e-3) and (weights >= 0).all()
    projector.close()


def _attention(heads: int, kv_heads: int, dim: int, n: int) -> tuple[Graph, dict[str, np.ndarray]]:
    """Two-sided attention alone, over given queries, keys and values."""
    rng = np.random.default_rng(dim)
    nodes = (
        Node("kq-0", "kq", ("q", "k"), (), {"n_head": heads, "n_head_kv": kv_heads}),
        Node("p-0", "attn_softmax", ("kq-0", "inp_pos", "inp_pos"), (), {"scale": dim**-0.5, "causal": False}),
        Node("kqv-0", "kqv", ("p-0", "v"), (), {"n_head_kv": kv_heads}),
        Node("merged", "merge_heads", ("kqv-0",), (), {}),
        Node("out", "scale", ("merged",), (), {"factor": 1.0}),
    )
    widths = {"q": heads * dim, "k": kv_heads * dim, "v": kv_heads * dim}
    graph = Graph(nodes, {}, "out", {name: ("T", width) for name, width in widths.items()}).check()
    return graph, {name: rng.standard_normal((n, width)).astype(np.float32) for name, width in widths.items()}


def _expected(given: dict[str, np.ndarray], heads: int, kv_heads: int, dim: int) -> np.ndarray:
    q, k, v = (given[name].astype(np.float16).astype(np.float64) for name in "qkv")
    n, group = len(q), heads // kv_heads
    k, v = (np.repeat(x.reshape(n, kv_heads, dim), group, 1) for x in (k, v))
    s = np.einsum("ihd,jhd->hij", q.reshape(n, heads, dim), k) * dim**-0.5
    p = np.exp(s - s.max(-1, keepdims=True))
    return np.einsum("hij,jhd->ihd", p / p.sum(-1, keepdims=True), v).reshape(n, -1)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "n"),
    [(2, 2, 64, 130), (1, 1, 72, 300), (2, 1, 80, 65), (1, 1, 88, 64), (2, 2, 96, 40), (1, 1, 128, 193), (3, 1, 24, 9)],
)
def test_attention_of_patches_has_every_width_and_any_number_of_rows(
    heads: int, kv_heads: int, dim: int, n: int
) -> None:
    graph, given = _attention(heads, kv_heads, dim, n)
    file = load_tower(open_file(DATA / "gemma3-mmproj.gguf")).file
    model = Model(file, HParams("clip", 24, 1, 1024, 1e-6, RopeParams(8, 10000.0), ()), graph)
    engine = CudaEngine(model, precision="tensor", kv_type="f32", n_pages=32, device=device())
    nothing = np.zeros(0, np.int32)

    def chunk(first: int, end: int) -> Chunk:
        return Chunk(nothing, 0, pages(first, end), "all", rows={name: x[:end] for name, x in given.items()})

    (alone,) = engine.forward([chunk(3, n)])
    assert nmse(alone.logits, _expected(given, heads, kv_heads, dim)) < 2 * HALF
    some = n // 2 + 1
    batch = engine.forward([chunk(0, some), chunk(16, n)])
    assert np.array_equal(batch[1].logits, alone.logits)
    part = {name: x[:some] for name, x in given.items()}
    assert nmse(batch[0].logits, _expected(part, heads, kv_heads, dim)) < 2 * HALF
    traced = engine.forward([chunk(0, n)], ["kq-0", "p-0"])[0]
    assert np.array_equal(traced.logits, alone.logits)
    used = {launch.kernel for program in engine._programs.values() for launch in program.launches}
    assert {name for name in used if name.startswith("attend")} == {f"attend_patches_{max(64, -(-dim // 16) * 16)}"}
    engine.close()


def test_fast_has_the_kernels_of_float32() -> None:
    fast = open_projector(golden("gemma3").path, "cuda", device=device())
    rows(fast, golden("gemma3").image)
    assert not any(kernel.startswith(("attend_patches", "halve")) for kernel in kernels(fast))
    fast.close()


def test_a_tower_in_tensor_is_never_left_to_the_cpu() -> None:
    """Another engine has other bits, so that a full GPU would change them."""

    class Full(Shim):
        def memory(self) -> tuple[int, int]:
            return 0, 1 << 30

    found = open_projector(golden("gemma3").path, "auto", precision="tensor", device=Full(0))
    with pytest.raises(AssayError, match="does not fit"):
        rows(found, golden("gemma3").image)
    assert found.engine == "cuda"


def test_the_precision_of_a_tower_follows_the_language_models() -> None:
    table = {("cuda", "tensor"): "tensor", ("cuda", "mixed"): "tensor", ("cuda", "exact"): "exact"}
    table |= {("cpu", "tensor"): "fast", ("cuda", "fast"): "fast", ("wgpu", "mixed"): "fast", ("cpu", "exact"): "exact"}
    assert {key: precision_of(*key) for key in table} == table
