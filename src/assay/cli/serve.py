"""`assay serve`: a server with the HTTP routes of OpenAI, Ollama and llama-server, and a web page."""

from __future__ import annotations

import argparse
import math
import re
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from assay.cli import cluster_options, common
from assay.cli.number_types import LARGEST, MOST_TOKENS, real, whole
from assay.errors import AssayError
from assay.system import machine
from assay.system.stages import shown_by
from assay.system.terminal import harmless

if TYPE_CHECKING:
    from assay.runtime.presets import Preset
    from assay.serve.pool.models import Offer
    from assay.serve.server import Config

HELP = "start a server with the routes of OpenAI, Ollama and llama-server, and a web page at /"
EXAMPLE = """
assay serve
assay serve smollm2 other.gguf --port 8000 --api-key "$KEY" --models-memory 4G
"""
# Pairs of options that exclude each other, and why.
_EXCLUSIVE = (
    ("--receipts", "--lora", "a receipt does not name adapters"),
    ("--browser", "--lora", "a page computes no adapters"),
    ("--receipts", "--context-shift", "a receipt holds one context"),
    ("--context-shift", "--cluster", "replicas end an answer where its context is full"),
    ("--lora", "--cluster", "replicas have no adapters"),
    ("--mmproj", "--split", "stages take no pictures"),
    ("--cache-dir", "--cluster", "replicas keep their prefixes in memory"),
)
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("models", nargs="*", metavar="MODEL",
                        help="model as for `assay run`; several are loaded on demand; default: every model that "
                        "`assay list` shows, loaded on demand, or smollm2 if there is none")  # fmt: skip
    parser.add_argument(
        "-m", "--model", action="append", default=[], metavar="MODEL", help="the same as MODEL; repeatable"
    )
    parser.add_argument(
        "--alias", action="append", default=[], type=common.text_argument, metavar="NAME",
        help="name that clients use for a model, in the order of the models; repeatable; default: its name or file",
    )  # fmt: skip
    group = parser.add_argument_group("server")
    group.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1: this machine only)"
    )
    group.add_argument(
        "--port",
        type=whole(0, 65535),
        default=8080,
        metavar="N",
        help="port to listen on (default 8080; 0: any free port)",
    )
    group.add_argument("--api-key", metavar="KEY", help="key that every request except /health must send")
    group.add_argument(
        "--api-key-file", metavar="FILE", help="file with the key; safer, because all users can read a command line"
    )
    group.add_argument(
        "--receipts", metavar="KEY",
        help="sign a receipt for every answer with the key in this file, which is made if it is missing; the default "
        "precision is fast then, on a GPU too, so that every machine can replay the answers",
    )  # fmt: skip
    group.add_argument("--browser", action="store_true",
                       help="offer pages that run the models in a client's browser (WebGPU), at /browser/; this gives "
                       "the models' files to every client")  # fmt: skip
    group.add_argument("--tls-cert", metavar="FILE", help="serve over TLS with this certificate chain (PEM)")
    group.add_argument("--tls-key", metavar="FILE", help="private key of --tls-cert (PEM, without a passphrase)")
    group.add_argument(
        "--strict-model", action="store_true",
        help="refuse other model names even if one model is served (default: it answers for every name)",
    )  # fmt: skip
    group.add_argument(
        "--reasoning-budget", type=whole(-1), default=-1, metavar="N",
        help="tokens of reasoning, after which it is closed, for requests that set no limit (default -1: no limit)",
    )  # fmt: skip
    group.add_argument("--cors", action="append", default=[], metavar="ORIGIN",
                       help="allow pages of this origin, such as https://app.example; repeatable; *: all")  # fmt: skip
    group.add_argument(
        "--models-memory",
        type=size,
        metavar="SIZE",
        help="memory for loaded models, such as 4G; default: 3/4 of the machine's memory",
    )
    group.add_argument("--models-max", type=whole(1), metavar="N",
                       help="models in memory at once; the one unused longest is unloaded")  # fmt: skip
    group.add_argument("--sleep-idle", type=real(0, above=True), metavar="S",
                       help="unload a model after S seconds without a request (default: never); a request of "
                       "Ollama's can say `keep_alive`")  # fmt: skip
    group.add_argument("--presets", metavar="FILE",
                       help="TOML file of models under other names: sampler, system message, adapters")  # fmt: skip
    group.add_argument("--allow-manage", action="store_true",
                       help="let clients without a key pull, create, copy and delete models")  # fmt: skip
    group.add_argument("--allow-media-urls", action="store_true",
                       help="fetch pictures from http and https URLs that clients name")  # fmt: skip
    group.add_argument("--parallel", type=whole(1), metavar="N", help="maximum sequences computed at once (default 32)")
    group.add_argument(
        "--queue", type=whole(0), metavar="N", help="maximum queue depth: requests that may wait (default 256)"
    )
    group.add_argument("--chunk", type=whole(1), metavar="N", help="prompt tokens computed per step (default 128)")
    group.add_argument("--cache-size", type=whole(1, MOST_TOKENS), metavar="N",
                       help="KV cache size in tokens, for all sequences (default: 16384, or one context)")  # fmt: skip
    group.add_argument("--context-shift", action="store_true",
                       help="go on without the oldest tokens when a context is full (default: end there)")  # fmt: skip
    group.add_argument("--keep", type=whole(-1), default=0, metavar="N",
                       help="first tokens that --context-shift keeps, for requests without n_keep (default 0; -1: the "
                       "prompt)")  # fmt: skip
    group.add_argument("--cache-dir", metavar="DIR", type=common.text_argument,
                       help="keep computed prefixes in this folder, also over a restart")  # fmt: skip
    group.add_argument("--cache-dir-size", type=size, metavar="SIZE",
                       help="what the folder may hold, such as 20G (default 8G)")  # fmt: skip
    group.add_argument("--state-slots", type=whole(2, 4096), metavar="N",
                       help="states of a model that keeps one for each sequence (Qwen3.5, Mamba, LFM2): running "
                       "sequences and snapshots of prefixes (default: as 1 GiB holds, 8 to 128)")  # fmt: skip
    group.add_argument(
        "--timeout", type=real(0, above=True), metavar="S", help="deadline of a request in seconds (default 600)"
    )
    group.add_argument(
        "--drain", type=real(0), metavar="S", help="seconds to finish running requests after SIGTERM (default 30)"
    )
    group.add_argument(
        "--upload", type=size, metavar="SIZE", help="largest dump that /v1/diagnose takes as a file (default 256M)"
    )
    group.add_argument(
        "--diagnose-memory", type=size, metavar="SIZE", help="memory of the process of /v1/diagnose (default 4G)"
    )
    common.add_template_argument(group)
    cluster = parser.add_argument_group("cluster")
    cluster_options.add_cluster_argument(cluster, sweep=False)
    cluster.add_argument(
        "--replicas",
        type=cluster_options.bounds,
        metavar="N",
        help="number of replicas; MIN:MAX scales with queue time; default 1",
    )
    cluster.add_argument("--split", type=stages, metavar="N",
                         help="pipeline stages per replica, a process each; 8G: the largest stage")  # fmt: skip
    cluster.add_argument("--audit", type=cluster_options.share, default=0.0, metavar="P",
                         help="share of answers that another replica recomputes and compares")  # fmt: skip
    common.add_engine_arguments(parser)
    common.add_lora_argument(parser)
    common.add_mmproj_argument(parser)
    common.add_json_argument(parser)


