"""LoRA adapters: the formula, the bits in a batch and alone, the prefix cache, and files that do not fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from assay.engines.contract import PAGE, Chunk, PagedEngine
from assay.engines.cpu import CpuEngine
from assay.engines.plan.fuse import Gated, Products, Single, fuse
from assay.engines.reference import ReferenceEngine
from assay.errors import AssayError
from assay.gguf import open_file
from assay.gguf.types import Typed, ValueType, by_name
from assay.gguf.writer import Tensor, write
from assay.models import Model, load
from assay.models.adapters import Adapter, adapted, open_adapter
from assay.runtime.cache_folder import open_folder
from assay.runtime.opening import OpenOptions, open_model
from assay.runtime.params import GREEDY
from assay.runtime.scheduler import Scheduler
from assay.runtime.sequence import Job, Sequence
from assay.text import Tokenizer
from tests.models import others
from tests.tiny import make

ALPHA, RANK = 12.0, 4
IDS = tuple(int(t) for t in np.random.default_rng(3).integers(259, 290, 3 * PAGE + 5))


def make_adapter(
    path: Path, model: Model, seed: int = 1, *, names: Callable[[str], bool] = lambda name: True,
    change: Callable[[dict[str, np.ndarray]], None] = lambda tensors: None, keys: Mapping[str, object] | None = None,
    rank: int = RANK,
) -> Path:  # fmt: skip
    """An adapter of random values for every linear layer that `names` selects."""
    rng, tensors = np.random.default_rng(seed), dict[str, np.ndarray]()
    for node in model.graph:
        if node.op == "linear" and node.weights[0] != "token_embd.weight" and names(node.weights[0]):
            rows, columns = model.file.tensors[node.weights[0]].shape
            tensors[f"{node.weights[0]}.lora_a"] = rng.standard_normal((rank, columns)).astype(np.float32) / 8
            tensors[f"{node.weights[0]}.lora_b"] = rng.standard_normal((rows, rank)).astype(np.float32) / 8
    change(tensors)
    said = {"general.type": "adapter", "adapter.type": "lora", "general.architecture": model.hparams.arch,
            "adapter.lora.alpha": ALPHA, **(keys or {})}  # fmt: skip
    kinds = {str: ValueType.STRING, float: ValueType.FLOAT32}
    write(
        path, {key: Typed(kinds[type(value)], value) for key, value in said.items()},  # type: ignore[arg-type]
        [Tensor(name, value.shape, by_name("F32"), value) for name, value in tensors.items()],
    )  # fmt: skip
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load(open_file(make(tmp_path_factory.mktemp("lora") / "tiny.gguf", n_ctx=512, n_layer=2)))


@pytest.fixture(scope="module")
def adapters(model: Model, tmp_path_factory: pytest.TempPathFactory) -> list[Adapter]:
    folder = tmp_path_factory.mktemp("adapters")
    every = open_adapter(make_adapter(folder / "a.gguf", model, 1), model)
    some = open_adapter(make_adapter(folder / "b.gguf", model, 2, names=lambda name: "attn_q" in name), model, 0.5)
    nan = make_adapter(folder / "c.gguf", model, 3, change=lambda t: [v.fill(np.nan) for v in t.values()])  # type: ignore[func-returns-value]
    return [every, some, open_adapter(nan, model)]


def chunk(ids: tuple[int, ...], adapters: tuple[tuple[int, float], ...] = (), page: int = 0) -> Chunk:
    pages = np.arange(page, page + -(-len(ids) // PAGE), dtype=np.int32)
    return Chunk(np.array(ids, np.int32), 0, pages, "all", adapters=adapters)


def merged(model: Model, adapters: list[Adapter], chosen: tuple[tuple[int, float], ...]) -> np.ndarray:
    """The logits of the model with the adapters added to its matrices: W + s · alpha / r · B A."""
    engine = ReferenceEngine(model)
    for name in model.file.tensors:
        for number, scale in chosen:
            if name in adapters[number].pairs:
                a, b = (adapters[number].file.decode(f"{name}.lora_{part}").astype(np.float64) for part in "ab")
                engine.weights._kept[name] = engine.weights[name] + scale * ALPHA / RANK * (b @ a)
    return engine.forward([chunk(IDS)])[0].logits


@pytest.mark.parametrize("chosen", [((0, 1.0),), ((1, -0.5),), ((0, 0.25), (1, 2.0))])
def test_the_reference_computes_what_merged_matrices_would(
    model: Model, adapters: list[Adapter], chosen: tuple[tuple[int, float], ...]
) -> None:
    found = ReferenceEngine(model, adapters=adapters).forward([chunk(IDS, chosen)])[0].logits
    assert np.allclose(found, merged(model, adapters, chosen), rtol=1e-9, atol=1e-9)
    exact = CpuEngine(model, threads=1, precision="exact", adapters=adapters).forward([chunk(IDS, chosen)])[0].logits
    assert np.abs(exact - found).max() < 1e-3 * np.abs(found).max()


@pytest.mark.parametrize("precision", ["fast", "exact"])
def test_bits_are_the_same_alone_and_beside_other_adapters(
    model: Model, adapters: list[Adapter], precision: str
) -> None:
    kinds: list[tuple[tuple[int, float], ...]] = [(), ((0, 1.0),), ((1, 0.5),), ((0, 0.5), (1, 1.0)), ((2, 1.0),), ()]
    plain = CpuEngine(model, threads=1, precision=precision).forward([chunk(IDS)])[0].logits
    engine = CpuEngine(model, threads=2, precision=precision, adapters=adapters, n_pages=32)
    together = engine.forward([chunk(IDS, kind, 4 * i) for i, kind in enumerate(kinds)])
    for kind, output in zip(kinds, together, strict=True):
        assert np.array_equal(engine.forward([chunk(IDS, kind)])[0].logits, output.logits, equal_nan=True)
    assert np.array_equal(together[0].logits, plain)  # beside an adapter whose every value is NaN
    assert np.array_equal(together[-1].logits, plain)
    assert np.isnan(together[4].logits).all()
    assert len({output.logits.tobytes() for output in together[:4]}) == 4


@pytest.mark.parametrize("family", ["qwen35", "mamba2"])
def test_recurrent_layers_are_adapted_too(family: str, tmp_path: Path) -> None:
    others.make(family, tmp_path / "m.gguf")
    model = load(open_file(tmp_path / "m.gguf"))
    found = [open_adapter(make_adapter(tmp_path / "a.gguf", model), model)]
    ids = tuple(i % model.hparams.n_vocab for i in IDS[:20])
    right = ReferenceEngine(model, adapters=found).forward([chunk(ids, ((0, 1.0),))])[0].logits
    exact = CpuEngine(model, threads=1, precision="exact", adapters=found).forward([chunk(ids, ((0, 1.0),))])[0].logits
    assert np.abs(exact - right).max() < 1e-3 * np.abs(right).max()
    assert not np.allclose(right, ReferenceEngine(model).forward([chunk(ids)])[0].logits, rtol=1e-3)


def run(engine: PagedEngine, jobs: list[Job], folder: Path | None = None) -> list[Sequence]:
    scheduler = Scheduler(
        engine, Tokenizer.from_gguf(engine.model.file), folder=open_folder(folder) if folder else None
    )
    made = [scheduler.make(job, lambda update: None) for job in jobs]
    for sequence in made:
        scheduler.add([sequence])
    while scheduler.busy:
        scheduler.step()
        scheduler.pages.check()
    scheduler.close()
    return made


def job(adapters: tuple[tuple[int, float], ...] | None) -> Job:
    return Job(IDS, GREEDY, 5, ignore_eos=True, receipt=True, adapters=adapters)


def test_prefixes_are_shared_only_under_the_same_adapters_in_memory_and_on_disk(
    model: Model, adapters: list[Adapter], tmp_path: Path
) -> None:
    kinds: list[tuple[tuple[int, float], ...]] = [(), ((0, 1.0),), ((0, 0.5),), ((1, 1.0),)]

    def engine() -> PagedEngine:
        return CpuEngine(model, threads=1, adapters=adapters, n_pages=48)

    alone = [run(engine(), [job(kind)])[0] for kind in kinds]
    assert len({tuple(s.row_digests) for s in alone}) == 4
    together = run(engine(), [job(kind) for kind in (*kinds, *kinds)], tmp_path)
    again = run(engine(), [job(kind) for kind in kinds], tmp_path)
    for i, s in enumerate((*together, *again)):
        assert s.row_digests == alone[i % 4].row_digests, i
    assert [s.cached for s in again] == [3 * PAGE] * 4
    with pytest.raises(AssayError, match="adapter 7"):
        run(engine(), [job(((7, 1.0),))])


def test_scales_of_the_options_are_the_default(model: Model, adapters: list[Adapter]) -> None:
    asked = tuple(f"{a.file.path}={scale}" for a, scale in zip(adapters[:2], ("0.5", "0"), strict=True))
    opened = open_model(model.file.path, OpenOptions(engine="cpu", threads=1, lora=asked))
    (default,) = run(opened.engine(), [job(None)])
    assert default.adapters == ((0, 0.5),)
    (named,) = run(opened.engine(), [job(((0, 0.5), (1, 0.0)))])
    assert default.row_digests == named.row_digests


def test_nodes_of_an_adapted_graph_keep_their_names(model: Model, adapters: list[Adapter]) -> None:
    graph = adapted(model.graph, adapters, (0, 1))
    assert set(model.graph.by_name) <= set(graph.by_name)
    assert graph["Qcur_proj-0" if "Qcur_proj-0" in graph else "Qcur-0"]
    factors = {node.attr("factor") for node in graph if node.op == "add_adapter"}
    assert factors == {ALPHA / RANK}


def test_adapters_join_the_products_of_their_input(model: Model, adapters: list[Adapter]) -> None:
    graph = adapted(model.graph, adapters, (0, 1))
    plan = fuse(graph, (), gates=("glu",), adapters=True)
    assert not [g for g in plan.groups if isinstance(g, Single) and g.node.op == "add_adapter"]
    q = next(p for g in plan.groups if isinstance(g, Products) for p in g.products if p.last.name == "Qcur_proj-0")
    assert [node.name for node in q.adapters] == ["Qcur_proj_lora0-0", "Qcur_proj-0"]
    gated = [g for g in plan.groups if isinstance(g, Gated)]
    assert [[len(chain) for chain in g.adapters] for g in gated] == [[1, 1]] * 2
    out = next(
        p for g in plan.groups if isinstance(g, Products) for p in g.products if p.linear.name == "attn_out_base-0"
    )
    assert out.residual == "embd" and out.last.name == "ffn_inp-0"
    apart = fuse(graph, ())
    assert [g for g in apart.groups if isinstance(g, Single) and g.node.op == "add_adapter"]


def test_a_trace_changes_no_bit_and_shows_adapted_values(model: Model, adapters: list[Adapter]) -> None:
    chosen = ((0, 1.0), (1, 0.5))
    engine = CpuEngine(model, threads=1, precision="exact", adapters=adapters)
    plain = engine.forward([chunk(IDS, chosen)])[0].logits
    names = [node.name for node in model.graph if "S" not in model.graph.shapes[node.name]]
    kept = engine.forward([chunk(IDS, chosen)], names)[0]
    assert np.array_equal(kept.logits, plain)
    right = ReferenceEngine(model, adapters=adapters).forward([chunk(IDS, chosen)], names)[0]
    for name in names:
        assert np.abs(kept.nodes[name] - right.nodes[name]).max() < 1e-3 * np.abs(right.nodes[name]).max(), name


@pytest.mark.parametrize(
    ("said", "options"),
    [
        ("not a LoRA adapter", {"keys": {"adapter.type": "other"}}),
        ("another architecture", {"keys": {"general.architecture": "gpt2"}}),
        ("adapter.lora.alpha is not a number", {"keys": {"adapter.lora.alpha": "much"}}),
        ("is not one of a pair", {"change": lambda t: t.pop(next(iter(t)))}),
        ("does not fit", {"change": lambda t: t.update({k: v[:, :-1].copy() for k, v in list(t.items())[:1]})}),
        ("is not in the model", {"change": lambda t: t.update({"x.lora_a": t[min(t)], "x.lora_b": t[min(t)]})}),
        ("is a table", {"change": lambda t: t.update({"token_embd.weight.lora_a": np.ones((4, 64), np.float32),
                                                      "token_embd.weight.lora_b": np.ones((320, 4), np.float32)})}),
        ("has no tensors", {"change": lambda t: t.clear()}),
    ],
)  # fmt: skip
def test_files_that_do_not_fit_are_refused(model: Model, tmp_path: Path, said: str, options: dict[str, object]) -> None:
    path = make_adapter(tmp_path / "bad.gguf", model, **options)  # type: ignore[arg-type]
    with pytest.raises(AssayError, match=said):
        open_adapter(path, model)


def test_an_adapter_alone_is_no_model(model: Model, tmp_path: Path) -> None:
    path = make_adapter(tmp_path / "a.gguf", model)
    with pytest.raises(AssayError, match=r"is an adapter and no model; use it with its model: --lora a\.gguf"):
        load(open_file(path))


def test_a_folder_is_no_adapter(tmp_path: Path) -> None:
    opened = open_model(str(make(tmp_path / "m.gguf")), OpenOptions(lora=(f"{tmp_path}=0.5",)))
    with pytest.raises(AssayError, match="is a folder; make a file of it: assay convert"):
        _ = opened.adapters
