"""Mistakes of loaders and buffers, planted in the second engine, are described from a dump, ten values and layers."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.gguf import open_file
from assay.models import Model, load
from assay.verify.diagnosis.diagnose_dump import diagnose
from tests import planting, tiny

TWICE = (1, 270, 280, 270, 300, 1)  # two tokens come again
PLANTED = {
    "rows-unwritten": "the last rows % 7 rows of every product are not computed: zeros",
    "rows-unwritten/worker": "part 2 of 4 of the rows of every product is not computed: zeros",
    "rows-unwritten/columns": "the last columns % 8 columns of every product are not added",
    "layer-weights": "layer 1 has the tensors of layer 3",
    "buffer-not-cleared": "the buffer of ffn_out is not cleared between layers: it adds to what the layer before left",
    "buffer-not-cleared/tokens": "the buffer of ffn_out is not cleared between tokens: it adds",
    "kv-seqpos-units/early": "decode rows written one row early, over the row before",
    "kv-seqpos-units/values": "decode rows of values alone written one row early",
    "embd-overwritten": "the embedding's row of a token is overwritten by its l_out-4",
}
ALIKE = {("rows-unwritten/columns", "layers")}  # zeros in the rows of gate and up give the same layer


@pytest.fixture(scope="module")
def model(stories260k: Path) -> Model:
    return load(open_file(stories260k))


@pytest.mark.parametrize(
    ("bug", "style"),
    [
        pytest.param(bug, style, marks=[pytest.mark.slow] if style != "full" else [])
        for bug in PLANTED
        for style in ("full", "last", "layers")
        if (bug, style) not in ALIKE
    ],
)
def test_it_is_described(model: Model, tmp_path: Path, bug: str, style: str) -> None:
    tokens, steps = (TWICE, (1,) * len(TWICE)) if bug == "embd-overwritten" else (planting.TOKENS, planting.STEPS)
    run = planting.second(model.file.path, bug, tokens=tokens, steps=steps)
    dump = planting.dump(run, style, model, tmp_path, tokens, steps)
    found = diagnose(model, dump, weights=planting.weights_of(model.file))
    assert [c.fault for c in found.causes] == [planting.fault_id(bug)], found
    assert found.causes[0].how.startswith(PLANTED[bug]) and found.causes[0].confidence > 0.9, found


@pytest.mark.slow
def test_layers_that_are_sorted_as_text_are_described(tmp_path: Path) -> None:
    """From ten layers on: 0, 1, 10, 11, 2. Layer 2 is the first that shows it."""
    model = load(open_file(tiny.make(tmp_path / "twelve.gguf", n_layer=12)))
    tokens = tuple(t % model.hparams.n_vocab for t in planting.TOKENS)
    run = planting.second(model.file.path, "layer-weights/text", tokens=tokens)
    found = diagnose(model, planting.dump(run, "layers", model, tmp_path, tokens))
    assert [c.how for c in found.causes] == [
        "the layers are sorted by their names as text: layer 2 those of layer 10, layer 3 those of layer 11, "
        "layer 4 those of layer 2, …"
    ], found
