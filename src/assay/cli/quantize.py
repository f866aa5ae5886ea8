"""`assay quantize`: write a model in fewer bits, with the tensor types that llama.cpp would choose."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.cli.common import Once, add_json_argument, emit, model_path, read_text, say
from assay.cli.number_types import MOST_THREADS, real, whole
from assay.errors import AssayError
from assay.system.files import check_target
from assay.system.stages import BYTES, stage
from assay.system.terminal import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from assay.gguf.importance import Importance
    from assay.gguf.mixes import Mix
    from assay.gguf.requantize import TensorStep
    from assay.gguf.types import GGMLType

HELP = "write a model in another quantisation"
TYPE_HELP = "target type, such as F16, Q8_0, Q6_K, Q5_K_M, Q4_K_M; an unknown one lists all"
EXAMPLE = """\
assay quantize model-f16.gguf model-q4_k_m.gguf Q4_K_M
assay quantize model-f16.gguf model-iq3_s.gguf --type IQ3_S --imatrix imatrix.gguf
assay quantize model-f16.gguf model-4.2.gguf --budget 4.2 -f calibration.txt --html where.html"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", metavar="IN", help="a path, a name, hf:owner/repo[:file-or-quant] or ollama:name[:tag]"
    )
    parser.add_argument(
        "output", metavar="OUT", nargs="?", help="file to write; default with a TYPE: IN's name and the type"
    )
    parser.add_argument("type", metavar="TYPE", nargs="?", action=Once, default=argparse.SUPPRESS, help=TYPE_HELP)
    parser.add_argument("--type", dest="type", metavar="TYPE", action=Once, default=None, help="the same as TYPE")
    parser.add_argument(
        "--budget",
        type=real(0, above=True),
        metavar="BITS",
        help="bits per weight: choose a type for each tensor by measured KL divergence",
    )
    parser.add_argument("-f", "--file", metavar="FILE", help="text to measure on, for --budget")
    parser.add_argument(
        "--windows",
        type=whole(1),
        default=2,
        metavar="N",
        help="windows of 512 tokens of the text to measure on; default: 2",
    )
    parser.add_argument(
        "--html", metavar="FILE", help="with --budget: also write a page that shows the error of each tensor"
    )
    parser.add_argument("--imatrix", metavar="FILE", help="importance matrix (GGUF or .dat); see `assay imatrix`")
    parser.add_argument(
        "--allow-requantize",
        action="store_true",
        help="allow quantising tensors that are already quantised (loses quality)",
    )
    parser.add_argument("--dry-run", action="store_true", help="print the types chosen and the size; write nothing")
    parser.add_argument(
        "-t", "--threads", type=whole(1, MOST_THREADS), metavar="N", help="number of threads; default: one per core"
    )
    add_json_argument(parser)


def _names_a_type(word: str | None) -> bool:
    from assay.gguf.mixes import mix_by_name

    try:
        return word is not None and bool(mix_by_name(word))
    except AssayError:
        return False


def run(args: argparse.Namespace) -> int:
    from assay.gguf import open_file
    from assay.gguf.importance import read
    from assay.gguf.mixes import mix_by_name
    from assay.gguf.requantize import plan, quantize

    alone = args.type is None and args.budget is None and _names_a_type(args.output)  # llama-quantize's `IN TYPE`
    if alone:
        args.type, args.output = args.output, None
    if (args.type is None) == (args.budget is None):
        raise AssayError("quantize: give either a TYPE such as Q4_K_M or a --budget in bits per weight")
    mix = mix_by_name(args.type) if args.type else None
    if args.output is None and not args.dry_run and not alone:
        raise AssayError("OUT: no output file named; name one, or pass --dry-run")
    for target in (args.output, args.html):
        if target is not None and not args.dry_run:
            check_target(target)
    importance = read(args.imatrix) if args.imatrix else None
    path = model_path(args)
    if alone and not args.dry_run:
        args.output = f"{path.stem}-{args.type.upper()}.gguf"
    types = None
    if mix is None:
        mix, types, importance = _measured(args, path, importance)
    with open_file(path) as file:
        steps = plan(file, mix, weighted=importance is not None, types=types)
        if args.dry_run:
            text = "\n".join([*map(line, steps), summary(steps)])
        else:
            out = Path(args.output)
            again = sum(step.requantizes for step in steps)
            if again and args.allow_requantize:
                say(f"{file.path.name}: {again} tensors are already quantised; quantising again loses quality")
            done, before, after = 0, sum(s.bytes_before for s in steps), sum(s.bytes_after for s in steps)
            with stage(f"quantising to {mix.name}", after, BYTES) as tell:

                def report_step(step: TensorStep) -> None:
                    nonlocal done
                    if not done:
                        say(f"quantising to {mix.name} ({before / 1e6:.1f} MB to {after / 1e6:.1f} MB)")
                    tell(done)
                    done += step.bytes_after

                steps = quantize(
                    file, out, mix, importance=importance, types=types, allow_requantize=args.allow_requantize,
                    threads=args.threads, progress=report_step,
                )  # fmt: skip
            text = f"{out}: {summary(steps)}"
        text = "\n".join([text, *fallbacks(mix, steps)])
        emit(args, report(mix, args.output, steps), text)
    return 0


