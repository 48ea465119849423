"""A table of figures, ours beside a paper's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

Cell = str | float | None


@dataclass
class Table:
    """Rows of text and numbers under a title; `note` says by which protocol."""

    title: str
    columns: Sequence[str]
    note: str
    rows: list[tuple[Cell, ...]] = field(default_factory=list)

    def add_row(self, *cells: Cell) -> None:
        if len(cells) != len(self.columns):
            raise ValueError("a row has a cell per column")
        self.rows.append(cells)

    def to_markdown(self) -> str:
        lines = [
            f"### {self.title}",
            "",
            "| " + " | ".join(self.columns) + " |",
            "|---" * len(self.columns) + "|",
            *("| " + " | ".join(map(_text, row)) + " |" for row in self.rows),
            "",
            self.note,
        ]
        return "\n".join(lines)


def _text(cell: Cell) -> str:
    if cell is None:
        return ""
    return cell if isinstance(cell, str) else f"{cell:.3f}"
