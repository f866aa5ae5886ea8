"""Replicas and stages as actors of a Ray cluster. Ray handles membership, placement, starting and killing.

Actors talk to the router and to each other over their own frames, not over Ray. A client that reaches Ray's ports can
run code, so a cluster without Ray's token authentication is refused unless `--insecure-cluster` is given.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from itertools import count
from typing import Any

from assay.cluster import service
from assay.cluster.launchers import START_S
from assay.errors import AssayError
from assay.system.extras import install


def join(address: str | None, *, insecure: bool = False) -> Any:
    """The `ray` module, connected to the cluster at `address`, or to a new one that ends with this process.

    Ray reads its authentication settings when it is imported, so the import comes after they are set.
    """
    if find_spec("ray") is None:
        raise AssayError(f"--cluster: ray is not installed; {install('cluster')}, or use --cluster local")
    if address is None and not insecure:  # a new cluster for this process alone
        os.environ["RAY_AUTH_MODE"] = "token"
        if "RAY_AUTH_TOKEN_PATH" not in os.environ:
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    if os.environ.get("RAY_AUTH_MODE") != "token" and not insecure:
        raise AssayError(
            "--cluster: Ray runs without authentication, so any client that reaches it can run code; set "
            "RAY_AUTH_MODE=token and RAY_AUTH_TOKEN on every node, or give --insecure-cluster"
        )
    found = import_module("ray")
    if found.is_initialized():
        return found
    alone = {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
    given: dict[str, Any] = {"address": address} if address else alone
    try:
        found.init(logging_level="ERROR", log_to_driver=False, configure_logging=False, **given)
    except Exception as error:  # Ray raises many kinds of exception when there is no cluster
        where, words = address or "this machine", "is it running, and is RAY_AUTH_TOKEN its token?"
        raise AssayError(f"--cluster: no Ray cluster at {where} ({_line(error)}); {words}") from None
    return found


class ServiceActor:
    """The actor that runs a service in a thread."""

    def __init__(self, spec: dict[str, Any]) -> None:
        found = import_module("ray")
        host = found.util.get_node_ip_address()
        made = service.make(spec, RayLauncher.inside())
        self._listens = threading.Event()
        self._address = (host, 0)
        threading.Thread(target=lambda: asyncio.run(self._run(made, spec["token"], host)), daemon=True).start()
        self._listens.wait()

    async def _run(self, made: service.Service, token: str, host: str) -> None:
        def ready(host: str, port: int) -> None:
            self._address = (host, port)
            self._listens.set()

        await service.run(made, token, host, ready)

    def address(self) -> tuple[str, int, str, int]:
        """ServiceActor, port, the node's name and the process."""
        found = import_module("ray")
        return *self._address, f"{os.uname().nodename} ({found.get_runtime_context().get_node_id()[:8]})", os.getpid()


class RayActor:
    """The handle of a service that runs in an actor."""

    def __init__(self, name: str, actor: Any, host: str, port: int, node: str, pid: int) -> None:
        self.name, self.host, self.port, self.node, self.pid = name, host, port, node, pid
        self._ray, self._actor = import_module("ray"), actor

    def alive(self) -> bool:
        """Whether the actor answers within a second. The router relies on heartbeats, so a wrong answer is harmless."""
        try:
            self._ray.get(self._actor.address.remote(), timeout=1.0)
        except Exception:
            return False
        return True

    def kill(self) -> None:
        self._ray.kill(self._actor, no_restart=True)


class RayLauncher:
    """Starts services as actors, spread over the nodes."""

    where = "a Ray cluster"

    def __init__(self, found: Any, cpus: float = 1.0, gpus: float = 0.0) -> None:
        self._ray = found
        self._cpus, self._gpus = cpus, gpus
        self._numbers = count()
        self._actors: list[RayActor] = []

    @classmethod
    def inside(cls) -> RayLauncher:
        """A launcher for code that runs in an actor, such as a replica that starts its stages."""
        return cls(import_module("ray"))

    def spawn(self, spec: Mapping[str, Any]) -> RayActor:
        name = f"{spec['kind']}-{next(self._numbers)}"
        options = {"num_cpus": self._cpus, "num_gpus": self._gpus, "scheduling_strategy": "SPREAD", "max_restarts": 0}
        actor = self._ray.remote(ServiceActor).options(**options).remote(dict(spec))
        try:
            address = self._ray.get(actor.address.remote(), timeout=START_S)
        except Exception as error:
            self._ray.kill(actor, no_restart=True)
            raise AssayError(f"{name}: did not start on the cluster ({_line(error)})") from None
        self._actors.append(RayActor(name, actor, *address))
        return self._actors[-1]

    def close(self) -> None:
        actors, self._actors = self._actors, []
        for actor in actors:
            actor.kill()


def _line(error: Exception) -> str:
    """The last line of Ray's error message, which can be long."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:300]