def stages(text: str) -> int | str:
    """An argument type: a number of stages, or the bytes of the largest stage as text."""
    return whole(1, 1024)(text) if text.isdecimal() else str(size(text))


def size(text: str) -> int:
    """An argument type: a size such as 512M, in bytes."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if not found:
        raise argparse.ArgumentTypeError(f"expected a size such as 4G (found {text!r:.60})")
    value = float(found[1]) * _UNITS[found[2].upper()]
    if not 1 <= value <= LARGEST:
        raise argparse.ArgumentTypeError(f"expected a size from 1 byte to 8388607T (found {text:.60})")
    return int(value)


def run(args: argparse.Namespace) -> int:
    import asyncio

    cluster_options.needs_cluster(args, replicas=args.replicas, split=args.split, audit=args.audit)
    from assay.serve.http.connection import is_loopback
    from assay.serve.server import run as serve

    for option, other, reason in _EXCLUSIVE:
        if _given(args, option) and _given(args, other):
            raise AssayError(f"{option}: not with {other}: {reason}")
    key = args.api_key if args.api_key_file is None else common.read_text(args.api_key_file).strip()
    if key is not None and not key.strip():
        raise AssayError("--api-key: is empty; give a key, or leave the option out")
    config = _config(args, key)

    def ready(url: str) -> None:
        if key is None and not is_loopback(args.host):
            print(f"assay: warning: --host {harmless(args.host)}: every machine that reaches this port may use the "
                  "server; give --api-key-file", file=sys.stderr)  # fmt: skip
        names = [name for name, _ in config.models] + [offer.name for offer in config.offers]
        common.emit(args, {"url": url, "models": names}, "")
        shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
        print(
            f"serving {shown} at {url} (a page; for clients {url}/v1, or {url} as Ollama); Ctrl-C ends",
            file=sys.stderr, flush=True,
        )  # fmt: skip
        sys.stdout.flush()

    with shown_by(None):  # a model that a request loads draws no bar among the server's lines
        asyncio.run(serve(_replicated(args, config), ready))
    return 0


def _given(args: argparse.Namespace, option: str) -> bool:
    value = getattr(args, option.removeprefix("--").replace("-", "_"))
    return value is not None and value is not False and value != []


def _config(args: argparse.Namespace, key: str | None) -> Config:
    """The server's configuration from its options."""
    from assay.runtime.cache_folder import DEFAULT_BYTES
    from assay.runtime.opening import OpenOptions
    from assay.serve.limits import ServerLimits
    from assay.serve.server import Config

    given = {
        "running": args.parallel, "waiting": args.queue, "chunk": args.chunk,
        "request_s": args.timeout, "drain_s": args.drain, "upload": args.upload, "examine_memory": args.diagnose_memory,
    }  # fmt: skip
    offers, made = _offers(args)
    return Config(
        models=_models(args) if args.models or args.model or not offers else [],
        offers=offers,
        presets=made,
        most=args.models_max,
        idle_s=math.inf if args.sleep_idle is None else args.sleep_idle,
        manage=args.allow_manage,
        media_urls=args.allow_media_urls,
        host=args.host,
        port=args.port,
        key=key,
        cors=tuple(_origin(text) for text in args.cors),
        browser=args.browser,
        receipts=Path(args.receipts) if args.receipts is not None else None,
        memory=args.models_memory,
        strict_model=args.strict_model,
        reasoning_budget=args.reasoning_budget if args.reasoning_budget >= 0 else None,
        tls=_tls(args),
        options=OpenOptions(
            engine=args.engine,
            precision=args.precision,
            portable=args.receipts is not None,
            threads=args.threads,
            kv_type=args.kv_type,
            tier=args.tier,
            ctx_size=args.ctx_size,
            cache_size=args.cache_size,
            template=args.template,
            template_arguments=common.template_arguments(args),
            lookahead=args.lookahead,
            draft=args.draft,
            cpu_experts=args.cpu_experts,
            state_slots=args.state_slots,
            lora=tuple(args.lora),
            context_shift=args.context_shift,
            keep=args.keep,
            mmproj=args.mmproj,
            cache_dir=args.cache_dir,
            cache_dir_size=args.cache_dir_size or DEFAULT_BYTES,
        ),
        report=lambda line: print(line, file=sys.stderr, flush=True),
        limits=replace(ServerLimits(), **{key: value for key, value in given.items() if value is not None}),
    )


