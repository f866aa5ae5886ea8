"""`assay show`: a summary of a model on one screen. `assay inspect` prints the whole file."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from assay.cli import common
from assay.cli.style import paint, size
from assay.errors import AssayError
from assay.system.terminal import harmless

if TYPE_CHECKING:
    from assay.gguf import GGUFFile
    from assay.runtime.model_names import NamedModel

HELP = "summarise a model: architecture, size, context, quantisation, template"
EXAMPLE = """
assay show smollm2
assay show smollm2 --template
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_model_argument(parser)
    parser.add_argument("--template", action="store_true", help="print only the chat template")
    common.add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    from assay.gguf import open_file
    from assay.runtime.hub import not_here

    if (named := not_here(args.model)) is not None:
        return _show_name(args, named)
    with open_file(common.model_path(args)) as file:
        template = _text(file, "tokenizer.chat_template")
        if args.template:
            common.emit(args, {"template": template}, template or "", exact=True)
            return 0
        found = _facts(file)
    common.emit(args, {**found, "template": template}, "")
    if not args.json:
        shown = {name: harmless(str(value)) for name, value in found.items() if value not in (None, "")}
        shown["size"] = size(found["bytes"])
        shown["parameters"] = f"{found['parameters']:,}"
        shown["template"] = "in the file" if template else "none: use --raw, or name one with --template"
        del shown["bytes"]
        _print_table(shown)
    return 0


def _show_name(args: argparse.Namespace, model: NamedModel) -> int:
    """The table's facts of a model that is not on this machine. Nothing is downloaded."""
    if args.template:
        raise AssayError(f"{model.name}: not on this machine; `assay pull {model.name}` downloads it")
    facts = {
        "name": model.name, "about": model.about, "architecture": model.architecture, "parameters": model.parameters,
        "bytes": model.size, "licence": model.licence, "source": model.source, "supported": model.is_supported,
        "here": False,
    }  # fmt: skip
    common.emit(args, facts, "")
    if not args.json:
        shown = {key: str(value) for key, value in facts.items() if key not in ("bytes", "supported", "here")}
        shown["size"] = f"{size(model.size)}, rounded"
        shown["here"] = f"no; `assay pull {model.name}` downloads it"
        if not model.is_supported:
            shown["here"] = "no, and its architecture is not supported yet"
        _print_table(shown)
    return 0


def _print_table(shown: Mapping[str, str]) -> None:
    width = max(map(len, shown))
    print("\n".join(f"{paint(f'{name:<{width}}', 'bold')}  {value}" for name, value in shown.items()))


def _facts(file: GGUFFile) -> dict[str, Any]:
    from assay.models import load

    hparams = load(file).hparams
    weights, parameters = sum(t.nbytes for t in file.tensors.values()), sum(t.n_elements for t in file.tensors.values())
    by_bytes: Counter[str] = Counter()
    for tensor in file.tensors.values():
        by_bytes[tensor.type.name] += tensor.nbytes
    return {
        "name": _text(file, "general.name"),
        "file": str(file.path),
        "architecture": hparams.arch,
        "parameters": parameters,
        "bytes": file.size,
        "quantisation": f"{by_bytes.most_common(1)[0][0]}, {8 * weights / max(parameters, 1):.2f} bits per weight",
        "context": hparams.n_ctx_train,
        "layers": hparams.n_layer,
        "width": hparams.n_embd,
        "vocabulary": hparams.n_vocab,
        "licence": _text(file, "general.license"),
    }


def _text(file: GGUFFile, key: str) -> str | None:
    return file.get_str(key, "") or None
