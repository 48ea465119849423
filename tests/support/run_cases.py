"""Run the inputs of a folder of cases; print a line for each, and whether it is right.

    python -m tests.support.run_cases [FOLDER]    # by default ../shared/cases

It starts a server of the shipped checkpoints and of some that it trains on tables of the cases.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pandas as pd
from basin_client import Client
from PIL import Image
from typer.testing import CliRunner

from basin.cli import app as basin
from basin.embedded_server import run_server
from tests.support.paths import REPO
from training.__main__ import app as training
from training.datasets import load_folder

Check = Callable[[], str]
TABLES = {  # the ids that come back, or what is said
    **dict.fromkeys(("lead",), "007 008 009"),
    "lead_dup": "007 7 8",
    "mixed": "A1 007 7 8",
    "strint": "1 2 3 x",
    "huge": "123456789012345678901 123456789012345678902",
    **dict.fromkeys(("big", "bigblank"), "9007199254740993 9007199254740992 3"),
    "onena": "a NA c d",
    "z": "007 7 A B",
    **dict.fromkeys(("bytes", "bomcrlf", "empty_edges", "selfdup", "semi"), "a b c"),
    "cat": "a b c",
    "dec": "1 2 3",
    "wrong": "7 70 700 1",
    "blankid": "nodes.csv: row 4, column 'id': the value is blank",
    "blankid0": "nodes.csv: row 4, column 'id': the value is blank",
    "nulledge": "edges.parquet: row 2, column 'source': the value is blank",
    "floattype": "the edge has a type|column 'type': the value is blank",
    "typed": "was trained on edges without types",
    "intfloat": "has no node '2.0'",
    "space": "has no node 'b'",
    "nanfeat": r"row 2 \(id b\), column 'f2': the value is missing",
    "nullfeat": r"row 2 \(id 2\), column 'f2': the value is missing",
    "noid": "no column 'id'. Columns: account, .* --id-column",
    "srcdst": "no column 'source'. Columns: src, dst. .* --source-column",
    "thou": "row 2, column 'f2': not a number. Remove thousands separators",
}
TRAINING = {  # all others are trained on
    **dict.fromkeys(("blank", "missing_id"), "column 'id': the value is blank"),
    "dangling": "row 901, column 'source': .* has no node 'zz'",
    "dates": "row 1, column 'seen': not a number",
    "dupid": "row 2, column 'id': the id a0 has occurred before",
    "huge": r"row 3 \(id a2\), column 'amount': the value is infinite, or too large",
    "nanall": "column 'age': the value is missing",
    "nanfeat": r"row 14 \(id a13\), column 'age': the value is missing",
    "nofraud": "no fraudulent node among the .* of the part `train`",
    "onefraud": "no fraudulent node among the .* of the part `val`",
    "text": "row 1, column 'country': not a number",
    "thousands": "row 1, column 'amount': not a number. Remove thousands separators",
    "tiny": "no fraudulent node among the .* of the part `test`",
    "typenan": "row 900, column 'type': the value is blank",
}
TRAINING_SMILES = {
    "s_allbad": "none of 20 rows of column 'smiles' can be read",
    "s_one": "column 'active' has 1 values",
    "s_onepos": "20 graphs, 1 with the label 1 of active, are too few for a split",
    "s_reg": "holds numbers with decimals",
    "s_tiny": "3 graphs, 1 with the label 1 of active, are too few",
    "s_yesmess": "differ from 'Yes' only in case or blanks",
}
SMILES = {
    "NA.csv": "4 molecules, 2 errors",
    "allna.csv": "2 molecules, 2 errors",
    "bom.json": "1 molecules, 0 errors",
    "bom.smi": "2 molecules, 0 errors, ethanol benzene",
    "bom_missing.csv": "3 molecules, 1 errors",
    "comma.txt": "2 molecules, 0 errors, Z1 Z2",
    "comments.smi": "holds no molecules",
    "empty.csv": "the file is empty",
    "empty.smi": "holds no molecules",
    "hdr.csv": "holds no molecules",
    "header.smi": "1 molecules, 0 errors, ethanol",
    "lists.json": "a list of objects",
    "long_smiles.txt": "1 molecules, 0 errors",
    "m.csv.gz": "1 molecules, 0 errors",
    "m.smi.gz": "1 molecules, 0 errors",
    "named.csv": "3 molecules, 1 errors, Z1 Z2 Z3",
    "named.smi": "2 molecules, 1 errors, Z1 Z2",
    "semi.csv": "1 molecules, 0 errors, ethanol",
    "tab_crlf.smi": "2 molecules, 0 errors, ethanol benzene",
    "utf16.csv": "1 molecules, 0 errors, ethanol",
    "win1252.csv": "the text is not utf-8. Name its encoding",
    "missing.smi": "no such file",
    "C" * 300: "1 molecules, 0 errors",
    "named.smii": "not_smiles",
}
IMAGES = {  # what is said; all others are read
    **{f"anim.{suffix}": "(?i)animat|GIF" for suffix in ("gif", "png", "webp")},
    "cmyk.jpg": "Convert it to RGB or grayscale.*CMYK",
    "notes.txt": "Unsupported image format",
    "pic.bmp": "Unsupported image format BMP.*Convert it",
    "pic.heic": "Unsupported image format HEIC.*Convert it",
    "pic.tiff": "Unsupported image format TIFF.*Convert it",
    "rgb16.png": "16 bits per channel. Convert it",
    "noeoi.jpg": "truncated|read",
    "mask_rgba_blackstroke.png": "marks no pixel; `black_fill` would mark",
    "mask_stored.png": "must have the size of the image",
    "mask_small.png": "must have the size of the image",
}


def run_cases(folder: Path) -> Iterator[tuple[str, str, str]]:
    """Yield the name of each case, what came, and what is right as a regular expression."""
    with tempfile.TemporaryDirectory() as temporary:
        models = Path(temporary) / "models"
        models.mkdir()
        for path in (REPO / "checkpoints").iterdir():
            (models / path.name).symlink_to(path)
        yield from _train(folder, Path(temporary), models)
        os.environ["BASIN_CHECKPOINTS"] = str(models)
        os.environ["BASIN_DEFAULT_ANOMALY_MODEL"] = "et-tolokers"
        with run_server() as url, Client(url, retries=40, timeout_s=60) as client:
            client.ready()
            yield from _score(folder, url)
            yield from _relations(folder, url, client)
            yield from _scripts(folder, url)
            yield from _images(folder, client)
            yield from _molecules(folder, url, Path(temporary))
            yield from _http(folder, url, client)


def _train(folder: Path, temporary: Path, models: Path) -> Iterator[tuple[str, str, str]]:
    typed = folder / "tables/typed"
    runs = [
        (f"u-{kind}", typed / "nodes.csv", typed / f"edges_{kind}.csv")
        for kind in ("num", "name", "one")
    ]
    for nodes in sorted((folder / "training").glob("*_n.csv")):
        name = nodes.name.removesuffix("_n.csv")
        runs.append((f"training/{name}", nodes, nodes.with_name(f"{name}_e.csv")))
    for name, nodes, edges in runs:
        out = models / name if name.startswith("u-") else temporary / name
        options = ["--nodes", nodes, "--edges", edges, "--name", Path(name).name]
        options += ["--smoke", "--out", out]
        came = _invoke(training, "anomaly", *options, "--run-folder", temporary / "runs" / name)
        yield name, came, TRAINING.get(name.partition("/")[2], "^done")
    for table in sorted((folder / "training").glob("s_*.csv")):
        options = ["--smiles", table, "--label", "active", "--smoke", "--split", "random"]
        places = ["--out", temporary / table.stem, "--run-folder", temporary / "runs" / table.stem]
        came = _invoke(training, "classify", *options, *places)
        yield f"training/{table.stem}", came, TRAINING_SMILES.get(table.stem, "^done")
    pictures = temporary / "pictures"
    pictures.mkdir()
    for i in range(12):
        grey = Image.open(folder / "images/grey16.png")
        grey.crop((i, 0, i + 20, 20)).save(pictures / f"{i}.png")
    (pictures / "bad.png").write_bytes(b"bad")
    dataset = load_folder(pictures, 16)
    came = f"contrast {dataset.images.std():.0f}, {len(dataset.images)} images. {dataset.note}"
    yield "training/grey16.png", came, r"contrast [3-9]\d, 12 images. Left out: .*bad.png"


def _score(folder: Path, url: str) -> Iterator[tuple[str, str, str]]:
    for nodes in sorted((folder / "tables").glob("*_nodes.*")):
        name = nodes.stem.removesuffix("_nodes")
        edges = nodes.with_name(nodes.name.replace("_nodes", "_edges"))
        came = _invoke(basin, "score", nodes, edges, "--server", url)
        ids = re.findall(r"^([^,\n]+),-?\d", came, re.MULTILINE)
        yield f"tables/{name}", " ".join(ids) or came, TABLES[name]
    lead, targets = folder / "tables/lead_nodes.csv", folder / "tables/t7.csv"
    edges = folder / "tables/lead_edges.csv"
    came = _invoke(basin, "score", lead, edges, "--targets", targets, "--server", url)
    yield "tables/t7 of lead", came, r"(?m)^007,"
    wrong = [folder / f"tables/wrong_{part}.csv" for part in ("nodes", "edges", "t")]
    came = _invoke(basin, "score", *wrong[:2], "--targets", wrong[2], "--server", url)
    yield "tables/wrong_t", came, "row 1, column 'id': the graph has no node '0007'"


def _relations(folder: Path, url: str, client: Client) -> Iterator[tuple[str, str, str]]:
    """One relation has the same scores by every way; a strange one is refused."""
    typed = folder / "tables/typed"
    nodes, drop = typed / "nodes.csv", ["--drop", "is_fraud", "--server", url]
    columns = pd.read_csv(nodes)
    rows = columns[["id", "amount", "age", "n"]].to_dict("records")
    for kind, file in (("num", "edges_num_12"), ("name", "edges_name"), ("one", "edges_one")):
        edges = typed / f"{file}.csv"
        command = _invoke(basin, "score", nodes, edges, "--model", f"u-{kind}", *drop)
        numbers = pd.read_csv(edges)
        body = {
            "nodes": rows,
            "edges": [
                {"source": a, "target": b, "type": t if isinstance(t, str) else int(t)}
                for a, b, t in numbers.itertuples(index=False)
            ],
            "model": f"u-{kind}",
        }
        over_http = httpx.post(url + "/anomaly/score", json=body, timeout=60).json()
        by_client = client.score((columns, numbers), model=f"u-{kind}", drop=["is_fraud"])
        first = [over_http["results"][0]["score"], float(by_client.score[0])]
        line = command.splitlines()[1].split(",")[1] if "\n" in command else command
        came = f"{float(line):.4f} " + " ".join(f"{score:.4f}" for score in first)
        yield f"tables/typed/{file}", came, r"^(-?\d+\.\d{4}) \1 \1$"
    came = _invoke(basin, "score", nodes, typed / "edges_name.csv", "--model", "u-num", *drop)
    yield "tables/typed: a strange relation", came, "has no relation 'ip'. Relations: 1, 2, 3"


def _scripts(folder: Path, url: str) -> Iterator[tuple[str, str, str]]:
    right = {
        "column_order.py": r"as the model has them \[(\S+)\]\n.*order \[\1\](?s:.*)no column 'f3'",
        "exif_pil.py": r"path (.*)\nPIL.Image \1",
        "names_in_paths.py": "The id 'a\\?b' is not allowed",
        "series.py": r"(?s)(CCO.*){4}empty.*CCO.*empty",
        "silent_casts.py": "The target 1.7 is no row",
    }
    for name, pattern in right.items():
        command = [sys.executable, str(folder / "client" / name), url]
        done = subprocess.run(command, cwd=REPO, capture_output=True, text=True)
        yield f"client/{name}", done.stdout + done.stderr, pattern
    with Client(url) as client:
        notes = [m["note"] for m in client.memories() if m["id"] == "a"]
        yield "client/names_in_paths.py: the memory", str(notes), "FIRST"
        big = pd.DataFrame({"id": [2**63, 2**64 - 1]} | {f"f{i}": [0.1, 0.2] for i in range(10)})
        edges = pd.DataFrame({"source": [2**63], "target": [2**64 - 1]})
        client.store_graph("big", (big, edges), model="et-tolokers")
        ids = client.score_nodes("big", [2**63, 2**64 - 1], model="et-tolokers").node_ids
        yield "client/silent_casts.py: big ids", str(ids), f"{2**63}, {2**64 - 1}"


def _images(folder: Path, client: Client) -> Iterator[tuple[str, str, str]]:
    holes = {}
    for path in sorted((folder / "images").iterdir()):
        if path.name.startswith("mask"):

            def complete(path: Path = path) -> str:
                client.complete(folder / "images/rgb.png", path)
                return "completed"

            came = _said(complete)
            holes[path.name] = came
            yield f"images/{path.name}", came, IMAGES.get(path.name, "^completed")
        else:

            def look(path: Path = path) -> str:
                shape = client.classify_images(path)[0].raw["image"]
                return f"{shape['width']} x {shape['height']}"

            upright = "^640 x 480" if path.name == "phone.jpg" else r"^\d+ x \d+"
            yield f"images/{path.name}", _said(look), IMAGES.get(path.name, upright)
    with tempfile.TemporaryDirectory() as out:
        images = [str(folder / "images" / name) for name in ("rgb.png", "pic.heic", "q.webp")]
        mask = str(folder / "images/mask.png")
        url = str(client._http.base_url)
        came = _invoke(basin, "complete", *images, "--mask", mask, "--out", out, "--server", url)
        done = sorted(path.name for path in Path(out).iterdir())
        yield (
            "images: one bad file",
            f"{done} {came}",
            r"(?s)\['q.png', 'rgb.png'\].*pic.heic: .*HEIC",
        )


def _molecules(folder: Path, url: str, temporary: Path) -> Iterator[tuple[str, str, str]]:
    out = temporary / "classes.parquet"
    for name, pattern in SMILES.items():
        argument = name if name[0] == "C" else str(folder / "smiles" / name)
        options = ["--server", url, "--model", "cdat-ames", "--out", out]
        out.unlink(missing_ok=True)
        came = _invoke(basin, "classify", argument, *options)
        if out.exists():
            table = pd.read_parquet(out)
            came = f"{len(table)} molecules, {table['error'].notna().sum()} errors"
            for column in ("id", "name"):
                if column in table:
                    came += ", " + " ".join(table[column].fillna("").astype(str))
            if "not_smiles" in set(table["error"]) and "errors" not in pattern:
                came = "not_smiles"
        yield f"smiles/{name[:30]}", came, pattern


def _http(folder: Path, url: str, client: Client) -> Iterator[tuple[str, str, str]]:
    done = subprocess.run(
        ["bash", str(folder / "http/head.sh"), url], capture_output=True, text=True
    )
    yield "http/head.sh", done.stdout, r"^(\S+ HTTP/1.1 200 OK\r?\n){6}$"
    body = {"memory": "mnist-3", "beta": 2000, "method": "mala", "step_size": 0.3}
    body |= {"num_samples": 8, "chains": 4, "steps": 1000, "burn_in": 0, "thin": 1}
    notes = httpx.post(url + "/sample", json=body, timeout=60).json()["diagnostics"]["notes"]
    yield "http/mala_frozen.sh", str(notes), "4 of 4 chains stand still"
    from service.settings import Settings

    yield "http/keepalive_race.py", f"{Settings().keep_alive_s} s", r"^([7-9]\d|\d{3}) s"


def _invoke(app: Any, *arguments: object) -> str:
    """Run a command in this process; return what it prints, or its error in one line."""
    result = CliRunner().invoke(app, list(map(str, arguments)))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        if not isinstance(result.exception, ValueError | OSError):
            traceback.print_exception(result.exception)
            return "a traceback"
        return str(result.exception)
    text = result.stdout + result.stderr
    return "done" if app is training and result.exit_code == 0 else text


def _said(work: Callable[[], str]) -> str:
    try:
        return work()
    except ValueError as error:
        return str(error)
    except Exception as error:
        return str(error)


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else REPO.parent / "shared/cases").resolve()
    total = failed = 0
    sys.path.insert(0, str(REPO / "client"))
    with contextlib.suppress(KeyboardInterrupt):
        for name, came, right in run_cases(folder):
            is_right = re.search(right, came) is not None
            line = " ".join(came.split()).replace(f"{folder}/", "")[:150]
            print(f"{'right' if is_right else 'WRONG'}  {name}: {line}", flush=True)
            total, failed = total + 1, failed + (not is_right)
    print(f"{total} cases, {total - failed} right")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
