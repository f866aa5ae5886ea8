"""The wgpu engine has the cpu engine's bits: types, caches, architectures, batches, tiers, traces.

A software adapter (lavapipe) compiles each kernel for a tenth of a second and more, so most of these tests are slow.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from assay.engines import ENGINES, create, wgpu
from assay.engines.contract import CacheLost, Chunk
from assay.engines.cpu import CpuEngine
from assay.engines.plan.batching import Step, whole
from assay.engines.wgpu.adapter import GpuError, _best_adapter, _wgpu, gpu
from assay.engines.wgpu.dispatches import Dispatch, share_memory
from assay.engines.wgpu.recording import workgroups
from assay.engines.wgpu.shaders import TIERS, Kernel
from assay.engines.wgpu.step_words import HEADER, RECORD, step_words
from assay.engines.wgpu.tier_probe import expected_results, fma, probe_vectors
from assay.engines.wgpu.weight_tiles import CHUNK, ROWS, pack, tile_format
from assay.errors import AssayError
from assay.gguf import open_file
from assay.library.argument_checks import check_load_options
from assay.models import Model
from assay.models.pictures import LAST
from assay.vision.encode import encode_picture
from assay.vision.projector import open_projector
from tests import tiny
from tests.engines import bits
from tests.picture_prompts import FOLDER, chunk, model_of, prompt

needs_adapter = pytest.mark.skipif("wgpu" not in ENGINES, reason="wgpu or a Vulkan driver is not installed")
TABLE = np.array([3, 1], np.int32)


def make(name: str, path: Path) -> Model:
    return bits.make(bits.CASES[name], path / "model.gguf")


def logits(engine: object, n: int, n_vocab: int, start: int = 0) -> np.ndarray:
    chunk = Chunk(bits.IDS[start : start + n] % n_vocab, start, TABLE, "all")
    found: np.ndarray = engine.forward([chunk])[0].logits  # type: ignore[attr-defined]
    return found


def check_case(name: str, path: Path, tier: int | None = None, n: int = 5) -> None:
    """The case's first tokens, whole and then one more, on both engines."""
    case, model = bits.CASES[name], make(name, path)
    graph, n_vocab = bits.graph_of(case, model), model.hparams.n_vocab
    ours = wgpu.WgpuEngine(model, graph=graph, n_pages=4, tier=tier, **case.engine)
    cpu = CpuEngine(model, graph=graph, n_pages=4, threads=1, **case.engine)
    assert ours.arithmetic == cpu.arithmetic and (tier is None or ours.tier == tier)
    for begin, count in ((0, n), (n, 1)):
        found, expected = (logits(engine, count, n_vocab, begin) for engine in (ours, cpu))
        assert np.array_equal(found, expected), f"{name}, tokens {begin} to {begin + count - 1}"
    ours.close()


@needs_adapter
@pytest.mark.slow
@pytest.mark.parametrize("name", [
    *(f"{kind} fast" for kind in ("Q4_0", "Q4_1", "Q4_K", "Q5_K", "Q6_K", "Q2_K", "IQ4_XS", "MXFP4", "F16", "BF16")),
    "Q5_1 exact", "untied, biased, factors", "experts", "softcap", "gelu_erf", "far positions", "ragged rows",
    "cache q8_0", "cache bf16", "arch qwen2", "arch qwen3", "arch gemma2", "arch gemma3", "arch phi3", "arch qwen3moe",
    "arch gpt-oss", "arch lfm2", "arch qwen35", "arch mamba2", "arch jamba",
])  # fmt: skip
def test_the_cpus_bits(name: str, tmp_path: Path) -> None:
    check_case(name, tmp_path)


@needs_adapter
@pytest.mark.slow
def test_matrices_of_few_rows_and_wide_heads(tmp_path: Path) -> None:
    """Products of 8 rows a workgroup (2048 columns, 256 rows), heads of 64 and 40 keys: the ways without tests."""
    sizes = {"type": "Q4_K", "n_embd": 256, "n_ff": 2048, "n_layer": 1}
    model = bits.make(bits.Case(sizes), tmp_path / "model.gguf")
    ours, cpu = wgpu.WgpuEngine(model, n_pages=4), CpuEngine(model, n_pages=4)
    assert "rows8" in {word for d in ours._recording(*one_token(40)).plan.dispatches for word in d.kernel.words}
    for begin, count in ((0, 40), (40, 1)):
        assert np.array_equal(*(logits(engine, count, model.hparams.n_vocab, begin) for engine in (ours, cpu)))


