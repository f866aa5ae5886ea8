"""The cpu engine: every node against the definition, the same bits whatever the batch, and no crash from Python."""

from __future__ import annotations

import gc
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay import _native
from assay.engines.contract import PAGE, Chunk
from assay.engines.cpu import CpuEngine
from assay.engines.reference import ReferenceEngine, evaluate
from assay.engines.reference.weights import Weights
from assay.errors import AssayError
from assay.gguf import open_file
from assay.graph import Graph, Node
from assay.models import Model, load
from tests import tiny

Make = Callable[..., Model]
IDS = np.random.default_rng(3).integers(3, 300, 600).astype(np.int32)

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "untied": {"tied": False, "bias": True, "rope_freqs": True},
    "experts": {"n_expert": 4},
    "window": {"window": 11},
    "one_group": {"n_head": 4, "n_head_kv": 1, "n_embd": 128},
    "odd_heads": {"n_head": 6, "n_head_kv": 2, "n_embd": 96, "n_ff": 160},
    "yarn": {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_context_length": 64}},
}


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Make]:
    folder = tmp_path_factory.mktemp("cpu")
    made: dict[str, Model] = {}

    def build(**options: Any) -> Model:
        key = repr(sorted(options.items()))
        if key not in made:
            path = folder / f"{len(made)}.gguf"
            made[key] = load(open_file(tiny.make(path, **{"n_ctx": 1024, **options})))
        return made[key]

    yield build


