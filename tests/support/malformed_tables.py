"""Tables that cannot be used, and what is said of each; printed, they are docs/table-errors.md.

python -m tests.support.malformed_tables > docs/table-errors.md
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from basin_client import InputError
from basin_client.graph_tables import ColumnOptions, graph_from_tables
from basin_client.schema import GraphSchema
from basin_client.smiles import read_smiles
from basin_client.tables import read_table

from training.datasets import load_node_tables, load_smiles

NODES = "id,amount,age,is_fraud\na,1.5,30,1\nb,2.5,40,0\nc,3.5,50,\n"
EDGES = "source,target\na,b\nb,c\n"
TYPED = "source,target,type\na,b,card\nb,c,ip\n"
EDGE_SCHEMA = GraphSchema("flows", ("amount", "age"), ("edge",), edge_features=("sum",))
SCHEMA = GraphSchema("fraud", ("amount", "age"), ("edge",))
TYPED_SCHEMA = GraphSchema("typed", ("amount", "age"), ("card", "ip"))


@dataclass(frozen=True)
class Malformed:
    """Two tables that training refuses, or scoring, or both alike.

    Attributes:
        nodes, edges: text of nodes.csv and edges.csv; the file is missing if None.
        scoring: what reads them; training too if None.
        as_shown: the input beside the message; the changed text if empty.
    """

    what: str
    nodes: str | bytes | None = NODES
    edges: str | bytes | None = EDGES
    schema: GraphSchema | None = None
    options: dict[str, Any] = field(default_factory=dict)
    reader: dict[str, str] = field(default_factory=dict)
    shown: str = ""


def _nodes(old: str, new: str) -> str:
    assert old in NODES
    return NODES.replace(old, new)


CASES = (
    Malformed("no file", nodes=None),
    Malformed("an empty file", nodes=""),
    Malformed("a header alone", nodes="id,amount,age,is_fraud\n"),
    Malformed("no column of ids", nodes=_nodes("id,amount", "account,amount")),
    Malformed("no label", nodes=_nodes("is_fraud", "fraud")),
    Malformed("ends of edges under other names", edges="src,dst\na,b\n"),
    Malformed("one column twice", nodes=_nodes("amount,age", "age,age")),
    Malformed("a row with a value too many", nodes=_nodes("b,2.5,40,0", "b,2.5,40,0,7")),
    Malformed("a row with a value too few", nodes=_nodes("b,2.5,40,0", "b,2.5,40")),
    Malformed("a blank id", nodes=_nodes("b,2.5", ",2.5")),
    Malformed("an id of blanks", nodes=_nodes("b,2.5", "  ,2.5")),
    Malformed("an id twice", nodes=_nodes("b,2.5", "a,2.5")),
    Malformed("a blank end of an edge", edges="source,target\na,b\n,c\n"),
    Malformed("an edge to a node that is not there", edges="source,target\na,b\nb,z\n"),
    Malformed("007 is not 7", nodes=_nodes("b,", "007,"), edges="source,target\na,7\n"),
    Malformed("a blank before an id", edges="source,target\na, b\n"),
    Malformed("2 is not 2.0", nodes=_nodes("b,", "2,"), edges="source,target\na,2.0\n"),
    Malformed("a missing value", nodes=_nodes("2.5,40", "2.5,")),
    Malformed("NA is a missing value of a number", nodes=_nodes("2.5,40", "NA,40")),
    Malformed("an infinite value", nodes=_nodes("2.5,40", "inf,40")),
    Malformed("a value beyond float32", nodes=_nodes("2.5,40", "1e39,40")),
    Malformed("text as a feature", nodes=_nodes("2.5,40", "2.5,forty")),
    Malformed("thousands separators", nodes=_nodes("2.5,40", '"2,500",40')),
    Malformed("a date as a feature", nodes=_nodes("2.5,40", "2.5,2026-01-31")),
    Malformed("an underscore in a number", nodes=_nodes("2.5,40", "2.5,4_0")),
    Malformed("a label that is neither", nodes=_nodes("40,0", "40,maybe")),
    Malformed("a label of 2", nodes=_nodes("40,0", "40,2")),
    Malformed(
        "no feature left", options={"drop": ["amount", "age"]}, shown="--drop amount --drop age"
    ),
    Malformed(
        "a column to drop that is not there", options={"drop": ["amout"]}, shown="--drop amout"
    ),
    Malformed(
        "a feature that is not there", options={"features": ["amout"]}, shown="--features amout"
    ),
    Malformed("amounts on edges", edges="source,target,amount\na,b,1\n"),
    Malformed(
        "a feature of edges that is missing",
        edges="source,target,amount\na,b,1\nb,c,\n",
        options={"edge_features": ["amount"]},
        shown="--edge-features amount; source,target,amount ⏎ a,b,1 ⏎ b,c,",
    ),
    Malformed(
        "a feature of edges that is not there",
        options={"edge_features": ["amount"]},
        shown="--edge-features amount",
    ),
    Malformed(
        "a feature that says what an edge is",
        edges="source,target,type\na,b,card\n",
        options={"edge_features": ["type"]},
        shown="--edge-features type",
    ),
    Malformed("a blank type", edges="source,target,type\na,b,card\nb,c,\n"),
    Malformed("Windows-1252", nodes=NODES.replace("age", "âge").encode("cp1252"), shown="âge"),
    Malformed("an unknown encoding", reader={"encoding": "latin-99"}, shown="--encoding latin-99"),
    Malformed("a long separator", reader={"separator": "::"}, shown="--separator ::"),
    Malformed("the wrong separator", reader={"separator": ";"}, shown="--separator ;"),
    Malformed("two separators alike", nodes="id;amount,age;is_fraud,x\n"),
    Malformed("scoring: a feature is missing", nodes=_nodes(",age", ",years"), schema=SCHEMA),
    Malformed("scoring: a column that the model does not read", schema=SCHEMA, shown="is_fraud"),
    Malformed(
        "scoring: a feature of edges is missing",
        schema=EDGE_SCHEMA,
        options={"drop": ["is_fraud"]},
    ),
    Malformed(
        "scoring: types, and a model without",
        edges=TYPED,
        schema=SCHEMA,
        options={"drop": ["is_fraud"]},
    ),
    Malformed(
        "scoring: no types, and a model with several",
        schema=TYPED_SCHEMA,
        options={"drop": ["is_fraud"]},
    ),
    Malformed(
        "scoring: an unknown relation",
        edges=TYPED.replace("ip", "phone"),
        schema=TYPED_SCHEMA,
        options={"drop": ["is_fraud"]},
    ),
    Malformed(
        "scoring: a relation by number",
        edges=TYPED.replace("ip", "1"),
        schema=TYPED_SCHEMA,
        options={"drop": ["is_fraud"]},
    ),
)
_MOLECULES = {
    "no column of SMILES": ("m.csv", "structure,active\nCCO,0\nCCN,1\n"),
    "no column of the label": ("m.csv", "smiles,class\nCCO,0\nCCN,1\n"),
    "one value as label": ("m.csv", "smiles,active\nCCO,1\nCCN,1\n"),
    "numbers with decimals as label": ("m.csv", "smiles,active\nCCO,0.5\nCCN,1.2\n"),
    "labels that differ in case": ("m.csv", "smiles,active\nCCO,Yes\nCCN,yes\nCCC,no\n"),
    "no molecule among them": ("m.csv", "smiles,active\nxx,0\nyy,1\n"),
    "no table at all": ("m.xlsx", "PK"),
    "a broken JSON": ("m.json", '[{"smiles": "CCO"'),
    "JSON that is no table": ("m.json", '[["CCO"]]'),
    "a broken Parquet": ("m.parquet", "PAR1"),
    "a broken gzip": ("m.csv.gz", "smiles"),
}

_HEAD = """\
# What is said of tables that cannot be used

