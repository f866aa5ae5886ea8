"""Reads the JSON of transformers' `model_addition_debugger`: a tree of modules with what went in and came out.

A value is printed (all of it, or the ends of its axes) or lies in a safetensors file beside the tree; the summary has
statistics only. A module with children has no output in the file, so its value is read as the input of the module that
follows it (`_READ_INPUTS`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from assay.errors import AssayError
from assay.system.text_files import read_text
from assay.verify.dumps.formats.field_checks import MAX_TOKENS
from assay.verify.dumps.formats.module_names import module_name
from assay.verify.dumps.formats.safetensors import read_safetensors
from assay.verify.dumps.formats.tensor_text import printed_tensor, shape_of_text
from assay.verify.dumps.observation import Dump, Observation
from assay.verify.dumps.print_rounding import half_unit

Array = NDArray[Any]
MAX_TREE = 256 << 20  # bytes
MAX_DEPTH = 64
_STATISTICS = ("mean", "std", "min", "max")
_READ_INPUTS = ("self_attn.o_proj", "post_attention_layernorm", "mlp.down_proj")


def is_call_tree(head: bytes) -> bool:
    return head.lstrip()[:1] == b"{" and b'"module_path"' in head


def read_call_tree(path: Path) -> Dump:
    """The values by module path."""
    if path.stat().st_size > MAX_TREE:
        raise AssayError(f"{path}: {path.stat().st_size} bytes (expected at most {MAX_TREE}); read the SUMMARY file")
    try:
        tree = json.loads(read_text(path, lenient=True))
    except (ValueError, RecursionError) as error:
        raise AssayError(f"{path}: not JSON ({str(error).lower()}); the file is truncated or damaged") from None
    found: list[Observation] = []
    for name, value in _values(tree):
        found += _observations(path, name, value)
    if not found:
        raise AssayError(f"{path}: the tree of modules has no values; run the model inside the debugger's context")
    tokens = next((t for _, v in _inputs(tree, "input_ids") if (t := _ids(path, v))), ())
    printed = any(obs.kind != "values" for obs in found)
    return Dump("transformers", tokens, tuple(range(len(tokens))), (len(tokens),) if tokens else (), tuple(found),
                str(path), log=printed)  # fmt: skip


def _values(tree: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Names and values in the order of the calls."""
    todo = [(tree, 0)]
    while todo:
        node, depth = todo.pop()
        if not isinstance(node, dict) or depth > MAX_DEPTH:
            continue
        name = module_name(str(node.get("module_path", ""))[:300])
        for value in _tensors(node.get("outputs")):
            yield name, value
            break  # of a tuple, the first is the module's value
        if name.endswith(_READ_INPUTS):
            yield from ((f"{name}.input", value) for _, value in [*_inputs(node)][:1])
        elif name.rpartition(".")[2] == "norm" and "layers" not in name:
            yield from (("l_out-last", value) for _, value in [*_inputs(node)][:1])
        children = node.get("children")
        todo += [(child, depth + 1) for child in reversed(children if isinstance(children, list) else [])]


def _tensors(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict) and isinstance(value.get("shape"), str):
        yield value
    elif isinstance(value, list):
        for item in value[:4]:
            yield from _tensors(item)
    elif isinstance(value, dict):
        for item in list(value.values())[:4]:
            yield from _tensors(item)


def _inputs(node: Any, wanted: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """The tensors that went into a module, those without a name first."""
    given = node.get("inputs") if isinstance(node, dict) else None
    given = given if isinstance(given, dict) else {}
    named = given.get("kwargs")
    if not wanted:
        yield from (("", value) for value in _tensors(given.get("args")))
    for name, value in named.items() if isinstance(named, dict) else ():
        if not wanted or name == wanted:
            yield from ((name, found) for found in _tensors(value))


def _observations(path: Path, name: str, value: dict[str, Any]) -> Iterator[Observation]:
    shape = shape_of_text(value["shape"])
    dtype = str(value.get("dtype", ""))
    if shape is None or "float" not in dtype:
        return
    common: dict[str, Any] = {"shape": shape, "foreign": name, "where": f"{path}: {name}"}
    told = value.get("value")
    if isinstance(told, str):
        shape, read = _beside(path, told)
        yield Observation(name, "values", read, **(common | {"shape": shape}))
        return
    lines = "\n".join(str(line) for line in told) if isinstance(told, list) else ""
    if lines and (printed := printed_tensor(lines, shape)) is not None:
        pairs = tuple(zip(printed.index, map(float, printed.texts), strict=True))
        rounded = tuple(half_unit(text) for text in printed.texts)
        yield Observation(name, "at", pairs, printed=rounded, **common)
    for kind in _STATISTICS:
        text = str(value.get(kind, ""))
        if (one := printed_tensor(text, ())) is not None and math.isfinite(float(one.texts[0])):
            n = math.prod(shape)  # PyTorch divides the variance by n - 1
            scale = math.sqrt((n - 1) / n) if kind == "std" and n > 1 else 1.0
            number, unit = float(one.texts[0]) * scale, half_unit(one.texts[0])
            yield Observation(name, kind, number, printed=(unit,), **common)


def _beside(path: Path, told: str) -> tuple[tuple[int, ...], Callable[[], Array]]:
    """Shape of a value that lies in a file beside the tree, and a function that reads it."""
    file = path.parent / Path(told).name
    if file.suffix != ".safetensors" or not file.is_file():
        raise AssayError(f"{path}: {file.name:.80} is missing; keep the tree and its files together")
    readers, entries, _ = read_safetensors(file)
    if "data" not in entries:
        raise AssayError(f"{file}: no tensor `data`, under which the debugger saves a value")
    return entries["data"].shape, readers["data"]


def _ids(path: Path, value: dict[str, Any]) -> tuple[int, ...]:
    shape, told = shape_of_text(value["shape"]), value.get("value")
    if shape is None or math.prod(shape) > MAX_TOKENS:
        return ()
    if isinstance(told, str):
        return tuple(int(t) for t in _beside(path, told)[1]().reshape(-1))
    printed = printed_tensor("\n".join(map(str, told)), shape) if isinstance(told, list) else None
    if printed is None or not printed.whole or not all(text.isdecimal() for text in printed.texts):
        return ()
    return tuple(int(text) for text in printed.texts)
