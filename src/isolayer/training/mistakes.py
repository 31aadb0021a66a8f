"""A mistake that one of several processes meets, such as a folder that the first one cannot write into.

The other processes notice it by a connection that is lost, and that error does not say why. Inside `told_to_all` they
end with an `InputError` instead, and exactly one of all processes is to report the mistake.
"""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed

from isolayer.errors import InputError

_runs = itertools.count()  # every process begins the same runs, so their numbers agree


@contextmanager
def told_to_all() -> Iterator[None]:
    """End all processes if one of them meets a mistake; the attribute ``reported_here`` is true of one error only."""
    key = f"isolayer/mistake/{next(_runs)}"  # under which processes that know of a mistake are counted
    try:
        yield
    except (InputError, OSError) as error:
        _count(error, key)
        raise
    except RuntimeError as error:  # a lost connection, if another process met a mistake
        if not _several() or not _store().add(key, 0):
            raise
        other = InputError("processes: expected all of them to run, got a mistake in another one; read its message")
        _count(other, key)
        raise other from error


def part(error: Exception, *, seconds: float = 10.0) -> None:
    """Leave the other processes, and let this one end by itself, once all of them know of the mistake.

    torchrun stops the other processes when one has ended, whatever they are about to do.

    Args:
        error: The mistake.
        seconds: How long to wait at most.
    """
    key = getattr(error, "counted_under", None)
    if key is None or not _several():
        return
    store, world, end = _store(), torch.distributed.get_world_size(), time.monotonic() + seconds
    torch.distributed.destroy_process_group()
    while store.add(key, 0) < world and time.monotonic() < end:
        time.sleep(0.02)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _count(error: Any, key: str) -> None:
    if _several():
        error.reported_here = _store().add(key, 1) == 1
        error.counted_under = key


def _several() -> bool:
    return torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1


def _store() -> Any:
    """What processes share apart from their connections."""
    return torch.distributed.distributed_c10d._get_default_store()
