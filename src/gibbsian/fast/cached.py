"""A cache that forgets."""

import functools
from collections.abc import Callable, Hashable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")


def weak_cache(function: Callable[..., T]) -> Callable[..., T]:
    """`functools.cache` for a function of an object and of keys, whose results go when the object goes; so they must
    not hold it.

    >>> class Thing: ...
    >>> made = weak_cache(lambda thing, key: [key])
    >>> thing = Thing()
    >>> made(thing, 1) is made(thing, 1), made(thing, 1) is made(thing, 2)
    (True, False)
    """
    known: WeakKeyDictionary[Any, dict[tuple[Hashable, ...], T]] = WeakKeyDictionary()

    @functools.wraps(function)
    def cached(thing: Any, *key: Hashable) -> T:
        results = known.setdefault(thing, {})
        if key not in results:
            results[key] = function(thing, *key)
        return results[key]

    return cached