def pages(first: int, n_slots: int) -> np.ndarray:
    return np.arange(first, first + -(-n_slots // PAGE), dtype=np.int32)


def whole(ids: np.ndarray, *, first_page: int = 0, outputs: str = "all") -> Chunk:
    return Chunk(ids, 0, pages(first_page, len(ids)), outputs)


def in_pieces(engine: CpuEngine, ids: np.ndarray, size: int, keep: Collection[str] = ()) -> np.ndarray:
    """All logits of a prompt given `size` tokens at a time."""
    table = pages(0, len(ids))
    rows = [
        engine.forward([Chunk(ids[at : at + size], at, table, "all")], keep)[0].logits
        for at in range(0, len(ids), size)
    ]
    return np.concatenate(rows)


def nmse(found: np.ndarray, expected: np.ndarray) -> float:
    expected = expected.astype(np.float64)
    return float(np.sum((found - expected) ** 2) / max(np.sum(expected**2), 1e-300))


# -- the right numbers ---------------------------------------------------------------------------------------------


WIDE = {"n_embd": 256, "n_ff": 512}  # whole blocks of 256


@pytest.mark.parametrize(
    ("variant", "type_name"),
    [(v, t) for v in VARIANTS for t in ("F32", "Q8_0")] + [(v, "Q4_K") for v in ("plain", "untied", "experts")],
)
def test_exact_is_the_reference(make: Make, variant: str, type_name: str) -> None:
    options = {**VARIANTS[variant], **(WIDE if type_name == "Q4_K" else {})}
    model = make(type=type_name, **options)
    ids = IDS[:70]
    expected = ReferenceEngine(model).forward([whole(ids)])[0].logits
    found = CpuEngine(model, precision="exact", threads=2).forward([whole(ids)])[0].logits
    assert found.dtype == np.float32
    assert nmse(found, expected) < 1e-9


@pytest.mark.parametrize("isa", _native.isas())
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_node_on_its_own_inputs(make: Make, variant: str, isa: str) -> None:
    """Exact mode: the definition, fed this engine's values of a node's inputs, gives this engine's value."""
    model = make(**VARIANTS[variant])
    ids = IDS[:40]
    engine = CpuEngine(model, precision="exact", threads=2, isa=isa)
    values = engine.forward([whole(ids)], [n.name for n in model.graph])[0].nodes
    env = {"inp_tokens": ids.astype(np.int64), "inp_pos": np.arange(40), "inp_kpos": np.arange(40)}
    weights = Weights(model.file)
    for node in model.graph:
        inputs = [
            env[name]
            if name in env
            else values[name].astype(np.float64 if values[name].dtype.kind == "f" else np.int64)
            for name in node.inputs
        ]
        expected = evaluate(node, inputs, weights)
        assert values[node.name].shape == expected.shape, node.name
        if node.op in ("argsort", "topk"):
            assert np.array_equal(values[node.name], expected), node.name
        else:
            assert nmse(values[node.name], expected) < 1e-9, node.name


@pytest.mark.parametrize(
    ("type_name", "limit"),
    [("F32", 2e-5), ("F16", 2e-5), ("BF16", 2e-5), ("Q8_0", 2e-3), ("Q4_0", 2e-3), ("Q4_1", 2e-3), ("Q5_0", 2e-3),
     ("Q5_1", 2e-3), ("Q2_K", 2e-3), ("Q3_K", 2e-3), ("Q4_K", 2e-3), ("Q5_K", 2e-3), ("Q6_K", 2e-3)],
)  # fmt: skip
def test_fast_is_near_the_reference(make: Make, type_name: str, limit: float) -> None:
    model = make(type=type_name, n_embd=256, n_ff=512)
    ids = IDS[:33]
    expected = ReferenceEngine(model).forward([whole(ids)])[0].logits
    assert nmse(CpuEngine(model, threads=2).forward([whole(ids)])[0].logits, expected) < limit


@pytest.mark.parametrize("isa", _native.isas())
@pytest.mark.parametrize(("kv_type", "limit"), [("f32", 1e-9), ("f16", 1e-5), ("bf16", 1e-3), ("q8_0", 1e-3)])
def test_cache_types(make: Make, kv_type: str, limit: float, isa: str) -> None:
    model = make(n_embd=128, n_head=4, n_head_kv=2)
    expected = ReferenceEngine(model).forward([whole(IDS[:300])])[0].logits
    engine = CpuEngine(model, precision="exact", kv_type=kv_type, threads=2, isa=isa)
    found = engine.forward([whole(IDS[:300])])[0].logits
    assert nmse(found, expected) < limit
    assert np.array_equal(found, in_pieces(engine, IDS[:300], 1))


def test_positions_of_their_own(make: Make) -> None:
    """Shifted and repeated positions: the mask goes by the positions that keys were written with."""
    model = make(window=9)
    positions = np.array([5, 6, 7, 7, 3, 8, 20, 21], np.int32)
    chunk = Chunk(IDS[:8], 0, pages(0, 10), "all", positions)
    later = Chunk(IDS[8:10], 8, pages(0, 10), "all", np.array([22, 4], np.int32))
    reference, engine = ReferenceEngine(model), CpuEngine(model, precision="exact", threads=2)
    for step in (chunk, later):
        expected = reference.forward([step], ["kq_soft_max-1"])[0]
        found = engine.forward([step], ["kq_soft_max-1"])[0]
        assert nmse(found.logits, expected.logits) < 1e-9
        assert nmse(found.nodes["kq_soft_max-1"], expected.nodes["kq_soft_max-1"]) < 1e-9


def test_graphs_that_do_not_fold(make: Make) -> None:
    """Scores with a second reader, keys rotated after the cache, a norm over each head."""
    model = make()

    def change(node: Node) -> Any:
        if node.name == "kq-0":
            return [node, Node("kq_doubled-0", "scale", ("kq-0",), (), {"factor": 2.0})]
        if node.name == "kq_soft_max-0":
            return Node(node.name, node.op, ("kq_doubled-0", *node.inputs[1:]), (), node.attrs)
        if node.name == "Kcur-1":
            return Node("Kcur_as_is-1", "scale", node.inputs[:1], (), {"factor": 0.5})
        if node.name == "cache_k_l1":
            turn = model.graph["Kcur-1"].attrs
            return [
                Node("cache_k_l1", "cache", ("Kcur_as_is-1",), (), node.attrs),
                Node("k_turned-1", "rope", ("cache_k_l1", "inp_kpos"), (), turn),
            ]
        if node.name == "kq-1":
            return Node("kq-1", "kq", (node.inputs[0], "k_turned-1"), (), node.attrs)
        return None

    graph = model.graph.rewrite(change).check()
    expected = ReferenceEngine(model, graph=graph)
    found = CpuEngine(model, precision="exact", threads=2, graph=graph)
    for start, stop in ((0, 20), (20, 33)):
        step = [Chunk(IDS[start:stop], start, pages(0, stop), "all")]
        assert nmse(found.forward(step)[0].logits, expected.forward(step)[0].logits) < 1e-9


def test_softcap_in_attention(make: Make) -> None:
    model = make()

    def change(node: Node) -> Any:
        if node.op == "kq":
            return [node, Node(f"capped-{node.name[3:]}", "softcap", (node.name,), (), {"cap": 3.0})]
        if node.op == "attn_softmax":
            return Node(node.name, node.op, (f"capped-{node.name[12:]}", *node.inputs[1:]), (), node.attrs)
        return None

    graph: Graph = model.graph.rewrite(change).check()
    found = CpuEngine(model, precision="exact", graph=graph).forward([whole(IDS[:40])])[0].logits
    assert nmse(found, ReferenceEngine(model, graph=graph).forward([whole(IDS[:40])])[0].logits) < 1e-9


# -- the same bits -------------------------------------------------------------------------------------------------

TYPES_AND_PRECISIONS = [("Q4_K", "fast"), ("Q8_0", "fast"), ("F16", "fast"), ("Q6_K", "exact")]


@pytest.mark.parametrize(("type_name", "precision"), TYPES_AND_PRECISIONS)
def test_bits(make: Make, type_name: str, precision: str) -> None:
    """No number of threads, chunk size, company, cached prefix or trace changes a bit."""
    model = make(type=type_name, n_embd=256, n_ff=512, n_head=8, n_head_kv=2)
    ids = IDS[:560]
    base = CpuEngine(model, precision=precision, threads=1, n_pages=64).forward([whole(ids)])[0].logits
    for threads in (1, 2, 3, 4):
        engine = CpuEngine(model, precision=precision, threads=threads, n_pages=64)
        assert np.array_equal(engine.forward([whole(ids)])[0].logits, base), f"{threads} threads"
    for size in (1, 7, 32, 512):
        assert np.array_equal(in_pieces(engine, ids, size), base), f"pieces of {size}"

    others = [Chunk(IDS[100:140], 0, pages(30, 40), "last"), Chunk(IDS[:1], 0, pages(40, 1), "none")]
    first, last, none = engine.forward([whole(ids), *others])
    assert np.array_equal(first.logits, base)
    assert last.logits.shape == (1, 320)
    assert none.logits.shape == (0, 320)
    alone = engine.forward([others[0]])[0].logits
    assert np.array_equal(alone, last.logits)

    table = pages(0, 560).copy()
    table[4:] += 40  # the first 128 positions are shared, the rest lies elsewhere
    again = engine.forward([Chunk(ids[128:], 128, table, "all")])[0].logits
    assert np.array_equal(again, base[128:])
    engine.copy_page(3, 63)  # of which the first 7 positions are good
    table[3] = 63
    again = engine.forward([Chunk(ids[103:], 103, table, "all")])[0].logits
    assert np.array_equal(again, base[103:])

    names = [n.name for n in model.graph]
    traced = engine.forward([whole(ids)], names)[0]
    assert np.array_equal(traced.logits, base)
    assert np.array_equal(traced.nodes["result_output"], base)
    for name in names[::5]:
        assert np.array_equal(engine.forward([whole(ids)], [name])[0].logits, base), name


def test_traced_values_are_the_ones_used(make: Make) -> None:
    """A node kept alone, kept with all others, kept from a batch cut into pieces: the same values."""
    model = make(type="Q8_0", bias=True)
    engine = CpuEngine(model, threads=2, n_pages=64)
    names = [n.name for n in model.graph]
    together = engine.forward([whole(IDS[:530], outputs="last")], names)[0].nodes
    for name in names:
        alone = engine.forward([whole(IDS[:530], outputs="none")], [name])[0].nodes
        assert list(alone) == [name]
        assert np.array_equal(alone[name], together[name]), name


def test_unpacked_weights_give_the_same_bits(make: Make) -> None:
    for type_name in ("Q4_0", "Q6_K", "F16"):
        model = make(type=type_name, n_embd=256, n_ff=512)
        a, b = (CpuEngine(model, pack=pack, threads=2).forward([whole(IDS[:40])])[0].logits for pack in (True, False))
        assert np.array_equal(a, b)


@pytest.mark.slow
def test_bits_of_a_real_model(smollm2: Path) -> None:
    model = load(open_file(smollm2))
    ids = np.random.default_rng(0).integers(0, 40000, 530).astype(np.int32)
    base = None
    for threads in (1, 2, 3):
        engine = CpuEngine(model, threads=threads, n_pages=64)
        logits = engine.forward([whole(ids, outputs="last")])[0].logits
        base = logits if base is None else base
        assert np.array_equal(logits, base)
    for size in (7, 32):
        assert np.array_equal(in_pieces(engine, ids[:100], size), engine.forward([whole(ids[:100])])[0].logits)


# -- wrong use -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chunk", "text"),
    [
        (Chunk(np.array([5, 320], np.int32), 0, pages(0, 2)), "found 320"),
        (Chunk(np.array([-1], np.int32), 0, pages(0, 1)), "found -1"),
        (Chunk(np.array([5], np.int32), 0, np.array([8], np.int32)), "expected 0 to 7"),
        (Chunk(np.array([5], np.int32), 0, np.array([-1], np.int32)), "page"),
        (Chunk(np.array([5] * 40, np.int32), 0, pages(0, 1)), "page table is too short"),
        (Chunk(np.array([], np.int32), 0, pages(0, 1)), "non-empty"),
        (Chunk(np.array([5], np.int32), -1, pages(0, 1)), "page table is too short"),
        (Chunk(np.array([5], np.int32), 0, pages(0, 1), "some"), "found 'some'"),
    ],
)
def test_bad_batches(make: Make, chunk: Chunk, text: str) -> None:
    with pytest.raises(AssayError, match=text):
        CpuEngine(make(), n_pages=8).forward([chunk])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"precision": "half"}, "found half"),
        ({"kv_type": "f8"}, "found f8"),
        ({"threads": 5000}, "found 5000"),
        ({"n_pages": 0}, "found 0"),
        ({"kv_type": "q8_0"}, "multiple of 32"),  # heads of 16
        ({"n_pages": 2**31 - 1}, "no room for"),
    ],
)
def test_bad_options(make: Make, options: dict[str, Any], text: str) -> None:
    with pytest.raises(AssayError, match=text):
        CpuEngine(make(), **options)


