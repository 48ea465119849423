"""From columns of numbers and categories to vectors; what is fitted travels with the weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np
import torch
from torch import Tensor, nn

from models.inputs.graph import Column


def find_categorical_columns(columns: Sequence[Column]) -> tuple[int, ...]:
    """Which of the columns hold categories; the others hold numbers."""
    return tuple(i for i, column in enumerate(columns) if column.values is not None)


@final
class ColumnEncoder(nn.Module):
    """Sum of an embedding of each categorical value, plus W (c - mean) / std of the numbers c.

    The embedding is ET's linear embedding (appendix D.1) of a one-hot vector. A whole number
    outside a vocabulary raises IndexError; `check` says beforehand which column it is in.
    """

    mean_F: Tensor
    std_F: Tensor

    def __init__(self, columns: Sequence[Column], width: int) -> None:
        super().__init__()
        self.columns = tuple(columns)
        self.categorical = find_categorical_columns(columns)
        self.numerical = [i for i, c in enumerate(columns) if c.values is None]
        sizes = [len(columns[i].values or ()) for i in self.categorical]
        self.offsets = np.r_[0, np.cumsum(sizes)][:-1].tolist()
        if self.categorical:
            scale = len(columns) ** -0.5
            self.table_VD = nn.Parameter(torch.randn(sum(sizes), width) * scale)
        self.linear = nn.Linear(len(self.numerical), width) if self.numerical else None
        self.register_buffer("mean_F", torch.zeros(len(self.numerical)))
        self.register_buffer("std_F", torch.ones(len(self.numerical)))

    def fit(self, tables: Sequence[np.ndarray]) -> ColumnEncoder:
        """Set mean and spread of the numbers from the rows of `tables`; returns self."""
        if self.numerical:
            table = np.concatenate([t[:, self.numerical] for t in tables]).astype(np.float64)
            std = table.std(0)
            self.mean_F = torch.from_numpy(table.mean(0)).to(self.mean_F)
            self.std_F = torch.from_numpy(np.where(std > 1e-6, std, 1)).to(self.std_F)
        return self

    def check(self, table: np.ndarray) -> None:
        """Refuse values that the columns do not have.

        Raises:
            ValueError: naming the column.
        """
        if table.ndim != 2 or table.shape[1] != len(self.columns):
            raise ValueError(f"there must be {len(self.columns)} columns")
        for column, values in zip(self.columns, table.T, strict=True):
            if not np.isfinite(values).all():
                raise ValueError(f"{column.name}: a value is not finite")
            if (
                column.values is not None
                and not (
                    (values == np.floor(values)) & (values >= 0) & (values < len(column.values))
                ).all()
            ):
                raise ValueError(f"{column.name}: a value is not in 0..{len(column.values) - 1}")

    def forward(self, table_NF: Tensor) -> Tensor:
        """Vectors (N, width)."""
        out: Tensor | None = None
        if self.categorical:
            index = table_NF[:, self.categorical].long()
            index = index + torch.tensor(self.offsets, device=index.device)
            out = nn.functional.embedding_bag(index, self.table_VD, mode="sum")
        if self.linear is not None:
            numbers = (table_NF[:, self.numerical].to(self.mean_F) - self.mean_F) / self.std_F
            linear = self.linear(numbers)
            out = linear if out is None else out + linear
        if out is None:
            raise ValueError("there are no columns to encode")
        return out
