"""What llama.cpp's converter makes of the folders of `folders`: the data behind test_convert.py.

    python tests/convert/witness.py PATH-TO-LLAMA.CPP

needs torch, transformers and sentencepiece. It writes tests/data/convert.json: for every folder the keys, and of every
tensor its type, shape and a hash of its bytes. The name of a byte-level tokenizer's splits is given: llama.cpp tells it
by a hash of what the whole vocabulary makes of a sample, and these vocabularies are not among those it has met. General
keys that describe a publication (names, sizes, licences) are left out.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from assay.gguf import GGUFFile, open_file
from tests.convert import folders

RECORD = Path(__file__).parents[1] / "data" / "convert.json"
PRE = {folders.QWEN2: "qwen2", folders.LLAMA3: "llama-bpe", "digits": "smollm"}
GENERAL = ("general.architecture", "general.type", "general.file_type", "general.quantization_version")


def describe(file: GGUFFile) -> dict[str, Any]:
    """Keys and tensors, small enough to keep."""
    keys = {}
    for key in sorted(file.metadata):
        if key.startswith("general.") and key not in GENERAL:
            continue
        typed = file.metadata.typed(key)
        value = typed.value
        if isinstance(value, list | np.ndarray):
            items = [v.item() if isinstance(v, np.generic) else v for v in value]
            value = [len(items), hashlib.sha256(repr(items).encode()).hexdigest()[:16]]
        keys[key] = [typed.type.name, value]
    tensors = {
        name: [t.type.name, list(t.shape), hashlib.sha256(file.raw(name).tobytes()).hexdigest()[:16]]
        for name, t in sorted(file.tensors.items())
    }
    return {"keys": keys, "tensors": tensors}


def by_llamacpp(source: Path, out: Path, title: str) -> None:
    """llama.cpp's own converter, in the type that the weights are stored in."""
    import conversion.base as base
    import gguf
    from conversion import get_model_class

    name, _, _, vocab = folders.MODELS[title]
    base.TextModel.get_vocab_base_pre = lambda self, tokenizer: PRE[vocab]
    model = get_model_class(name)(source, gguf.LlamaFileType.GUESSED, out)
    model.write()


def main(path: str) -> None:
    sys.path[:0] = [path, f"{path}/gguf-py"]
    record = {}
    with tempfile.TemporaryDirectory() as folder:
        for title in folders.MODELS:
            source, out = folders.make(Path(folder) / title.replace(" ", "-"), title), Path(folder) / "out.gguf"
            by_llamacpp(source, out, title)
            with open_file(out) as file:
                record[title] = describe(file)
    RECORD.write_text(json.dumps(record, separators=(",", ":")).replace("},", "},\n") + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