def test_closed_and_unknown(make: Make) -> None:
    engine = CpuEngine(make(), n_pages=8)
    with pytest.raises(AssayError, match="not in the graph"):
        engine.forward([whole(IDS[:3])], ["nonsense-0"])
    engine.close()
    with pytest.raises(AssayError, match="closed"):
        engine.forward([whole(IDS[:3])])


def test_the_file_may_go(tmp_path: Path) -> None:
    """Weights outlive the file object and the file itself."""
    path = tiny.make(tmp_path / "gone.gguf", type="Q8_0", tied=False)
    with open_file(path) as file:
        engine = CpuEngine(load(file))
    path.unlink()
    gc.collect()
    assert np.isfinite(engine.forward([whole(IDS[:5])])[0].logits).all()


# -- time ----------------------------------------------------------------------------------------------------------


def test_interrupt(make: Make) -> None:
    """Ctrl-C ends a long prefill between two units of work, and the engine stays usable."""
    model = make(n_embd=512, n_ff=2048, n_layer=8, n_ctx=16384, n_head=8, n_head_kv=8)
    engine = CpuEngine(model, threads=2)
    ids = np.resize(IDS, 16000)
    before = engine.forward([whole(IDS[:9])])[0].logits
    sent: list[float] = []

    def interrupt() -> None:
        sent.append(time.monotonic())
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    timer = threading.Timer(0.3, interrupt)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        engine.forward([whole(ids, outputs="last")])
        pytest.fail("the prefill ended before the interrupt")
    timer.join()
    assert np.array_equal(engine.forward([whole(IDS[:9])])[0].logits, before)


def test_two_callers(make: Make) -> None:
    """Two Python threads on one engine take turns."""
    model = make(type="Q8_0")
    engine = CpuEngine(model, threads=2, n_pages=64)
    expected = engine.forward([whole(IDS[:60])])[0].logits
    wrong: list[int] = []

    def work(first_page: int) -> None:
        for i in range(20):
            if not np.array_equal(engine.forward([whole(IDS[:60], first_page=first_page)])[0].logits, expected):
                wrong.append(i)

    callers = [threading.Thread(target=work, args=(first,)) for first in (0, 20, 40)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong
