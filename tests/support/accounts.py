"""A checkpoint that scores accounts, trained for a moment on simulated payments."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from typer.testing import CliRunner

from models.base import DynamicsParams
from models.checkpoint import load_checkpoint
from models.inputs.transactions import Transactions, find_history_kind
from tests.support.few_references import few_references
from training.__main__ import app

COLUMNS = ("--category", "type", "--shared", "device", "--id", "id", "--drop", "typology")


def train_accounts(frame: pd.DataFrame, folder: Path, *options: str) -> str:
    """Train on a table of payments, write the checkpoint to `folder / "accounts"`, and return what
    was printed."""
    table = folder / "payments.csv"
    frame.to_csv(table, index=False)
    command = [
        *("transactions", str(table), *COLUMNS, "--score", "accounts", *options, "--smoke"),
        *("--name", "accounts", "--device", "cpu", "--out", str(folder / "accounts")),
        *("--run-folder", str(folder / "run")),
    ]
    with few_references():
        result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


class AccountState(NamedTuple):
    """An account as of a transaction."""

    transaction_id: str
    account: str
    score: float
    probability: float


def score_states(checkpoint: Path, frame: pd.DataFrame) -> list[AccountState]:
    """Score who pays and who is paid, as of each row of a table of payments in order of time, each
    alone, from a checkpoint without a server."""
    loaded = load_checkpoint(checkpoint)
    recipe = loaded.manifest.transactions
    assert recipe is not None
    times = pd.to_datetime(frame["time"], format="ISO8601", utc=True)
    history = find_history_kind(recipe)(recipe)
    history.append(
        Transactions(
            ((times - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(seconds=1)).to_numpy(),
            *(frame[name].to_numpy(object) for name in ("source", "target")),
            frame["amount"].to_numpy(),
            {name: frame[name].to_numpy(object) for name in ("type", "device")},
            {},
        )
    )
    ids, accounts, states = list[str](), list[str](), list[int]()
    columns = (frame[name] for name in ("id", "source", "target"))
    for row, (row_id, source, target) in enumerate(zip(*columns, strict=True)):
        for side, account in enumerate(dict.fromkeys((source, target))):
            ids.append(row_id)
            accounts.append(account)
            states.append(2 * row + side)
    scores = list[float]()
    for state in states:
        graph, _, _ = history.build_graph(np.array([state]))
        output = loaded.network.infer(loaded.network.pack([graph]), [DynamicsParams()])
        scores.append(output.logits[0].item())
    probabilities = loaded.manifest.calibration(np.array(scores)).tolist()
    return list(map(AccountState, ids, accounts, scores, probabilities))


def list_crossings(states: list[AccountState], threshold: float) -> list[tuple[str, str]]:
    """Return account and transaction wherever an account reaches the threshold and did not as of
    its transaction before."""
    above, crossings = set[str](), list[tuple[str, str]]()
    for state in states:
        if state.probability < threshold:
            above.discard(state.account)
        elif state.account not in above:
            above.add(state.account)
            crossings.append((state.account, state.transaction_id))
    return crossings
