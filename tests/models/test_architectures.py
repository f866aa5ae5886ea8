"""Every architecture against llama.cpp: golden models node by node, other sizes at the logits; and in pieces.

Bounds. llama.cpp computes in float32, the definition in float64: a node on its own inputs differs by NMSE 1e-15 to
1e-12. Its GELU is a table of halves (1e-7), and it turns by angles of float32, which at position 8190 are off by 2e-9.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from assay.cli import main
from assay.engines.contract import Chunk, pages_for
from assay.engines.reference import ReferenceEngine
from assay.errors import AssayError
from assay.gguf import open_file
from assay.graph import Node, split
from assay.models import Model, load
from tests.models import golden, measure, others, recurrent

NODE, AFTER_GELU, FAR_ANGLE = 1e-10, 1e-6, 1e-8
# Logits after many layers: what the table of GELU does to one node grows on the way.
LOGITS = {"gemma2-27b": 2e-4, "gemma4": 1e-5, "llama4": 1e-8, "exaone4-32b": 1e-9}


def uses_gelu(node: Node) -> bool:
    return node.op in ("act", "glu", "glu_split") and node.attr("act") == "gelu_tanh"


def has_gelu(model: Model) -> bool:
    return any(uses_gelu(node) for node in model.graph)


@pytest.mark.parametrize("name", golden.NAMES)
def test_golden_nodes(name: str) -> None:
    g = golden.golden(name)
    assert {split(node)[0] for node in g.foreign} <= golden.INSIDE
    judged = 0
    for node in g.values:
        if not g.recorded_inputs(node):
            continue
        far = g.model.graph[node].op == "rope" and g.positions.max() > 8000
        bound = FAR_ANGLE if far else AFTER_GELU if uses_gelu(g.model.graph[node]) else NODE
        assert g.error(node, g.on_own_inputs(node)) < bound, node
        judged += 1
    assert judged > 0.85 * len(g.values)  # of the deep models, not every layer was recorded


@pytest.mark.parametrize("name", golden.NAMES)
def test_golden_logits(name: str) -> None:
    """All positions at once, from the tokens alone; for an encoder, the pooled embedding."""
    g = golden.golden(name)
    assert g.result() < LOGITS.get(name, AFTER_GELU if has_gelu(g.model) else NODE)


@pytest.fixture(scope="session")
def case_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("others") / "model.gguf"


@pytest.mark.parametrize("name", others.WITNESSED)
def test_other_sizes(name: str, case_file: Path) -> None:
    """Other dimensions, ratios of heads, windows and scalings; files with tensors and keys that the golden lack."""
    case = others.make(name, case_file)
    found, recorded = others.ours(case_file, case), np.load(others.GOLDEN)[name]
    bound = 1e-6 if "gelu" in _acts(case_file) else 1e-9 if case.positions else 1e-10
    assert others.nmse(found, recorded) < bound


_GATES = ("act", "glu", "glu_split")


def _acts(path: Path) -> str:
    return " ".join(str(node.attr("act")) for node in load(open_file(path)).graph if node.op in _GATES)


def in_pieces(engine: ReferenceEngine, ids: np.ndarray, positions: np.ndarray, cuts: Iterable[int]) -> np.ndarray:
    """Logits of every position, the text given in pieces that end at `cuts`."""
    pages = np.arange(pages_for(len(ids)), dtype=np.int32)
    found, start = [], 0
    for end in (*cuts, len(ids)):
        chunk = Chunk(ids[start:end], start, pages, "all", positions[start:end])
        found.append(engine.forward([chunk])[0].logits)
        start = end
    return np.concatenate(found)


ENCODERS = [name for name, row in others.ARCHITECTURES.items() if others.example(row)[1].whole]
CAUSAL = [name for name in others.ARCHITECTURES if name not in ENCODERS]


@pytest.mark.parametrize("name", [*CAUSAL, "llama4, over a chunk", "deepseek2, whole", "gemma4, experts"])
def test_pieces_equal_the_whole(name: str, case_file: Path) -> None:
    """Prefill, token by token, and odd pieces give the same logits."""
    case = others.make(name, case_file)
    ids, at = others.IDS[:24], others.positions(case)[:24]
    model = load(open_file(case_file))
    whole = in_pieces(ReferenceEngine(model, n_pages=2), ids, at, ())
    for cuts in (range(1, 24), (5, 6, 17)):
        assert others.nmse(in_pieces(ReferenceEngine(model, n_pages=2), ids, at, cuts), whole) < 1e-20


@pytest.mark.parametrize("name", ENCODERS)
def test_an_encoder_wants_its_text_whole(name: str, case_file: Path) -> None:
    others.make(name, case_file)
    model = load(open_file(case_file))
    assert not any(node.op == "cache" for node in model.graph)
    with pytest.raises(AssayError, match="attention is not causal"):
        in_pieces(ReferenceEngine(model), others.IDS, np.arange(40, dtype=np.int32), (20,))


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_positions_stay_inside_their_table(name: str, case_file: Path) -> None:
    others.make(name, case_file)
    engine = ReferenceEngine(load(open_file(case_file)))
    for position in (-1, 512):
        chunk = Chunk(others.IDS[:1], 0, np.zeros(1, np.int32), "all", np.array([position], np.int32))
        with pytest.raises(AssayError, match="expected 0 to 511"):
            engine.forward([chunk])


def test_latent_attention_caches_one_row(case_file: Path) -> None:
    """Absorbed MLA: 32 compressed and 8 rotated values a layer and position; whole: keys and values of every head."""
    for name, width in (("deepseek2", 32 + 8), ("deepseek2, whole", 6 * (24 + 16))):
        others.make(name, case_file)
        graph = load(open_file(case_file)).graph
        rows = [graph.shapes[node.name][1:] for node in graph if node.op == "cache"]
        assert sum(int(h) * int(d) for h, d in rows) == 2 * width


@pytest.mark.parametrize("name", ["qwen2", "falcon", "gpt-oss", "deepseek2"])
def test_the_page_says_what_is_measured(name: str) -> None:
    """docs/reference/models.md, by its record."""
    record = json.loads(measure.RECORD.read_text())
    found = measure.of_golden(name)
    for key, value in record[golden.golden(name).model.hparams.arch]["golden"][name].items():
        assert abs(found[key] - value) <= (0 if key == "nodes" else 1), key  # another BLAS rounds otherwise


def test_the_page_has_every_case() -> None:
    """And README's claim counts them."""
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    assert f"{len(others.ARCHITECTURES)} architectures are built" in readme
    record = json.loads(measure.RECORD.read_text())
    assert list(record) == list(others.ARCHITECTURES)
    assert {name for row in record.values() for name in row["others"]} == set(others.WITNESSED)
    assert {name for row in record.values() for name in row["golden"]} == {*golden.NAMES, *recurrent.NAMES}


