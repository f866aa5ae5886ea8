"""Pictures in precisions `tensor` and `mixed` of the cuda engine: near the exact logits, and one set of bits."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from assay import engines
from assay.cli import main
from assay.engines.contract import Chunk, PictureRows
from assay.engines.cpu import CpuEngine
from assay.engines.cuda import CudaEngine
from assay.engines.reference import ReferenceEngine
from assay.errors import AssayError
from assay.gguf import Tensor, by_name, codecs, open_file, write
from assay.models import Model, load
from assay.runtime import receipt_replay
from assay.runtime.image_places import Images, place_images, prompt_part
from assay.runtime.opening import Opened, OpenOptions
from assay.runtime.params import GREEDY
from assay.runtime.pictured_prompt import prompt_with_pictures
from assay.runtime.receipts import header_of, make_receipt
from assay.runtime.scheduler import Scheduler
from assay.runtime.sequence import Job, Sequence
from assay.text import Tokenizer
from assay.vision.encode import encode_picture
from assay.vision.rows import ImageRows
from tests import tiny
from tests.engines.on_cuda import device, pages
from tests.engines.test_cuda import MASKS
from tests.engines.test_cuda_towers import MOST
from tests.picture_prompts import FOLDER, HERE, chunk, golden, nmse, path_of, prompt


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pictures")


def in_halves(name: str, folder: Path) -> Model:
    """The golden language model with its matrices in F16: `tensor` multiplies them in 16 bits."""
    path = folder / f"{name}.gguf"
    if not path.exists():
        file, tensors = open_file(path_of(name)), []
        for old in file.tensors:
            values = file.decode(old)
            type_ = by_name("F16" if values.ndim > 1 else "F32")
            tensors.append(Tensor(old, values.shape, type_, codecs.encode(type_, values.astype("<f4"))))
        write(path, {key: file.metadata[key] for key in file.metadata}, tensors)
    return load(open_file(path))


def engine(model: Model, precision: str, **options: object) -> CudaEngine:
    return CudaEngine(model, precision=precision, device=device(), **{"n_pages": 32, **options})


def part(model: Model, ids: tuple[int, ...], images: Images, start: int = 0, end: int = 0, page: int = 0) -> Chunk:
    """Tokens [start, end) with all outputs; the prompt is `ids` without those behind the first 119."""
    end = end or len(ids)
    until = prompt_part(images, ids.index(119) if 119 in ids else len(ids))
    found = chunk(model, ids, images, start, end, page=page, outputs="all")
    return replace(found, prompt=max(0, min(until, end) - start))


def rows(engine: CudaEngine, *batch: Chunk) -> list[np.ndarray]:
    return [output.logits for output in engine.forward(batch)]


@pytest.mark.parametrize("precision", ["tensor", "mixed"])
@pytest.mark.parametrize("name", HERE)
def test_logits_are_near_the_exact_ones_and_have_one_set_of_bits(name: str, precision: str, folder: Path) -> None:
    """M-RoPE, deepstack, rows that see each other: at once, cut, in a batch, after a cached prefix, traced."""
    model, (ids, images) = in_halves(name, folder), prompt(name)
    cuda, ids = engine(model, precision), (*ids, 119, 120)
    (whole,) = rows(cuda, part(model, ids, images))
    exact = ReferenceEngine(model).forward([part(model, ids, images)])[0].logits
    assert 0 < nmse(whole, exact) < MOST
    assert not np.array_equal(whole, rows(engine(model, "fast"), part(model, ids, images))[0])
    first, n = images[0], len(ids)
    inside = [first.start + 2] * (not first.image.sees_itself)
    text = Chunk(np.array([257, 97, 98, 99], np.int32), 0, np.arange(24, 25, dtype=np.int32), "all", prompt=3)
    (plain,) = rows(cuda, text)
    for start, end in pairwise([0, first.start, *inside, first.end, n - 3, n - 2, n - 1, n]):
        found = rows(cuda, text, part(model, ids, images, start, end, page=8))
        assert np.array_equal(found[0], plain) and np.array_equal(found[1], whole[start:end]), (start, end)
    again = rows(cuda, part(model, ids, images, first.end, n, page=8))[0]  # its picture is in the cache
    assert np.array_equal(again, whole[first.end :])
    kept = cuda.forward([part(model, ids, images)], ["l_out-1", "Qcur-0"])[0]
    assert np.array_equal(kept.logits, whole)


def test_a_prompt_with_its_picture_is_tensor_in_mixed_and_the_rest_is_fast(folder: Path) -> None:
    model, (ids, images) = in_halves("gemma3", folder), prompt("gemma3")
    mixed, tensor, fast = (engine(model, precision) for precision in ("mixed", "tensor", "fast"))
    whole = chunk(model, ids, images, outputs="all")
    assert np.array_equal(rows(mixed, replace(whole, prompt=len(ids)))[0], rows(tensor, whole)[0])
    assert np.array_equal(rows(mixed, whole)[0], rows(fast, whole)[0])
    cut = replace(whole, prompt=images[0].start + 2)
    with pytest.raises(AssayError, match="ends inside a picture whose rows see each other"):
        mixed.forward([cut])
    assert rows(tensor, cut)  # which has one arithmetic


def _pictured(ids: np.ndarray, start: int, end: int, table: np.ndarray, given: np.ndarray, both: bool = True) -> Chunk:
    """Tokens [start, end) of a text with 150 given rows at slot 105, which see each other."""
    slots = np.arange(start, end, dtype=np.int32)
    inside = (slots >= 105) & (slots < 255)
    at, last = np.flatnonzero(inside).astype(np.int32), np.where(inside, 254, slots).astype(np.int32)
    pictures = PictureRows(at, given[slots[inside] - 105], last if both else None)
    return Chunk(np.where(inside, 0, ids[start:end]).astype(np.int32), start, table, "all", pictures=pictures)


@pytest.mark.parametrize(("heads", "mask"), [*((4, mask) for mask in MASKS), (2, "window")])
def test_rows_that_see_each_other_on_tensor_cores(folder: Path, heads: int, mask: str) -> None:
    """Over the edges of tiles, of halves and of blocks of keys; with every mask, and with a trace."""
    path = folder / f"wide-{heads}.gguf"
    wide = {"n_head": heads, "n_head_kv": heads // 2, "n_layer": 1, "n_embd": 256, "n_ff": 256, "n_ctx": 512}
    model = load(open_file(path if path.exists() else tiny.make(path, type="Q8_0", **wide)))
    graph, rng, n = model.graph.rewrite(MASKS[mask]).check(), np.random.default_rng(3), 270
    ids, given = rng.integers(259, 290, n), rng.standard_normal((150, 256)).astype(np.float32)
    cuda = engine(model, "tensor", n_pages=40, graph=graph)
    (whole,) = rows(cuda, _pictured(ids, 0, n, pages(0, n), given))
    table, text = pages(20, n), Chunk(ids[:9].astype(np.int32), 0, pages(12, 9), "all")
    for begin, end in ((0, 100), (100, 257), (257, 258), (258, n)):
        found = rows(cuda, _pictured(ids, begin, end, table, given), text)
        assert np.array_equal(found[0], whole[begin:end]) and np.array_equal(found[1], whole[:9])
    assert np.array_equal(rows(cuda, _pictured(ids, 200, n, table, given))[0], whole[200:])  # after a cached prefix
    (softmax,) = (node.name for node in graph if node.op == "attn_softmax")
    traced = cuda.forward([_pictured(ids, 0, n, pages(20, n), given)], [softmax])[0]
    assert np.array_equal(traced.logits, whole)
    weights = traced.nodes[softmax]
    assert np.allclose(weights.sum(-1), 1.0, atol=1e-3) and (weights[:, 105, 254] > 0).all()
    assert not weights[:, 105:255, 255:].any() and not weights[:, 104, 105:].any()
    exact = CpuEngine(model, threads=1, precision="exact", n_pages=16, graph=graph)
    wanted, causal = (
        exact.forward([_pictured(ids, 0, n, pages(0, n), given, both)])[0].logits for both in (True, False)
    )
    assert nmse(whole, wanted) < 1e-5 < 1e-3 < nmse(causal, wanted)
    kernels = {launch.kernel for program in cuda._programs.values() for launch in program.launches}
    assert f"attend_tensor_{256 // heads}" in kernels


def _answers(model: Model, jobs: list[Job], step: int = 512, apart: bool = False) -> list[Sequence]:
    return _finished(Scheduler(engine(model, "mixed"), Tokenizer.from_gguf(model.file), chunk=step), jobs, apart)


def _finished(scheduler: Scheduler, jobs: list[Job], apart: bool) -> list[Sequence]:
    made = []
    for job in jobs:
        made.append(scheduler.make(job, lambda update: None))
        scheduler.add(made[-1:])
        while apart and scheduler.busy:
            scheduler.step()
    while scheduler.busy:
        scheduler.step()
        scheduler.pages.check()
    scheduler.close()
    return made


@pytest.mark.parametrize(("name", "ending"), [("gemma3", False), ("gemma3", True), ("qwen3vl", False)])
def test_a_stream_in_mixed_is_a_function_of_its_prompt(name: str, ending: bool, folder: Path) -> None:
    """Steps of other sizes, a batch, a cached prefix; a prompt that ends with its picture too."""
    model, pieces = in_halves(name, folder), golden(name)[0]
    wide = np.random.default_rng(2).standard_normal((70, model.hparams.n_embd)).astype(np.float32)
    ids, images = place_images([*pieces, ImageRows(wide, None, b"wide", True)] if ending else [*pieces, *pieces])
    job = Job(ids, GREEDY, 4, ignore_eos=True, images=images)
    ((alone,), cut) = _answers(model, [job]), _answers(model, [job], step=16)
    text = Job((257, 97, 98, 99), GREEDY, 4, ignore_eos=True)
    batch, apart = _answers(model, [text, job]), _answers(model, [job, job], apart=True)
    streams = [sequence.ids[len(ids) :] for sequence in (alone, *cut, batch[1], *apart)]
    assert all(stream == streams[0] for stream in streams) and len(streams[0]) == 4
    assert apart[1].cached >= 64 if ending else apart[1].cached >= 32


@pytest.fixture
def on_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table has the cuda engine, and language models and towers run on the device of these tests."""
    monkeypatch.setitem(engines.ENGINES, "cuda", CudaEngine)
    monkeypatch.setattr("assay.engines.cuda.Driver", lambda kernels: device())


