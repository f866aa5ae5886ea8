"""The same over Ray: actors on nodes, a node that is removed without grace; no authentication, no cluster."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from assay.cluster import ray_cluster
from assay.cluster.ray_cluster import RayLauncher, join
from assay.cluster.sweep import sweep
from assay.cluster.worker_pool import RayPool
from assay.errors import AssayError
from assay.runtime.generate import Generator
from assay.runtime.opening import OpenOptions, open_model
from assay.runtime.params import SamplerParams
from assay.runtime.sequence import Job, Update
from tests.cluster.harness import fleet_of, kill_after
from tests.cluster.test_sweep import tasks
from tests.tiny import make

ROOT = Path(__file__).parents[2]


def test_without_ray_one_line_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "find_spec", lambda name: None)
    with pytest.raises(AssayError, match=r"ray is not installed; pip install .*, or say --cluster local"):
        join(None)


def test_a_cluster_without_authentication_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "find_spec", lambda name: True)
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    with pytest.raises(AssayError, match="without authentication"):
        join("10.0.0.1:6379")
    done = subprocess.run(
        [sys.executable, "-m", "assay", "serve", "x.gguf", "--replicas", "2"], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 2 and "--replicas: needs --cluster" in done.stderr


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    """A head and two nodes on this machine, with a token."""
    if find_spec("ray") is None:
        pytest.skip("ray is not installed: the extra `cluster` is not tested")
    before = dict(os.environ)
    path = os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef" * 4, "PYTHONPATH": path}
    os.environ |= {"RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0", "RAY_DISABLE_IMPORT_WARNING": "1"}
    ray = import_module("ray")  # reads them once
    found = import_module("ray.cluster_utils").Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    try:
        others = [found.add_node(num_cpus=1) for _ in range(2)]
        join(found.address)
        yield ray, found, others
    finally:
        ray.shutdown()
        found.shutdown()
        os.environ.clear()
        os.environ.update(before)


@pytest.mark.slow
def test_over_ray(nodes: Any, tmp_path: Path) -> None:
    ray, cluster, others = nodes
    done = sweep(tasks(tmp_path, 6), RayPool(ray), tmp_path)
    assert done == [i * 0.1 for i in range(6)], "a sweep"

    path = make(tmp_path / "m.gguf", n_ctx=512)
    opened = open_model(path, OpenOptions(engine="cpu", threads=1))
    prompt, params = (1, 5, 6, 7), SamplerParams(temp=1.2, seed=4)
    generator = Generator(opened.engine(), opened.tokenizer, n_ctx=opened.n_ctx)
    expected = generator.generate(prompt, params, max_tokens=60, ignore_eos=True).run()

    async def main() -> None:
        async with fleet_of(path, RayLauncher(ray, cpus=0.5), n=3) as fleet:
            assert len({link.handle.node for link in fleet.up}) >= 2, "spread over the nodes"
            for how in ("the actor is killed", "its node is removed"):
                over: asyncio.Future[Update] = asyncio.get_running_loop().create_future()
                hit: list[str] = []

                def kill(stream: Any, how: str = how, hit: list[str] = hit) -> None:
                    if hit or stream.link is None:
                        return
                    hit.append(stream.link.name)
                    if how == "the actor is killed":
                        stream.link.handle.kill()
                    else:
                        cluster.remove_node(others[0], allow_graceful=False)

                fleet._apply_update = type(fleet)._apply_update.__get__(fleet)  # type: ignore[method-assign]
                kill_after(fleet, 12, kill)
                (stream,) = fleet.submit(
                    [Job(prompt, params, 60, ignore_eos=True)],
                    [lambda u, over=over: over.set_result(u) if u.finish else None],
                )
                assert (await asyncio.wait_for(over, 60)).finish == "length"
                assert stream.ids[4:] == expected.ids and hit, how

    asyncio.run(main())
    assert json.dumps(expected.ids)
