"""Workers and replicas of this machine are forked, which spares each of them its imports."""

from __future__ import annotations

import subprocess

import pytest

from tests import forked


@pytest.fixture(autouse=True)
def forked_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", forked.Popen)
