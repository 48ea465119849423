"""The commands of tables of transactions: train a checkpoint, or compare models."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from basin_client.command_line import Decimal, Drop, Encoding, Separator
from basin_client.tables import Table, read_table
from basin_client.transaction_tables import TransactionColumns, read_transactions
from rich.progress import Progress

from training.cli_options import (
    DeviceOption,
    EpochsOption,
    Members,
    Name,
    Out,
    PrecisionOption,
    ResultsLogOption,
    RunFolder,
    SmokeOption,
    checkpoint_folder,
    console,
    create_fabric,
    run_folder,
)
from training.datasets.payments import TYPOLOGIES, simulate_payments
from training.datasets.splits import OPTION_HELP, write_split
from training.datasets.transaction_splits import (
    choose_transaction_split,
    describe_overlap,
    find_leaks,
)
from training.datasets.transactions import DescribedTransactions, TransactionData, describe
from training.tasks.anomaly.decisions import DecisionRule, Rule
from training.tasks.anomaly.transactions import results_table
from training.tasks.anomaly.transactions.export import (
    describe_evaluation,
    export_transaction_scorer,
    show_time,
)
from training.tasks.anomaly.transactions.scored import (
    AccountId,
    AccountLabel,
    Accounts,
    AccountSide,
    Score,
    ScoredOptions,
)
from training.tasks.anomaly.transactions.train import (
    train_transaction_scorer,
    transaction_train_config,
)

TableFile = Annotated[Path, typer.Argument(help="table of transactions, one a row")]
Time = Annotated[str, typer.Option(help="column of the time: timestamps, or numbers")]
Source = Annotated[str, typer.Option(help="column of who pays")]
Target = Annotated[str, typer.Option(help="column of who is paid")]
Amount = Annotated[str, typer.Option(help="column of the amount")]
Label = Annotated[
    str | None, typer.Option(help="column of the label: 1 fraud, 0 none, blank unknown")
]
Unlabelled = Annotated[str | None, typer.Option(help="value of --label that means unknown")]
Id = Annotated[str | None, typer.Option("--id", help="column of the id; else the row number")]
Category = Annotated[list[str] | None, typer.Option(help="column of a category; repeat for more")]
Shared = Annotated[
    list[str] | None,
    typer.Option(help="column whose value links transactions, as a device; repeat for more"),
]
Number = Annotated[list[str] | None, typer.Option(help="column of a number; repeat for more")]
Windows = Annotated[
    str | None,
    typer.Option(
        help="lengths of the windows: seconds, or the unit of the time, as in 3600,86400; else an "
        "hour, a day, a week and 30 days of timestamps, or the range of numbers and parts of it"
    ),
]
Neighbors = Annotated[
    int, typer.Option(help="earlier transactions that are linked, of each kind", min=1, max=16)
]
Hops = Annotated[
    int | None,
    typer.Option(
        help="steps to linked transactions: 1 unless given, 0 from those of an account",
        min=0,
        max=2,
    ),
]
KnownAfter = Annotated[
    float | None,
    typer.Option(
        help="let the labels of earlier rows be features, once they are older than this: seconds, "
        "or the unit of the time; else none is",
        min=0,
    ),
]
Split = Annotated[
    str,
    typer.Option(help=f"time, the last rows test; {OPTION_HELP}"),
]


def _describe(
    path: Path,
    columns: TransactionColumns,
    separator: str | None,
    encoding: str | None,
    split_option: str,
    windows: str | None,
    neighbors: int,
    hops: int | None,
    known_after: float | None,
    scored: ScoredOptions,
) -> DescribedTransactions:
    """Read, split and describe a table, and print what was left out, assumed or is suspicious."""
    spans = None if windows is None else _parse_windows(windows)
    table = read_table(path, separator=separator, encoding=encoding)
    columns = _drop_split_column(table, columns, split_option)
    accounts, columns = scored.read_labels(table, columns, separator, encoding)
    hops = int(accounts is None) if hops is None else hops
    data = TransactionData.from_table(read_transactions(table, columns), columns)
    if data.note:
        console.print(data.note, markup=False, highlight=False)
    split = choose_transaction_split(data, table, split_option)
    del table  # some GiB of millions of rows
    described = describe(
        data,
        split,
        windows=spans,
        neighbors=neighbors,
        hops=hops,
        known_after=known_after,
        accounts=accounts,
    )
    recipe, targets = described.recipe, described.targets
    unit = "timestamps" if recipe.calendar else "numbers"

    def show(row: int) -> str:
        return show_time(float(data.rows.time[row]), recipe.calendar)

    kinds = "accounts on both sides" if recipe.accounts_pay_and_are_paid else "of two kinds"
    if targets.accounts is not None:
        unlabelled = int((targets.labels < 0).sum())
        sides = " and ".join(recipe.account_sides)
        kinds = f"accounts, of which those in {sides} are scored"
        console.print(
            f"{len(targets.labels)} accounts, each once in every part where it is an example; "
            f"{unlabelled} of them are not labelled, {int((targets.labels == 1).sum())} are fraud.",
            markup=False,
            highlight=False,
        )
    console.print(
        f"{len(data)} transactions, {len(recipe.features)} features. Times are {unit}; windows "
        f"{', '.join(f'{w:g}' for w in recipe.windows)}. Sources and targets are {kinds}. "
        f"Validation begins at {show(split.val[0])}, test at {show(split.test[0])}. "
        f"{describe_overlap(described)} "
        f"To score {'a transaction' if accounts is None else 'an account'}, send the rows of the "
        f"last {recipe.reach:g}.",
        markup=False,
        highlight=False,
    )
    for warning in find_leaks(described):
        console.print(f"Warning: {warning}", markup=False, highlight=False, style="yellow")
    return described


def _drop_split_column(table: Table, columns: TransactionColumns, split: str) -> TransactionColumns:
    """Leave the column that says how to split out of the features, unless it is named as one."""
    kind, _, name = split.partition(":")
    known = {"source", "target", *columns.options(), *columns.drop}
    if kind in ("column", "group") and name not in known and name in table.frame.columns:
        return replace(columns, drop=(*columns.drop, name))
    return columns


def transactions(
    table: TableFile,
    label: Label = None,
    model: Annotated[str, typer.Option(help="cdat or et")] = "cdat",
    time: Time = "time",
    source: Source = "source",
    target: Target = "target",
    amount: Amount = "amount",
    category: Category = None,
    shared: Shared = None,
    number: Number = None,
    unlabelled: Unlabelled = None,
    id_column: Id = None,
    drop: Drop = None,
    separator: Separator = None,
    encoding: Encoding = None,
    decimal: Decimal = ".",
    split: Split = "time",
    windows: Windows = None,
    neighbors: Neighbors = 3,
    hops: Hops = None,
    known_after: KnownAfter = None,
    score: Score = "transactions",
    account_side: AccountSide = None,
    accounts: Accounts = None,
    account_id: AccountId = "id",
    account_label: AccountLabel = "label",
    budget: Annotated[
        float | None, typer.Option(help="alert on this share of all of them, as 0.01")
    ] = None,
    daily_budget: Annotated[
        float | None, typer.Option(help="alert on this number a day, as 50")
    ] = None,
    precision_goal: Annotated[
        float | None, typer.Option(help="alert with this precision at least, as 0.9")
    ] = None,
    cost_ratio: Annotated[
        float | None,
        typer.Option(help="alert where it pays: cost of an alert / of a missed fraud, as 0.02"),
    ] = None,
    hybrid: Annotated[
        bool, typer.Option(help="with boosted trees that the network reads and is mixed with")
    ] = False,
    members: Members = 1,
    seed: int = 0,
    epochs: EpochsOption = None,
    name: Name = None,
    out: Out = None,
    split_out: Annotated[
        Path | None, typer.Option(help="write the id and part of each row that is split, as CSV")
    ] = None,
    run: RunFolder = None,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "32-true",
    smoke: SmokeOption = False,
) -> None:
    """Train a checkpoint that scores transactions, or accounts, from a table of transactions.

    Unless --split says otherwise, the labelled rows are split by time: 60 % to train, 20 % to
    validate, the last 20 % to test. The features of a transaction come from its own row and the
    rows before it, those of an account from the rows up to its last one of the part.
    """
    rule = _choose_rule(budget, daily_budget, precision_goal, cost_ratio)
    columns = TransactionColumns(
        *(time, source, target, amount, category or (), shared or (), number or (), label),
        *(unlabelled, id_column, drop or (), decimal),
    )
    suffix = "-hybrid" * hybrid + f"-{members}" * (members > 1)
    named = f"{model}-{table.name.partition('.')[0]}{suffix}"
    name, folder = checkpoint_folder(name or named, out)
    scored = ScoredOptions(score, account_side, accounts, account_id, account_label)
    described = _describe(
        table, columns, separator, encoding, split, windows, neighbors, hops, known_after, scored
    )
    num_train, unit = len(described.split.train), described.targets.unit
    recipe = transaction_train_config(model, num_train, unit, hybrid=hybrid, smoke=smoke)
    recipe = replace(recipe, members=members)
    if epochs is not None:
        recipe = replace(recipe, epochs=epochs)
    if split_out is not None:
        write_split(split_out, described.data.ids, described.row_split)
    if run is None:
        data = described.fingerprint + described.recipe.model_dump_json()
        run = run_folder(name, recipe, seed, data)
    fabric = create_fabric(device, precision)
    with Progress(console=console, disable=not fabric.is_global_zero) as progress:
        result = train_transaction_scorer(
            described,
            recipe,
            seed=seed,
            fabric=fabric,
            rule=rule,
            run_folder=run,
            progress=progress,
        )
    if not fabric.is_global_zero:
        return
    written = export_transaction_scorer(folder, name, described, result, seed=seed)
    for line in describe_evaluation(result.evaluation, described.recipe.calendar, unit):
        console.print(line, highlight=False)
    typer.echo(f"{folder} {written.sha256}")


def transactions_table(
    table: TableFile,
    label: Label = None,
    models: Annotated[
        str, typer.Option(help="comma-separated; et:hybrid and others have boosted trees")
    ] = ",".join(results_table.MODELS),
    time: Time = "time",
    source: Source = "source",
    target: Target = "target",
    amount: Amount = "amount",
    category: Category = None,
    shared: Shared = None,
    number: Number = None,
    unlabelled: Unlabelled = None,
    id_column: Id = None,
    drop: Drop = None,
    separator: Separator = None,
    encoding: Encoding = None,
    decimal: Decimal = ".",
    split: Split = "time",
    windows: Windows = None,
    neighbors: Neighbors = 3,
    hops: Hops = None,
    known_after: KnownAfter = None,
    score: Score = "transactions",
    account_side: AccountSide = None,
    accounts: Accounts = None,
    account_id: AccountId = "id",
    account_label: AccountLabel = "label",
    seeds: Annotated[int, typer.Option(help="number of seeds", min=1)] = 5,
    out: ResultsLogOption = None,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "32-true",
    smoke: SmokeOption = False,
) -> None:
    """Train every model on the same table and split, and print the figures."""
    columns = TransactionColumns(
        *(time, source, target, amount, category or (), shared or (), number or (), label),
        *(unlabelled, id_column, drop or (), decimal),
    )
    scored = ScoredOptions(score, account_side, accounts, account_id, account_label)
    described = _describe(
        table, columns, separator, encoding, split, windows, neighbors, hops, known_after, scored
    )
    path = out or Path("runs/tables") / f"{_name_results(described, smoke)}.jsonl"
    fabric = create_fabric(device, precision)
    with Progress(console=console) as progress:
        results = results_table.compute_rows(
            described, models.split(","), range(seeds), path, fabric, progress, smoke=smoke
        )
    typer.echo(results_table.format_table(described, results))


def payments(
    out: Annotated[Path, typer.Argument(help="CSV to write")],
    count: Annotated[int, typer.Option(help="number of payments", min=1000)] = 50_000,
    fraud_share: Annotated[float, typer.Option(help="share of fraud, about")] = 0.02,
    seed: int = 0,
) -> None:
    """Simulate payments with fraud of five typologies, to try things on."""
    frame = simulate_payments(count, fraud_share=fraud_share, seed=seed)
    frame.to_csv(out, index=False)
    counts = frame["typology"].value_counts()
    typer.echo(
        f"{out}: {count} payments, " + ", ".join(f"{counts.get(t, 0)} {t}" for t in TYPOLOGIES)
    )


def _parse_windows(text: str) -> tuple[float, ...]:
    try:
        spans = tuple(sorted({float(part) for part in text.split(",")}))
    except ValueError:
        spans = (0.0,)
    if not (spans[0] > 0 and spans[-1] < float("inf")):
        raise typer.BadParameter("--windows must be positive numbers with commas between them")
    return spans


def _name_results(described: DescribedTransactions, smoke: bool) -> str:
    split = re.sub(r"[^a-zA-Z0-9.-]+", "-", described.split.name)
    accounts = "-accounts" * (described.targets.accounts is not None)
    return f"{described.data.name}{accounts}-{split}{'-smoke' * smoke}"


def _choose_rule(
    budget: float | None,
    daily_budget: float | None,
    precision_goal: float | None,
    cost_ratio: float | None,
) -> DecisionRule:
    given: dict[Rule, float | None] = {
        "budget": budget,
        "daily_budget": daily_budget,
        "precision": precision_goal,
        "cost": cost_ratio,
    }
    rules = [DecisionRule(name, value) for name, value in given.items() if value is not None]
    if len(rules) > 1:
        raise typer.BadParameter(
            "give one of --budget, --daily-budget, --precision-goal and --cost-ratio"
        )
    for rule in rules:
        limit = math.inf if rule.rule == "daily_budget" else 1
        if rule.value is not None and not 0 < rule.value < limit:
            raise typer.BadParameter(f"{rule.value:g}: it must be between 0 and {limit:g}")
    return rules[0] if rules else DecisionRule()
