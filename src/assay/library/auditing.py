"""Audits of endpoints from Python."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.errors import AssayError
from assay.library.language_model import LanguageModel
from assay.library.notebook import watched
from assay.library.verdicts import opened
from assay.runtime import hub
from assay.runtime.opening import Opened
from assay.system.files import write
from assay.system.stages import Report

if TYPE_CHECKING:
    from assay.verify.endpoint.audit_findings import AuditResult

KEYS = ("ASSAY_API_KEY", "OPENAI_API_KEY")  # environment variables with a key; the first that is set is taken


@dataclass(frozen=True, repr=False)
class Audit:
    """The answer of an audit. True unless the endpoint differs from the claim; printing it shows the same text as the
    command line. `result` has the details."""

    verdict: str  # as claimed | differs | inconclusive
    result: AuditResult
    url: str
    model: str

    def __bool__(self) -> bool:
        return bool(self.result)

    def __repr__(self) -> str:
        from assay.verify.endpoint.audit_report import text

        return text(self.result)

    def to_dict(self) -> dict[str, Any]:
        """The data of `--json`."""
        from assay.verify.endpoint.audit_report import data

        return {"url": self.url, "model": self.model} | data(self.result)

    def save_html(self, path: str | Path) -> None:
        """Write one self-contained page."""
        from assay.verify.endpoint.audit_report import page

        write(Path(path), page(self.result, self.url, self.model))


def audit(
    url: str,
    model: str | Path | LanguageModel | Opened | None = None,
    *,
    alpha: float = 1e-3,
    tokens: int | None = None,
    seed: int = 0,
    prompts: Sequence[str] = (),
    others: Sequence[str | Path] = (),
    api_key: str | None = None,
    api_model: str = "",
    pause: float = 0.0,
    timeout: float | None = None,
    resume: str | Path | None = None,
    threads: int | None = None,
    chat: bool = True,
    draws: bool = True,
    engine_faults: bool = False,
    engine: str = "cpu",
    progress: Report | None = None,
) -> Audit:
    """Does the endpoint at `url` serve `model`? If not, what does it serve?

    `alpha` is the error rate of every statement. `tokens` limits the generated tokens, `pause` is the time between two
    requests in seconds, `timeout` the longest time for one answer. `prompts` replaces the drawn texts. `others` are
    models that may be served instead. A folder of safetensors is converted first. `resume` is a file that keeps the
    answers: a stopped audit with the same options continues from it. `engine` computes the claim: cpu or cuda. Without
    `api_key` it is read from ASSAY_API_KEY or OPENAI_API_KEY.
    """
    from assay.verify.endpoint.audit_findings import AuditOptions
    from assay.verify.endpoint.audit_run import audit_endpoint
    from assay.verify.endpoint.client import Client

    if not 0 < alpha < 0.5:
        raise AssayError(f"alpha: an error rate between 0 and 0.5 (found {alpha:g})")
    if model is None:
        raise AssayError("audit: no model to compare with; name the one that the endpoint claims to serve")
    key = api_key if api_key is not None else next((os.environ[k] for k in KEYS if os.environ.get(k)), "")
    with watched(progress), ExitStack() as made:
        if isinstance(model, str | Path):
            model = _file(model, made)
        on = opened(model)
        client = Client(
            url, on.tokenizer, key=key, model=api_model, pause_s=pause, reply_s=timeout,
            resume=None if resume is None else Path(resume),
        )  # fmt: skip
        options = AuditOptions(
            alpha, tokens, seed, tuple(prompts), tuple(_file(o, made) for o in others), threads, chat, draws, engine,
            engine_faults,
        )  # fmt: skip
        result = audit_endpoint(on.model, client, options)
    return Audit(result.verdict, result, client.url, on.file.path.name)


def _file(model: str | Path, made: ExitStack) -> Path:
    """The file of a model. A folder of safetensors is converted to a file that is removed with `made`."""
    folder = Path(model)
    if not (folder / "config.json").is_file() or any(folder.glob("*.gguf")):
        return hub.resolve(model)
    from assay.convert.conversion import convert

    where = made.enter_context(tempfile.TemporaryDirectory(prefix="assay-audit-", ignore_cleanup_errors=True))
    out = Path(where) / f"{folder.resolve().name}.gguf"
    convert(folder, out)
    return out
