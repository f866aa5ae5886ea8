"""A PEFT folder becomes an adapter that computes what its matrices, added to the folder's weights, would."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.cli import main
from assay.engines.contract import Chunk
from assay.engines.reference import ReferenceEngine
from assay.gguf import open_file
from assay.models import load
from assay.models.adapters import open_adapter
from tests.convert import folders

RANK, ALPHA = 4, 16
MODULES = {"self_attn.q_proj": (64, 64), "self_attn.k_proj": (64, 32), "mlp.down_proj": (96, 64)}  # inputs, outputs
IDS = np.arange(3, 15, dtype=np.int32)


def write_safetensors(path: Path, tensors: dict[str, np.ndarray]) -> None:
    header, at = {}, 0
    for name, value in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(value.shape), "data_offsets": [at, at + value.nbytes]}
        at += value.nbytes
    text = json.dumps(header).encode()
    data = b"".join(np.ascontiguousarray(v, np.float32).tobytes() for v in tensors.values())
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def peft(path: Path, **settings: Any) -> dict[str, np.ndarray]:
    """Write a PEFT folder; its tensors."""
    path.mkdir()
    rng, tensors = np.random.default_rng(2), dict[str, np.ndarray]()
    for layer in range(folders.LAYERS):
        for module, (n_in, n_out) in MODULES.items():
            name = f"base_model.model.model.layers.{layer}.{module}"
            tensors[f"{name}.lora_A.weight"] = rng.standard_normal((RANK, n_in)).astype(np.float32) / 8
            tensors[f"{name}.lora_B.weight"] = rng.standard_normal((n_out, RANK)).astype(np.float32) / 8
    write_safetensors(path / "adapter_model.safetensors", tensors)
    said = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, **settings}
    (path / "adapter_config.json").write_text(json.dumps(said))
    return tensors


def stored(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a folder that `folders` made, in float32."""
    from assay.convert.folder import Folder, floats

    return {name: floats(tensor) for name, tensor in Folder(path).tensors.items()}


@pytest.mark.parametrize("title", ["llama", "qwen2"])  # rows of queries and keys are reordered, or not
def test_the_adapter_adds_what_the_folder_would(title: str, tmp_path: Path) -> None:
    base = folders.make(tmp_path / "base", title)
    tensors = peft(tmp_path / "lora")
    assert main(["convert", str(base), str(tmp_path / "base.gguf"), "--type", "F32"]) == 0
    assert main(["convert", str(tmp_path / "lora"), str(tmp_path / "lora.gguf"), "--base", str(base)]) == 0

    merged = stored(base)
    for name in list(merged):
        pair = f"base_model.model.{name.removesuffix('.weight')}"
        if f"{pair}.lora_A.weight" in tensors:
            delta = tensors[f"{pair}.lora_B.weight"] @ tensors[f"{pair}.lora_A.weight"]
            merged[name] = merged[name] + np.float32(ALPHA / RANK) * delta
    for file in base.glob("model*.safetensors*"):
        file.unlink()
    write_safetensors(base / "model.safetensors", merged)
    assert main(["convert", str(base), str(tmp_path / "merged.gguf"), "--type", "F32"]) == 0

    model = load(open_file(tmp_path / "base.gguf"))
    adapter = open_adapter(tmp_path / "lora.gguf", model)
    chunk = Chunk(IDS, 0, np.zeros(1, np.int32), "all", adapters=((0, 1.0),))
    found = ReferenceEngine(model, adapters=[adapter]).forward([chunk])[0].logits
    whole = load(open_file(tmp_path / "merged.gguf"))
    right = ReferenceEngine(whole).forward([Chunk(IDS, 0, np.zeros(1, np.int32), "all")])[0].logits
    assert np.abs(found - right).max() < 1e-4 * np.abs(right).max()


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"use_dora": True}, "use_dora is set"), ({"lora_alpha": None}, "lora_alpha is not a number"),
     ({"peft_type": "IA3"}, "only LORA")],
)  # fmt: skip
def test_what_changes_the_formula_is_refused(
    settings: dict[str, Any], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = folders.make(tmp_path / "base", "llama")
    peft(tmp_path / "lora", **settings)
    assert main(["convert", str(tmp_path / "lora"), str(tmp_path / "o.gguf"), "--base", str(base)]) == 2
    assert said in capsys.readouterr().err
    assert main(["convert", str(tmp_path / "lora"), str(tmp_path / "o.gguf")]) == 2
    assert "--base" in capsys.readouterr().err
