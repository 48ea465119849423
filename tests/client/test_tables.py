"""The one reader of tables: what each kind of input means, and what is said of those it refuses."""

from __future__ import annotations

import gzip
import json
import zipfile
from decimal import Decimal
from pathlib import Path

import networkx as nx
import numpy as np
import pandas as pd
import pytest
from basin_client import Graph, InputError
from basin_client.columns import read_labels, read_numbers, to_ids
from basin_client.graph_tables import ColumnOptions, find_targets, graph_from_tables
from basin_client.graphs import needs_schema, to_graph
from basin_client.schema import GraphSchema
from basin_client.tables import Table, read_table, read_text

from tests.support.malformed_tables import (
    CASES,
    Malformed,
    molecule_errors,
    scoring_error,
    to_markdown,
    training_error,
)
from tests.support.paths import REPO

SCHEMA = GraphSchema("model", ("amount", "age"), ("1", "2", "10"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.what)
def test_what_cannot_be_used_is_named_in_one_line(case: Malformed) -> None:
    """By training, and by the command line and the client alike."""
    training, scoring = training_error(case), scoring_error(case)
    messages = [message for message in (training, scoring) if message is not None]
    assert messages
    for message in messages:
        assert "\n" not in message
        assert message.endswith(".")
    is_about_training = "label" in case.what or case.what == "no feature left"
    if case.schema is None and not is_about_training and case.options == {}:
        # Scoring also lists what the model reads, or drops the label.
        assert scoring is not None
        assert scoring == training or scoring.partition(".")[0] == training.partition(".")[0]


def test_molecules_that_cannot_be_used() -> None:
    assert all("\n" not in message for _, _, message in molecule_errors())


def test_the_page_lists_the_messages() -> None:
    assert (REPO / "docs/table-errors.md").read_text() == to_markdown(), (
        "run: python -m tests.support.malformed_tables > docs/table-errors.md"
    )


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv", "id;name\n007;é\n"),
        ("t.csv", "id|name\n007|é\n"),
        ("t.tsv", "id\tname\n007\té\n"),
        ("t.csv", '"id","name"\r\n"007","é"\r\n'),
        ("t.json", json.dumps([{"id": "007", "name": "é"}])),
        ("t.jsonl", json.dumps({"id": "007", "name": "é"}) + "\n"),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be-bom", "cp1252"])
@pytest.mark.parametrize("compressed", [False, True])
def test_formats(tmp_path: Path, name: str, content: str, encoding: str, compressed: bool) -> None:
    raw = (
        b"\xfe\xff" + content.encode("utf-16-be")
        if encoding == "utf-16-be-bom"
        else content.encode(encoding)
    )
    path = tmp_path / (name + ".gz" * compressed)
    path.write_bytes(gzip.compress(raw) if compressed else raw)
    frame = read_table(path, encoding="cp1252" if encoding == "cp1252" else None).frame
    assert frame.to_dict("list") == {"id": ["007"], "name": ["é"]}


def test_text_is_kept_as_it_is_written(tmp_path: Path) -> None:
    ids = [
        "007",
        "7",
        "NA",
        "null",
        "nan",
        "1e5",
        "9007199254740993",
        "12345678901234567890123",
        "é",
    ]
    (tmp_path / "t.csv").write_text("id\n" + "\n".join(ids) + "\n", encoding="utf-8")
    assert list(read_table(tmp_path / "t.csv").frame["id"]) == ids
    rows = [{"id": number} for number in (2**64, 7, "x")]
    (tmp_path / "t.json").write_text(json.dumps(rows))
    table = read_table(tmp_path / "t.json")
    assert list(to_ids(table.column("id"), "t", "id")) == [str(2**64), "7", "x"]


def test_an_empty_line_of_one_column_is_an_empty_value(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("smiles\nC\n\nCC\n")
    assert list(read_table(tmp_path / "t.csv").frame["smiles"]) == ["C", "", "CC"]
    (tmp_path / "u.csv").write_text("a,b\n1,2\n\n3,4\n")
    assert list(read_table(tmp_path / "u.csv").frame["a"]) == ["1", "3"]


def test_a_quoted_line_end_is_part_of_a_value(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('"first\nline",b\n"x\ny",2\n3,4,5\n')
    with pytest.raises(InputError, match="row 2 has 3 columns, the header has 2"):
        read_table(tmp_path / "t.csv")


def test_standard_input(monkeypatch) -> None:
    import io
    import sys
    from types import SimpleNamespace

    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"a,b\n1,2\n")))
    assert read_table("-").frame.to_dict("list") == {"a": ["1"], "b": ["2"]}
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"C\n")))
    assert read_text("-") == "C\n"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([7, 8], ["7", "8"]),
        ([7.0, 8.0], ["7", "8"]),
        (["007", "x"], ["007", "x"]),
        ([1, "x"], ["1", "x"]),
        ([Decimal("7"), Decimal("8.0")], ["7", "8"]),
        ([b"a", b"b"], ["a", "b"]),
        (pd.Categorical(["b", "a"]), ["b", "a"]),
        (pd.Categorical([2, 1]), ["2", "1"]),
        (np.array([2**63, 1], np.uint64), [str(2**63), "1"]),
        (pd.array([1, 2], "Int64"), ["1", "2"]),
    ],
)
def test_ids_of_any_type(values: object, expected: list[str]) -> None:
    assert list(to_ids(pd.Series(values), "t", "id")) == expected


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1.5, 2.0], r"row 1, column 'id': the id 1.5 is a number with decimals"),
        ([1.0, np.nan], "row 2, column 'id': the value is blank"),
        (["a", None], "row 2, column 'id': the value is blank"),
        (["a", " "], "row 2, column 'id': the value is blank"),
        ([True, False], "true and false"),
        ([2.0**53, 1.0], r"beyond 2\^53"),
        ([b"\xff", b"a"], "not UTF-8"),
        (pd.array([1, None], "Int64"), "row 2, column 'id': the value is blank"),
    ],
)
def test_ids_that_are_none(values: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        to_ids(pd.Series(values), "t", "id")


def test_numbers() -> None:
    texts = pd.Series([" 1.5", "+2", "-.5", "1e-3", "NA", ""], name="f")
    np.testing.assert_array_equal(read_numbers(texts, "t"), [1.5, 2, -0.5, 1e-3, np.nan, np.nan])
    np.testing.assert_array_equal(read_numbers(pd.Series(["True", "FALSE"]), "t"), [1, 0])
    np.testing.assert_array_equal(read_numbers(pd.Series([True, False]), "t"), [1, 0])
    np.testing.assert_array_equal(read_numbers(pd.Series(["1,5"]), "t", ","), [1.5])
    np.testing.assert_array_equal(
        read_numbers(pd.Series([Decimal("0.5"), None]), "t"), [0.5, np.nan]
    )
    with pytest.raises(InputError, match="holds datetime64"):
        read_numbers(pd.Series(pd.to_datetime(["2026-01-01"]), name="f"), "t")


def _tables(nodes: dict, edges: dict) -> tuple[Table, Table]:
    return Table(pd.DataFrame(nodes), "nodes"), Table(pd.DataFrame(edges), "edges")


def test_columns_and_relations_are_matched_by_name() -> None:
    nodes = {"age": [1, 2], "key": ["a", "b"], "amount": [3, 4], "note": ["x", "y"]}
    edges = {"to": ["b", "a"], "from": ["a", "b"], "kind": [10, 2]}
    options = ColumnOptions("key", "from", "to", "kind", drop=["note"])
    graph = graph_from_tables(*_tables(nodes, edges), SCHEMA, options)
    assert graph.x.tolist() == [[3, 1], [4, 2]]
    assert graph.edge_index.tolist() == [[0, 1], [1, 0]]
    assert graph.edge_type is not None
    assert graph.edge_type.tolist() == [2, 1]
    assert graph.relations == SCHEMA.relations
    assert find_targets(graph.ids, pd.Series(["b"]), "targets", "id").tolist() == [1]
    training = graph_from_tables(*_tables(nodes, edges), None, options)
    assert training.features == ("age", "amount")
    assert training.relations == ("2", "10")  # numbers in their order


def test_features_of_edges_are_named_in_training_and_matched_in_scoring() -> None:
    nodes = {"id": ["a", "b"], "amount": [3, 4], "age": [1, 2]}
    edges = {"source": ["a", "b"], "target": ["b", "a"], "hour": ["7", "23"], "sum": [1.5, 2e9]}
    options = ColumnOptions(edge_features=["sum", "hour"])
    training = graph_from_tables(*_tables(nodes, edges), None, options)
    assert training.edge_features == ("sum", "hour")
    assert training.edge_attr is not None
    assert training.edge_attr.dtype == np.float32
    assert training.edge_attr.tolist() == [[1.5, 7], [2e9, 23]]
    assert graph_from_tables(*_tables(nodes, edges), None, ColumnOptions(drop=["*"])).notes == (
        "edges: not read: hour, sum.",
    )
    schema = GraphSchema("m", ("amount", "age"), ("edge",), edge_features=("hour", "sum"))
    frames = pd.DataFrame(nodes), pd.DataFrame(edges)
    graph = to_graph(frames, schema=schema)
    assert graph.edge_attr is not None
    assert graph.edge_attr.tolist() == [[7, 1.5], [23, 2e9]]
    assert graph.names()["edge_feature_names"] == ["hour", "sum"]
    assert graph.arrays()["edge_attr"].dtype == np.float32
    flows = nx.DiGraph()
    flows.add_node("a", x=[3.0, 1.0])
    flows.add_node("b", x=[4.0, 2.0])
    flows.add_edge("a", "b", sum=1.5, hour=7)
    flows.add_edge("b", "a", sum=2e9, hour=23)
    of_networkx = to_graph(flows, schema=schema)
    assert of_networkx.edge_attr is not None
    assert of_networkx.edge_attr.tolist() == graph.edge_attr.tolist()
    with pytest.raises(InputError, match="no column 'sum'"):
        to_graph((frames[0], frames[1].drop(columns="sum")), schema=schema)
    with pytest.raises(InputError, match=r"Pass a networkx\.DiGraph"):
        to_graph(flows.to_undirected(), schema=schema)
    flows.remove_edges_from(list(flows.edges))
    without = to_graph((frames[0], frames[1][["source", "target"]][:0]), schema=schema)
    for empty in (without, to_graph(flows, schema=schema)):
        assert empty.edge_attr is not None
        assert empty.edge_attr.shape == (0, 2)


def test_columns_that_are_left_out_are_named_in_notes() -> None:
    nodes = {"Unnamed: 0": [0, 1], "id": ["a", "b"], "amount": [3, 4], "age": [1, 2], "note": "x"}
    edges = {"source": ["a"], "target": ["b"], "type": ["1"], "time": [5]}
    graph = graph_from_tables(*_tables(nodes, edges), SCHEMA, ColumnOptions(drop=["*"]))
    assert graph.notes == (
        "nodes: column 'Unnamed: 0' has no name, so it is left out.",
        "nodes: not read: note.",
        "edges: not read: time.",
    )


def test_a_graph_without_edges_has_relations_all_the_same() -> None:
    nodes = {"id": ["a"], "amount": [3], "age": [1]}
    edges = {"source": [], "target": [], "type": []}
    graph = graph_from_tables(*_tables(nodes, edges), SCHEMA)
    assert graph.edge_index.shape == (2, 0)
    assert graph.edge_type is not None
    assert graph.edge_type.tolist() == []


def test_integers_of_two_types_are_compared_exactly() -> None:
    """As floats 2^63 and 2^63 + 1 would be one node."""
    ids = np.array([2**63, 2**63 + 1, 5], np.uint64)
    nodes = {"id": ids, "amount": [3, 4, 5], "age": [1, 2, 3]}
    edges = {"source": np.array([5, 5], np.int64), "target": np.array([2**63 + 1] * 2, np.uint64)}
    graph = graph_from_tables(*_tables(nodes, edges))
    assert graph.edge_index.tolist() == [[2, 2], [1, 1]]
    assert graph.ids.tolist() == ids.tolist()
    nullable = {"id": pd.array([1, 2], "Int64"), "amount": [3, 4], "age": [1, 2]}
    graph = graph_from_tables(*_tables(nullable, {"source": [1.0], "target": ["2"]}))
    assert graph.edge_index.tolist() == [[0], [1]]


def test_training_on_a_table_of_types_without_edges() -> None:
    nodes = {"id": ["a"], "amount": [3]}
    graph = graph_from_tables(*_tables(nodes, {"source": [], "target": [], "type": []}))
    assert (graph.relations, graph.edge_type) == (("edge",), None)


def test_a_relation_that_is_called_edge() -> None:
    """As the only one it is what edges without types have, by whichever name."""
    nodes = {"id": ["a", "b"], "amount": [3, 4]}
    tables = _tables(nodes, {"source": ["a"], "target": ["b"], "type": ["edge"]})
    assert graph_from_tables(*tables).relations == ("edge",)
    graph = Graph.from_table_graph(
        graph_from_tables(*tables, GraphSchema("m", ("amount",), ("edge",)))
    )
    assert (graph.edge_type, graph.relation_names) == (None, None)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('id,x\n1,2\n2,"3\n3,4\n', "a quote is opened and not closed"),
        ('id,x\n1,5" pipe\n', "a quote is opened and not closed"),
    ],
)
def test_an_open_quote_swallows_nothing(tmp_path: Path, content: str, message: str) -> None:
    for encoding in ("utf-8", "utf-16"):
        (tmp_path / "t.csv").write_text(content, encoding=encoding)
        with pytest.raises(InputError, match=message):
            read_table(tmp_path / "t.csv")


