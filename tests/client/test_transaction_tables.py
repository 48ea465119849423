"""Which columns of a table of transactions mean what."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from basin_client import InputError
from basin_client.tables import Table
from basin_client.transaction_operations import add_labels
from basin_client.transaction_tables import TransactionColumns, read_transactions, to_rows

FRAME = pd.DataFrame(
    {
        "time": ["2026-01-31T23:59:59", "2026-02-01T01:00:00+01:00", "2026-02-01T00:00:01Z"],
        "source": ["007", "7", "A"],
        "target": ["B", "C", "B"],
        "amount": ["10.5", "", "-3"],
        "place": ["x", None, " "],
        "fraud": ["1", "0", "2"],
    }
)
COLUMNS = TransactionColumns(shared=("place",), label="fraud", unlabelled="2")


def read(frame: pd.DataFrame = FRAME, columns: TransactionColumns = COLUMNS):
    return read_transactions(Table(frame, "t.csv"), columns)


def test_ids_are_text_times_are_seconds_and_blanks_are_missing() -> None:
    table = read()
    assert table.calendar
    assert table.source.tolist() == ["007", "7", "A"]
    np.testing.assert_array_equal(np.diff(table.time), [1.0, 1.0])
    np.testing.assert_array_equal(table.amount, [10.5, np.nan, -3.0])
    assert table.text["place"].tolist() == ["x", "", ""]
    assert table.labels is not None
    assert table.labels.tolist() == [1, 0, -1]
    assert table.ids.tolist() == [1, 2, 3]
    assert any("read as UTC" in note for note in table.notes)


def test_rows_for_a_server_leave_out_what_is_missing() -> None:
    table = read()
    first, second, last = to_rows(table, COLUMNS)
    assert first == {
        **{"time": table.time[0], "source": "007", "target": "B", "amount": 10.5, "place": "x"},
        "fraud": 1,
    }
    assert second.keys() == {"time", "source", "target", "fraud"}
    assert "fraud" not in last  # not labelled


@pytest.mark.parametrize("times", [[3, 4, 4.5], ["3", "4", "4.5"]])
def test_numbers_are_times_without_a_calendar(times: list[object]) -> None:
    table = read(FRAME.assign(time=times))
    assert not table.calendar
    assert table.time.tolist() == [3, 4, 4.5]


def test_typed_times_are_the_same_times() -> None:
    typed = FRAME.assign(time=pd.to_datetime(FRAME["time"], format="ISO8601", utc=True))
    np.testing.assert_array_equal(read(typed).time, read().time)
    naive = typed.assign(time=typed["time"].dt.tz_localize(None))
    np.testing.assert_array_equal(read(naive).time, read().time)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"time": ["yesterday", "2026-02-01", "2026-02-01"]}, "row 1, column 'time': neither"),
        ({"time": ["2026-02-01", None, "2026-02-01"]}, "row 2, column 'time': a time is missing"),
        ({"source": ["a", "", "b"]}, "row 2, column 'source': the value is blank"),
        ({"amount": ["1,000.00", "2", "3"]}, "row 1, column 'amount': not a number"),
        ({"amount": ["1", "inf", "3"]}, "row 2, column 'amount': the value is infinite"),
        ({"fraud": ["1", "0", "3"]}, "no row has '2' in 'fraud'"),
        ({"more": [1, 2, 3]}, "column 'more' has no meaning yet"),
    ],
)
def test_what_cannot_be_meant_is_refused(change: dict[str, list[object]], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(FRAME.assign(**change))


def test_columns_that_are_not_there_or_named_twice_are_refused() -> None:
    with pytest.raises(InputError, match="no column 'Zeit'"):
        read(columns=TransactionColumns(time="Zeit", drop=("*",)))
    with pytest.raises(InputError, match="'place' is named for two things"):
        read(columns=TransactionColumns(shared=("place",), number=("place",), drop=("*",)))
    with pytest.raises(InputError, match="Ids must be unique"):
        read(columns=TransactionColumns(id="target", target="source", source="place", drop=("*",)))


def test_unlabelled_values_of_a_typed_column_are_found() -> None:
    table = read(FRAME.assign(fraud=[1.0, np.nan, 2.0]))
    assert table.labels is not None
    assert table.labels.tolist() == [1, -1, -1]


def test_a_column_called_id_is_the_id_alone() -> None:
    with pytest.raises(InputError, match="'id' can only be the id"):
        read(FRAME.rename(columns={"source": "id"}), TransactionColumns(source="id", drop=("*",)))


def test_dropped_columns_are_noted() -> None:
    table = read(columns=TransactionColumns(drop=("*",)))
    assert table.labels is None
    assert any("not read: place, fraud" in note for note in table.notes)


def test_a_part_of_a_table_need_not_have_every_value() -> None:
    labelled = Table(FRAME.assign(fraud=["1", "0", "1"]), "t.csv")
    with pytest.raises(InputError, match="no row has '2'"):
        read_transactions(labelled, COLUMNS)
    assert read_transactions(labelled, COLUMNS, is_part=True).labels.tolist() == [1, 0, 1]


def test_labels_of_transactions_are_0_or_1_by_the_text_of_their_id() -> None:
    request = add_labels("g", {7: 1, "8": False})
    assert json.loads(request.content)["labels"] == [
        {"id": "7", "label": 1},
        {"id": "8", "label": 0},
    ]
    with pytest.raises(InputError, match=r"label of 'p' is 0\.9"):
        add_labels("g", {"p": 0.9})
