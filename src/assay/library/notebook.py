"""Results and progress in a notebook: a page in an iframe, which isolates its styles and scripts, and a bar."""

from __future__ import annotations

import html
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any

from assay.system.stages import Callback, Report, StageStep, listening, shown_by

HEIGHT = 560  # pixels; longer pages scroll
_DELAY_S = 0.5  # seconds of a stage before its bar appears
_PACE_S = 0.2  # seconds between two updates of a bar


def inline(page: str, height: int = HEIGHT) -> str:
    """A self-contained page as an iframe."""
    return (
        f'<iframe srcdoc="{html.escape(page)}" sandbox="allow-scripts" loading="lazy" '
        f'style="width:100%;height:{height}px;border:1px solid #8884;border-radius:4px"></iframe>'
    )


def watched(progress: Report | None) -> AbstractContextManager[None]:
    """A context whose progress goes to the callback; without one, to the caller's listener or a notebook's bar."""
    if progress is not None:
        return shown_by(Callback(progress))
    if listening() is None and in_notebook():
        return shown_by(NotebookBar())
    return nullcontext()


def in_notebook() -> bool:
    """Does this code run in a notebook's kernel? IPython is not imported for the question."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


class NotebookBar:
    """A listener that shows a bar below the cell and removes it at the end. It needs no widgets."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._drawn = float("-inf")

    def step(self, step: StageStep) -> None:
        now = time.monotonic()
        if step.seconds > _DELAY_S and now - self._drawn > _PACE_S:
            self._drawn = now
            self._show(bar(step))

    def end(self) -> None:
        if self._handle is not None and self._drawn > float("-inf"):
            self._drawn = float("-inf")
            self._show("")

    def note(self, text: str) -> None: ...

    def _show(self, markup: str) -> None:
        shown = import_module("IPython.display")
        if self._handle is None:
            self._handle = shown.display(shown.HTML(markup), display_id=True)
        else:
            self._handle.update(shown.HTML(markup))


def bar(step: StageStep) -> str:
    """A labelled bar as HTML."""
    label, amount = html.escape(step.label), html.escape(step.amount)
    value = f' value="{step.share:.3f}"' if step.total > 0 else ""
    return f'<label>{label} <progress max="1"{value}></progress> {amount}</label>'
