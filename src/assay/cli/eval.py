"""`assay eval`: perplexity of a text, KL divergence from another model, accuracy on multiple-choice questions."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from assay.errors import AssayError

if TYPE_CHECKING:
    from assay.evaluate.evaluation import Evaluation, Worst
    from assay.evaluate.pieces import TextWindow
    from assay.evaluate.predictors import LogitsSource
    from assay.runtime.opening import Opened
    from assay.text import Tokenizer

HELP = "measure perplexity, KL divergence from another model, or multiple-choice accuracy"
EXAMPLE = """\
assay eval smollm2 -f wiki.txt                          # perplexity, windows of 512 tokens
assay eval q4.gguf --kl f16.gguf -f wiki.txt            # KL divergence of q4 from f16, worst tokens shown
assay eval q4.gguf --kl q4.gguf --base-engine reference -f wiki.txt     # an engine against the definition
assay eval http://localhost:8080 --kl f16.gguf -f wiki.txt              # a server against a file
assay eval q4.gguf --kl base.kld                        # against a file of llama-perplexity --kl-divergence-base
assay eval smollm2 --choices hellaswag.jsonl --limit 200"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from assay.cli.cluster_options import add_cluster_argument
    from assay.cli.common import add_engine_arguments, add_json_argument, add_model_argument
    from assay.cli.number_types import MOST_TOKENS, whole

    add_model_argument(parser)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("-f", "--file", metavar="FILE", help="file with the text; - for standard input")
    what.add_argument(
        "--choices",
        metavar="FILE",
        help="JSON file of questions: HellaSwag, ARC, MMLU or samples of lm-evaluation-harness",
    )
    parser.add_argument(
        "--kl",
        metavar="BASE",
        help="KL divergence from this model: a file, a name, http://host:port, or a file that llama-perplexity wrote "
        "with --kl-divergence-base (then leave -f out)",
    )
    parser.add_argument("--base-engine", metavar="NAME", help="engine of BASE; default: the engine of MODEL")
    parser.add_argument("--base-precision", metavar="NAME", help="arithmetic of BASE; default: the arithmetic of MODEL")
    parser.add_argument(
        "--window", type=whole(4, MOST_TOKENS), metavar="N", help="tokens per window; default: -c, else 512"
    )
    parser.add_argument("--chunks", type=whole(1), metavar="N", help="stop after this many windows; default: all")
    parser.add_argument("--max-tokens", type=whole(4), metavar="N", help="stop after this many tokens; default: all")
    parser.add_argument(
        "--worst", type=whole(0), default=5, metavar="N", help="number of worst tokens to show; default: 5"
    )
    parser.add_argument("--limit", type=whole(1), metavar="N", help="number of questions; default: all")
    parser.add_argument("--html", metavar="FILE", help="also write a page with the worst tokens in context")
    add_engine_arguments(parser)
    add_cluster_argument(parser)
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    return _choices(args) if args.choices else _text(args)


def _text(args: argparse.Namespace) -> int:
    from assay.cli.common import emit, read_text
    from assay.evaluate.evaluation import evaluate
    from assay.evaluate.logits_file import LogitsFile, is_logits_file
    from assay.evaluate.page import page
    from assay.evaluate.pieces import WINDOW, cut
    from assay.runtime.opening import Opened
    from assay.system.files import write

    stored = LogitsFile(args.kl) if args.kl and is_logits_file(args.kl) else None
    if stored and args.file:
        raise AssayError(f"-f: {args.kl} has its own tokens; leave -f out")
    if not stored and not args.file:
        raise AssayError("eval: no input; give a text with -f, or questions with --choices")
    model = _side(args, args.model)
    other = _side(args, args.kl, base=True) if args.kl and not stored else None
    found = next((side for side in (model, other) if isinstance(side, Opened)), None)
    if found is None:
        raise AssayError("eval: a server gives no tokenizer; name the file of its model as MODEL or with --kl")
    tokenizer = found.tokenizer
    bos = tokenizer.bos if tokenizer.add_bos else None
    if stored:
        pieces = stored.pieces(bos, args.chunks)
    else:
        ids = tokenizer.encode(read_text(args.file), parse_special=False)[: args.max_tokens]
        pieces = cut(ids, args.window or args.ctx_size or WINDOW, bos, args.chunks)
    if args.cluster is not None:
        if stored:
            raise AssayError("--cluster: workers cannot read a file of log-probabilities; leave --cluster out")
        result = _evaluate_on_cluster(args, pieces, model, other)
    else:
        window = len(pieces[0].tokens)
        source = _source(model, tokenizer, window)
        base = stored if other is None else _source(other, tokenizer, window)
        result = evaluate(pieces, source, base)
    worst = result.worst(pieces, tokenizer, args.worst)
    if args.html:
        write(args.html, page(result, worst))
    emit(args, {**result.to_dict(), "worst": [asdict(w) for w in worst]}, "\n".join([*result.lines(), *_shown(worst)]))
    return 0


