"""A real process: what hangs is killed, what crashes is answered, and the others get theirs."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pandas as pd
import pytest

from models.inputs.molecules import Molecule, MoleculeError, MoleculeLimits, parse_smiles
from service.errors import Problem
from service.workers.smiles_frames import FRAME_PREFIX, pack_molecule, unpack_molecule
from service.workers.smiles_pool import SmilesParserPool
from tests.support.paths import REPO
from training.datasets.sources import data_folder

TROUBLED = (sys.executable, str(REPO / "tests" / "support" / "failing_smiles_worker.py"))


@pytest.fixture
def parser() -> Iterator[SmilesParserPool]:
    made = SmilesParserPool(MoleculeLimits(max_atoms=10), seconds=1.0, command=TROUBLED)
    yield made
    made.close()


def _codes(answers: list) -> list[str]:
    return [a.code if isinstance(a, MoleculeError) else a.smiles for a in answers]


def test_the_answer_is_that_of_the_parser_itself() -> None:
    parser = SmilesParserPool()
    smiles = ["OCC", "C[C@H](N)C(=O)O", "F/C=C/F", "[Na+].[Cl-]", "[NH4+]", "[2H]C"]
    for text, answer in zip(smiles, parser.parse(smiles), strict=True):
        assert isinstance(answer, Molecule)
        here = parse_smiles(text)
        assert answer.smiles == here.smiles
        for name in ("x", "edge_index", "edge_attr"):
            ours, theirs = getattr(here.graph, name), getattr(answer.graph, name)
            np.testing.assert_array_equal(ours, theirs)
            assert ours.dtype == theirs.dtype
    parser.close()
    with pytest.raises(RuntimeError, match="closed"):
        parser.parse(["C"])


def test_errors_in_their_places(parser: SmilesParserPool) -> None:
    answers = parser.parse(["CCO", "not a molecule", "", "c1cccc1", "C" * 11, "C" * 3000, "OC"])
    assert _codes(answers) == [
        *("CCO", "not_smiles", "empty", "impossible_molecule", "too_many_atoms", "too_long", "CO"),
    ]
    assert all("C" * 11 not in str(answer) for answer in answers if not hasattr(answer, "graph"))
    assert parser.parse([]) == []


def test_what_hangs_is_killed_and_the_others_answered(parser: SmilesParserPool) -> None:
    parser.parse(["C"])
    start = time.monotonic()
    answers = parser.parse(["C", "[Xe]", "CC", "[Xe]", "CCC"])
    assert _codes(answers) == ["C", "timeout", "CC", "timeout", "CCC"]
    assert 2 < time.monotonic() - start < 25


def test_a_crash_is_answered(parser: SmilesParserPool) -> None:
    answers = parser.parse(["C", "[Ne]", "CC", "[Ne]"])
    assert _codes(answers) == ["C", "parser_crashed", "CC", "parser_crashed"]
    assert _codes(parser.parse(["CO"])) == ["CO"]


def test_a_real_molecule_that_takes_too_long() -> None:
    chain = "C" * 16_000  # RDKit takes seconds for its canonical SMILES
    limits = MoleculeLimits(max_characters=16_384, max_atoms=65_535)
    parser = SmilesParserPool(limits, seconds=1)
    parser.start()
    answers = parser.parse(["CCO", chain, "CCN"])
    parser.close()
    assert _codes(answers) == ["CCO", "timeout", "CCN"]


@pytest.mark.skipif(sys.platform != "linux", reason="address space is limited on Linux only")
def test_a_molecule_that_takes_too_much_memory_ends_its_process_only() -> None:
    ring = (
        f"C1{'C' * 15_990}1"  # the distances of all pairs of atoms are more than the child may have
    )
    limits = MoleculeLimits(max_characters=16_384, max_atoms=65_535)
    parser = SmilesParserPool(limits, seconds=60)
    answers = parser.parse(["CCO", ring, "CCN"])
    parser.close()
    assert _codes(answers) == ["CCO", "parser_crashed", "CCN"]


@pytest.mark.parametrize(
    "name", ["BBBP", *(pytest.param(name, marks=pytest.mark.slow) for name in ("AMES", "HIV"))]
)
def test_every_molecule_of_a_dataset_has_an_answer(name: str) -> None:
    path = data_folder() / "molecules" / f"{name}.csv"
    if not path.is_file():
        pytest.skip(f"{path} is absent")
    smiles = pd.read_csv(path)["smiles"].tolist()
    parser = SmilesParserPool(num_workers=2, batch_seconds=600)
    parts = [smiles[i::2] for i in range(2)]
    with ThreadPoolExecutor(2) as pool:
        answers = [answer for part in pool.map(parser.parse, parts) for answer in part]
    parser.close()
    refused = Counter(answer.code for answer in answers if isinstance(answer, MoleculeError))
    assert len(answers) == len(smiles)
    assert set(refused) <= {"not_smiles", "impossible_molecule"}
    assert refused.total() < len(smiles) / 100


def test_no_more_calls_at_once_than_are_allowed() -> None:
    parser = SmilesParserPool(seconds=2, max_calls=2, command=TROUBLED)

    async def main() -> list[Any]:
        calls = [asyncio.ensure_future(parser.parse_async(["[Xe]"])) for _ in range(2)]
        await asyncio.sleep(0.2)
        with pytest.raises(Problem) as refused:
            await parser.parse_async(["C"])
        assert refused.value.status == 429
        await asyncio.gather(*calls)
        return await parser.parse_async(["C"])

    assert _codes(asyncio.run(main())) == ["C"]
    parser.close()


def test_a_killed_child_is_replaced(parser: SmilesParserPool) -> None:
    assert _codes(parser.parse(["C"])) == ["C"]
    process = parser._children[0]._process
    assert process is not None
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert _codes(parser.parse(["CC"])) == ["CC"]


def test_a_batch_has_a_limit_of_its_own() -> None:
    parser = SmilesParserPool(seconds=1.0, batch_seconds=2.5, command=TROUBLED)
    parser.start()
    codes = _codes(parser.parse(["[Xe]"] * 50))
    assert set(codes) == {"timeout", "not_reached"}
    assert 1 <= codes.count("timeout") <= 2  # of a second each
    assert codes == sorted(codes, reverse=True)  # those that were tried come first
    parser.close()


def test_a_process_that_does_not_start_is_no_fault_of_a_molecule() -> None:
    asleep = (sys.executable, "-c", "import time; time.sleep(60)")
    parser = SmilesParserPool(start_seconds=0.2, batch_seconds=0.5, command=asleep)
    assert set(_codes(parser.parse(["C"] * 9))) == {"not_reached"}
    parser.close()


def test_where_no_process_can_start_nothing_else_ends() -> None:
    parser = SmilesParserPool(num_workers=2, batch_seconds=0.5, command=("/no/such/program",))
    parser.start()
    assert parser._idle.qsize() == 2
    assert set(_codes(parser.parse(["C"] * 3))) <= {"parser_crashed", "not_reached"}
    parser.close()


def test_closing_ends_a_call_under_way() -> None:
    parser = SmilesParserPool(seconds=60, batch_seconds=60, command=TROUBLED)
    parser.parse(["C"])
    answers: list = []
    thread = threading.Thread(target=lambda: answers.extend(parser.parse(["[Xe]", "C"])))
    thread.start()
    time.sleep(0.3)
    start = time.monotonic()
    parser.close()
    thread.join(20)
    assert time.monotonic() - start < 15
    assert _codes(answers) == ["parser_crashed", "not_reached"]


def test_many_threads_at_once() -> None:
    parser = SmilesParserPool(num_workers=2, seconds=1.0, command=TROUBLED)
    results: dict[int, list[str]] = {}

    def ask(i: int) -> None:
        chain = "C" * (i + 1)
        bad = {3: "[Xe]", 5: "[Ne]"}.get(i, "O")
        results[i] = _codes(parser.parse([chain, bad] * 2 + [chain] * 20))

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, codes in results.items():
        chain, bad = "C" * (i + 1), {3: "timeout", 5: "parser_crashed"}.get(i, "O")
        assert codes == [chain, bad] * 2 + [chain] * 20
    assert len(results) == 12
    parser.close()


def test_the_event_loop_goes_on(parser: SmilesParserPool) -> None:
    async def main() -> tuple[list, int]:
        turns = 0
        task = asyncio.create_task(parser.parse_async(["[Xe]", "C"]))
        while not task.done():
            await asyncio.sleep(0.01)
            turns += 1
        return await task, turns

    answers, turns = asyncio.run(main())
    assert _codes(answers) == ["timeout", "C"]
    assert turns > 20


@pytest.mark.parametrize("poison", ["[Xe]", "[Ar]"])
def test_calls_take_turns(poison: str) -> None:
    """Ten seconds of molecules that hang, or are slow, before one that is neither."""
    parser = SmilesParserPool(seconds=1.0, batch_seconds=10, command=TROUBLED)
    parser.start()

    async def main() -> tuple[list, float, bool]:
        first = asyncio.create_task(parser.parse_async([poison] * 40))
        await asyncio.sleep(0.2)
        start = time.monotonic()
        answers = await parser.parse_async(["CC", "CO"])
        waited, over = time.monotonic() - start, first.done()
        first.cancel()
        return answers, waited, over

    answers, waited, over = asyncio.run(main())
    assert _codes(answers) == ["CC", "CO"]
    assert waited < 6
    assert not over
    parser.close()


def test_whoever_stops_waiting_frees_the_process() -> None:
    parser = SmilesParserPool(seconds=1.0, command=TROUBLED)
    parser.start()

    async def main() -> list:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await parser.parse_async(["CC", *["[Xe]"] * 40])
        return await parser.parse_async(["CO"])

    start = time.monotonic()
    assert _codes(asyncio.run(main())) == ["CO"]
    assert time.monotonic() - start < 10
    parser.close()


def test_an_answer_that_makes_no_sense_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has yet to say must not be taken for the answer to another call."""
    parser = SmilesParserPool(command=TROUBLED)
    with monkeypatch.context() as patched:
        patched.setattr("service.workers.smiles_pool.unpack_molecule", lambda *_: {}["what"])
        with pytest.raises(KeyError):
            parser.parse(["CC", "CCC", "CCCC"])
    assert _codes(parser.parse(["CO"])) == ["CO"]
    parser.close()


def test_more_than_a_pipe_holds() -> None:
    parser = SmilesParserPool(MoleculeLimits(max_atoms=5000, max_characters=10_000), seconds=20)
    answers = parser.parse(["C" * 4000, "CO", "C" * 4500] * 2 + ["c1ccccc1"] * 1000)
    assert _codes(answers[:2]) == ["C" * 4000, "CO"]
    assert set(_codes(answers[6:])) == {"c1ccccc1"}
    parser.close()


def test_a_frame_that_does_not_fit_is_refused() -> None:
    raw = pack_molecule(parse_smiles("CCO"))
    header, body = FRAME_PREFIX.unpack(raw[: FRAME_PREFIX.size])
    assert len(raw) == FRAME_PREFIX.size + header + body
    with pytest.raises(ValueError, match="wrong length"):
        unpack_molecule({"smiles": "C", "x": [1, 8], "edge_attr": [0, 4]}, b"")