Printed by `python -m tests.support.malformed_tables`. Training, `basin score`, `--bulk` and the
client read tables by the same code and say the same; the rules are in [Tables](tables.md). Rows
count from 1, without the header. The tables are `nodes.csv` (`id,amount,age,is_fraud`) and
`edges.csv` (`source,target`), with the lines shown changed.
""".splitlines()
_COLUMNS = ["| what is wrong | the input | the message |", "|---|---|---|"]


@contextlib.contextmanager
def _in_folder(files: dict[str, str | bytes | None]) -> Iterator[None]:
    """Write files to a new folder and work there, so that messages name them without a path."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for name, content in files.items():
            if content is not None:
                Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
        yield


def training_error(case: Malformed) -> str | None:
    """Return what training says; None where it takes the tables, or the case is about scoring."""
    if case.schema is not None:
        return None

    def read() -> object:
        options = ColumnOptions(**case.options)
        return load_node_tables(
            Path("nodes.csv"), Path("edges.csv"), "is_fraud", options, **case.reader
        )

    with _in_folder({"nodes.csv": case.nodes, "edges.csv": case.edges}):
        return _message(read)


def scoring_error(case: Malformed) -> str | None:
    """Return what the command line and the client say of the same tables."""
    with _in_folder({"nodes.csv": case.nodes, "edges.csv": case.edges}):
        drop = list(case.options.get("drop", ()))
        if case.schema is None and not drop and b"is_fraud" in _bytes(case, "nodes"):
            drop = ["is_fraud"]
        schema = case.schema or (TYPED_SCHEMA if b"type" in _bytes(case, "edges") else SCHEMA)

        def read() -> object:
            tables = [read_table(name, **case.reader) for name in ("nodes.csv", "edges.csv")]
            return graph_from_tables(
                *tables, schema, ColumnOptions(**case.options | {"drop": drop})
            )

        return _message(read)


