"""Groups of experts whose sums lie within the noise may change places: no fault, and no excuse for other groups."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from assay.engines.reference import interpret
from assay.engines.reference.weights import Weights
from assay.gguf import open_file
from assay.models import Model, load
from assay.verify.dumps.observation import Dump, Observation, inputs_of
from assay.verify.judge.routing import other_groups
from assay.verify.judge.verdict import judge
from tests.models import others

IDS = tuple(int(i) for i in others.IDS[:8])
MASK, BIAS = "ffn_moe_probs_masked-1", "blk.1.exp_probs_b.bias"


def values_of(model: Model, token: int | None = None) -> dict[str, np.ndarray]:
    """A run; with `swap`, one token gets the next best group."""
    mask = model.graph[MASK]

    def masked(x: np.ndarray) -> np.ndarray:
        right = interpret(model.graph, Weights(model.file), {mask.inputs[0]: x}, [MASK])[MASK]
        return np.where((np.arange(len(x)) == token)[:, None], other_groups(x, mask)[1], right)

    names = [node.name for node in model.graph if node.op != "cache"]
    functions = {} if token is None else {MASK: masked}
    return interpret(model.graph, Weights(model.file), inputs_of(IDS, range(len(IDS))), names, functions=functions)


@pytest.fixture
def tied(tmp_path: Path) -> tuple[Model, int, int]:
    """A model in which the last group of a token is a millionth above the next, that token, and one that is far off."""
    path = tmp_path / "model.gguf"
    others.make("deepseek2", path)
    model = load(open_file(path))
    mask = model.graph[MASK]
    scores = values_of(model)[mask.inputs[0]]
    margin, swapped = other_groups(scores, mask)
    token = int(margin.argmin())
    width = scores.shape[1] // mask.attr("groups")
    kept, other = (np.isfinite(x[token].reshape(-1, width)).all(axis=1) for x in (values_of(model)[MASK], swapped))
    bias = model.file.decode(BIAS).astype(np.float32)
    raised = bias + np.repeat(other & ~kept, width) * np.float32((margin[token] - 1e-6) / 2)
    data = path.read_bytes()
    assert data.count(bias.tobytes()) == 1
    path.write_bytes(data.replace(bias.tobytes(), raised.astype(np.float32).tobytes()))
    model = load(open_file(path))
    margin, _ = other_groups(values_of(model)[mask.inputs[0]], mask)
    assert margin[token] < 1e-5 and margin.max() > 0.01
    return model, token, int(margin.argmax())


@pytest.mark.parametrize("which", ["close", "far"])
def test_a_group_chosen_otherwise(tied: tuple[Model, int, int], which: str) -> None:
    """Only the layers' outputs are known: the choice itself was not dumped."""
    model, close, far = tied
    values = values_of(model, close if which == "close" else far)
    right = values_of(model)
    assert np.abs(values["l_out-1"] - right["l_out-1"]).max() > 1e-2
    seen = tuple(
        Observation(n, "values", values[n].astype(np.float32), shape=values[n].shape, foreign=n)
        for n in values
        if n.startswith("l_out") or n == "result_output"
    )
    diff = judge(model, Dump("planted", IDS, tuple(range(len(IDS))), (len(IDS),), seen, "planted"), cache=False)
    assert bool(diff) == (which == "close"), diff.summary