def _evaluate_on_cluster(
    args: argparse.Namespace, pieces: list[TextWindow], model: Opened | str, base: Opened | str | None
) -> Evaluation:
    """The evaluation on a cluster."""
    from assay.cli import cluster_options as on_cluster
    from assay.cluster import sweep, tasks

    if isinstance(model, str) or isinstance(base, str):
        raise AssayError("--cluster: workers open model files and cannot use a server; leave --cluster out")
    place = on_cluster.worker_pool(args), sweep.folder(args.results), on_cluster.sweep_progress()
    return tasks.evaluate(pieces, model, base, *place)


def _choices(args: argparse.Namespace) -> int:
    from assay.cli.common import emit
    from assay.evaluate.choices import answer_all, read

    if args.kl:
        raise AssayError("--kl: cannot be combined with --choices; leave it out")
    items = read(args.choices)[: args.limit]
    found = _side(args, args.model)
    if isinstance(found, str):
        raise AssayError(f"{args.model}: questions need a model file, not a server; name the file")
    if args.cluster is not None:
        from assay.cli import cluster_options as on_cluster
        from assay.cluster import sweep, tasks

        place = on_cluster.worker_pool(args), sweep.folder(args.results), on_cluster.sweep_progress()
        result = tasks.answers(items, found, *place)
    else:
        result = answer_all(found.engine(), found.tokenizer, items)
    emit(args, result.to_dict(), str(result))
    return 0


def _side(args: argparse.Namespace, name: str | None, *, base: bool = False) -> Opened | str:
    """An opened model, or the address of a server."""
    from assay.cli.common import opened

    if name is not None and name.startswith(("http://", "https://")):
        return name
    its = argparse.Namespace(**{**vars(args), "model": name})
    if base:
        its.engine, its.precision = args.base_engine or args.engine, args.base_precision or args.precision
    return opened(its)


def _source(side: Opened | str, tokenizer: Tokenizer, window: int) -> LogitsSource:
    from assay.engines.contract import pages_for
    from assay.evaluate.predictors import EndpointSource, EngineSource
    from assay.verify.endpoint.client import Client
    from assay.verify.witness import WITNESSES
    from assay.verify.witness.engines_by_name import open_engine

    if isinstance(side, str):
        return EndpointSource(Client(side, tokenizer, max_steps=window + 1))
    o = side.options
    if o.engine in WITNESSES:
        return EngineSource(
            open_engine(o.engine, side.model, n_pages=pages_for(window), threads=o.threads,
                        kv_type=o.kv_type, precision=o.precision)
        )  # fmt: skip
    return EngineSource(side.engine())


def _shown(worst: list[Worst]) -> list[str]:
    """Lines with the position in the text, `…context «token»`, and the tokens that both models expected."""
    lines = []
    for w in worst:
        where = f"  {w.at:>7}  …{' '.join(w.before.split())[-60:]}«{w.token}»".replace("\n", "⏎")
        if w.kl is None:
            lines.append(f"{where}  loss {w.nll:.2f}; expected {w.best!r} ({w.p_best:.1%})")
        else:
            theirs = f"base {w.base_best!r} ({w.base_p_best or 0:.1%})"
            lines.append(f"{where}  KL {w.kl:.3f}; {theirs}, here {w.best!r} ({w.p_best:.1%})")
    return ["worst tokens, with their position in the text:", *lines] if lines else []
