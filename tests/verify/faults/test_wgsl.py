"""Seven faults of WGSL engines, planted in the definition, are named from what the WebGPU emitter posts."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from assay.engines.reference import interpret
from assay.engines.reference.weights import Weights
from assay.gguf import open_file
from assay.gguf.writer import Tensor
from assay.library.verdicts import diagnose
from assay.models import Model, load
from assay.verify.dumps.observation import inputs_of
from assay.verify.faults import CODE, FAULTS, Context, planted
from tests import tiny

EMITTER = Path(__file__).parents[3] / "docs" / "emitters" / "emit_webgpu.js"
TOKENS = [1, 270, 280, 17, 300]
POSTED = ("embd", "attn_norm", "Qcur", "Kcur", "Vcur", "kq", "kq_soft_max", "kqv_out", "ffn_inp", "ffn_norm",
          "ffn_swiglu", "ffn_out", "l_out", "result_norm", "result_output")  # fmt: skip

# The fault of the howto, the row of the catalogue, and the variant that is planted.
PLANTED = {
    "a barrier is missing": ("wgsl-barrier", "the sum has the columns of 32 of 64 invocations"),
    "array<vec3> stride": ("wgsl-stride", "the weight read as array<vec3<f32>>"),
    "uniform padding": ("wgsl-uniform", "the scale of scores is read from padding: 0"),
    "f16 overflow": ("f16-act-overflow", "beyond 65504 infinite"),
    "an uncovered tail": ("wgsl-tail", "the last n % 64 values of a row are 0"),
    "read and written in one pass": ("rope-inplace-alias", ""),
    "row-major for column-major": ("w-transposed", "the data read as [in, out]"),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = tmp_path_factory.mktemp("model") / "model.gguf"
    return load(open_file(tiny.make(path, n_embd=96, n_ff=160, n_layer=2, tensor=loud)))


def loud(name: str, shape: tuple[int, ...], kind: str, rng: np.random.Generator) -> Tensor:
    """As tiny's tensors; the last feed-forward layer has values beyond 65504, and scales them back."""
    made = tiny._tensor(name, shape, kind, rng)
    factor = {"blk.1.ffn_up.weight": 2.0**17, "blk.1.ffn_down.weight": 2.0**-17}.get(name, 1.0)
    return replace(made, data=np.asarray(made.data, np.float32) * np.float32(factor))


def posted(values: dict[str, np.ndarray], folder: Path) -> Path:
    """The dump that the emitter's text is, made by node from these values."""
    shutil.copy(EMITTER, folder / "emit.mjs")
    np.concatenate([v.ravel() for v in values.values()]).astype(np.float32).tofile(folder / "values")
    shapes = json.dumps({name: v.shape for name, v in values.items()})
    program = f"""
        import {{ GpuDump, numbers }} from "./emit.mjs";
        import {{ readFileSync }} from "fs";
        const dump = new GpuDump(null, "web", {TOKENS});
        const bytes = new Uint8Array(readFileSync("values")).buffer;
        let at = 0;
        for (const [name, shape] of Object.entries({shapes})) {{
          const end = at + 4 * shape.reduce((a, b) => a * b, 1);
          dump.pending.push(dump.tensor(name, shape, numbers(bytes.slice(at, end))));
          at = end;
        }}
        process.stdout.write(await dump.text());
    """
    command = ["node", "--input-type=module", "-e", program]
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=60)
    (folder / "dump.jsonl").write_bytes(done.stdout)
    return folder / "dump.jsonl"


@pytest.mark.parametrize("name", PLANTED)
def test_a_wgsl_fault_is_named(name: str, model: Model, tmp_path: Path) -> None:
    if shutil.which("node") is None:
        pytest.skip("node is not on this machine")
    fault, label = PLANTED[name]
    variant = next(v for v in FAULTS[fault].variants if label in v.label)
    context, weights = Context(model, (len(TOKENS),)), Weights(model.file)
    made = planted(context, variant)
    names = [node.name for node in model.graph if node.name.split("-")[0] in POSTED]
    with np.errstate(all="ignore"):
        values = interpret(made.graph, weights, inputs_of(TOKENS, range(len(TOKENS))), names, functions=made.functions)
    found = diagnose(model.file.path, posted(values, tmp_path)).result
    named = [found.broken.fault] if found.broken else [cause.fault for cause in found.causes]
    assert named[:1] == [fault], found.to_dict()
    assert "wgsl" in CODE[fault]
