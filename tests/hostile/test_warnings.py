"""NumPy prints no warning before an error's one line, whatever the weights, the logits and the settings are."""

from __future__ import annotations

import random
import warnings
from pathlib import Path

import numpy as np
import pytest

from assay import engines
from assay.errors import AssayError
from assay.gguf import open_file
from assay.gguf.types import Typed
from assay.gguf.writer import Tensor, write
from assay.models import load
from assay.runtime.draws import Draws
from assay.runtime.generate import Generator
from assay.runtime.params import GREEDY, SamplerParams
from assay.runtime.sampler import sample, scores
from assay.text import Tokenizer
from tests import tiny

SIGNALLING = np.array([0x7FA00000], np.uint32).tobytes()
VALUES = {
    "nan": np.float32(np.nan).tobytes(), "inf": np.float32(np.inf).tobytes(), "huge": np.float32(3e38).tobytes(),
    "signalling": SIGNALLING,
}  # fmt: skip


def changed(path: Path, name: str, value: bytes) -> Path:
    """The model with every second number of a float32 tensor replaced."""
    given = open_file(path)
    metadata = {key: given.metadata.typed(key) for key in given.metadata}
    tensors = []
    for t in given.tensors.values():
        data = bytearray(given.raw(t.name))
        if t.name == name:
            for at in range(0, len(data), 8):
                data[at : at + 4] = value
        tensors.append(Tensor(t.name, t.shape, t.type, bytes(data)))
    out = path.with_name("changed.gguf")
    write(out, metadata, tensors)
    return out


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("name", ["token_embd.weight", "output_norm.weight", "blk.0.ffn_down.weight"])
@pytest.mark.parametrize("engine", ["reference", "cpu"])
def test_weights_that_are_no_numbers(tmp_path: Path, name: str, value: str, engine: str) -> None:
    path = changed(tiny.make(tmp_path / "a.gguf", n_layer=1, n_embd=32, n_ff=32), name, VALUES[value])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = load(open_file(path))
        generator = Generator(engines.create(engine, model, n_pages=4), Tokenizer.from_gguf(model.file), n_ctx=64)
        for params in (GREEDY, SamplerParams(temp=1.0, seed=1, typical=0.5, repeat_penalty=1.3)):
            try:
                generator.generate([1, 5, 6], params, max_tokens=2, logprobs=1).run()
            except AssayError as error:
                assert "\n" not in str(error)
        generator.engine.close()


def test_scores_that_no_float32_holds(tmp_path: Path) -> None:
    path = tiny.make(tmp_path / "a.gguf", n_layer=1)
    given = open_file(path)
    metadata = {key: given.metadata.typed(key) for key in given.metadata}
    kept = metadata["tokenizer.ggml.scores"]
    metadata["tokenizer.ggml.scores"] = Typed(kept.type, np.full(len(kept.value), 1e300), type(kept.item).FLOAT64)  # type: ignore[union-attr]
    write(path, metadata, [Tensor(t.name, t.shape, t.type, bytes(given.raw(t.name))) for t in given.tensors.values()])
    with warnings.catch_warnings(), pytest.raises(AssayError, match="token 0 has the score inf"):
        warnings.simplefilter("error")
        Tokenizer.from_gguf(open_file(path))


def test_the_sampler_takes_any_logits_and_settings() -> None:
    rng = random.Random(1)
    values = (0.0, -0.0, 1.0, -1.0, 1e308, -1e308, -np.inf, 1e-320, 88.0, 700.0, -745.0, 3.4e38)
    pick = rng.choice
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for i in range(3000):
            row = np.array([pick(values) for _ in range(pick((1, 2, 5, 40)))])
            params = SamplerParams(
                temp=pick((0, 1e-300, 0.7, 1e300)), seed=1, top_k=pick((0, 1, 3)), top_p=pick((0.0, 0.5, 1.0)),
                min_p=pick((0.0, 1e-300, 1.0)), typical=pick((0.0, 0.3, 1.0)), top_n_sigma=pick((-1.0, 0.5, 1e300)),
                xtc_probability=pick((0.0, 1.0)), repeat_penalty=pick((1.0, 1e300, 1e-300)),
                frequency_penalty=pick((0.0, 1e308)), presence_penalty=pick((0.0, -1e308)),
                dry_multiplier=pick((0.0, 1e308)), logit_bias=pick(((), ((0, 1e308),), ((0, -1e308),))),
            )  # fmt: skip
            try:
                choice = sample(row, [0] * 6, params, Draws(1, i), logprobs=pick((None, 0, 3)))
                assert 0 <= choice.id < len(row)
                scores(row, 0, 2)
            except AssayError as error:
                assert "\n" not in str(error)


def test_a_very_low_temperature_is_greedy() -> None:
    row = np.array([1.0, 3.0, 2.0])
    assert sample(row, [], SamplerParams(temp=1e-320, seed=1, top_k=0), Draws(1, 0)).id == 1
