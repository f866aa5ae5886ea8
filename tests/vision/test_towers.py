"""Towers of ten projectors: pixels and embeddings of llama.cpp, the same bits for any threads, batch and trace."""

from __future__ import annotations

import numpy as np
import pytest

from assay.cli import main
from assay.engines.plan.segments import segments
from assay.errors import AssayError
from assay.gguf import Tensor, by_name, codecs, open_file, write
from assay.graph import vision_ops
from assay.models.vision import load_tower
from assay.models.vision.projector_keys import PROJECTORS
from assay.models.vision.tower import BUILDERS
from assay.verify.dumps.formats.safetensors import read_safetensors
from assay.vision.encode import encode_pictures, prepare_picture, trace_picture
from assay.vision.picture_plan import RECIPES
from assay.vision.projector import open_projector
from assay.vision.rows import ImageRows
from tests.vision.golden import DATA, HERE, NAMES, digest, golden, nmse, rows


@pytest.mark.parametrize("name", NAMES)
def test_pixels_and_embeddings_are_llama_cpps(name: str) -> None:
    """Equal bytes before the tower; after it the definition in float64, and float32 within 1e-10."""
    wanted = golden(name)
    exact, fast = wanted.open("reference"), wanted.open()
    prepared = prepare_picture(fast, wanted.image)
    for i, pixels in wanted.pixels.items():
        assert digest(prepared.images[i].pixels) == pixels, f"image {i}"
    for projector, most in ((exact, 1e-13), (fast, 1e-10)):
        found = rows(projector, wanted.image)
        assert len(found) == len(wanted.embeddings)
        for image, embeddings, planned in zip(found, wanted.embeddings, prepared.images, strict=True):
            assert image.rows.shape == embeddings.shape == (planned.image.tokens, projector.tower.width)
            assert nmse(image.rows, embeddings) <= most


@pytest.mark.parametrize("name", NAMES)
def test_the_cuda_engine_has_the_bits_of_the_cpu(name: str) -> None:
    from tests.engines.on_cuda import device  # skips the test if the shim cannot be compiled

    wanted = golden(name)
    cuda = open_projector(wanted.path, "cuda", device=device(), **wanted.limits)
    for found, image in zip(rows(cuda, wanted.image), rows(wanted.open(), wanted.image), strict=True):
        np.testing.assert_array_equal(found.rows, image.rows)
        assert found.digest == image.digest
    cuda.close()


def test_auto_falls_back_to_the_cpu() -> None:
    """Too little memory on the GPU: the same bits from the cpu engine, under the same name."""
    from tests.engines import on_cuda  # skips the test if the shim cannot be compiled

    class Full(on_cuda.Shim):
        def memory(self) -> tuple[int, int]:
            return 0, 1 << 30

    wanted = golden("gemma3")
    found = open_projector(wanted.path, "auto", device=Full(0), threads=1)
    (image,), (same,) = rows(found, wanted.image), rows(wanted.open(), wanted.image)
    assert found.engine == "cpu" and np.array_equal(image.rows, same.rows) and image.digest == same.digest


@pytest.mark.parametrize("name", HERE)
def test_bits_do_not_depend_on_threads_batch_or_trace(name: str) -> None:
    wanted = golden(name)
    one, two = wanted.open(), wanted.open(threads=2)
    alone = rows(one, wanted.image)
    other = np.ascontiguousarray(wanted.image[::-1, ::-1])
    batch = [[p for p in prompt.pieces if isinstance(p, ImageRows)]
             for prompt in encode_pictures(two, [other, wanted.image, other])]  # fmt: skip
    traced = trace_picture(one, wanted.image, list(one.tower.graph.by_name))
    for image, together, kept in zip(alone, batch[1], traced.rows, strict=True):
        assert np.array_equal(image.rows, together.rows) and np.array_equal(image.rows, kept)
        assert image.digest == together.digest
    assert batch[0][0].digest == batch[2][0].digest != batch[1][0].digest