def test_factors_follow_the_context_in_use(case_file: Path) -> None:
    others.make("phi3, 256 of 300", case_file)
    model = load(open_file(case_file))
    used = {n: {w for node in model.at(n).graph for w in node.weights if "factors" in w} for n in (300, 301)}
    assert used == {300: {"rope_factors_short.weight"}, 301: {"rope_factors_long.weight"}}
    assert model.hparams.n_ctx_train == 512 and model.at(512).graph == model.graph


def test_a_file_without_vocabulary_is_traced_by_ids(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(golden.HERE / "qwen2.gguf")
    trace = ["trace", file, "-o", str(tmp_path / "trace.safetensors")]
    assert main([*trace, "--tokens", "1,2,3"]) == 0 and "49 nodes of 3 tokens" in capsys.readouterr().out
    assert main([*trace, "-p", "text"]) == 2 and "the file has no vocabulary" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["qwen2", "qwen3", "phi3"])
def test_a_dump_with_heads_apart_is_read(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """llama.cpp's q and k have an axis of heads where the graph has them side by side."""
    file = golden.path(name)
    assert main(["diff", str(file), str(file.with_suffix(".npz"))]) == 0, capsys.readouterr().err


def test_an_architecture_is_known_in_one_place() -> None:
    """No code that computes, runs, verifies or serves asks for an architecture by its name. A witness may name the
    architectures that its engine has."""
    source = Path(__file__).parents[2] / "src" / "assay"
    rooms = ("graph", "engines", "runtime", "verify", "serve", "library", "cli")
    for path in (path for room in rooms for path in (source / room).rglob("*.py")):
        said = path.read_text()
        if path.parent.name in ("witness", "vision", "pictures"):  # the latter name projectors of mmproj files
            continue
        other = {"deepseek"} if "serve" in path.parts else set()  # a reasoning_format
        names = set(others.ARCHITECTURES) - other
        assert not [name for name in names if f'"{name}"' in said], path
    shared = ("pictures.py", "file_report.py")  # they build no architecture
    builders = [path for path in (source / "models").glob("*.py") if path.name not in shared]
    assert sum(len(path.read_text().splitlines()) for path in builders) < 50 * len(others.ARCHITECTURES)
