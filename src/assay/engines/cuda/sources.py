"""Machine code of the kernels: cubins that the package ships, or native/cuda compiled by NVRTC and cached.

    python -m assay.engines.cuda.sources [FOLDER [TARGET…]]      compile all targets, as the package ships them

NVRTC needs neither a GPU nor a driver. Touch this module to add a GPU architecture or a compiler option.
"""

from __future__ import annotations

import hashlib
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

from assay.engines.cuda.structs import MODULES, TENSOR_MODULES
from assay.errors import AssayError
from assay.system.extras import install

TARGETS = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
_FEATURES = {"sm_90": "sm_90a"}  # targets with architecture-specific instructions, which every such GPU has
_LANGUAGE = ("--std=c++17", "--device-as-default-execution-space")
_ROUNDING = ("--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true")
_SHIPPED = Path(__file__).with_name("cubins")
# For compute-sanitizer's racecheck: synchronisation that it recognises (platform.h), and line numbers.
_CHECKED = ("-DASSAY_RACECHECK", "-lineinfo") if os.environ.get("ASSAY_RACECHECK") else ()


def folder() -> Path:
    """The folder of the kernel sources, which only a checkout has."""
    found = Path(__file__).resolve().parents[4] / "native" / "cuda"
    if not (found / "shim.cpp").is_file():
        raise AssayError("engine cuda: this package has no cubin for this GPU, and no kernel sources to compile")
    return found


def read_sources() -> bytes:
    files = sorted(p for p in folder().iterdir() if p.suffix in (".cu", ".h", ".cpp"))
    return b"".join(p.name.encode() + p.read_bytes() for p in files)


def target_for(arch: str) -> str:
    """The newest target whose code runs on this architecture: of the same major version, and not newer."""
    number = int(arch.removeprefix("sm_"))
    fitting = [t for t in TARGETS if number // 10 == int(t[3:]) // 10 and int(t[3:]) <= number]
    if not fitting:
        raise AssayError(f"engine cuda: no kernels for {arch} (found {arch}, expected {', '.join(TARGETS)})")
    return fitting[-1]


def cubins(arch: str, *, tensor: bool = True) -> dict[str, bytes]:
    """Machine code for a GPU of this architecture, by module. `tensor`: with the modules of precision tensor."""
    target = target_for(arch)
    wanted = [module for module in MODULES if tensor or module not in TENSOR_MODULES]
    shipped = {module: _SHIPPED / f"{module}-{target}.cubin" for module in wanted}
    if not _CHECKED and all(path.is_file() for path in shipped.values()):
        return {module: path.read_bytes() for module, path in shipped.items()}
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "assay" / "cuda"
    state = hashlib.sha256(read_sources() + repr((_CHECKED, _nvrtc().nvrtcVersion()[1:])).encode()).hexdigest()[:16]
    kept = {module: cache / f"{module}-{target}-{state}.cubin" for module in wanted}
    missing = [module for module in wanted if not kept[module].is_file()]
    if missing:
        told = f"engine cuda: compiling {len(missing)} files of kernels for {target}: minutes, once (kept in {cache})"
        print(told, file=sys.stderr, flush=True)
        cache.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor() as team:
            for module, code in zip(missing, team.map(lambda m: compile_for(m, target), missing), strict=True):
                made = kept[module].with_suffix(f".{os.getpid()}")
                made.write_bytes(code)
                made.rename(kept[module])
    return {module: path.read_bytes() for module, path in kept.items()}


def _nvrtc() -> Any:
    try:
        return import_module("cuda.bindings.nvrtc")
    except ImportError:
        raise AssayError(f"engine cuda: NVRTC is not installed; {install('cuda')}") from None


def compile_for(module: str, target: str, ptx: bool = False) -> bytes:
    """Machine code of a module, or its PTX."""
    nvrtc = _nvrtc()

    def checked(result: Any) -> Any:
        if result[0] != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise AssayError(f"engine cuda: NVRTC says {result[0].name}")
        return result[1] if len(result) == 2 else None

    text = (folder() / f"{module}.cu").read_bytes()
    program = checked(nvrtc.nvrtcCreateProgram(text, f"{module}.cu".encode(), 0, [], []))
    arch = _FEATURES.get(target, target)
    options = [
        f"--gpu-architecture={arch.replace('sm_', 'compute_') if ptx else arch}".encode(),
        f"-I{folder()}".encode(),
        *(o.encode() for o in (*_LANGUAGE, *_ROUNDING, *_CHECKED)),
    ]
    if nvrtc.nvrtcCompileProgram(program, len(options), options)[0] != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        log = bytes(checked(nvrtc.nvrtcGetProgramLogSize(program)))
        checked(nvrtc.nvrtcGetProgramLog(program, log))
        raise AssayError(f"engine cuda: {module} for {target}: {log.decode(errors='replace').splitlines()[0]}")
    size, get = ("nvrtcGetPTXSize", "nvrtcGetPTX") if ptx else ("nvrtcGetCUBINSize", "nvrtcGetCUBIN")
    code = bytes(checked(getattr(nvrtc, size)(program)))
    checked(getattr(nvrtc, get)(program, code))
    checked(nvrtc.nvrtcDestroyProgram(program))
    return code


def main() -> None:
    to = Path(sys.argv[1]) if len(sys.argv) > 1 else _SHIPPED
    to.mkdir(parents=True, exist_ok=True)
    for target in sys.argv[2:] or TARGETS:
        for module in MODULES:
            code = compile_for(module, target)
            (to / f"{module}-{target}.cubin").write_bytes(code)
            print(f"{module} for {target}: {len(code)} bytes")


if __name__ == "__main__":
    main()