@pytest.mark.parametrize("name", HERE)
def test_every_node_of_the_cpu_engine_is_the_references(name: str) -> None:
    wanted = golden(name)
    exact, fast = wanted.open("reference"), wanted.open()
    names = list(fast.tower.graph.by_name)
    (definition, *_), (found, *_) = (trace_picture(p, wanted.image, names).nodes for p in (exact, fast))
    assert found.keys() == definition.keys() == set(names)
    for node in names:
        assert nmse(found[node].reshape(definition[node].shape), definition[node]) < 1e-10, node


def test_windows_are_sequences_of_their_own() -> None:
    """qwen2.5vl: every node is that of masked attention over the whole picture; scores between windows are masked."""
    wanted = golden("qwen25vl")
    exact, fast = wanted.open("reference"), wanted.open()
    names = list(fast.tower.graph.by_name)
    (definition, *_), (found, *_) = (trace_picture(p, wanted.image, names).nodes for p in (exact, fast))
    seen = definition["kq_soft_max-0"] > 0
    assert 0.1 < seen.mean() < 0.6 and (found["kq-0"][~seen] == -np.inf).all()
    for node in names:
        a, b = found[node].reshape(definition[node].shape), definition[node]
        if node.startswith("kq-"):
            a, b = np.where(np.isfinite(a), a, 0), np.where(np.isfinite(a), b, 0)
        assert nmse(a, b) < 1e-10, node


def test_tables_have_a_row_for_every_projector() -> None:
    assert BUILDERS.keys() == PROJECTORS.keys() == RECIPES.keys()
    used = {node.op for name in HERE for node in golden(name).open().tower.graph}
    assert used >= {row.name for row in vision_ops.ROWS}


def test_segments_cut_where_the_number_of_rows_changes() -> None:
    tower = golden("internvl").open().tower
    patches, encoder, projector = segments(tower.graph)
    assert patches.results == ("patch_bias",)  # and then the class row comes behind them
    assert [node.name for node in encoder.regroup] == ["inp_class"] and encoder.results == ("layer_out-1",)
    assert [node.name for node in projector.regroup] == ["pixel_shuffle"] and projector.results == ("result_embd",)


def test_facts_that_the_language_model_needs() -> None:
    qwen, gemma = golden("qwen3vl").open(), golden("gemma3").open()
    assert (qwen.tower.parts, qwen.tower.mrope, qwen.tower.sees_itself) == (1, True, False)
    assert rows(qwen, golden("qwen3vl").image)[0].grid == (5, 3)
    (image,) = rows(gemma, golden("gemma3").image)
    assert (image.grid, image.sees_itself, gemma.tower.parts) == (None, True, 0)


def _rewritten(name: str, path, change, keys=lambda values: values, kind: str = "F32") -> None:
    """The mmproj file with other tensors: `change(name, values)` gives their new names and values.

    Matrices are stored as `kind` where their rows are whole blocks of it.
    """
    file = open_file(DATA / f"{name}-mmproj.gguf")
    tensors = []
    for old in file.tensors:
        for new, values in change(old, file.decode(old)):
            fits = values.ndim > 1 and values.shape[-1] % by_name(kind).block_size == 0
            type_ = by_name(kind if fits else "F32")
            tensors.append(Tensor(new, values.shape, type_, codecs.encode(type_, values.astype("<f4"))))
    write(path, keys({key: file.metadata[key] for key in file.metadata}), tensors)


