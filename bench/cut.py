"""Writes the first layers and the first tokens of a model as a new file: a small model with trained weights.

    python bench/cut.py smollm2 cut.gguf --layers 14 --vocab 8192      # 36 MB of 98

Its text is nonsense, but its numbers have the sizes of a trained model. Use it where the whole model is too large to
send or to run many times.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from assay.gguf import GGUFFile, open_file
from assay.gguf.types import Typed
from assay.gguf.writer import Tensor, write
from assay.runtime import hub

_TABLES = ("token_embd.weight", "output.weight")  # a row a token
_LAYER = re.compile(r"blk\.(\d+)\.")


def metadata(file: GGUFFile, layers: int, vocab: int) -> dict[str, Typed]:
    found = {key: file.metadata.typed(key) for key in file.metadata}
    arch = str(file.metadata["general.architecture"])
    changed: dict[str, Any] = {f"{arch}.block_count": layers, f"{arch}.vocab_size": vocab}
    for key in ("tokens", "scores", "token_type"):
        name = f"tokenizer.ggml.{key}"
        if name in found:
            changed[name] = file.metadata[name][:vocab]
    if "tokenizer.ggml.merges" in found:
        known = set(changed["tokenizer.ggml.tokens"])
        merges = file.metadata["tokenizer.ggml.merges"]
        changed["tokenizer.ggml.merges"] = [m for m in merges if "".join(m.split(" ")) in known]
    return found | {key: replace(found[key], value=value) for key, value in changed.items() if key in found}


def tensors(file: GGUFFile, layers: int, vocab: int) -> list[Tensor]:
    found = []
    for name, info in file.tensors.items():
        layer = _LAYER.match(name)
        if layer and int(layer[1]) >= layers:
            continue
        rows = vocab if name in _TABLES else info.shape[0]
        found.append(Tensor(name, (rows, *info.shape[1:]), info.type, partial(_rows, file, name, rows)))
    return found


def _rows(file: GGUFFile, name: str, rows: int) -> Any:
    raw = file.raw(name)
    return raw[:rows] if name in _TABLES else raw


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--vocab", type=int, required=True)
    args = parser.parse_args()
    file = open_file(hub.resolve(args.model))
    write(args.out, metadata(file, args.layers, args.vocab), tensors(file, args.layers, args.vocab))


if __name__ == "__main__":
    main()