def one_token(start: int) -> tuple[Step, frozenset[str]]:
    (step,) = whole([Chunk(bits.IDS[:1], start, TABLE)])
    return step, frozenset()


@needs_adapter
@pytest.mark.slow
@pytest.mark.parametrize("name", ["Q4_K fast", "experts"])
def test_numbers_that_are_constants_of_the_code(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU has them so in steps of few tokens; an adapter in software does not, unless it is taken for a GPU."""
    monkeypatch.setattr(gpu(), "software", False)
    check_case(name, tmp_path, 2)


@needs_adapter
@pytest.mark.slow
def test_blocks_of_keys_are_folded(tmp_path: Path) -> None:
    """More than 256 keys, a window and a sink: attention folds several blocks."""
    model = make("arch gpt-oss", tmp_path)
    ids, table = bits.IDS[:262] % model.hparams.n_vocab, np.arange(9, dtype=np.int32)
    engines = wgpu.WgpuEngine(model, n_pages=9), CpuEngine(model, n_pages=9)
    found, expected = (engine.forward([Chunk(ids, 0, table, "last")])[0].logits for engine in engines)
    assert np.array_equal(found, expected)


@needs_adapter
@pytest.mark.slow
def test_states_of_two_sequences(tmp_path: Path) -> None:
    """Sequences in one batch have states of their own; a copied state goes on like its source."""
    model = make("arch qwen35", tmp_path)
    engines = wgpu.WgpuEngine(model, n_pages=4, state_slots=3), CpuEngine(model, n_pages=4, state_slots=3)
    ids = bits.IDS[:9] % model.hparams.n_vocab
    found = []
    for engine in engines:
        first = [Chunk(ids[:4], 0, TABLE[:1], state_slot=0), Chunk(ids[4:7], 0, TABLE[1:], state_slot=2)]
        rows = [output.logits for output in engine.forward(first)]
        engine.copy_state(2, 1)
        engine.copy_page(1, 0)
        third = Chunk(ids[7:], 3, np.zeros(1, np.int32), "all", state_slot=1)
        found.append(np.concatenate([*rows, engine.forward([third])[0].logits]))
    assert np.array_equal(*found)


@needs_adapter
@pytest.mark.parametrize("tier", [pytest.param(tier, marks=[pytest.mark.slow] if tier < 2 else []) for tier in TIERS])
def test_a_forced_tier(tier: int, tmp_path: Path) -> None:
    """A tier promises the cpu's bits if and only if the probe finds no difference."""
    model = make("Q8_0 fast", tmp_path)
    ours = wgpu.WgpuEngine(model, n_pages=4, tier=tier)
    assert ours.tier == tier and str(tier) in str(ours.verdict)
    if ours.verdict.proven:
        assert np.array_equal(logits(ours, 4, 320), logits(CpuEngine(model, n_pages=4), 4, 320))
        assert ours.arithmetic.name == "native"
    else:
        assert "expected 0x" in ours.verdict.failures[str(tier)]
        assert ours.arithmetic.name != "native" and not ours.arithmetic.steady


@needs_adapter
@pytest.mark.slow
@pytest.mark.parametrize("name", ["Q8_0 fast", "experts"])
def test_matrices_larger_than_a_binding(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices of whole tiles: products, experts and the table of embeddings."""
    whole = wgpu.StackedWeights

    class Narrow:
        max_binding = 40_000

        def loaded(self, data: np.ndarray, what: str) -> object:
            return gpu().loaded(data, what)

    monkeypatch.setattr(wgpu, "StackedWeights", lambda _, *rest: whole(Narrow(), *rest))
    check_case(name, tmp_path)
    assert len(whole(Narrow(), make(name, tmp_path).file, make(name, tmp_path).graph, False).buffers) > 20


@needs_adapter
@pytest.mark.slow
def test_a_lost_device(tmp_path: Path) -> None:
    """The step at hand fails and says that the cache is lost; the next one is computed."""
    model = make("Q8_0 fast", tmp_path)
    engine = wgpu.WgpuEngine(model, n_pages=4)
    expected = logits(engine, 3, 320)
    gpu()._device.destroy()
    with pytest.raises(CacheLost, match="the device was lost and opened again"):
        logits(engine, 3, 320)
    assert np.array_equal(logits(engine, 3, 320), expected)


@needs_adapter
def test_options_that_do_not_exist(tmp_path: Path) -> None:
    model = make("Q8_0 fast", tmp_path)
    for options, message in (
        ({"precision": "half"}, "no such precision .found half, expected fast or exact"),
        ({"kv_type": "q2"}, "no such cache type"),
        ({"n_pages": 0}, "at least one page"),
        ({"n_pages": 1 << 24}, "does not fit a buffer of .*use a smaller --ctx-size"),
        ({"tier": 7, "n_pages": 1}, "no such tier .found 7, expected 0, 1, 2"),
    ):
        with pytest.raises(AssayError, match=message):
            wgpu.WgpuEngine(model, **options)  # type: ignore[arg-type]


@needs_adapter
def test_variables_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong value is named with its variable."""
    monkeypatch.setenv("ASSAY_ADAPTER", "zork")
    with pytest.raises(AssayError, match=r"ASSAY_ADAPTER: no GPU adapter has zork in its name \(found .+ or unset it"):
        _best_adapter(_wgpu())
    monkeypatch.setenv("ASSAY_TIER", "nine")
    with pytest.raises(AssayError, match=r"ASSAY_TIER: no such tier \(found nine, expected 0, 1, 2\)"):
        wgpu.WgpuEngine(make("Q8_0 fast", tmp_path), n_pages=1)


def test_a_tier_is_an_option_of_this_engine_alone(tmp_path: Path) -> None:
    with pytest.raises(AssayError, match="engine cpu: has no option --tier; leave it out"):
        create("cpu", make("Q8_0 fast", tmp_path), n_pages=4, tier=1)
    with pytest.raises(AssayError, match="tier: must be a whole number of 0 to 2"):
        check_load_options({"tier": 3})


def test_workgroups_of_a_step() -> None:
    sizes = {"T": 9, "R": 1, "B": 2, "P": 1}
    assert workgroups((3, "T", "B"), sizes) == (3, 9, 2)
    assert workgroups(("T*4", "T/8", "R/8"), sizes) == (36, 2, 1)


@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K"])
def test_six_bits_and_four_keep_their_size(kind: str, tmp_path: Path) -> None:
    """Bytes of a unit of 256 weights: those of the file, rounded up to chunks."""
    file = open_file(tiny.make(tmp_path / "m.gguf", type=kind, n_embd=256, n_ff=256, tensor=bits.tensor))
    form = tile_format(file, "blk.0.attn_k.weight", False)
    assert form.chunks * CHUNK == {"Q4_K": 144, "Q6_K": 224}[kind]


def test_fma_rounds_once() -> None:
    assert fma(1 + 2.0**-12, 1 + 2.0**-12, -1.0) == 2.0**-11 + 2.0**-24  # exact: two roundings would lose the last bit
    assert fma(2.0**-100, 2.0**-49, 0.0) == 2.0**-149 and fma(2.0**-100, 2.0**-50, 0.0) == 0.0  # subnormals, a tie
    assert fma(3.0, 5.0, -15.0) == 0.0 and fma(3e38, 10.0, 0.0) == np.inf
    assert len(expected_results()) == len(probe_vectors())


def packed_codes(kind: str, path: Path) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    file = open_file(tiny.make(path / "m.gguf", type=kind, n_embd=256, tensor=bits.tensor))
    form = tile_format(file, "blk.0.attn_k.weight", False)
    rows, columns = file.tensors["blk.0.attn_k.weight"].shape
    tiles = pack(file, "blk.0.attn_k.weight", form)[0].reshape(rows // ROWS, form.chunks, ROWS, CHUNK)
    raw = file.raw("blk.0.attn_k.weight").reshape(rows, -1)
    assert columns == 256
    for row in (0, 33, rows - 1):
        yield raw[row], tiles[row // ROWS, :, row % ROWS]


def test_tiles_keep_what_is_in_the_file(tmp_path: Path) -> None:
    """Q8_0: codes and scales of a row, found at its place in the tiles; as many bytes as in the file."""
    for raw, chunks in packed_codes("Q8_0", tmp_path):
        blocks = raw.reshape(8, 34)
        assert np.array_equal(chunks[:16].ravel(), blocks[:, 2:].ravel())
        assert np.array_equal(chunks[16], blocks[:, :2].ravel())


def test_kernels_name_their_numbers_and_buffers() -> None:
    kernel = Kernel("matvec", tile_words() | {"alone"})
    assert kernel.numbers[:3] == ("units", "blocks", "x_stride")
    assert list(kernel.bindings) == ["w", "x", "bias", "residual", "idx", "out"]
    assert [name for name, writes in kernel.bindings.items() if writes] == ["out"]
    for tier in TIERS:
        assert "//#" not in kernel.source(tier) and "fn fused" in kernel.source(tier)
    fixed = Kernel("matvec", kernel.words, fixed=tuple((name, 7) for name in kernel.numbers))
    assert set(re.findall(r"par\.\w+", fixed.source(0))) == {"par.zero"} and fixed.numbers == kernel.numbers


def tile_words() -> frozenset[str]:
    return frozenset({"weights=blocks", "codes=nibbles", "scales=super", "minima", "whole"})


def test_values_share_memory_only_when_the_first_is_dead() -> None:
    kernel = Kernel("gather")

    def step(x: str, out: str) -> Dispatch:
        return Dispatch(kernel, {}, {"x": x, "idx": "nothing", "out": out}, (1, 1, 1))

    chain = [step("a", "b"), step("b", "c"), step("c", "d"), step("a", "e")]
    _, sizes, place = share_memory(chain, dict.fromkeys("abcde", 64), {"e"})
    assert place["a"] not in (place["b"], place["c"], place["d"])  # it is read once more
    assert place["d"] == place["b"] and place["b"] != place["c"]
    assert list(place.values()).count(place["e"]) == 1 and set(sizes.values()) == {64}


@needs_adapter
@pytest.mark.slow
@pytest.mark.parametrize("name", ["gemma3", "qwen3vl"])
def test_a_prompt_with_its_picture_has_the_cpus_bits(name: str) -> None:
    """Rows that see each other; positions of three numbers and deepstack. Two decode steps behind, and text beside."""
    model, (ids, images) = model_of(name), prompt(name)
    ours, cpu = wgpu.WgpuEngine(model, n_pages=16), CpuEngine(model, n_pages=16, threads=1)
    n, whole_ids = len(ids), (*ids, 3, 5)
    text = Chunk(np.array([7, 8, 9], np.int32), 0, np.arange(8, 9, dtype=np.int32), "all")
    for begin, end in ((0, n), (n, n + 1), (n + 1, n + 2)):
        batch = [chunk(model, whole_ids, images, begin, end, outputs="all"), *([text] if begin == 0 else [])]
        for found, expected in zip(*(engine.forward(batch) for engine in (ours, cpu)), strict=True):
            np.testing.assert_array_equal(found.logits.view(np.uint32), expected.logits.view(np.uint32))
    ours.close()


@needs_adapter
@pytest.mark.slow
@pytest.mark.parametrize("name", ["gemma3", "qwen3vl", "pixtral"])
def test_a_tower_has_the_cpus_bits(name: str) -> None:
    """A square tower, and two with rotations that are given for each row."""
    pixels = np.random.default_rng(1).integers(0, 256, (37, 53, 3), dtype=np.uint8)
    found = []
    for engine in ("wgpu", "cpu"):
        projector = open_projector(FOLDER / f"{name}-mmproj.gguf", engine)
        rows = [p.rows for p in encode_picture(projector, pixels).pieces if not isinstance(p, str)]
        assert projector.engine == engine
        found.append(np.concatenate(rows).view(np.uint32))
        projector.close()
    np.testing.assert_array_equal(*found)


@needs_adapter
def test_a_tower_that_does_not_fit_the_adapter_runs_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise GpuError("too large for a binding")

    pixels = np.zeros((8, 8, 3), np.uint8)
    expected = encode_picture(open_projector(FOLDER / "gemma3-mmproj.gguf", "cpu"), pixels)
    monkeypatch.setattr(wgpu.WgpuEngine, "__init__", refused)
    projector = open_projector(FOLDER / "gemma3-mmproj.gguf", "wgpu")
    found = encode_picture(projector, pixels)
    assert projector.engine == "cpu"
    rows = [next(p for p in prompt.pieces if not isinstance(p, str)) for prompt in (found, expected)]
    assert rows[0].digest == rows[1].digest
    np.testing.assert_array_equal(rows[0].rows, rows[1].rows)


def test_the_words_of_a_step_have_the_last_slot_that_a_token_sees() -> None:
    n = 6
    last = np.array([0, 4, 4, 4, 4, 5], np.float32)[:, None]
    given = Chunk(np.zeros(n, np.int32), 0, np.arange(1, dtype=np.int32), "all", rows={LAST: last})
    (step,) = whole([given])
    records = step_words(step, []).astype(np.int64)[HEADER:][: n * RECORD].reshape(n, RECORD)
    assert records[:, 5].tolist() == [0, 4, 4, 4, 4, 5]
