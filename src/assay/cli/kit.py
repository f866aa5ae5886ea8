"""`assay kit`: write a conformance kit, or grade an engine's answers to one."""

from __future__ import annotations

import argparse
from pathlib import Path

HELP = "write a conformance kit for a model, or grade an engine's answers to one"
EXAMPLE = """\
assay kit smollm2 -o kit            # probes, unit vectors, block vectors, text cases
assay kit --score kit results       # exit 1 if anything is wrong"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from assay.cli.cluster_options import add_cluster_argument
    from assay.cli.common import add_json_argument, add_model_argument

    add_model_argument(parser)
    parser.add_argument("-o", "--output", metavar="DIR", help="folder to write")
    parser.add_argument(
        "--score", nargs=2, metavar=("DIR", "RESULTS"), help="grade the answers in RESULTS to the kit in DIR"
    )
    add_cluster_argument(parser)
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    return _score(args) if args.score else _write(args)


def _write(args: argparse.Namespace) -> int:
    from assay.cli.common import emit, open_model
    from assay.errors import AssayError
    from assay.verify.conformance.vectors import write_kit

    if not args.output:
        raise AssayError("kit: no folder given; give one with -o DIR")
    _file, model, tokenizer = open_model(args)
    out = Path(args.output)
    manifest = write_kit(model, tokenizer, out)
    size = sum(f.stat().st_size for f in out.rglob("*") if f.is_file())
    counts = {
        "probes": len(manifest["probes"]),
        "ops": len(manifest["ops"]),
        "blocks": len(manifest["blocks"]),
        "tokenizer": len(manifest["text"]["tokenizer"]),
        "template": len(manifest["text"]["template"]),
    }
    text = f"{out}: " + ", ".join(f"{n} {name}" for name, n in counts.items()) + f"; {size / 1e6:.1f} MB"
    emit(args, {"path": str(out), "bytes": size, **counts}, text)
    return 0


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