@pytest.mark.parametrize("name", ["gemma3", "qwen3vl"])
def test_a_receipt_of_a_picture_in_mixed_is_replayed(name: str, folder: Path, on_device: None) -> None:
    """From pixels, through a tower in `tensor`, to the receipt; a prompt that ends with its picture too."""
    model = in_halves(name, folder)
    options = OpenOptions(engine="cuda", precision="mixed", cache_size=2048, mmproj=FOLDER / f"{name}-mmproj.gguf")
    on = Opened(model.file, options)
    shown = encode_picture(on.pictures.projector, b"P6\n40 30\n255\n" + bytes(range(240)) * 15)
    given = [piece for piece in shown.pieces if isinstance(piece, ImageRows)]
    assert on.pictures.projector.arithmetic == "cuda tensor"
    prompt_ids, images = prompt_with_pictures(on.tokenizer, "a <__media__> b", [shown])
    for ids in (prompt_ids, prompt_ids[: images[-1].end]):
        job = Job(ids, GREEDY, 4, ignore_eos=True, images=images, receipt=True)
        with closing(on.engine(scheduled=True)) as made:
            scheduler = Scheduler(made, on.tokenizer, n_ctx=256)
            (sequence,) = _finished(scheduler, [job], apart=False)
        fields = {"constrained": False, "images": images}
        header = header_of(model.file.sha256, made.arithmetic, GREEDY, sequence.seed, ids, **fields)
        receipt = make_receipt(header, ids, sequence.ids[len(ids) :], sequence.row_digests)
        found = receipt_replay.replay(receipt, model, engine="cuda", pictures=given)
        assert found.reason == "all 4 tokens: the same bits"


@pytest.mark.parametrize("precision", ["mixed", "tensor"])
def test_run_takes_a_picture(
    precision: str, tmp_path: Path, on_device: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    picture = tmp_path / "a.ppm"
    picture.write_bytes(b"P6\n40 30\n255\n" + bytes(range(240)) * 15)
    options = ["--engine", "cuda", "--precision", precision, "--ctx-size", "128", "-n", "2", "--template", "chatml"]
    files = [str(FOLDER / "gemma3-text.gguf"), "--mmproj", str(FOLDER / "gemma3-mmproj.gguf"), "--image", str(picture)]
    assert main(["run", *files, *options, "-p", "what"]) == 0, capsys.readouterr().err
