"""Machine code of the kernels: cubins that the package ships, or native/cuda compiled by NVRTC and cached.

    python -m assay.engines.cuda.sources [FOLDER [TARGET…]]      compile all targets, as the package ships them

Without the package's cubins, the kernels that a file needs on this GPU are compiled when a program first needs them.
NVRTC needs neither a GPU nor a driver. Touch this module to add a GPU architecture or a compiler option.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from assay.engines.cuda.structs import MODULE_OF, MODULES, SMALL_MODULES
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


class Kernels:
    """Machine code for one kind of GPU, by unit: a module that the package ships, or what is compiled at a time.

    A unit that is compiled is one large kernel or a module of small ones. `begin` starts to compile what a program
    needs, as many units at a time as there are cores, and `code` waits for a unit. Compiled units are kept on disk.
    """

    def __init__(self, arch: str) -> None:
        self.target = target_for(arch)
        self.begun: dict[str, Future[bytes]] = {}
        self.team: ThreadPoolExecutor | None = None
        self.state = ""  # of the sources and the compiler
        self.told = False

    def unit(self, kernel: str) -> str:
        module = MODULE_OF[kernel]
        return module if module in SMALL_MODULES or self._shipped(module).is_file() else kernel

    def begin(self, kernels: Iterable[str]) -> None:
        """Compile these kernels, unless their machine code is cached."""
        units = {self.unit(kernel): MODULE_OF[kernel] for kernel in kernels}
        for unit, module in sorted(units.items(), key=lambda pair: not pair[0].startswith("walk")):  # the longest first
            if unit in self.begun:
                continue
            kept = self._kept(unit, module)
            if kept.is_file():
                done: Future[bytes] = Future()
                done.set_result(kept.read_bytes())
                self.begun[unit] = done
                continue
            if not self.told:
                told = f"engine cuda: compiling kernels for {self.target}, once (kept in {kept.parent})"
                print(told, file=sys.stderr, flush=True)
            self.told = True
            self.team = self.team or ThreadPoolExecutor(os.cpu_count(), initializer=_yield_to_others)
            self.begun[unit] = self.team.submit(self._compiled, unit, module, kept)

    def code(self, unit: str) -> bytes:
        return self.begun[unit].result()

    def _shipped(self, module: str) -> Path:
        return _SHIPPED / f"{module}-{self.target}.cubin"

    def _kept(self, unit: str, module: str) -> Path:
        if not _CHECKED and self._shipped(module).is_file():
            return self._shipped(module)
        if not self.state:
            of = read_sources() + repr((_CHECKED, _nvrtc().nvrtcVersion()[1:])).encode()
            self.state = hashlib.sha256(of).hexdigest()[:16]
        cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "assay" / "cuda"
        return cache / f"{unit}-{self.target}-{self.state}.cubin"

    def _compiled(self, unit: str, module: str, kept: Path) -> bytes:
        code = compile_for(module, self.target, () if unit == module else (unit,))
        kept.parent.mkdir(parents=True, exist_ok=True)
        made = kept.with_suffix(f".{os.getpid()}")
        made.write_bytes(code)
        made.rename(kept)
        return code


def _yield_to_others() -> None:
    """Lower the priority of this thread (Linux has one for each): a server may compute another model meanwhile."""
    with suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)


def _nvrtc() -> Any:
    try:
        return import_module("cuda.bindings.nvrtc")
    except ImportError:
        raise AssayError(f"engine cuda: NVRTC is not installed; {install('cuda')}") from None


def compile_for(module: str, target: str, kernels: tuple[str, ...] = (), ptx: bool = False) -> bytes:
    """Machine code of a module, or of some of its kernels; or the PTX."""
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
        *(o.encode() for o in ("-DASSAY_SOME", *(f"-DWANT_{name}=~,1" for name in kernels)) if kernels),
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
