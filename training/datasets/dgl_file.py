"""Graphs in the files that DGL's `save_graphs` writes, read without DGL.

Numbers are little-endian. A list is its length (uint64) and its items, a text its length and its
bytes, a pair its two items. Every structure begins with a number that says what it is.
"""

from __future__ import annotations

import mmap
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, final

import numpy as np

Item = TypeVar("Item")

_FILE, _VERSION, _HETERO = 0xDD2E4FF046B4A13F, 2, 2
_HEADER = 4096  # bytes before what is not about the file itself
_GRAPH = 0xDD589FBE35224ABF
_META = 0xDD3C5FFE20046ABF
_RELATION = 0xDD2E60F0F6B4A127
_CSR = 0xDD6CD31205DFF127
_COO = 0xDD61FFD305DFF127
_ARRAY = 0xDD5E40F096B4A13F
_IN_COO, _IN_CSR, _IN_CSC = 1, 2, 4  # flags: how the edges of a relation are stored
_NUMBERED = {1: _IN_COO, 2: _IN_CSR, 3: _IN_CSC}
_KINDS = {0: "i", 1: "u", 2: "f"}


@dataclass(frozen=True)
class DglGraph:
    """A graph of nodes of one type.

    Attributes:
        edges: of each relation by its name, (2, E): sources and targets.
        node_arrays: what nodes have by name, N rows each.
    """

    num_nodes: int
    edges: dict[str, np.ndarray]
    node_arrays: dict[str, np.ndarray]


def read_dgl_graph(path: Path) -> DglGraph:
    """Read the first graph of a file, or of the one file in a .zip.

    Raises:
        ValueError: it is no such file, is cut off, or its graph has nodes of several types.
    """
    try:
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                if len(names := archive.namelist()) != 1:
                    raise _FormatError(f"it holds {len(names)} files, and not one")
                return _Reader(archive.read(names[0])).read_file()
        if not path.stat().st_size:
            raise _FormatError("it is empty")
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as raw:
            return _Reader(raw).read_file()
    except _FormatError as error:
        raise ValueError(
            f"{path}: {error}; what is read are files of save_graphs of DGL 0.5 and later"
        ) from error


class _FormatError(ValueError):
    """The message says what was expected, and where."""


@final
class _Reader:
    """Reads one structure after the other. Arrays are copied, so that the file can be closed."""

    def __init__(self, raw: mmap.mmap | bytes) -> None:
        self._raw, self._at = raw, 0

    def read_file(self) -> DglGraph:
        self._expect(_FILE, "a file of graphs")
        version, kind, count = self._uint(), self._uint(), self._uint()
        if (version, kind) != (_VERSION, _HETERO):
            raise _FormatError(f"version {version} and kind {kind} of such a file")
        if not count:
            raise _FormatError("it holds no graph")
        self._at = _HEADER
        self._at = self._uint()  # labels of graphs are skipped
        self._expect(_GRAPH, "a graph")
        self._expect(_META, "a graph of types")
        self._read_csr()
        relations = self._list(self._read_relation)
        num_nodes = self._list(self._uint)
        node_arrays = self._list(self._read_named)
        self._list(self._read_named)  # of edges
        self._list(self._text)
        names = self._list(self._text)
        if len(num_nodes) != 1:
            raise _FormatError(f"its graph has nodes of {len(num_nodes)} types, and not of one")
        edges = dict(zip(names, relations, strict=True))
        if any(edges[name].size and edges[name].max() >= num_nodes[0] for name in edges):
            raise _FormatError("an edge of a node that is not there")
        return DglGraph(num_nodes[0], edges, node_arrays[0])

    def _read_named(self) -> dict[str, np.ndarray]:
        return dict(self._list(lambda: (self._text(), self._array())))

    def _read_relation(self) -> np.ndarray:
        """The edges (2, E) of a relation, of which a file may have several layouts."""
        self._expect(_RELATION, "a relation")
        stored, _ = self._uint(), self._uint()
        # Before version 0.8 one layout was written, by its number; now they are flags.
        stored = stored & 0xFFFFFFFF if stored >> 32 else _NUMBERED.get(stored, 0)
        if not stored & (_IN_COO | _IN_CSR | _IN_CSC):
            raise _FormatError(f"edges in the layout {stored}")
        edges = np.empty((2, 0), np.int64)
        for layout in (_IN_COO, _IN_CSR, _IN_CSC):
            if not stored & layout:
                continue
            self._expect(_META, "a graph of types")
            self._read_csr()
            if layout == _IN_COO:
                edges = self._read_coo()
                continue
            indptr, indices = self._read_csr()
            rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
            edges = np.stack([rows, indices] if layout == _IN_CSR else [indices, rows])
        return edges

    def _read_csr(self) -> tuple[np.ndarray, np.ndarray]:
        self._expect(_CSR, "edges by node")
        rows, _ = self._uint(), self._uint()
        indptr, indices, _ = self._array(), self._array(), self._array()
        self._take(1)  # whether they are sorted
        is_whole = len(indptr) == rows + 1 and indptr[0] == 0 and indptr[-1] == len(indices)
        if not is_whole or (np.diff(indptr) < 0).any():
            raise _FormatError("edges by node that do not fit each other")
        return indptr.astype(np.int64), indices.astype(np.int64)

    def _read_coo(self) -> np.ndarray:
        self._expect(_COO, "edges by their ends")
        self._take(16)  # how many nodes there are at either end
        source, target, _ = self._array(), self._array(), self._array()
        self._take(2)  # whether they are sorted
        if source.shape != target.shape:
            raise _FormatError("edges whose ends do not fit each other")
        return np.stack([source, target]).astype(np.int64)

    def _array(self) -> np.ndarray:
        self._expect(_ARRAY, "an array")
        self._take(16)  # reserved, and the device that it is of
        dims, kind, bits = self._uint(4), self._uint(1), self._uint(1)
        lanes = self._uint(2)
        if kind not in _KINDS or bits not in (8, 16, 32, 64) or lanes != 1:
            raise _FormatError(f"an array of the type {kind}, {bits} bits, {lanes} lanes")
        shape = [self._uint() for _ in range(dims)]
        content = self._take(self._uint())
        dtype = np.dtype(f"<{_KINDS[kind]}{bits // 8}")
        if len(content) != dtype.itemsize * int(np.prod(shape, dtype=object)):
            raise _FormatError(f"an array of the shape {shape} in {len(content)} bytes")
        return np.frombuffer(content, dtype).reshape(shape)

    def _list(self, read: Callable[[], Item]) -> list[Item]:
        count = self._uint()
        if count > len(self._raw) - self._at:  # an item has a byte at least
            raise _FormatError(f"a list of {count} items at byte {self._at}, past its end")
        return [read() for _ in range(count)]

    def _text(self) -> str:
        return self._take(self._uint()).decode("utf-8", "replace")

    def _expect(self, mark: int, what: str) -> None:
        at = self._at
        if self._uint() != mark:
            raise _FormatError(f"no {what.removeprefix('a ')} at byte {at}")

    def _uint(self, size: int = 8) -> int:
        return int.from_bytes(self._take(size), "little")

    def _take(self, size: int) -> bytes:
        if size > len(self._raw) - self._at:
            raise _FormatError(f"it ends before byte {self._at + size}")
        self._at += size
        return self._raw[self._at - size : self._at]
