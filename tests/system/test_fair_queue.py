"""Fair queues: clients take turns, and a flood displaces its own work."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from assay.system.fair_queue import FairQueue


def drained(queue: FairQueue[str]) -> list[str]:
    found = []
    while (item := queue.take()) is not None:
        found.append(item)
    return found


def test_clients_take_turns() -> None:
    queue: FairQueue[str] = FairQueue(9)
    for item in ("a1", "a2", "a3", "b1", "c1", "b2"):
        assert queue.put(item[0], item) is None
    assert drained(queue) == ["a1", "b1", "c1", "a2", "b2", "a3"]
    assert len(queue) == 0 and queue.take() is None


def test_a_full_queue_refuses_the_client_who_has_most() -> None:
    queue: FairQueue[str] = FairQueue(3)
    for item in ("a1", "a2", "a3"):
        queue.put("a", item)
    assert queue.put("a", "a4") == "a4"
    assert queue.put("b", "b1") == "a3"  # the newest of the flood
    assert queue.put("b", "b2") == "b2"  # as many as anyone
    assert drained(queue) == ["a1", "b1", "a2"]


def test_what_is_discarded_is_not_taken() -> None:
    queue: FairQueue[str] = FairQueue(3)
    queue.put("a", "a1")
    assert queue.discard("a", "a1") and not queue.discard("a", "a1") and not queue.discard("b", "x")
    assert len(queue) == 0 and queue.take() is None


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["put", "take"]))), st.integers(1, 6))
def test_nothing_is_lost_or_doubled(steps: list[tuple[str, str]], most: int) -> None:
    queue: FairQueue[str] = FairQueue(most)
    inside: list[str] = []
    for i, (client, step) in enumerate(steps):
        if step == "put":
            inside.append(f"{client}{i}")
            lost = queue.put(client, f"{client}{i}")
            if lost is not None:
                inside.remove(lost)
        elif (item := queue.take()) is not None:
            inside.remove(item)
        assert len(queue) == len(inside) <= most
    assert sorted(drained(queue)) == sorted(inside)
