"""Transactions as they were sent, in little memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self, final

import numpy as np
import orjson

from models.inputs.transactions import TransactionRecipe, Transactions
from service.storage.graphs.new_transactions import NewTransactions
from service.validation.ids import NodeId

_BYTES_OF_A_ROW = 150  # its id, and its place in a dictionary; of a text the same
_COLUMN = "column."  # of its arrays in a file


@final
class SentRows:
    """Columns of transactions, each text kept once.

    Attributes:
        node_ids: of all rows.
    """

    def __init__(self, recipe: TransactionRecipe) -> None:
        self.node_ids = list[NodeId]()
        self._recipe = recipe
        self._text_columns = (recipe.source, recipe.target, *recipe.text_columns)
        self._texts, self._codes = list[str](), dict[str, int]()
        # Places in `_texts`, or numbers; the time is that which was sent.
        self._columns = {
            **dict.fromkeys(self._text_columns, np.empty(0, np.int32)),
            **dict.fromkeys((recipe.time, *recipe.number_columns), np.empty(0)),
        }
        self._labels = np.empty(0, np.int8)

    def __len__(self) -> int:
        return len(self.node_ids)

    @property
    def nbytes(self) -> int:
        columns = sum(column.nbytes for column in (*self._columns.values(), self._labels))
        return columns + _BYTES_OF_A_ROW * (len(self.node_ids) + len(self._texts))

    @property
    def labels(self) -> np.ndarray:
        """Labels, int8 (N,): 1 fraud, 0 none, -1 where none was sent; they may be changed."""
        return self._labels[: len(self)]

    def append(self, new: NewTransactions) -> None:
        begin, end = len(self), len(self) + len(new.node_ids)
        self.node_ids += new.node_ids
        recipe, rows = self._recipe, new.rows
        if end > len(self._labels):
            room = max(end, 2 * begin, 1024) - begin
            for name, values in self._columns.items():
                self._columns[name] = np.concatenate([values[:begin], np.zeros(room, values.dtype)])
            self._labels = np.concatenate([self._labels[:begin], np.full(room, -1, np.int8)])
        texts = {recipe.source: rows.source, recipe.target: rows.target, **rows.categories}
        for name in self._text_columns:
            self._columns[name][begin:end] = [self._find_code(text) for text in texts[name]]
        numbers = {recipe.time: new.sent, recipe.amount: rows.amount, **rows.numbers}
        for name, values in numbers.items():
            self._columns[name][begin:end] = values
        if rows.labels is not None:
            self._labels[begin:end] = rows.labels

    def take(self, places: np.ndarray, times: np.ndarray) -> NewTransactions:
        """Return the rows at some places, and the times (n,) that count of these."""
        columns = {name: values[places] for name, values in self._columns.items()}
        recipe, texts = self._recipe, self._texts
        text = {
            name: np.array([texts[code] for code in columns[name].tolist()], object)
            for name in self._text_columns
        }
        rows = Transactions(
            times,
            text[recipe.source],
            text[recipe.target],
            columns[recipe.amount],
            {name: text[name] for name in recipe.text_columns},
            {name: columns[name] for name in recipe.numbers},
            None if recipe.label is None else self._labels[places],
        )
        node_ids = [self.node_ids[place] for place in places.tolist()]
        return NewTransactions(node_ids, rows, columns[recipe.time])

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return all of it as named arrays."""
        texts = {"node_ids": self.node_ids, "texts": self._texts}
        arrays = {name: np.frombuffer(orjson.dumps(t), np.uint8) for name, t in texts.items()}
        count = len(self)
        columns = {f"{_COLUMN}{name}": values[:count] for name, values in self._columns.items()}
        return arrays | columns | {"labels": self.labels}

    @classmethod
    def from_arrays(cls, recipe: TransactionRecipe, arrays: Mapping[str, np.ndarray]) -> Self:
        """Restore what `to_arrays` returned."""
        rows = cls(recipe)
        rows.node_ids = orjson.loads(arrays["node_ids"].tobytes())
        rows._texts = orjson.loads(arrays["texts"].tobytes())
        rows._codes = {text: code for code, text in enumerate(rows._texts)}
        rows._columns = {name: arrays[f"{_COLUMN}{name}"] for name in rows._columns}
        none = np.full(len(rows), -1, np.int8)  # earlier versions wrote none
        rows._labels = arrays.get("labels", none)
        return rows

    def _find_code(self, text: str) -> int:
        if (code := self._codes.get(text)) is None:
            code = self._codes[text] = len(self._texts)
            self._texts.append(text)
        return code
