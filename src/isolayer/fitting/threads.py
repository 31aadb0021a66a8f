"""How many threads linear algebra may use."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from threadpoolctl import threadpool_limits

P = ParamSpec("P")
R = TypeVar("R")


def one_thread(function: Callable[P, R]) -> Callable[P, R]:
    """The function with linear algebra on one thread.

    Use it for thousands of small matrices one after the other: threads would wait for each other more than they
    compute, and on a busy machine take ten times the processor time.

    >>> one_thread(abs)(-1)
    1
    """

    @wraps(function)
    def alone(*args: P.args, **kwargs: P.kwargs) -> R:
        with threadpool_limits(limits=1, user_api="blas"):
            return function(*args, **kwargs)

    return alone
