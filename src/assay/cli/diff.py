"""`assay diff`: a trace, a dump or an engine against the truth; or two files of one model against each other."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.cli.common import add_json_argument, emit, whole
from assay.cli.trace import add_token_arguments, chosen_tokens, counting
from assay.errors import AssayError

if TYPE_CHECKING:
    from assay.models import Model
    from assay.verify.dumps.observation import Dump

HELP = "compare a trace, a dump or an engine with the truth, node by node"
EXAMPLE = """\
assay diff smollm2 dump.npz                      # somebody's dump against the definition
assay diff truth.safetensors smollm2@cpu         # exit 0: same or noise, 1: wrong, 2: cannot be compared
assay diff model-Q4_0.gguf model-Q4_K_M.gguf     # two files of one model: weights, activations, KL on a text"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", metavar="A", help="the truth: MODEL, MODEL@engine, a trace or a dump")
    parser.add_argument("b", metavar="B", help="what is judged: a dump (.jsonl, .npz, .safetensors, a folder of .npy, "
                        "llama-eval-callback's text, a log), MODEL@engine, or a second MODEL")  # fmt: skip
    parser.add_argument("--model", metavar="MODEL", help="the model, where neither A nor B names it")
    add_token_arguments(parser)
    parser.add_argument("--map", metavar="FILE", help="a JSON object from foreign names to node names")
    parser.add_argument("--pattern", action="append", default=[], metavar="TEXT",
                        help="how to read a log line, such as '{name} {layer}: rms={rms}'; repeatable")  # fmt: skip
    parser.add_argument("--side", default="", metavar="NAME", help="whose values, where a log shows several engines'")
    parser.add_argument(
        "--text", metavar="FILE", help="two models: the text for the KL divergence; default: a built-in"
    )
    parser.add_argument("--window", type=whole(2), default=128, metavar="N", help="two models: tokens of a window")
    parser.add_argument("--html", metavar="FILE", help="also write one self-contained page, values side by side")
    parser.add_argument("--all", action="store_true", help="show every node, not only those around the first wrong one")
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    sides = _Side.of(args.a), _Side.of(args.b)
    if all(s.model and not s.engine for s in sides):
        return _two_models(args, sides[0].model, sides[1].model)
    return _two_runs(args, sides[0], sides[1])


class _Side:
    """One argument: a model, a model on an engine, or a file of values."""

    def __init__(self, text: str, model: str = "", engine: str = "") -> None:
        self.text, self.model, self.engine = text, model, engine

    @staticmethod
    def of(text: str) -> _Side:
        from assay.runtime.catalogue import CATALOGUE
        from assay.verify.witness import known

        model, at, engine = text.rpartition("@")
        if at and engine in known():
            return _Side(text, model, engine)
        if text in CATALOGUE or text.endswith(".gguf") or text.startswith(("hf:", "ollama:")):
            return _Side(text, text)
        if at and not Path(text).exists():
            raise AssayError(f"{text}: no such file, and {engine!r} is no engine; there are {', '.join(known())}")
        return _Side(text)


def _open(name: str) -> Model:
    from assay.gguf import open_file
    from assay.models import load
    from assay.runtime import hub

    return load(open_file(hub.resolve(name)))


def _two_runs(args: argparse.Namespace, a: _Side, b: _Side) -> int:
    from assay.verify.dumps.load import read_dump, read_map
    from assay.verify.dumps.resolve import resolve
    from assay.verify.dumps.trace import take_trace
    from assay.verify.judge.text import text
    from assay.verify.judge.verdict import compare, judge
    from assay.verify.witness import open_engine

    raw = {s.text: read_dump(Path(s.text), args.pattern) for s in (a, b) if not s.model}
    name = args.model or a.model or b.model or _from_provenance(raw.values())
    if not name:
        result = compare(raw[a.text], raw[b.text])
        emit(args, result.to_json(), lambda: text(result, None, 10**9 if args.all else 12))
        return 0 if result else 1
    model = _open(name)
    names = read_map(Path(args.map)) if args.map else None
    tokens = tuple(args.tokens or ()) or next((d.tokens for d in raw.values() if d.tokens), ())
    if not tokens:
        if raw and args.prompt is None:
            raise AssayError(f"{next(iter(raw))}: does not say which tokens were fed; give them with --tokens")
        from assay.text import Tokenizer

        tokens = tuple(chosen_tokens(args, Tokenizer.from_gguf(model.file)))

    def values(side: _Side) -> Dump | None:
        if side.model and side.engine in ("", "reference"):
            return None  # the definition itself
        if not side.model:
            return resolve(raw[side.text], model, names, tokens=tokens, side=args.side)
        on = model if side.model == name else _open(side.model)
        engine = open_engine(side.engine, on)
        steps = next((d.steps for d in raw.values() if d.steps), ())
        decode = args.decode or max(0, len(steps) - 1)
        try:
            return take_trace(engine, tokens, decode=decode)
        finally:
            engine.close()

    with counting("comparing") as progress:
        dumps = [values(a), values(b)]
        if dumps[1] is None:
            dumps = dumps[::-1]
        if dumps[1] is None:
            raise AssayError(f"{a.text} and {b.text}: both are the definition; name an engine or a dump")
        result = judge(model, dumps[1], progress)
        if dumps[0] is not None and dumps[0].engine != "reference":
            result = result.beside(judge(model, dumps[0], progress))
    if args.html:
        from assay.verify.report import write_html

        write_html(Path(args.html), model, dumps[1], result)
    emit(args, result.to_json(), lambda: text(result, model, 10**9 if args.all else 12))
    return 0 if result else 1


