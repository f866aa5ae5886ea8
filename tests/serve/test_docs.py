"""docs/reference/serve.md says of errors, routes and options what the code does."""

from __future__ import annotations

from pathlib import Path

from assay.serve.api.routes import ROUTES
from assay.serve.api_errors import KINDS

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "serve.md").read_text()


def test_every_error_has_its_row() -> None:
    for code, kind in KINDS.items():
        assert f"| {kind.status} | `{code}` | {kind.meaning} |" in PAGE


def test_every_route_has_its_row() -> None:
    for route in ROUTES:
        assert f"`{route.method} {route.path}`" in PAGE


def test_the_figures_are_there() -> None:
    assert "## Measured" in PAGE
    assert "FIGURES" not in PAGE