def _measured(
    args: argparse.Namespace, path: Path, importance: Importance | None
) -> tuple[Mix, Mapping[str, GGMLType], Importance]:
    """Types within the budget, and the importance matrix used: the given one, or one collected on the text."""
    from collections import Counter

    from assay.engines.cpu import CpuEngine
    from assay.evaluate.budget import choose, measure, page
    from assay.evaluate.importance_sums import collect
    from assay.evaluate.pieces import cut
    from assay.gguf.mixes import MIXES
    from assay.runtime.opening import OpenOptions, open_model
    from assay.system.files import write

    if not args.file:
        raise AssayError("--budget: measures on a text; name one with -f")
    options = OpenOptions("cpu", "exact", args.threads, ctx_size=512, cache_size=0)
    opened = open_model(path, options)
    tokenizer, engine = opened.tokenizer, opened.engine()
    assert isinstance(engine, CpuEngine)
    bos = tokenizer.bos if tokenizer.add_bos else None
    pieces = cut(tokenizer.encode(read_text(args.file), parse_special=False), 512, bos)
    if importance is None:
        importance = collect(engine, pieces[: max(16, args.windows)], dataset=args.file)
    found = measure(engine, pieces[: args.windows], importance)
    engine.close()
    choice = choose(found, args.budget)
    said = f"{choice.bits_per_weight:.2f} bits per weight in matrices, expected KL {choice.cost:.4f} on {args.file}"
    say(said)
    if args.html:
        write(args.html, page(f"{path.name} at {args.budget:g} bits per weight", found, choice, [said]))
    most = Counter(kind.name for kind in choice.types.values()).most_common(1)[0][0]
    named = next((mix for mix in MIXES.values() if mix.base == most), MIXES["Q4_K_M"])
    return named, choice.types, importance


def line(step: TensorStep) -> str:
    """`blk.0.attn_q.weight  576 × 576  F16 → Q5_0`"""
    change = step.before.name if step.before == step.after else f"{step.before} → {step.after}"
    return f"{printable(step.name):<32} {' × '.join(map(str, step.shape)):>16}  {change}"


def summary(steps: list[TensorStep]) -> str:
    before, after = sum(s.bytes_before for s in steps), sum(s.bytes_after for s in steps)
    weights = sum(s.bytes_after * s.after.block_size // s.after.type_size for s in steps)
    return f"{before / 1e6:.1f} MB → {after / 1e6:.1f} MB of tensors, {8 * after / max(weights, 1):.2f} bits per weight"


def fallbacks(mix: Mix, steps: list[TensorStep]) -> list[str]:
    """Tensors that got a fallback type, because their row length is not a multiple of the block size."""
    from assay.gguf.mixes import FLOATS, is_quantizable
    from assay.gguf.types import by_name

    block = by_name(mix.base).block_size
    made = [s for s in steps if mix.name not in FLOATS and is_quantizable(s.name, s.shape)]
    groups = Counter((s.after.name, s.shape[-1]) for s in made if s.shape[-1] % block)
    return [
        f"{count} of {len(made)} tensors fell back to {name}: {row} is not a multiple of {block}"
        for (name, row), count in groups.most_common()
    ]


def report(mix: Mix, output: str | None, steps: list[TensorStep]) -> dict[str, Any]:
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