@pytest.mark.parametrize(("name", "kind"), [("gemma3", "F16"), ("qwen3vl", "BF16"), ("pixtral", "Q8_0")])
def test_files_in_16_and_8_bits(name: str, kind: str, tmp_path) -> None:
    """Exact: activations stay in float32. Fast: those that meet quantised matrices are rounded to int8 blocks."""
    path = tmp_path / "small.gguf"
    _rewritten(name, path, lambda name, values: [(name, values)], kind=kind)
    assert kind in {t.type.name for t in open_file(path).tensors.values()}
    (defined,) = rows(open_projector(path, "reference"), golden(name).image)
    (exact,) = rows(open_projector(path, threads=1, precision="exact"), golden(name).image)
    (fast,) = rows(open_projector(path, "cpu", threads=1), golden(name).image)
    assert nmse(exact.rows, defined.rows) < 1e-10
    assert np.array_equal(fast.rows, exact.rows) == (kind != "Q8_0") and nmse(fast.rows, defined.rows) < 1e-2
    assert fast.digest != exact.digest  # other bits are cached under another name


def test_old_files_have_the_ffn_matrices_exchanged(tmp_path) -> None:
    """The shape of `ffn_down` tells, and biases go with the matrices."""
    other = {"ffn_up": "ffn_down", "ffn_down": "ffn_up"}

    def change(name, values):
        part = next((part for part in other if part in name), "")
        yield name.replace(part, other[part]) if part else name, values

    _rewritten("gemma3", tmp_path / "old.gguf", change)
    assert "v.blk.0.ffn_up.bias" in open_file(tmp_path / "old.gguf").tensors
    (old,), (new,) = (rows(p, golden("gemma3").image) for p in (open_projector(tmp_path / "old.gguf"),
                                                              golden("gemma3").open()))  # fmt: skip
    assert np.array_equal(old.rows, new.rows)
    assert old.digest != new.digest  # another file


def test_merged_patches_of_pixtral_lie_channel_by_channel(tmp_path) -> None:
    """With a merger that picks single values out, the result is those values."""
    e, m, rng = 32, 2, np.random.default_rng(5)
    merger = rng.standard_normal((e, e * m * m)).astype(np.float32)

    def change(name, values):
        yield name, values
        if name == "v.pre_ln.weight":
            yield "mm.patch_merger.weight", merger
            yield "mm.input_norm.weight", np.ones(e, np.float32)

    _rewritten("pixtral", tmp_path / "merged.gguf", change, lambda v: v | {"clip.vision.spatial_merge_size": m})
    projector = open_projector(tmp_path / "merged.gguf", "reference")
    traced = trace_picture(projector, golden("pixtral").image, ["input_normed", "patch_merged", "layer_out-1"])
    (image,), (nodes,) = traced.prepared.images, traced.nodes
    columns, token_rows = image.image.grid
    assert len(traced.rows[0]) == image.image.tokens == columns * token_rows + token_rows - 1
    x = nodes["input_normed"].reshape(token_rows, m, columns, m, e)[1, :, 2, :]  # [row, column, channel] of one token
    wanted = merger.astype(np.float64) @ x.transpose(2, 0, 1).reshape(-1)
    assert np.allclose(nodes["patch_merged"][columns + 2], wanted)


def test_three_parts_of_deepstack(tmp_path) -> None:
    """As Qwen3-VL has them: each part is that of its layer, whatever other layers give one."""

    def change(name, values):
        yield name, values
        if ".deepstack.1." in name:
            for layer in (0, 2):
                yield name.replace(".1.", f".{layer}."), values * np.float32(1 + layer)

    _rewritten("qwen3vl", tmp_path / "three.gguf", change)
    three = open_projector(tmp_path / "three.gguf", threads=1)
    (many,), (one,) = rows(three, golden("qwen3vl").image), rows(golden("qwen3vl").open(), golden("qwen3vl").image)
    width = one.rows.shape[1] // 2
    assert three.tower.parts == 3 and many.rows.shape[1] == 4 * width
    assert np.array_equal(many.rows[:, :width], one.rows[:, :width])
    assert np.array_equal(many.rows[:, 2 * width : 3 * width], one.rows[:, width:])  # of layer 1
    nodes = trace_picture(three, golden("qwen3vl").image, ["deepstack_out-0", "deepstack_out-2"]).nodes[0]
    assert np.array_equal(many.rows[:, width : 2 * width], nodes["deepstack_out-0"])
    assert np.array_equal(many.rows[:, 3 * width :], nodes["deepstack_out-2"])


