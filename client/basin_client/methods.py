"""The methods of both clients, made from the functions that build their requests.

Their types are written out in `methods.pyi` for those editors that run no code and do not
follow `ParamSpec`, such as Jedi. `python -m tests.client.method_stubs` writes that file.
"""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from basin_client import graph_operations, operations, transaction_operations
from basin_client.request import Request

P = ParamSpec("P")
T = TypeVar("T")


def _method(build: Callable[P, Request[T]]) -> Callable[Concatenate[Methods, P], T]:
    """Make a method of `Client` that builds a request with `build` and sends it."""

    @functools.wraps(build)
    def method(self: Methods, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.send(build(*args, **kwargs))

    _set_signature(method, build)
    return method


def _async_method(
    build: Callable[P, Request[T]],
) -> Callable[Concatenate[AsyncMethods, P], Awaitable[T]]:
    """Make a method of `AsyncClient` that builds a request with `build` and sends it."""

    @functools.wraps(build)
    async def method(self: AsyncMethods, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.send(build(*args, **kwargs))

    _set_signature(method, build)
    return method


def _set_signature(method: Any, build: Callable[..., Request[Any]]) -> None:
    """Give a method the signature of `build`, with `self`, and T where `build` returns Request[T].

    `help`, `inspect.signature` and IPython show it. Annotations are text, as in the modules of the
    functions, where `typing.get_type_hints` looks the names up.
    """
    signature = inspect.signature(build)
    returned = signature.return_annotation.removeprefix("Request[").removesuffix("]")
    self = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    method.__signature__ = signature.replace(
        parameters=[self, *signature.parameters.values()], return_annotation=returned
    )
    method.__annotations__ = {**build.__annotations__, "return": returned}


class Methods(ABC):
    """Methods of `Client`, one for each function that builds a request."""

    @abstractmethod
    def send(self, request: Request[T]) -> T:
        """Send a request and return the parsed response."""

    score = _method(operations.score)
    score_transactions = _method(transaction_operations.score_transactions)
    classify = _method(operations.classify)
    complete = _method(operations.complete)
    classify_images = _method(operations.classify_images)
    answer_images = _method(operations.answer_images)
    sample = _method(operations.sample)
    store_memory = _method(operations.store_memory)
    forget_memory = _method(operations.forget_memory)
    memories = _method(operations.memories)
    store_graph = _method(graph_operations.store_graph)
    change_graph = _method(graph_operations.change_graph)
    forget_graph = _method(graph_operations.forget_graph)
    score_nodes = _method(graph_operations.score_nodes)
    store_transaction_graph = _method(transaction_operations.store_transaction_graph)
    add_transactions = _method(transaction_operations.add_transactions)
    store_transactions = _method(transaction_operations.store_transactions)
    add_labels = _method(transaction_operations.add_labels)
    alerts = _method(graph_operations.alerts)
    graphs = _method(graph_operations.graphs)
    graph = _method(graph_operations.graph)
    models = _method(operations.models)
    model = _method(operations.model)
    ready = _method(operations.ready)


class AsyncMethods(ABC):
    """Methods of `AsyncClient`, one for each function that builds a request."""

    @abstractmethod
    async def send(self, request: Request[T]) -> T:
        """Send a request and return the parsed response."""

    score = _async_method(operations.score)
    score_transactions = _async_method(transaction_operations.score_transactions)
    classify = _async_method(operations.classify)
    complete = _async_method(operations.complete)
    classify_images = _async_method(operations.classify_images)
    answer_images = _async_method(operations.answer_images)
    sample = _async_method(operations.sample)
    store_memory = _async_method(operations.store_memory)
    forget_memory = _async_method(operations.forget_memory)
    memories = _async_method(operations.memories)
    store_graph = _async_method(graph_operations.store_graph)
    change_graph = _async_method(graph_operations.change_graph)
    forget_graph = _async_method(graph_operations.forget_graph)
    score_nodes = _async_method(graph_operations.score_nodes)
    store_transaction_graph = _async_method(transaction_operations.store_transaction_graph)
    add_transactions = _async_method(transaction_operations.add_transactions)
    store_transactions = _async_method(transaction_operations.store_transactions)
    add_labels = _async_method(transaction_operations.add_labels)
    alerts = _async_method(graph_operations.alerts)
    graphs = _async_method(graph_operations.graphs)
    graph = _async_method(graph_operations.graph)
    models = _async_method(operations.models)
    model = _async_method(operations.model)
    ready = _async_method(operations.ready)
