"""The command line, with a server and without."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pandas as pd
import pytest
from basin_client import InputError
from basin_client.smiles import read_smiles
from basin_client.tables import read_table
from PIL import Image
from typer.testing import CliRunner, Result

import basin
from basin.cli import app
from basin.io import write_table
from tests.support.checkpoints import FEATURES, MOLECULES, make_sample
from tests.support.image_files import saved, smooth
from tests.support.server import REPO, Server

SAMPLE = make_sample(5)


@pytest.fixture
def run(server: Server) -> Callable[..., Result]:
    def run(*arguments: object) -> Result:
        return CliRunner().invoke(app, [*map(str, arguments), "--server", server.url])

    return run


def read_output(result: Result, exit_code: int = 0) -> pd.DataFrame:
    assert result.exit_code == exit_code, (result.stderr, result.exception)
    return pd.read_csv(io.StringIO(result.stdout))


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path, Path]:
    """A graph: nodes, edges and targets, in three formats."""
    nodes = pd.DataFrame(SAMPLE.x, columns=list(FEATURES)).assign(id=SAMPLE.node_ids, other=1)
    ends = {
        name: [SAMPLE.node_ids[i] for i in row]
        for name, row in zip(("source", "target"), SAMPLE.edge_index, strict=True)
    }
    paths = tmp_path / "nodes.parquet", tmp_path / "edges.csv", tmp_path / "targets.jsonl"
    frames = nodes[nodes.columns[::-1]], pd.DataFrame(ends), pd.DataFrame({"id": ["n7", "n2"]})
    for frame, path in zip(frames, paths, strict=True):
        write_table(frame, path)
    return paths


def test_scores(run, files, tmp_path: Path, server: Server) -> None:
    nodes, edges, targets = files
    refused = run("score", nodes, edges)
    assert "does not read other. Leave such columns out with --drop" in str(refused.exception)
    whole = read_output(run("score", nodes, edges, "--drop", "other"))
    assert whole["node_id"].tolist() == SAMPLE.node_ids
    assert whole["other"].tolist() == [1] * len(whole)
    as_json = run("score", nodes, edges, "--drop", "*", "--json")
    assert [row["node_id"] for row in json.loads(as_json.stdout)] == SAMPLE.node_ids
    assert "not read: other" in as_json.stderr
    out = tmp_path / "out" / "scores.parquet"
    options = ["--drop", "other", "--targets", targets, "--set", "steps=2", "--out", out]
    result = run("score", nodes, edges, *options)
    assert result.exit_code == 0, result.stderr
    assert "steps 2" in result.stderr
    assert pd.read_parquet(out)["node_id"].tolist() == ["n7", "n2"]
    with server.client() as client:
        response = client.post("/anomaly/score", json=SAMPLE.arrays()).json()
    expected = [result["score"] for result in response["results"]]
    np.testing.assert_allclose(whole["score"], expected, rtol=1e-4)


def test_sources_of_molecules(run, tmp_path: Path) -> None:
    (tmp_path / "a.smi").write_text("# two\nCCO ethanol\n\nc1ccccc1\tbenzene\n")
    pd.DataFrame({"Smiles": ["C", "no molecule"], "id": [7, 8]}).to_csv(tmp_path / "b.csv")
    pd.DataFrame({"drug": ["CC"]}).to_parquet(tmp_path / "c.parquet")
    sources = ["CCN", tmp_path / "a.smi", tmp_path / "b.csv"]
    table = read_output(run("classify", *sources), exit_code=1)
    assert table["name"].tolist()[1:3] == ["ethanol", "benzene"]
    assert table["id"].tolist()[3:] == [7, 8]
    assert table["input"].tolist() == ["CCN", "CCO", "c1ccccc1", "C", "no molecule"]
    assert table["error"].tolist()[-1] == "not_smiles"
    assert table["mutagen.yes"].notna().sum() == 4
    assert len(read_output(run("classify", tmp_path / "c.parquet", "--column", "drug"))) == 1
    (tmp_path / "none.smi").write_text("# nothing\n")
    assert "no molecules" in run("classify", tmp_path / "none.smi").stderr
    result = run("classify", tmp_path / "c.parquet", "C", tmp_path / "missing.smi")
    assert len(read_output(result, exit_code=1)) == 1  # the rest is done
    assert "--column" in result.stderr
    assert "missing.smi: no such file" in result.stderr.replace("\n", "")
    assert len(read_output(run("classify", "C" * 300))) == 1  # too long for the name of a file


def test_a_batch_in_which_no_molecule_can_be_parsed(run, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("basin.classify._MOLECULES_PER_REQUEST", 2)
    lines = [MOLECULES[0], "bad", "worse", "worst", MOLECULES[1]]
    (tmp_path / "a.smi").write_text("\n".join(line.replace(" ", "") for line in lines))
    table = read_output(run("classify", tmp_path / "a.smi"), exit_code=1)
    assert table["index"].tolist() == [0, 1, 2, 3, 4]
    assert table["error"].isna().tolist() == [True, False, False, False, True]


def test_folder_of_images(run, tmp_path: Path) -> None:
    images, masks, out = (tmp_path / name for name in ("images", "masks", "out"))
    for folder in (images, masks):
        folder.mkdir()
    hole = np.zeros((20, 24), np.uint8)
    hole[5:9, 6:12] = 255
    for name in ("a", "b"):
        (images / f"{name}.jpg").write_bytes(saved(smooth(20, 24), "JPEG"))
        (masks / f"{name}.png").write_bytes(saved(hole))
    (images / "notes.txt").write_text("no image")
    result = run("complete", images, "--mask", masks, "--model", "et-tile", "--out", out)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.split() == [str(out / "a.png"), str(out / "b.png")]
    completed = np.array(Image.open(out / "a.png"))
    original = np.array(Image.open(images / "a.jpg"))
    np.testing.assert_array_equal(completed[hole == 0], original[hole == 0])
    options = ["--num-samples", 2, "--set", "noise=0.2", "--model", "et-tile", "--out", out]
    to_file = run(
        *("complete", images / "a.jpg", "--mask", masks / "a.png", "--model", "et-tile"),
        *("--out", tmp_path / "new" / "filled.png"),
    )
    assert to_file.stdout.split() == [str(tmp_path / "new" / "filled.png")]
    assert (tmp_path / "new" / "filled.png").read_bytes() == (out / "a.png").read_bytes()
    for refused, message in (
        (run("complete", images, "--mask", masks, "--out", tmp_path / "x.png"), "name a folder"),
        (run("complete", images / "a.jpg", "--mask", masks, "--out", "x.jpg"), "name a folder"),
        (run("complete", images / "a.jpg", masks / "a.png"), "No mask: name one with --mask"),
    ):
        assert message in str(refused.exception)
    assert not (tmp_path / "x.png").exists()
    several = run("complete", images / "a.jpg", "--mask", masks / "a.png", *options)
    assert len(several.stdout.split()) == 2
    (images / "a.png").write_bytes(saved(smooth(20, 24)))
    assert "would both be written to" in str(run("complete", images, "--mask", masks).exception)
    (images / "a.png").unlink()
    (masks / "b.png").unlink()
    one_fails = run("complete", images, "--mask", masks, "--model", "et-tile", "--out", out)
    assert (one_fails.exit_code, one_fails.stdout.split()) == (1, [str(out / "a.png")])
    assert "no mask with the name b" in one_fails.stderr
    assert run("complete", tmp_path / "none.png").exit_code == 1
    digit = saved(np.zeros((28, 28), np.uint8))
    (images / "b.jpg").unlink()
    (images / "a.jpg").unlink()
    (images / "a.png").write_bytes(digit)
    (masks / "a.png").write_bytes(saved(np.tri(28, 28, dtype=np.uint8) * 255))
    recalled = run("complete", images, "--mask", masks, "--memory", "mnist-3", "--out", out)
    assert recalled.exit_code == 0, recalled.stderr
    assert np.array(Image.open(out / "a.png"))[np.tri(28, 28) > 0].max() > 0
    both = run("complete", images, "--mask", masks, "--memory", "mnist-3", "--model", "et-tile")
    assert "Both `model` and `memory`" in both.stderr


def test_samples(run, tmp_path: Path) -> None:
    params = [f"--set={param}" for param in ("steps=60", "burn_in=10", "thin=10", "num_samples=3")]
    out = tmp_path / "drawn.npy"
    result = run("sample", "mnist-3", *params, "--out", out)
    assert result.exit_code == 0, (result.stderr, result.exception)
    assert np.load(out, allow_pickle=False).shape == (3, 28, 28)
    assert "r_hat" in json.loads(result.stderr)
    patterns = tmp_path / "patterns.npy"
    np.save(patterns, np.eye(5, dtype=np.float32), allow_pickle=False)
    several = run("sample", patterns, *params, "--set", "beta=[1, 9]", "--out", tmp_path / "s.csv")
    names = [Path(line).name for line in several.stdout.split()]
    assert names == ["s-0.csv", "s-1.csv"]
    assert pd.read_csv(tmp_path / "s-0.csv").shape == (3, 5)
    proteins = run("sample", "rrm", *params, "--out", tmp_path / "p.npy")
    assert proteins.stdout.split() == [str(tmp_path / "p.txt")]
    assert len((tmp_path / "p.txt").read_text().splitlines()) == 3


def test_images_are_classified_and_asked_about(run, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.png").write_bytes(saved(smooth(40, 30)))
    (tmp_path / "broken.png").write_bytes(b"no image")
    classified = read_output(run("images", "classify", tmp_path, "--fit", "crop"), 1)
    assert [Path(path).name for path in classified["image"]] == ["a.png", "b.png"]
    assert classified["probability"].between(0, 1).all()
    questions = ["What is the shape of the red object?", "What is the shape of the blue object?"]
    options = [part for question in questions for part in ("--question", question)]
    answered = read_output(run("images", "answer", tmp_path / "a.png", *options))
    assert answered["question"].tolist() == questions
    assert answered["label"].notna().all()


def test_jobs_are_followed(run, server: Server, tmp_path: Path) -> None:
    body = {"memory": {"patterns": [[1.0, 0.0], [0.0, 1.0]]}, "beta": 2, "steps": 50, "seed": 1}
    with server.client() as client:
        response = client.post("/sample", json=body, headers={"prefer": "respond-async"})
    job = response.headers["location"].removeprefix("/jobs/")
    out = tmp_path / "out" / "samples.json"
    assert run("jobs", "result", job, "--out", out).exit_code == 0
    assert np.isfinite(json.loads(out.read_text())["samples"]).all()
    assert json.loads(run("jobs", "show", job).stdout)["status"] == "done"
    events = [json.loads(line) for line in run("jobs", "watch", job).stdout.splitlines()]
    assert events[-1]["event"] == "done"
    assert run("jobs", "cancel", job).exit_code == 0
    assert "unknown-job" in str(run("jobs", "show", job).exception.document)
    alone = CliRunner().invoke(app, ["jobs", "show", job])
    assert alone.exit_code == 2
    assert "give --server" in " ".join(alone.stderr.split())


def test_models(run) -> None:
    table = read_output(run("models")).set_index("name")
    assert table.loc["et-small", "route"] == "/anomaly/score"
    assert table.loc["mnist-3", "task"] == "sample"
    described = json.loads(run("models", "et-small").stdout)
    assert described["name"] == "et-small"
    assert described["features"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["score", "none.csv", "none.csv"], "none.csv"),
        (["score", "README.md", "README.md"], "not the suffix of a table"),
        (["sample", "missing[/b].npy"], "missing[/b].npy"),
        (["classify", "CCO", "--model", "missing"], "404"),
        (["classify", "CCO", "--set", "steps=-1"], "/dynamics/steps"),
    ],
)
def test_errors_have_no_traceback(server: Server, arguments: list[str], message: str) -> None:
    command = [sys.executable, "-m", "basin", *arguments, "--server", server.url]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True)
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_wrong_usage_is_exit_code_2(run) -> None:
    for arguments, message in (
        (["classify", "CCO", "--set", "steps"], "expected name=value"),
        (["score", "-", "-"], "standard input"),
        (["score", "only.csv"], "Missing argument"),
    ):
        result = run(*arguments)
        assert (result.exit_code, message in result.stderr) == (2, True), result.stderr


def test_works_in_a_pipe(server: Server, files) -> None:
    nodes, edges, _ = files
    pipe = f"cat {edges} | {sys.executable} -m basin score {nodes} - --drop other | head -1"
    done = subprocess.run(
        pipe, shell=True, cwd=REPO, env={"BASIN_URL": server.url}, capture_output=True, text=True
    )
    assert done.stdout.startswith("node_id,")
    assert "Traceback" not in done.stderr


def test_without_a_server(checkpoints: Path, monkeypatch) -> None:
    monkeypatch.setenv("BASIN_CHECKPOINTS", str(checkpoints))
    monkeypatch.setenv("BASIN_DEFAULT_CLASSIFY_MODEL", "cdat-mol")
    monkeypatch.setenv("BASIN_REDIS_URL", "redis://127.0.0.1:9/0")  # not used without a server
    monkeypatch.setenv("BASIN_KEYS", "/no/such/keys")
    command = [sys.executable, "-m", "basin", "classify", "CCO"]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert pd.read_csv(io.StringIO(done.stdout))["mutagen.yes"].notna().all()


def test_keys() -> None:
    command = [sys.executable, "-m", "basin", "keys", "me", "--models", "et-small"]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("basin_")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_text("not a table")
    with pytest.raises(InputError, match=r"a\.parquet"):
        read_table(tmp_path / "a.parquet")
    (tmp_path / "a.smi").write_bytes(b"\xff\xfa")
    with pytest.raises(InputError):
        read_smiles(tmp_path / "a.smi", None)
    with pytest.raises(InputError):
        write_table(pd.DataFrame({"a": [1]}), tmp_path / "a.xlsx")


def test_an_edited_manifest_is_sealed(checkpoints: Path, tmp_path: Path) -> None:
    folder = tmp_path / "et-small"
    shutil.copytree(checkpoints / "et-small", folder)
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace('"threshold": 0.5', '"threshold": 0.75'))
    with pytest.raises(InputError, match=r"damaged or edited.*basin seal"):
        basin.load(folder)
    result = CliRunner().invoke(app, ["seal", str(folder)])
    assert result.exit_code == 0
    model = basin.load(folder)
    assert model.manifest.threshold == 0.75
    assert result.stdout == f"{folder} {hashlib.sha256(path.read_bytes()).hexdigest()}\n"
    path.write_text("{")
    result = CliRunner().invoke(app, ["seal", str(folder)])
    assert isinstance(result.exception, InputError)
    assert "manifest.json" in str(result.exception)


def test_onnx(checkpoints: Path, tmp_path: Path) -> None:
    for name, first in (("et-tile", {"x", "sees"}), ("et-small", {"x", "receivers", "sources"})):
        result = CliRunner().invoke(app, ["onnx", str(checkpoints / name), str(tmp_path / name)])
        assert result.exit_code == 0, result.output
        sessions = [onnxruntime.InferenceSession(path) for path in result.stdout.splitlines()]
        assert sessions
        for session in sessions:
            names = {tensor.name for tensor in session.get_inputs()}
            assert names == first | {"beta", "step_size"}
    for name in ("ait-glyph", "none"):
        result = CliRunner().invoke(app, ["onnx", str(checkpoints / name), str(tmp_path / "out")])
        assert isinstance(result.exception, InputError)