def test_errors_name_the_file_and_the_key(tmp_path) -> None:
    path = tmp_path / "x.gguf"

    def check(change, text: str) -> None:
        file = open_file(DATA / "gemma3-mmproj.gguf")
        write(path, change({key: file.metadata[key] for key in file.metadata}), [])
        with pytest.raises(AssayError, match=text) as caught:
            load_tower(open_file(path))
        assert str(caught.value).startswith(str(path))

    vision = "clip.vision."
    check(lambda v: v | {"general.architecture": "llama"}, "is not an mmproj file .found general.architecture llama")
    check(lambda v: v | {"clip.has_vision_encoder": False}, "has no vision tower")
    check(lambda v: v | {"clip.projector_type": "gemma"}, "unknown projector 'gemma'; the nearest known is gemma3")
    check(lambda v: v | {"clip.use_silu": True}, "are both true")
    check(lambda v: v | {f"{vision}attention.head_count": 5}, "head_count: bad value .found 5, expected a divisor")
    check(lambda v: v | {f"{vision}image_size": 50}, "image_size: bad value .found 50, expected a multiple of 16")
    check(lambda v: v | {f"{vision}image_std": [0.5, 0.0, 0.5]}, "image_std: bad value")
    check(lambda v: v | {f"{vision}image_mean": [0.5]}, "an array of three finite numbers")
    check(lambda v: {k: x for k, x in v.items() if not k.endswith("patch_size")}, "patch_size: missing")
    check(lambda v: v, "v.patch_embd.weight: the file has no such tensor")


def test_damaged_files_give_errors(tmp_path) -> None:
    """Bytes of the header turned over: an error of one line, or a tower."""
    good, rng = (DATA / "qwen3vl-mmproj.gguf").read_bytes(), np.random.default_rng(0)
    path, image = tmp_path / "damaged.gguf", np.zeros((9, 30, 3), np.uint8)
    header = len(good) - 4 * sum(t.n_elements for t in open_file(DATA / "qwen3vl-mmproj.gguf").tensors.values())
    refused = 0
    for _ in range(60):
        bad = bytearray(good)
        for at in rng.integers(8, header, 3):
            bad[at] = rng.integers(256)
        path.write_bytes(bad)
        try:
            encode_pictures(open_projector(path, threads=1), [image])
        except AssayError as error:
            assert "\n" not in str(error)
            refused += 1
    assert refused > 20


def test_trace_writes_stages_and_nodes(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = golden("idefics3")
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    image.fromarray(wanted.image).save(tmp_path / "a.png")
    traced = {}
    for end in ("npz", "safetensors"):
        out = tmp_path / f"out.{end}"
        options = ["--image", str(tmp_path / "a.png"), "-o", str(out), "--nodes", "layer_out|pixel_shuffle"]
        assert main(["trace", str(wanted.path), *options]) == 0
        assert "3 nodes of 7 images, 112 tokens" in capsys.readouterr().out
        traced[end] = dict(np.load(out)) if end == "npz" else {k: r() for k, r in read_safetensors(out)[0].items()}
    assert traced["npz"].keys() == traced["safetensors"].keys()
    assert all(np.array_equal(value, traced["safetensors"][name]) for name, value in traced["npz"].items())
    found = traced["npz"]
    assert np.array_equal(found["decoded"], wanted.image) and digest(found["pixels_6"]) == wanted.pixels[6]
    assert nmse(found["embd_6"], wanted.embeddings[6]) < 1e-13 and found["layer_out-1@6"].shape == (64, 16)
    assert main(["trace", str(wanted.path), "--image", str(tmp_path / "none.png"), "-o", str(out)]) == 2
    assert "none.png: cannot be read" in capsys.readouterr().err
