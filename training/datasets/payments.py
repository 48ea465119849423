"""Simulated payments between accounts, with fraud of known typologies; own rules, no real data.

Honest accounts pay a few partners often and others now and then, by day more than by night. Fraud
comes in schemes of several payments, each labelled:

- `fan_in`: many accounts pay one within a day or two, as to a collector of scams;
- `fan_out`: one account pays many within hours, as after a takeover;
- `cycle`: money goes round three to six accounts and loses a few percent at each;
- `structuring`: payments just below the threshold of reporting, between two accounts, over days;
- `mules`: a large payment is passed on within minutes, twice, by accounts that did little before.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np
import pandas as pd
from pandas.api.extensions import ExtensionArray

from models.inputs.graph import Graph
from training.datasets.nodes import NodeDataset

TYPOLOGIES = ("fan_in", "fan_out", "cycle", "structuring", "mules")
_START = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
_DAY = 86_400.0
_DAYS = 60
_PER_ACCOUNT = 12  # payments of an account, on average
_PARTNERS = 5
_REPORTED = 10_000.0
_TYPES = np.array(["transfer", "card", "cash"])


class _Scheme(NamedTuple):
    """Payments of one scheme: arrays of equal length."""

    time: np.ndarray
    source: np.ndarray
    target: np.ndarray
    amount: np.ndarray
    type: np.ndarray


def simulate_payments(count: int, *, fraud_share: float = 0.02, seed: int = 0) -> pd.DataFrame:
    """Return `count` payments in order of time, about `fraud_share` of them fraud.

    Columns: `id`, `time` (ISO 8601), `source`, `target`, `amount`, `type`, `device`, `is_fraud` and
    `typology`, which is blank where a payment is honest and must not be a feature.

    Raises:
        ValueError: there are fewer than 1,000 payments, or `fraud_share` is not between 0 and 0.5.
    """
    if count < 1000 or not 0 < fraud_share < 0.5:
        raise ValueError("Simulate 1,000 payments or more, with a fraud_share between 0 and 0.5.")
    rng = np.random.default_rng(seed)
    accounts = max(200, count // _PER_ACCOUNT)
    schemes = list[tuple[str, _Scheme]]()
    left = round(fraud_share * count)
    while left > 0:
        name = TYPOLOGIES[len(schemes) % len(TYPOLOGIES)]
        scheme = _SCHEMES[name](rng, accounts)
        schemes.append((name, scheme))
        left -= len(scheme.time)
    num_fraud = sum(len(scheme.time) for _, scheme in schemes)
    honest = _simulate_honest(rng, count - num_fraud, accounts)
    parts = [honest, *(scheme for _, scheme in schemes)]
    sizes = [len(scheme.time) for _, scheme in schemes]
    names = np.repeat(np.array(["", *(name for name, _ in schemes)]), [len(honest.time), *sizes])
    columns = [np.concatenate(values) for values in zip(*parts, strict=True)]
    time, source, target, amount, kind = columns
    order = np.argsort(time, kind="stable")
    # Most accounts have a device of their own; one in twenty shares with its neighbour in number.
    shares = rng.random(accounts) < 0.05
    device = np.where(shares, np.arange(accounts) ^ 1, np.arange(accounts))
    typology = names[order]
    account_names, device_names = _number("a", accounts), _number("d", accounts + 1)
    seconds = pd.to_datetime((time[order] * 1000).astype(np.int64), unit="ms", utc=True)
    return pd.DataFrame(
        {
            "id": _number("p", count),
            "time": seconds.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "source": account_names.take(source[order]),
            "target": account_names.take(target[order]),
            "amount": np.round(amount[order], 2),
            "type": kind[order],
            "device": device_names.take(device[source[order]]),
            "is_fraud": (typology != "").astype(int),
            "typology": typology,
        }
    )


def build_account_graph(*, with_amounts: bool = True) -> NodeDataset:
    """Return a graph of accounts, joined by 20,000 simulated payments; an account that takes part
    in a scheme is labelled.

    An account says how many payments it sent; a payment, unless `with_amounts` is false, its amount
    and the hour of the day.
    """
    frame = simulate_payments(20_000, fraud_share=0.01, seed=1)
    accounts = pd.Index(pd.unique(frame[["source", "target"]].to_numpy().ravel()))
    ends = np.stack([accounts.get_indexer(pd.Index(frame[end])) for end in ("source", "target")])
    is_fraud = frame["is_fraud"].to_numpy() == 1
    labels = np.zeros(len(accounts), np.int64)
    labels[ends[:, is_fraud].ravel()] = 1
    sent = np.bincount(ends[0], minlength=len(accounts)).astype(np.float32)
    hour = pd.to_datetime(frame["time"], format="ISO8601").dt.hour
    attr = np.stack([frame["amount"], hour], 1).astype(np.float32) if with_amounts else None
    return NodeDataset(
        "payments-accounts" if with_amounts else "payments-accounts-plain",
        Graph(sent[:, None], ends, None, attr),
        labels,
        ("payments_sent",),
        note="Simulated payments, see training/datasets/payments.py.",
        edge_features=("amount", "hour") if with_amounts else (),
    )


def _number(prefix: str, count: int) -> ExtensionArray:
    """Names by number, as Arrow has them: of millions of rows lists take some GiB."""
    return pd.array(prefix + pd.Series(np.arange(count)).astype(str), dtype="str")


def _simulate_honest(rng: np.random.Generator, count: int, accounts: int) -> _Scheme:
    activity = rng.pareto(1.5, accounts) + 0.2
    source = rng.choice(accounts, count, p=activity / activity.sum())
    partners = rng.integers(0, accounts, (accounts, _PARTNERS))
    popularity = rng.pareto(1.2, accounts) + 0.05
    others = rng.choice(accounts, count, p=popularity / popularity.sum())
    is_partner = rng.random(count) < 0.7
    target = np.where(is_partner, partners[source, rng.integers(0, _PARTNERS, count)], others)
    target = np.where(target == source, (target + 1) % accounts, target)
    level = rng.lognormal(4, 1, accounts)
    amount = level[source] * rng.lognormal(0, 0.6, count)
    large = rng.random(count) < 0.01
    amount[large] = rng.lognormal(9, 0.4, int(large.sum()))
    time = _START + _DAY * rng.integers(0, _DAYS, count) + _draw_time_of_day(rng, count)
    return _Scheme(time, source, target, amount, _draw_types(rng, count))


def _draw_time_of_day(rng: np.random.Generator, count: int) -> np.ndarray:
    """Seconds after midnight: a cosine with its peak at 14:00, for honest payments and fraud."""
    hour = 24 * rng.random(count)
    quiet = rng.random(count) > 0.55 + 0.45 * np.cos(2 * np.pi * (hour - 14) / 24)
    hour[quiet] = 14 + 3 * rng.standard_normal(int(quiet.sum()))
    return 3600 * (hour % 24)


def _draw_types(rng: np.random.Generator, count: int) -> np.ndarray:
    return _TYPES[rng.choice(3, count, p=[0.45, 0.5, 0.05])]


def _begin(rng: np.random.Generator, spread_days: float) -> float:
    day = int(rng.integers(0, _DAYS - int(np.ceil(spread_days))))
    return _START + _DAY * day + float(_draw_time_of_day(rng, 1)[0])


def _draw_accounts(rng: np.random.Generator, accounts: int, count: int) -> np.ndarray:
    return rng.choice(accounts, count, replace=False)


def _fan_in(rng: np.random.Generator, accounts: int) -> _Scheme:
    count = int(rng.integers(6, 20))
    collector, *payers = _draw_accounts(rng, accounts, count + 1)
    time = _begin(rng, 2) + np.sort(rng.uniform(0, 1.5 * _DAY, count))
    amount = rng.lognormal(5.5, 0.5, count)
    return _Scheme(
        time, np.array(payers), np.full(count, collector), amount, _draw_types(rng, count)
    )


def _fan_out(rng: np.random.Generator, accounts: int) -> _Scheme:
    count = int(rng.integers(5, 15))
    victim, *payees = _draw_accounts(rng, accounts, count + 1)
    time = _begin(rng, 1) + np.sort(rng.uniform(0, 4 * 3600, count))
    amount = rng.lognormal(6, 0.4, count)
    return _Scheme(time, np.full(count, victim), np.array(payees), amount, _draw_types(rng, count))


def _cycle(rng: np.random.Generator, accounts: int) -> _Scheme:
    count = int(rng.integers(3, 7))
    ring = _draw_accounts(rng, accounts, count)
    time = _begin(rng, 2) + np.cumsum(rng.uniform(600, 6 * 3600, count))
    amount = rng.lognormal(7.5, 0.6) * np.cumprod(rng.uniform(0.93, 0.99, count))
    return _Scheme(time, ring, np.roll(ring, -1), amount, _draw_types(rng, count))


def _structuring(rng: np.random.Generator, accounts: int) -> _Scheme:
    count = int(rng.integers(4, 10))
    source, target = _draw_accounts(rng, accounts, 2)
    time = _begin(rng, 6) + np.sort(rng.uniform(0, 5 * _DAY, count))
    amount = _REPORTED - rng.uniform(50, 1200, count)
    return _Scheme(
        time, np.full(count, source), np.full(count, target), amount, _draw_types(rng, count)
    )


def _mules(rng: np.random.Generator, accounts: int) -> _Scheme:
    chain = _draw_accounts(rng, accounts, 4)
    time = _begin(rng, 1) + np.cumsum(rng.uniform(60, 2400, 3))
    amount = rng.lognormal(8, 0.4) * np.cumprod(rng.uniform(0.9, 0.98, 3))
    return _Scheme(time, chain[:3], chain[1:], amount, _draw_types(rng, 3))


_SCHEMES: dict[str, Callable[[np.random.Generator, int], _Scheme]] = {
    "fan_in": _fan_in,
    "fan_out": _fan_out,
    "cycle": _cycle,
    "structuring": _structuring,
    "mules": _mules,
}
