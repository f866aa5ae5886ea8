"""Facts of this machine, its engines and its caches, which `assay doctor` prints for a bug report.

Nothing secret is collected: of environment variables that may hold a key, only whether they are set.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from assay.errors import AssayError
from assay.runtime import ollama_store
from assay.system import machine, plugins
from assay.system.extras import names as extra_names
from assay.system.extras import requirements
from assay.system.home import home
from assay.system.terminal import printable
from assay.version import __version__

# The promise of each engine. Touch it together with docs/reference/arithmetic.md and docs/explanation/gpu.md.
PROMISES = {
    "reference": "the definition: exact block decode, then float64; slow, and nobody optimises it",
    "cpu": "the same bits on every machine, with any threads, batch, chunking and cache; fast and exact",
    "cuda": "fast and exact: the bits of the cpu engine; tensor: bits of its own, the same on every run",
    "wgpu": "the bits of the cpu engine, after a probe of the adapter's arithmetic has passed",
}
_VARIABLES = ("ASSAY_HOME", "ASSAY_ISA", "ASSAY_ADAPTER", "ASSAY_TIER", "HF_ENDPOINT", "HF_HOME", "HF_HUB_CACHE",
              "HF_HUB_OFFLINE", "OLLAMA_MODELS", "CUDA_VISIBLE_DEVICES", "VK_ICD_FILENAMES", "VK_DRIVER_FILES",
              "OMP_NUM_THREADS")  # fmt: skip
_SECRET_VARIABLES = ("HF_TOKEN", "ASSAY_API_KEY", "HTTPS_PROXY", "HTTP_PROXY", "https_proxy", "http_proxy")
_MOST_FILES = 100_000  # files of a cache that are counted


def machine_facts() -> dict[str, Any]:
    """Version, system, processor, cores and memory."""
    return {
        "assay": __version__,
        "python": f"{platform.python_version()} ({platform.python_implementation()}, {sys.platform})",
        "system": platform.platform(),
        "processor": printable(_processor(), 100),
        "cores": machine.cores(),
        "hardware_threads": os.cpu_count() or 1,
        "memory_bytes": machine.memory(),
        "numpy": _version("numpy"),
    }


def instruction_sets() -> dict[str, Any]:
    """The instruction sets that have kernels and that this processor runs, and the one that is used."""
    try:
        from assay import _native
    except ImportError as error:
        return {"found": [], "used": None, "why": printable(f"the native module does not load ({error})", 200)}
    try:
        used = _native.Pool(1).isa
    except ValueError as error:  # ASSAY_ISA has an unknown name
        return {"found": _native.isas(), "used": None, "why": printable(str(error), 200)}
    return {"found": _native.isas(), "used": used, "why": None}


def gpus(library: str = "libcuda.so.1") -> dict[str, Any]:
    """NVIDIA GPUs and their driver, asked of the driver itself, so that no Python package is needed."""
    try:
        cuda = ctypes.CDLL(library)
    except OSError:
        return {"driver": None, "devices": [], "why": f"there is no NVIDIA driver ({library})"}
    if code := cuda.cuInit(0):
        return {"driver": _driver_version(), "devices": [], "why": f"the driver finds no GPU (cuInit gives {code})"}
    version, count = ctypes.c_int(), ctypes.c_int()
    cuda.cuDriverGetVersion(ctypes.byref(version))
    cuda.cuDeviceGetCount(ctypes.byref(count))
    devices = []
    for index in range(count.value):
        device, size, name = ctypes.c_int(), ctypes.c_size_t(), ctypes.create_string_buffer(128)
        cuda.cuDeviceGet(ctypes.byref(device), index)
        cuda.cuDeviceGetName(name, 128, device)
        cuda.cuDeviceTotalMem_v2(ctypes.byref(size), device)
        devices.append({"name": printable(name.value.decode(errors="replace"), 80), "bytes": size.value})
    cuda_version = f"{version.value // 1000}.{version.value % 1000 // 10}"
    return {"driver": _driver_version(), "cuda": cuda_version, "devices": devices, "why": None}


def webgpu() -> dict[str, Any]:
    """The adapters that the wgpu engine finds, the one in use first; or the reason why it finds no adapter."""
    from assay.engines import missing_reasons

    if why := missing_reasons()["wgpu"]:
        return {"adapters": [], "why": why}
    from assay.engines.wgpu.adapter import adapters

    try:
        return {"adapters": [printable(name, 100) for name in adapters()], "why": None}
    except AssayError as error:
        return {"adapters": [], "why": printable(str(error), 300)}


def engine_facts() -> list[dict[str, Any]]:
    """The engines: whether each runs here or why not, and its promise."""
    from assay.engines import missing_reasons

    found = [
        {"name": name, "runs": not why, "why": why or None, "promise": PROMISES[name]}
        for name, why in missing_reasons().items()
    ]
    for name in plugins.names("assay.engines"):
        found.append({"name": name, "runs": True, "why": None, "promise": "an engine of an installed package"})
    return found


def extras() -> list[dict[str, Any]]:
    """Optional dependencies: each extra with its packages and their versions; None: not installed."""
    found = []
    for extra in extra_names():
        names = [match[0] for text in requirements(extra) if (match := re.match(r"[A-Za-z0-9_.-]+", text))]
        packages = {name: _version(name) for name in names}
        found.append({"name": extra, "installed": bool(packages) and all(packages.values()), "packages": packages})
    return found


def caches() -> list[dict[str, Any]]:
    """Folders with models and computed results, with their sizes."""
    hub = os.environ.get("HF_HUB_CACHE") or Path(os.environ.get("HF_HOME") or "~/.cache/huggingface") / "hub"
    kernels = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "assay" / "cuda"
    folders = {
        "models of assay": home() / "models",
        "computed noise of models": home() / "noise",
        "saved conversations": home() / "chats",
        "results of sweeps": home() / "sweeps",
        "compiled kernels of the GPU": kernels,
        "models of huggingface_hub": Path(hub).expanduser(),
        "models of Ollama": ollama_store.store(),
    }
    return [{"name": name, "path": _short(path), **_folder_size(path)} for name, path in folders.items()]


def variables(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Environment variables that change what assay does. The values of secret ones are not shown."""
    given = os.environ if environment is None else environment
    shown = {name: printable(given[name], 100) for name in _VARIABLES if given.get(name)}
    return shown | {name: "set" for name in _SECRET_VARIABLES if given.get(name)}


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return platform.processor() or platform.machine()
    named = re.search(r"^(?:model name|Model|Hardware)\s*:\s*(.+)$", text, re.MULTILINE)
    return f"{named[1].strip()} ({platform.machine()})" if named else platform.machine()


def _driver_version() -> str | None:
    try:
        text = Path("/proc/driver/nvidia/version").read_text(errors="replace")
    except OSError:
        return None
    found = re.search(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b", text)
    return found[1] if found else None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _short(path: Path) -> str:
    """A path with `~` for the home directory, because a report is published."""
    try:
        return f"~/{path.relative_to(Path.home())}"
    except (ValueError, RuntimeError):
        return printable(str(path), 200)


def _folder_size(folder: Path) -> dict[str, Any]:
    """Bytes and number of files. Links are not followed."""
    total = files = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                status = os.lstat(os.path.join(root, name))
            except OSError:
                continue
            total, files = total + status.st_size, files + 1
            if files >= _MOST_FILES:
                return {"bytes": total, "files": files, "complete": False}
    return {"bytes": total, "files": files, "complete": True}
