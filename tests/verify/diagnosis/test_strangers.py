"""Logs of an engine that was written without looking at assay, and files with one key edited: what was planted is
named, a healthy log is healthy."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from assay.engines.reference import interpret
from assay.engines.reference.weights import Weights
from assay.gguf import open_file
from assay.models import Model, load
from assay.verify.diagnosis.diagnose_dump import diagnose
from assay.verify.dumps.load import load_dump, read_dump
from assay.verify.dumps.observation import Dump, Observation, inputs_of
from assay.verify.dumps.resolve import resolve


@pytest.fixture(scope="module")
def model(stories260k: Path) -> Model:
    return load(open_file(stories260k))


@pytest.fixture(scope="module")
def weights(model: Model) -> Weights:
    return Weights(model.file)


def logged(shared_dir: Path, name: str) -> Path:
    path = shared_dir / "strangers" / f"{name}.log"
    if not path.exists():
        pytest.skip(f"no such log in the reference data: {path}")
    return path


@pytest.mark.parametrize("name", ["hdr1", "hdr2", "hdr3", "md-ok", "md4", "slices-ok", "stats-clip", "table-ropeacc"])
def test_a_healthy_log_is_healthy(shared_dir: Path, model: Model, weights: Weights, name: str) -> None:
    found = diagnose(model, load_dump(logged(shared_dir, name), model), weights=weights)
    assert found.verdict == "healthy", found


NAMED = [
    ("md-finalnorm", "norm-name-swap", "result_norm takes the weight of ffn_norm-4"),
    ("slices-wrongtok", "token-other", "the token at position 2 is fed with its id + 1"),
    ("stats-headshift", "index-off", "the matrix of result_output is read one row too far on"),
    ("md-skiplast", "layer-skipped", "layer 4 is left out: l_out-4 = l_out-3"),
    ("md-gateraw", "operand-other", "ffn_gate reads ffn_inp in place of ffn_norm"),
    ("stats-gqaoff", "index-off", "query heads use the keys and values of the next group"),
    pytest.param("slices-twice", "layer-repeated", "layer 2 runs twice", marks=pytest.mark.slow),
    pytest.param("slices-ropek1", "index-off", "Kcur is rotated with position + 1", marks=pytest.mark.slow),
    pytest.param("slices-kvstride", "index-off", "from position 4 on keys are written one", marks=pytest.mark.slow),
    pytest.param("stats-rowswap", "index-off", "rows 10 and 11 of blk.3.attn_v.weight", marks=pytest.mark.slow),
    pytest.param("stats-scalehalf", "scale-twice", "scaled twice, from layer 2 on", marks=pytest.mark.slow),
    pytest.param("stats-bf16res", "residual-half", "residual sums in bfloat16", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("name", "fault", "how"), NAMED)
def test_what_was_planted_is_named(
    shared_dir: Path, model: Model, weights: Weights, name: str, fault: str, how: str
) -> None:
    found = diagnose(model, load_dump(logged(shared_dir, name), model), weights=weights)
    assert [c.fault for c in found.causes] == [fault] and found.causes[0].how.startswith(how), found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["md-epsout", "slices-fexp"])
def test_what_noise_covers_is_no_alarm(shared_dir: Path, model: Model, weights: Weights, name: str) -> None:
    found = diagnose(model, load_dump(logged(shared_dir, name), model), weights=weights)
    assert found.verdict in ("undecided", "healthy"), found


@pytest.mark.parametrize(
    ("arch", "ops", "attrs", "fault", "how"),
    [
        ("command-r", ("layer_norm",), {"eps": 1e-3}, "eps-value", "eps = 0.001"),
        ("gpt-oss", ("rope",), {"n_ctx_orig": 128}, "rope-yarn-factor", "YaRN's ramp for an original context of 128"),
    ],
)
def test_another_value_of_one_key_is_named(
    shared_dir: Path, arch: str, ops: tuple[str, ...], attrs: dict[str, float], fault: str, how: str
) -> None:
    """Every node of a run of the same file with one key edited."""
    model = load(open_file(shared_dir / "data" / "arch" / f"{arch}.gguf"))
    tokens = (1, 5, 9, 7, 3, 2, 11, 4)
    n = len(tokens)
    graph = model.graph.rewrite(lambda node: node.with_attrs(**attrs) if node.op in ops else None)
    names = [node.name for node in graph if node.op != "cache"]
    values = interpret(graph, Weights(model.file), inputs_of(tokens, range(n)), names)
    seen = tuple(Observation(name, "values", v) for name, v in values.items() if v.dtype.kind == "f")
    found = diagnose(model, resolve(Dump("edited", tokens, tuple(range(n)), (n,), seen, "edited"), model))
    assert [(c.fault, c.how) for c in found.causes] == [(fault, how)], found


CASES = Path(__file__).parents[3] / "bench" / "strangers" / "cases"
WRITTEN = [
    ("A-08", "index-off", "the experts are sorted by index, their weights by score"),
    pytest.param("B-06", "index-off", "the last head of Qcur and Kcur is not rotated", marks=pytest.mark.slow),
    pytest.param("B-07", "kv-aliased", "every cached row of values is that of the current", marks=pytest.mark.slow),
    pytest.param("B-09", "mask-cache-offset", "begins at key 0 in every chunk of 6", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("case", "fault", "how"), WRITTEN)
def test_what_a_writer_planted_is_named(shared_dir: Path, case: str, fault: str, how: str) -> None:
    truth = tomllib.loads((CASES / case / "truth.toml").read_text())
    model = load(open_file(shared_dir / "data" / truth["model"]))
    path = next((CASES / case).glob("evidence*"))
    own = read_dump(path).tokens
    found = diagnose(model, load_dump(path, model, tokens=() if own else truth["tokens"]))
    assert [c.fault for c in found.causes] == [fault] and how in found.causes[0].how, found