def molecule_errors() -> Iterator[tuple[str, str, str]]:
    """Yield what, the input and the message of tables of molecules."""
    for what, (name, content) in _MOLECULES.items():
        with _in_folder({name: content}):
            message = _message(partial(load_smiles, Path(name), "smiles", ["active"]))
        assert message is not None, what
        yield what, content, message
    with _in_folder({"m.smi": "CCO ethanol\n"}):
        message = _message(lambda: read_smiles("m.smi", column="drug"))
        assert message is not None
        yield "a column of a file without", "CCO ethanol", message


def _bytes(case: Malformed, which: str) -> bytes:
    content = getattr(case, which) or b""
    return content if isinstance(content, bytes) else content.encode()


def _message(read: Callable[[], object]) -> str | None:
    try:
        read()
    except InputError as error:
        return str(error)
    return None


def _shown(case: Malformed) -> str:
    if case.shown:
        return case.shown
    for text, usual in ((case.nodes, NODES), (case.edges, EDGES)):
        if text is None:
            return "no nodes.csv"
        if isinstance(text, str) and text != usual:
            changed = [line for line in text.splitlines() if line not in usual.splitlines()]
            return " ⏎ ".join(changed) or "(nothing)"
    return EDGES.splitlines()[0]


def to_markdown() -> str:
    """Return the page."""
    lines = [*_HEAD, "", *_COLUMNS]
    for case in CASES:
        message = training_error(case) or scoring_error(case)
        lines.append(_row(case.what, _shown(case), message))
    lines += ["", "Molecules (`m.csv`, columns `smiles` and `active`):", "", *_COLUMNS]
    for what, content, message in molecule_errors():
        lines.append(_row(what, " ⏎ ".join(content.splitlines()), message))
    return "\n".join(lines) + "\n"


def _row(what: str, shown: str, message: str | None) -> str:
    cells = [what, f"`{shown}`", message or ""]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    print(to_markdown(), end="")