def _tls(args: argparse.Namespace) -> tuple[Path, Path] | None:
    """The files of --tls-cert and --tls-key."""
    given = {"--tls-cert": args.tls_cert, "--tls-key": args.tls_key}
    if missing := [name for name, value in given.items() if value is None]:
        if len(missing) == 1:
            other = next(name for name in given if name not in missing)
            raise AssayError(f"{other}: needs {missing[0]}, too")
        return None
    return Path(args.tls_cert), Path(args.tls_key)


def _origin(text: str) -> str:
    """An origin as a browser sends it, or `*`."""
    found = text.rstrip("/")
    if found != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/\s,;]+", found):
        raise AssayError(f"--cors: expected an origin such as https://app.example (found {text!r:.60})")
    return found


def _replicated(args: argparse.Namespace, config: Config) -> Config:
    """The configuration with models computed by replicas, if --cluster is given."""
    if args.cluster is None:
        return config
    from assay.cluster.fleet import Bounds
    from assay.cluster.launchers import local_processes
    from assay.cluster.replicated_model import Cluster, ReplicatedModel
    from assay.serve.http.connection import is_loopback

    if config.key is None and not is_loopback(config.host) and not args.insecure_cluster:
        raise AssayError(
            f"--host {config.host}: any client that reaches this router could use the cluster; give --api-key-file "
            "or --insecure-cluster"
        )
    here = local_processes(args.cluster)
    if here and args.replicas:
        raise AssayError(
            f"--cluster {args.cluster}: sets the number of replicas, and so does --replicas; leave one out"
        )
    bounds = args.replicas or Bounds(here or 1, here or 1)
    if args.audit and bounds.most < 2:
        raise AssayError("--audit: needs another replica to recompute answers; give --replicas 2 or more")
    threads = config.options.threads
    if here is not None and threads is None:  # the processes share the cores of this machine
        cores = machine.cores()
        threads = max(1, cores // (bounds.most * (args.split if isinstance(args.split, int) else 1)))
    found = Cluster(cluster_options.launcher(args), bounds, args.split or 0, args.audit)
    return replace(
        config, options=replace(config.options, threads=threads), make=partial(ReplicatedModel, cluster=found)
    )


def _offers(args: argparse.Namespace) -> tuple[list[Offer], list[Preset]]:
    """Models that are opened when a request names them, and of these the presets that clients have made."""
    from assay.runtime import hub, local, presets
    from assay.serve.pool.models import Offer

    named = [*args.models, *args.model]
    if args.cluster is not None:
        if args.presets is not None:
            raise AssayError("--presets: not with --cluster; give the models themselves")
        return [], []
    found = [] if named else [
        Offer(m.name, m.files[0], size=m.size, created=int(m.modified)) for m in local.models()
    ]  # fmt: skip
    found.sort(key=lambda offer: offer.name != hub.DEFAULT)  # requests that name no model get the default one
    made = [] if named else presets.stored()
    given = presets.read(Path(args.presets)) if args.presets is not None else []
    if args.receipts is not None and any(preset.lora for preset in (*given, *made)):
        raise AssayError("--receipts: not with presets that have adapters: a receipt does not name them")
    taken = {offer.name for offer in found} | {_model_name(name) for name in named}
    for preset in (*given, *made):
        if preset.name in taken:
            raise AssayError(f"--presets: a second model called {preset.name}; rename the preset")
        taken.add(preset.name)
    if found or named or given:
        found += [Offer(preset.name, preset.model, preset) for preset in (*given, *made)]
    return found, made


def _model_name(name: str) -> str:
    from assay.runtime.model_names import find_name

    return name if find_name(name) else Path(name).stem


def _models(args: argparse.Namespace) -> list[tuple[str, Path]]:
    """The names and files of the models, with the names of --alias instead of their own."""
    asked = [*args.models, *args.model] or [None]
    if len(args.alias) > len(asked):
        raise AssayError(f"--alias: {len(args.alias)} names for {len(asked)} models; give one for each at most")
    if wrong := [name for name in args.alias if not name.strip() or len(name) > 200 or not name.isprintable()]:
        raise AssayError(f"--alias: must be a name of printable characters (found {wrong[0]!r:.60})")
    found = [_model(name) for name in asked]
    return [(alias, path) for alias, (_, path) in zip(args.alias, found, strict=False)] + found[len(args.alias) :]


def _model(name: str | None) -> tuple[str, Path]:
    """The name that clients use for a model, and its file."""
    from assay.runtime import hub
    from assay.runtime.model_names import find_name

    common.note_large_model(name)
    path = hub.resolve(name)
    known = name if name is not None else hub.DEFAULT
    return known if find_name(known) else path.stem, path
