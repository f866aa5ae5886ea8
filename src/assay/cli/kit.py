"""`assay kit`: write a conformance kit, or grade an engine's answers to one."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

HELP = "write a conformance kit for a model, or grade an engine's answers to one"
EXAMPLE = """\
assay kit smollm2 -o kit            # probes, unit vectors, block vectors, text cases
assay kit gemma-3-4b.gguf -o kit --image cat.png -p "<__media__> What is it?"   # and the picture, and the prompt
assay kit mmproj.gguf -o kit        # of a vision tower alone
assay kit --score kit results       # exit 1 if anything is wrong"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from assay.cli.cluster_options import add_cluster_argument
    from assay.cli.common import add_json_argument, add_mmproj_argument, add_model_argument, text_argument

    add_model_argument(parser)
    parser.add_argument("-o", "--output", metavar="DIR", help="folder to write")
    parser.add_argument(
        "--score", nargs=2, metavar=("DIR", "RESULTS"), help="grade the answers in RESULTS to the kit in DIR"
    )
    parser.add_argument(
        "--image", action="append", default=[], metavar="FILE",
        help="picture to put into the kit: what the tower makes of it, and a prompt that has it; repeatable",
    )  # fmt: skip
    parser.add_argument(
        "-p", "--prompt", type=text_argument, metavar="TEXT",
        help="prompt for the pictures, with <__media__> where each goes; default: the pictures and a few words",
    )  # fmt: skip
    add_mmproj_argument(parser)
    add_cluster_argument(parser)
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    return _score(args) if args.score else _write(args)


def _write(args: argparse.Namespace) -> int:
    from assay.cli.common import emit
    from assay.errors import AssayError
    from assay.system.files import check_target_folder

    if not args.output:
        raise AssayError("kit: no folder given; give one with -o DIR")
    if args.prompt is not None and not args.image:
        raise AssayError("-p: is a prompt for pictures; name them with --image FILE")
    out = Path(args.output)
    check_target_folder(out)
    manifest = _made(args, out)
    size = sum(f.stat().st_size for f in out.rglob("*") if f.is_file())
    text = manifest.get("text", {})
    counts: dict[str, int] = {name: len(manifest[name]) for name in ("probes", "ops", "blocks") if name in manifest}
    counts |= {name: len(text[name]) for name in ("tokenizer", "template") if name in text}
    counts |= {name: len(manifest[name]) for name in ("pictures", "prompts") if name in manifest}
    said = f"{out}: " + ", ".join(f"{n} {name}" for name, n in counts.items()) + f"; {size / 1e6:.1f} MB"
    emit(args, {"path": str(out), "bytes": size, **counts}, said)
    return 0


def _made(args: argparse.Namespace, out: Path) -> dict[str, Any]:
    from assay.cli.common import model_path, opened
    from assay.errors import AssayError
    from assay.gguf import open_file
    from assay.library.picture_verdicts import image_prompts, tower_of
    from assay.models.vision import is_tower, load_tower
    from assay.runtime.pictured_prompt import MEDIA, marked_text, picture_bytes
    from assay.verify.conformance.picture_vectors import KitPictures, built_in_picture, write_tower_kit
    from assay.verify.conformance.vectors import write_kit
    from assay.verify.pictures.prompt_trials import placed_by
    from assay.vision.picture import decode_boxed

    pictures = [decode_boxed(picture_bytes(image)) for image in args.image]
    file = open_file(model_path(args))
    if is_tower(file):
        if args.prompt is not None:
            raise AssayError(f"{file.path}: a tower runs no prompt; name the language model, and this with --mmproj")
        return write_tower_kit(load_tower(file), pictures or [built_in_picture()], out)
    on = opened(args)
    seen = None
    if pictures:
        text = marked_text(
            f"{MEDIA * len(pictures)} What is it?" if args.prompt is None else args.prompt, len(pictures)
        )
        placed = placed_by(on.tokenizer, text, image_prompts(on, args.image, args.mmproj))
        seen = KitPictures(tower_of(args.model, args.mmproj), pictures, text, placed)
    return write_kit(on.model, on.tokenizer, out, seen)


def _score(args: argparse.Namespace) -> int:
    from assay.cli.common import emit
    from assay.verify.conformance.grade import score_kit

    kit, results = Path(args.score[0]), Path(args.score[1])
    if args.cluster is None:
        score = score_kit(kit, results)
    else:
        from assay.cli import cluster_options as on_cluster
        from assay.cluster import sweep, tasks

        place = on_cluster.worker_pool(args), sweep.folder(args.results), on_cluster.sweep_progress()
        score = tasks.grade(kit, results, *place)
    lines = [f"{g.section}: {g.item}: wrong: {g.detail}" for g in score.grades if g.verdict == "wrong"]
    for section, counts in score.totals().items():
        lines.append(f"{section:10} " + "  ".join(f"{counts[k]:5} {k}" for k in ("right", "wrong", "missing")))
    grades = [{"section": g.section, "item": g.item, "verdict": g.verdict, "detail": g.detail} for g in score.grades]
    emit(args, {"verdict": "right" if score else "wrong", "grades": grades}, "\n".join(lines))
    return 0 if score else 1
