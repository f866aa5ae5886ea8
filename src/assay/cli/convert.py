"""`assay convert`: convert a Hugging Face folder to a GGUF file."""

from __future__ import annotations

import argparse
from pathlib import Path

HELP = "convert a Hugging Face folder (safetensors) or a PEFT adapter to a GGUF file"
EXAMPLE = """\
assay convert ./Qwen3-0.6B qwen3-0.6b-bf16.gguf
assay convert ./Llama-3.2-1B llama-3.2-1b-q8_0.gguf --type Q8_0
assay convert ./my-lora my-lora.gguf --base ./Llama-3.2-1B"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from assay.cli.common import add_json_argument

    parser.add_argument("folder", metavar="FOLDER", help="folder with config.json, safetensors and tokenizer files")
    parser.add_argument("output", metavar="OUT", help="file to write")
    parser.add_argument("--type", metavar="TYPE", help="F32, F16, BF16 or Q8_0; default: BF16 or F16, as stored")
    parser.add_argument("--base", metavar="FOLDER", help="folder of the model that a PEFT adapter belongs to")
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    from assay.cli.common import emit
    from assay.convert.conversion import convert
    from assay.convert.peft_adapter import convert_adapter, is_adapter
    from assay.errors import AssayError
    from assay.system.files import check_target

    out, folder = Path(args.output), Path(args.folder)
    check_target(out)
    if is_adapter(folder) != (args.base is not None):
        if args.base is None:
            raise AssayError(f"{folder}: is a PEFT adapter; name the folder of its model with --base")
        raise AssayError(f"{folder}: has no adapter_config.json; --base is for PEFT adapters only")
    if args.base is not None:
        found = convert_adapter(folder, out, Path(args.base), args.type)
    else:
        found = convert(folder, out, args.type)
    size = out.stat().st_size
    text = f"{out}: {found['architecture']}, {found['type']}, {found['tensors']} tensors, {size / 1e6:.1f} MB"
    emit(args, {"output": str(out), "bytes": size, **found}, text)
    return 0
