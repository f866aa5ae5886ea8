"""The Kubernetes recipe: the router's command is one that assay takes, and the whole fits KubeRay's own schema."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from assay import cli

yaml = pytest.importorskip("yaml")
RECIPE = Path(__file__).parents[2] / "docs" / "kuberay.yaml"


def test_the_routers_command_is_taken() -> None:
    containers = yaml.safe_load(RECIPE.read_text())["spec"]["headGroupSpec"]["template"]["spec"]["containers"]
    command = next(c for c in containers if c["name"] == "router")["command"]
    args = cli.parse(command[1], command[2:])
    assert args.cluster == "auto" and (args.replicas.least, args.replicas.most) == (2, 4)


def test_every_container_has_the_token() -> None:
    spec = yaml.safe_load(RECIPE.read_text())["spec"]
    groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    for container in (c for group in groups for c in group["template"]["spec"]["containers"]):
        names = {item["name"]: item for item in container["env"]}
        assert names["RAY_AUTH_MODE"]["value"] == "token" and "valueFrom" in names["RAY_AUTH_TOKEN"]


def test_it_fits_the_schema() -> None:
    """Checks the recipe by KubeRay's schema, if ASSAY_KUBERAY_CRD names that file; unknown fields are errors."""
    path = os.environ.get("ASSAY_KUBERAY_CRD")
    if not path:
        pytest.skip("ASSAY_KUBERAY_CRD does not name KubeRay's ray.io_rayclusters.yaml")
    jsonschema = pytest.importorskip("jsonschema")
    versions = yaml.safe_load(Path(path).read_text())["spec"]["versions"]
    schema = next(v for v in versions if v["name"] == "v1")["schema"]["openAPIV3Schema"]
    _strict(schema)
    schema["properties"]["metadata"] = {}
    found = [e.message for e in jsonschema.Draft7Validator(schema).iter_errors(yaml.safe_load(RECIPE.read_text()))]
    assert not found


def _strict(schema: Any) -> None:
    if isinstance(schema, dict):
        if "properties" in schema and "additionalProperties" not in schema:
            schema["additionalProperties"] = False
        if schema.get("x-kubernetes-int-or-string"):
            schema.pop("type", None)
    for inner in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        _strict(inner)
