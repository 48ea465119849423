"""What the client says where a library of an extra is not installed."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib

import pytest
from basin_client.errors import BasinError, MissingLibraryError, require_extra

from tests.support.paths import REPO

_SETUP = """
import sys
for name in {names}:
    sys.modules[name] = None  # as if it were not installed
import numpy as np
import basin_client, basin_client.smiles
from basin_client import operations, graph_operations, transaction_operations
from basin_client.responses import decode_image

def score(graph):
    operations.score(graph).bind(None)

class Molecule:
    GetAtoms = None

class NetworkXGraph:
    nodes = adjacency = None
    def __len__(self):
        return 1

class Frame:
    columns = to_dict = None

scores = basin_client.Scores(["a"], *[np.ones(1)] * 4, 0.5, None, {{}}, {{}})
classes = basin_client.ClassificationResult([], {{}})
try:
    {code}
except basin_client.MissingLibraryError as error:
    print(error)
"""


def run_without(names: tuple[str, ...], code: str) -> str:
    """Run a statement in a process without some modules; return the message that it prints."""
    path = os.pathsep.join([str(REPO), str(REPO / "client")])
    done = subprocess.run(
        [sys.executable, "-c", _SETUP.format(names=names, code=code)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.stderr, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("library", "extra", "code"),
    [
        ("pandas", "pandas", "score(('nodes.csv', 'edges.csv'))"),
        ("pyarrow", "pandas", "score(('nodes.csv', 'edges.csv'))"),
        ("pandas", "pandas", "score(NetworkXGraph())"),
        ("pandas", "pandas", "graph_operations.change_graph('g', nodes=Frame())"),
        ("pandas", "pandas", "transaction_operations.score_transactions('t.csv').bind(None)"),
        ("pandas", "pandas", "scores.to_pandas()"),
        ("pandas", "pandas", "classes.to_pandas()"),
        ("pandas", "pandas", "basin_client.smiles.read_smiles('molecules.smi')"),
        ("PIL", "images", "operations.classify_images(np.zeros((2, 2)))"),
        ("PIL", "images", "decode_image('')"),
        ("rdkit", "rdkit", "operations.classify(Molecule())"),
    ],
)
def test_message_names_the_extra(library: str, extra: str, code: str) -> None:
    message = run_without((library,), code)
    assert message == (
        f"The library {library} is not installed, and this needs it. Run: "
        f"pip install 'basin-client[{extra}]'"
    )


def test_requests_without_tables_and_images_need_no_extra() -> None:
    code = "operations.score(basin_client.Graph(np.ones((1, 1)), np.zeros((2, 0), int))); print(1)"
    assert run_without(("pandas", "pyarrow", "PIL", "rdkit", "networkx", "typer"), code) == "1"


def test_the_extras_are_those_of_the_package() -> None:
    text = (REPO / "client" / "pyproject.toml").read_text()
    extras = tomllib.loads(text)["project"]["optional-dependencies"]
    names = {extra: [spec.partition(">")[0] for spec in specs] for extra, specs in extras.items()}
    assert names == {"pandas": ["pandas", "pyarrow"], "images": ["pillow"], "rdkit": ["rdkit"]}


def test_only_libraries_of_the_extra_are_replaced() -> None:
    assert issubclass(MissingLibraryError, BasinError)
    with pytest.raises(ModuleNotFoundError, match="another"), require_extra("pandas"):
        raise ModuleNotFoundError("another", name="another")
