"""Graphs of transactions whose accounts are scored: what a target is, and alerts by crossing."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from models.inputs.transactions import TransactionRecipe, find_history_kind
from service.errors import Problem
from service.storage.graphs import (
    AccountScore,
    GraphStore,
    NewTransactions,
    PendingScore,
    StreamSettings,
    TransactionGraph,
)
from tests.support.graph_stores import in_redis, in_sqlite, make_alert, play
from tests.support.transaction_graphs import AT, RECIPE, ROOM, make_rows

ACCOUNT_RECIPE = TransactionRecipe.model_validate(RECIPE.model_dump() | {"scores": "accounts"})
SETTINGS = StreamSettings("model", ACCOUNT_RECIPE, None, ACCOUNT_RECIPE.reach)


@pytest.fixture(params=["sqlite", "redis"])
def opened(request, tmp_path):
    """Opens a store, the same one each time."""
    if request.param == "sqlite":
        return lambda: in_sqlite(tmp_path / "g.sqlite", ROOM, 1 << 30)
    server = request.getfixturevalue("redis_server")()
    return lambda: in_redis(server, ROOM, 1 << 30)


async def put(store: GraphStore) -> None:
    empty = TransactionGraph(SETTINGS, None, -math.inf, 0)
    await store.put("g", *await store.build(lambda: empty))


async def add(store: GraphStore, rows: NewTransactions) -> PendingScore:
    [pending] = (await store.add_transactions("g", SETTINGS.schema, rows)).pending
    return pending


def draw_scores(rng: np.random.Generator, revision: int) -> list[AccountScore]:
    """Scores of some of five accounts, with one twice."""
    scores = list[AccountScore]()
    for number, account in enumerate(rng.integers(5, size=4).tolist()):
        alert = make_alert(f"ä{account} {revision}.{number}") if rng.random() < 0.5 else None
        scores.append(AccountScore(f"ä{account}", alert))
    return scores


def find_alerts(scores: list[AccountScore]) -> list[bytes]:
    above, alerts = set[str](), list[bytes]()
    for account, alert in scores:
        if alert is None:
            above.discard(account)
        elif account not in above:
            above.add(account)
            alerts.append(alert)
    return alerts


@pytest.mark.parametrize("seed", range(3))
def test_alerts_do_not_depend_on_the_order_in_which_scores_are_done(opened, seed):
    rng, rows = np.random.default_rng(seed), make_rows(40)
    sent = [draw_scores(rng, revision) for revision in range(40)]

    async def work():
        pending, num_raised = list[PendingScore](), 0
        async with opened() as store:
            await put(store)
            for row in range(40):
                pending.append(await add(store, rows.take(np.array([row]))))
        tag, order = pending[0].tag, rng.permutation(40)
        for part in np.split(order, 4):
            async with opened() as store:  # restarted in between
                for place in part.tolist():
                    raised = await store.alerts.record_accounts(pending[place], sent[place])
                    assert raised is not None
                    num_raised += raised
                    assert await store.alerts.record_accounts(pending[place], []) is None
                    revisions = [each.revision for each in await store.alerts.list_all_pending()]
                    assert pending[place].revision not in revisions
                    # Those before the first that is not scored have raised theirs.
                    first = min(revisions, default=42) - 2
                    expected = find_alerts([each for scores in sent[:first] for each in scores])
                    alerts = await store.alerts.read("g", tag, 0, 1000)
                    assert [alert for _, alert in alerts] == expected
                    assert num_raised == len(expected)
        assert num_raised > 10

    play(work)


def test_what_can_never_be_scored_holds_nothing_up(opened):
    rows = make_rows(3)

    async def work():
        async with opened() as store:
            await put(store)
            first, second, third = [
                await add(store, rows.take(np.array([row]))) for row in range(3)
            ]
            watch = store.alerts.watch("g")
            assert (
                await store.alerts.record_accounts(third, [AccountScore("a", make_alert("3"))]) == 0
            )
            assert (
                await store.alerts.record_accounts(second, [AccountScore("a", make_alert("2"))])
                == 0
            )
            assert not watch.is_set()
            assert await store.alerts.record_accounts(first, []) == 1
            assert watch.is_set()
            assert await store.alerts.read("g", first.tag, 0, 10) == [(1, make_alert("2"))]

    play(work)


@pytest.mark.parametrize("deleted", [False, True])
def test_another_graph_has_nothing_of_the_one_before(opened, deleted):
    rows = make_rows(3)

    async def work():
        async with opened() as store:
            await put(store)
            olds = [await add(store, rows.take(np.array([row]))) for row in range(3)]
            assert (
                await store.alerts.record_accounts(olds[0], [AccountScore("a", make_alert("1"))])
                == 1
            )
            assert (
                await store.alerts.record_accounts(olds[2], [AccountScore("b", make_alert("3"))])
                == 0
            )
            if deleted:
                await store.delete("g")
            await put(store)
            assert (
                await store.alerts.record_accounts(olds[1], [AccountScore("c", make_alert("2"))])
                is None
            )
            new = await add(store, rows)
            scores = [
                AccountScore("a", make_alert("new a")),
                AccountScore("b", make_alert("new b")),
            ]
            assert await store.alerts.record_accounts(new, scores) == 2
            alerts = await store.alerts.read("g", new.tag, 0, 10)
            assert alerts == [(1, make_alert("new a")), (2, make_alert("new b"))]

    play(work)


def test_targets_are_the_accounts_of_rows_as_of_them_whatever_is_forgotten():
    rows = make_rows(4000)
    whole = find_history_kind(ACCOUNT_RECIPE)(ACCOUNT_RECIPE)
    whole.append(rows.rows)
    settings = replace(SETTINGS, keep=10 * ACCOUNT_RECIPE.reach)
    graph, largest = TransactionGraph(settings, None, -math.inf, 0), 0
    last = dict[str, int]()
    for begin in range(0, 4000, 50):
        places = np.arange(begin, begin + 50)
        part = rows.take(places)
        if graph.should_compact:
            graph = graph.compacted()
        change = graph.plan(part)
        assert change is not None
        graph.commit(change, graph.revision + 1)
        largest = max(largest, graph.num_nodes)
        states, accounts, row_ids = list[int](), list[str](), list[str]()
        for place in places.tolist():
            source, target = rows.rows.source[place], rows.rows.target[place]
            for side, account in enumerate(dict.fromkeys((source, target))):
                states.append(2 * place + side)
                accounts.append(account)
                row_ids.append(f"t{place}")
                last[account] = 2 * place + side
        targets = graph.find_row_targets(part.node_ids, AT)
        assert (targets.node_ids, targets.row_ids) == (accounts, row_ids)
        for given, numbers in (
            (targets, states),
            (graph.find_targets(list(last), AT), list(last.values())),
        ):
            taken, node_ids = graph.build_neighborhoods(given, 100_000, AT)
            expected, nodes, own = whole.build_graph(np.array(numbers))
            assert node_ids[: len(own)] == given.node_ids
            np.testing.assert_allclose(taken.x[: len(own)], expected.x[own], rtol=1e-5, atol=1e-5)
            others = [f"t{node}" for node in nodes if node >= 0]
            assert node_ids[len(own) :] == others
    assert largest < 2000
    oldest = next(node_id for node_id in rows.node_ids if node_id in graph)
    with pytest.raises(Problem) as error:
        graph.find_row_targets(["t3950", oldest], AT)
    [fault] = error.value.faults
    assert (fault.pointer, fault.code) == ("/transactions/1", "expired")


def test_accounts_of_one_side_may_be_scored_alone():
    recipe = ACCOUNT_RECIPE.model_copy(update={"account_sides": ("target",)})
    rows = make_rows(30)
    ends = replace(rows.rows, source=np.char.add("p", rows.rows.source.astype(str)).astype(object))
    rows = replace(rows, rows=ends)
    settings = StreamSettings("model", recipe, None, recipe.reach)
    graph = TransactionGraph(settings, rows, -math.inf, 1)
    targets = graph.find_row_targets(rows.node_ids, AT)
    assert targets.node_ids == ends.target.tolist()
    assert targets.numbers.tolist() == list(range(1, 60, 2))
    assert graph.find_targets([ends.target[-1]], AT).numbers.tolist() == [59]
    with pytest.raises(Problem) as error:
        graph.find_targets([ends.source[-1]], AT)
    assert error.value.faults[0].code == "unknown_node"
