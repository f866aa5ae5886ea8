"""`assay doctor`: this machine, what assay uses of it, and a check of its bits, for a bug report."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from assay.cli import common
from assay.cli.style import paint, size
from assay.system.terminal import harmless

HELP = "describe this machine and check the bits of every engine, for a bug report"
EXAMPLE = """
assay doctor
assay doctor --json > report.json      # exit code 0: all bits are right; 1: some are not
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--no-check", dest="check", action="store_false", help="do not check bits; print facts only")
    common.add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    from assay.library import machine_report

    found: dict[str, Any] = {
        "machine": machine_report.machine_facts(),
        "instruction_sets": machine_report.instruction_sets(),
        "gpu": machine_report.gpus(),
        "webgpu": machine_report.webgpu(),
        "engines": machine_report.engine_facts(),
        "extras": machine_report.extras(),
        "caches": machine_report.caches(),
        "environment": machine_report.variables(),
    }
    if not args.json:
        print("\n".join(_lines(found)), flush=True)
    checks = _checks(args) if args.check else []
    failed = [check for check in checks if not check["passed"]]
    if args.json:
        common.emit(args, found | {"checks": checks, "passed": not failed}, "")
    elif args.check:
        print(_verdict(checks, failed))
    return 1 if failed else 0


def _checks(args: argparse.Namespace) -> list[dict[str, Any]]:
    from assay.library.self_check import check_bits

    found = []
    if not args.json:
        print(paint("\nself-check of bits", "bold"), flush=True)
    for check in check_bits():
        found.append(check.to_dict())
        if not args.json:
            word = paint("same", "green") if check.passed else paint("DIFFERENT", "red")
            why = f": {check.error or ', '.join(check.wrong)}" if not check.passed else ""
            print(harmless(f"  {check.engine:<28} ") + word + harmless(f"{why} ({check.seconds:.1f} s)"), flush=True)
    return found


def _verdict(checks: list[dict[str, Any]], failed: list[dict[str, Any]]) -> str:
    if not checks:
        return "no engine to check: the native module does not load; reinstall assay"
    if not failed:
        return "all bits are as recorded; paste these lines into a bug report"
    return (
        f"{len(failed)} of {len(checks)} checks failed: this machine computes other bits than assay defines. Please "
        "report these lines, and use --engine reference until then"
    )


def _lines(found: dict[str, Any]) -> Iterator[str]:
    facts = found["machine"]
    yield paint("machine", "bold")
    yield f"  assay {facts['assay']}, Python {facts['python']}, NumPy {facts['numpy']}"
    yield f"  {harmless(facts['system'])}"
    yield (
        f"  {facts['processor']}, {facts['cores']} cores ({facts['hardware_threads']} hardware threads), "
        f"{size(facts['memory_bytes'])} memory"
    )
    sets = found["instruction_sets"]
    used = f"used: {sets['used']}" if sets["used"] else sets["why"]
    yield f"  instruction sets with kernels: {', '.join(sets['found']) or 'none'}; {used}"
    yield paint("\nGPU", "bold")
    gpu = found["gpu"]
    for device in gpu["devices"]:
        yield f"  {device['name']}, {size(device['bytes'])}; driver {gpu['driver'] or 'unknown'}, CUDA {gpu['cuda']}"
    if gpu["why"]:
        yield f"  CUDA: none: {gpu['why']}"
    first, *others = found["webgpu"]["adapters"] or [f"none: {found['webgpu']['why']}"]
    yield f"  WebGPU: {first}" + (f"; not used: {', '.join(others)}" if others else "")
    yield paint("\nengines", "bold")
    for engine in found["engines"]:
        yield f"  {engine['name']:<10} {'runs here' if engine['runs'] else 'not here':<9}  {engine['promise']}"
        if engine["why"]:
            yield f"  {'':<10} {'':<9}  why not: {engine['why']}"
    yield paint("\nextras", "bold")
    there = [f"{e['name']} ({_versions(e['packages'])})" for e in found["extras"] if e["installed"]]
    yield f"  installed: {', '.join(there) or 'none'}"
    yield f"  not installed: {', '.join(e['name'] for e in found['extras'] if not e['installed']) or 'none'}"
    yield paint("\ncaches", "bold")
    for cache in found["caches"]:
        if cache["files"]:
            more = "" if cache["complete"] else " and more"
            yield f"  {cache['name']:<28} {size(cache['bytes']):>9}  {cache['files']} files{more}  {cache['path']}"
    if found["environment"]:
        yield paint("\nenvironment", "bold")
        yield from (f"  {name}={value}" for name, value in found["environment"].items())


def _versions(packages: dict[str, str | None]) -> str:
    return ", ".join(f"{name} {version}" for name, version in packages.items())