def _from_provenance(dumps: Any) -> str:
    """The model file that a trace says it was made from, if it is still there."""
    for dump in dumps:
        path = dump.provenance.get("model", "")
        if path and Path(path).is_file():
            return str(path)
    return ""


def _two_models(args: argparse.Namespace, one: str, other: str) -> int:
    from assay import engines
    from assay.engines.base import PAGE
    from assay.text import Tokenizer
    from assay.verify.conformance import two_files as pairs
    from assay.verify.conformance.sample import TEXT

    a, b = _open(one), _open(other)
    pairs.check_pair(a, b)
    tokenizer = Tokenizer.from_gguf(a.file)
    prompt = chosen_tokens(args, tokenizer)
    content = Path(args.text).read_text("utf-8") if args.text else TEXT
    ids = tokenizer.encode(content)
    with counting("weights") as progress:
        tensors = pairs.weights(a, b, progress)
    with counting("activations") as progress:
        nodes, best = pairs.activations(a, b, prompt, progress)
    name = engines.default_name()
    pages = -(-args.window // PAGE)
    print(f"logits of {len(ids)} tokens on {name}", file=sys.stderr)
    both = [engines.create(name, m, n_pages=pages) for m in (a, b)]
    found = pairs.logits(both[0], both[1], ids, args.window)
    tops = [[{"id": int(i), "text": tokenizer.decode([int(i)]), "logit": float(x[i])} for i in x.argsort()[::-1][:5]]
            for x in best]  # fmt: skip
    obj = {
        "a": str(a.file.path),
        "b": str(b.file.path),
        "weights": [vars(t) for t in tensors],
        "nodes": [vars(n) for n in nodes],
        "logits": vars(found),
        "prompt": prompt,
        "best": tops,
    }
    emit(args, obj, lambda: _pair_text(obj, args.all))
    return 0


def _pair_text(obj: dict[str, Any], everything: bool) -> str:
    kl, weights, nodes = obj["logits"], obj["weights"], obj["nodes"]
    lines = [
        f"{Path(obj['a']).name} against {Path(obj['b']).name}, {kl['n_tokens']} tokens of text:",
        f"  KL divergence  mean {kl['kl_mean']:.5f}, 99 % below {kl['kl_99']:.5f}, largest {kl['kl_top']:.5f}",
        f"  same best token at {100 * kl['same_best']:.1f} % of positions; "
        f"perplexity {kl['perplexity'][0]:.3f} and {kl['perplexity'][1]:.3f}",
        f"  after the prompt of {len(obj['prompt'])} tokens: "
        + " | ".join(", ".join(f"{t['text']!r} {t['logit']:.2f}" for t in side[:3]) for side in obj["best"]),
    ]
    ranked = sorted(weights, key=lambda t: -t["nmse"])
    lines.append(f"\n{'tensor':<32}{'types':<20}{'nmse':>10}{'cosine':>12}")
    for t in weights if everything else ranked[:8]:
        lines.append(f"{t['name']:<32}{' / '.join(t['types']):<20}{t['nmse']:>10.2e}{t['cosine']:>12.8f}")
    lines.append(f"\n{'node':<32}{'nmse':>30}{'cosine':>12}")
    shown = nodes if everything else [n for n in nodes if n["name"].startswith(("l_out", "embd", "result"))]
    lines += [f"{n['name']:<32}{n['nmse']:>30.2e}{n['cosine']:>12.8f}" for n in shown]
    return "\n".join(lines)