def test_decimal_commas_and_points_are_not_mixed() -> None:
    with pytest.raises(InputError, match="row 1, column 'f': a number with a point"):
        read_numbers(pd.Series(["1.234", "2,5"], name="f"), "t", ",")
    for decimal in ("", "..", "1"):
        with pytest.raises(InputError, match="must be one character"):
            read_numbers(pd.Series(["1"], name="f"), "t", decimal)


def test_categories_with_a_missing_value() -> None:
    column = pd.Series(pd.Categorical.from_codes([0, -1, 1], [10, 20]), name="f")
    np.testing.assert_array_equal(read_numbers(column, "t"), [10, np.nan, 20])
    with pytest.raises(InputError, match="row 2, column 'f': the value is blank"):
        to_ids(column, "t", "f")


def test_labels_that_are_missing_in_other_programs() -> None:
    labels = ["1", "NA", "N/A", "NULL", "", "No", "TRUE"]
    assert read_labels(Table(pd.DataFrame({"y": labels}), "t"), "y").tolist() == [
        1,
        -1,
        -1,
        -1,
        -1,
        0,
        1,
    ]


def test_a_header_after_an_empty_line(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("\nid;x\n1;2\n")
    assert read_table(tmp_path / "t.csv").frame.to_dict("list") == {"id": ["1"], "x": ["2"]}
    (tmp_path / "t.jsonl").write_text('{"id": "a\u2028b"}\n', encoding="utf-8")
    assert list(read_table(tmp_path / "t.jsonl").frame["id"]) == ["a\u2028b"]


def test_undirected_networkx_graphs_of_a_directed_model() -> None:
    graph = nx.Graph()
    graph.add_node(1, x=[1.0])
    graph.add_node(2, x=[2.0], label=1)
    graph.add_edge(1, 2)
    schema = GraphSchema("model", ("amount",), ("edge",), undirected=False)
    assert needs_schema(graph)
    converted = to_graph(graph, schema=schema, drop=["label"])
    assert converted.edge_index.tolist() == [[0, 1], [1, 0]]
    assert converted.feature_names is None
    with pytest.raises(InputError, match="drop names 'amout'"):
        to_graph(graph, schema=schema, drop=["amout"])
    with pytest.raises(InputError, match="no nodes"):
        to_graph(nx.Graph(), schema=schema)
    graph.nodes[2]["x"] = [1.0, 2.0]
    with pytest.raises(InputError, match="as many for each node"):
        to_graph(graph, schema=schema)


def test_a_zip_file_has_one_table(tmp_path: Path) -> None:
    path = tmp_path / "t.zip"

    def pack(**files: str) -> Path:
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in files.items():
                archive.writestr(name.replace("_", "."), content)
        return path

    assert read_table(pack(t_tsv="id\tname\n007\té\n")).frame.to_dict("list") == {
        "id": ["007"],
        "name": ["é"],
    }
    for message, files in (
        ("has 2 files", {"a_csv": "x\n1\n", "b_csv": "x\n1\n"}),
        ("has 0 files", {}),
        ("not the suffix of a table", {"a_txt": "x"}),
        ("Parquet in a zip file is not read", {"a_parquet": "x"}),
    ):
        with pytest.raises(InputError, match=message):
            read_table(pack(**files))
    pack(a_csv="x\n1\n")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(".DS_Store", "")
        archive.writestr("__MACOSX/._a.csv", "")
    assert read_table(path).frame.to_dict("list") == {"x": ["1"]}
    content = bytearray(pack(a_csv="x\n1\n" * 100).read_bytes())
    for field in (content.find(b"PK\1\2") + 8, 6):  # flags: encrypted
        content[field] |= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"password required.*Unpack it first"):
        read_table(path)
    path.write_bytes(b"PK no zip")
    with pytest.raises(InputError, match="not a zip file"):
        read_table(path)
