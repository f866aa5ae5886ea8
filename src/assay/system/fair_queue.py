"""Fair queues: work that waits is taken from each client in turn, so a client with much work delays only itself.

`CLIENT` names the client for whom the current context works. The server sets it for each request. Code in between
passes nothing on.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from contextvars import ContextVar
from typing import Generic, TypeVar

CLIENT: ContextVar[str] = ContextVar("client", default="")

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """At most `most` waiting items, taken from each client in turn. Not safe for threads: callers hold a lock."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._clients: OrderedDict[str, deque[Item]] = OrderedDict()  # the first is next
        self._n = 0

    def __len__(self) -> int:
        return self._n

    def put(self, client: str, item: Item) -> Item | None:
        """Append an item. If the queue was full, returns the item that lost its place.

        The client with the most waiting items loses its newest, so a flood displaces its own work. If the new item's
        client has as many as any other, the new item itself is returned.
        """
        lost: Item | None = None
        if self._n >= self._most:
            most = max(self._clients, key=lambda name: len(self._clients[name]), default=client)
            if len(self._clients.get(most, ())) <= len(self._clients.get(client, ())) + (client != most):
                return item
            lost = self._clients[most].pop()
            self._n -= 1
        self._clients.setdefault(client, deque()).append(item)
        self._n += 1
        return lost

    def take(self) -> Item | None:
        """The oldest item of the client whose turn it is; None if nothing waits."""
        while self._clients:
            client, items = self._clients.popitem(last=False)
            if not items:
                continue
            item = items.popleft()
            self._n -= 1
            if items:
                self._clients[client] = items  # behind the others
            return item
        return None

    def discard(self, client: str, item: Item) -> bool:
        """Remove an item that still waits. False if it does not."""
        items = self._clients.get(client)
        if items is None or item not in items:
            return False
        items.remove(item)
        self._n -= 1
        return True
