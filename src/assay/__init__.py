"""assay runs GGUF language models and proves every number.

    import assay

    with assay.load("smollm2") as model:
        print(model.chat("Why is the sky blue?", max_new_tokens=64))

To prove means to compare with the definition, the float64 engine of `assay.engines.reference`. `assay.check` compares
an engine node by node, on request; a normal run is not compared. `docs/reference/python.md` has examples.

A name is imported when it is first used, so `import assay` is fast. Touch this module to export another public name.
"""

from __future__ import annotations

from importlib import import_module

from assay.version import __version__ as __version__

TYPE_CHECKING = False  # true for type checkers; importing `typing` would take longer than the rest of this module

if TYPE_CHECKING:
    from assay.errors import AssayError as AssayError
    from assay.library.auditing import Audit as Audit
    from assay.library.auditing import audit as audit
    from assay.library.file_pair import TwoFiles as TwoFiles
    from assay.library.judgement import Judgement as Judgement
    from assay.library.language_model import LanguageModel as LanguageModel
    from assay.library.language_model import load as load
    from assay.library.trace_view import Trace as Trace
    from assay.library.verdicts import Finding as Finding
    from assay.library.verdicts import check as check
    from assay.library.verdicts import diagnose as diagnose
    from assay.library.verdicts import diff as diff
    from assay.library.verdicts import load_dump as load_dump
    from assay.runtime.generate import Event as Event
    from assay.runtime.generate import Generation as Generation
    from assay.runtime.generate import Result as Result
    from assay.runtime.params import SamplerParams as SamplerParams
    from assay.verify.dumps.observation import Dump as Dump

_HOMES = {
    "AssayError": "assay.errors",
    "Audit": "assay.library.auditing",
    "Dump": "assay.verify.dumps.observation",
    "Event": "assay.runtime.generate",
    "Finding": "assay.library.verdicts",
    "Generation": "assay.runtime.generate",
    "Judgement": "assay.library.judgement",
    "LanguageModel": "assay.library.language_model",
    "Result": "assay.runtime.generate",
    "SamplerParams": "assay.runtime.params",
    "Trace": "assay.library.trace_view",
    "TwoFiles": "assay.library.file_pair",
    "audit": "assay.library.auditing",
    "check": "assay.library.verdicts",
    "diagnose": "assay.library.verdicts",
    "diff": "assay.library.verdicts",
    "load": "assay.library.language_model",
    "load_dump": "assay.library.verdicts",
}

__all__ = ["__version__", *_HOMES]


if not TYPE_CHECKING:  # type checkers use the imports above and report unknown names

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module 'assay' has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return value


def __dir__() -> list[str]:
    """The public names only, so that completion in an editor or a notebook shows no imports."""
    return sorted(__all__)
