"""`assay quantize`: the same model in fewer bits, with the tensor types that llama.cpp would choose."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.cli.common import add_json_argument, emit, model_path, say, whole
from assay.cli.progress import progress
from assay.errors import AssayError
from assay.system.terminal import printable

if TYPE_CHECKING:
    from assay.gguf.mixes import Mix
    from assay.gguf.quantize import Step

HELP = "write a model in another quantisation"
EXAMPLE = "assay quantize model-f16.gguf model-q4_k_m.gguf --type Q4_K_M"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="IN", help="a path, a catalogue name, hf:owner/repo[:file] or ollama:name")
    parser.add_argument("output", metavar="OUT", nargs="?", help="file to write (not needed with --dry-run)")
    parser.add_argument(
        "--type", required=True, metavar="TYPE", help="such as F16, Q8_0, Q6_K, Q5_K_M, Q4_K_M; a wrong one lists all"
    )
    parser.add_argument(
        "--allow-requantize", action="store_true", help="quantise quantised tensors again (loses quality)"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the types chosen and the size; write nothing")
    parser.add_argument("-t", "--threads", type=whole(1), metavar="N", help="default: one a core")
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    from assay.gguf import open_file
    from assay.gguf.mixes import mix_by_name
    from assay.gguf.quantize import plan, quantize

    mix = mix_by_name(args.type)
    if args.output is None and not args.dry_run:
        raise AssayError("OUT: no output file named; name one, or pass --dry-run")
    with open_file(model_path(args)) as file:
        if args.dry_run:
            steps = plan(file, mix)
            text = "\n".join([*map(line, steps), summary(steps)])
        else:
            out = Path(args.output)
            again = sum(step.requantizes for step in plan(file, mix))
            if again and args.allow_requantize:
                say(f"{file.path.name}: {again} tensors are quantised already; quality suffers")
            done, total = 0, sum(t.nbytes for t in file.tensors.values())
            with progress() as tell:

                def told(step: Step) -> None:
                    nonlocal done
                    tell(f"quantising to {mix.name}", done, total)
                    done += step.bytes_before

                steps = quantize(
                    file, out, mix, allow_requantize=args.allow_requantize, threads=args.threads, progress=told
                )
            text = f"{out}: {summary(steps)}"
        text = "\n".join([text, *fallbacks(mix, steps)])
        emit(args, report(mix, args.output, steps), text)
    return 0


def line(step: Step) -> str:
    """`blk.0.attn_q.weight  576 × 576  F16 → Q5_0`"""
    change = step.before.name if step.before == step.after else f"{step.before} → {step.after}"
    return f"{printable(step.name):<32} {' × '.join(map(str, step.shape)):>16}  {change}"


def summary(steps: list[Step]) -> str:
    before, after = sum(s.bytes_before for s in steps), sum(s.bytes_after for s in steps)
    weights = sum(s.bytes_after * s.after.block_size // s.after.type_size for s in steps)
    return f"{before / 1e6:.1f} MB → {after / 1e6:.1f} MB of tensors, {8 * after / max(weights, 1):.2f} bits per weight"


def fallbacks(mix: Mix, steps: list[Step]) -> list[str]:
    """Which tensors got another type than they would have, because their rows are no whole number of its blocks."""
    from assay.gguf.mixes import FLOATS, is_quantizable
    from assay.gguf.types import by_name

    block = by_name(mix.base).block_size
    made = [s for s in steps if mix.name not in FLOATS and is_quantizable(s.name, s.shape)]
    groups = Counter((s.after.name, s.shape[-1]) for s in made if s.shape[-1] % block)
    return [
        f"{count} of {len(made)} tensors fell back to {name}: {row} is no multiple of {block}"
        for (name, row), count in groups.most_common()
    ]


def report(mix: Mix, output: str | None, steps: list[Step]) -> dict[str, Any]:
    return {
        "output": output,
        "type": mix.name,
        "file_type": mix.file_type,
        "bytes_before": sum(s.bytes_before for s in steps),
        "bytes_after": sum(s.bytes_after for s in steps),
        "fallbacks": fallbacks(mix, steps),
        "tensors": [
            {"name": s.name, "shape": list(s.shape), "from": s.before.name, "to": s.after.name, "bytes": s.bytes_after}
            for s in steps
        ],
    }
