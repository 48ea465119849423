"""Loading trusts nothing: every altered, missing or foreign file is refused with its name."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
import safetensors.torch
import torch
from pydantic import ValidationError

from models.architectures.et import ET
from models.checkpoint import (
    Checkpoint,
    load_checkpoint,
    read_trained_params,
    save_checkpoint,
    seal_checkpoint,
)
from models.manifest import (
    Calibration,
    CheckpointError,
    DegreeReference,
    EnergyReference,
    HiddenReference,
    Manifest,
    read_manifest,
)
from models.manifest_digest import write_with_digest
from tests.support.paths import REPO

SHIPPED = sorted((REPO / "checkpoints").glob("*/manifest.json"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    network, _ = ET.build_example(0)
    manifest = Manifest(
        name="example",
        version="1",
        architecture="et",
        task="anomaly",
        config=network.config.model_dump(mode="json"),
        knobs=read_trained_params(network),
        features=(),
        threshold=0.5,
        calibration=Calibration(slope=2.0, intercept=-1.0),
        energy=EnergyReference(levels=(0.0, 0.5, 1.0), values=(-3.0, -2.0, 0.0)),
        training={},
        metrics={},
    )
    save_checkpoint(tmp_path / "example", network, manifest, "# example\n")
    return tmp_path / "example"


def _edit(folder: Path, change: Callable[[dict], None]) -> None:
    """Write a manifest as a program would that knows its digest."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_bytes(write_with_digest(manifest))


def _rehash(folder: Path) -> None:
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    _edit(folder, lambda m: m["files"].update({"model.safetensors": digest}))


def test_a_sound_checkpoint_loads(folder: Path) -> None:
    checkpoint = load_checkpoint(folder)
    assert isinstance(checkpoint, Checkpoint)
    assert not checkpoint.network.training
    assert checkpoint.sha256 == hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()
    assert checkpoint.manifest.versions["torch"] == torch.__version__


def test_an_altered_weight_is_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    with pytest.raises(CheckpointError, match="does not match its hash"):
        load_checkpoint(folder)


def test_a_missing_file_is_refused(folder: Path) -> None:
    (folder / "README.md").unlink()
    with pytest.raises(CheckpointError, match=r"README\.md is missing"):
        load_checkpoint(folder)


def test_a_foreign_file_is_refused(folder: Path) -> None:
    (folder / "weights.pt").write_bytes(b"\x80\x04.")
    with pytest.raises(CheckpointError, match=r"weights\.pt is not in the manifest"):
        load_checkpoint(folder)


def test_a_link_is_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "README.md").rename(tmp_path / "elsewhere")
    (folder / "README.md").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="not a plain file"):
        load_checkpoint(folder)


def test_no_manifest(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no manifest\.json"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(format=2), "format"),
        (lambda m: m.update(surprise=1), "surprise"),
        (lambda m: m.update(name="../x"), "name"),
        (lambda m: m.update(architecture="gpt"), "unknown architecture"),
        (lambda m: m["config"].update(dim=-1), "dim"),
        (lambda m: m["config"].update(dim=13), "size mismatch"),
        (lambda m: m["files"].update({"../secret": "0"}), "plain file name"),
        (lambda m: m["files"].pop("model.safetensors"), "lists no model.safetensors"),
    ],
)
def test_a_manifest_that_does_not_fit(
    folder: Path, change: Callable[[dict], None], message: str
) -> None:
    _edit(folder, change)
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(folder)


def test_a_broken_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_text('{"format": NaN')
    with pytest.raises(CheckpointError, match="JSON"):
        load_checkpoint(folder)


@pytest.mark.parametrize(
    "manifest",
    [
        pytest.param(None, id="example"),
        *(pytest.param(path, id=path.parent.name) for path in SHIPPED),
    ],
)
def test_no_flipped_bit_of_a_manifest_is_read(folder: Path, manifest: Path | None) -> None:
    """All that loading reads of a manifest is read by `read_manifest`, which it calls first."""
    path = folder / "manifest.json"
    raw = (manifest or path).read_bytes()
    path.write_bytes(raw)
    read_manifest(folder)
    bits = Random(len(raw)).sample(range(8 * len(raw)), 300)
    # The digest, what is around it and both ends, which a sample may miss.
    line = raw.index(b' "digest"')
    bits += [*range(64), *range(8 * (line - 4), 8 * len(raw))]
    for bit in bits:
        flipped = bytearray(raw)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with pytest.raises(CheckpointError):
            read_manifest(folder)


def test_a_flipped_bit_of_a_manifest_does_not_load(folder: Path) -> None:
    path = folder / "manifest.json"
    raw = path.read_bytes()
    for bit in Random(1).sample(range(8 * len(raw)), 300):
        flipped = bytearray(raw)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with pytest.raises(CheckpointError):
            load_checkpoint(folder)
    path.write_bytes(raw)
    load_checkpoint(folder)


@pytest.mark.parametrize(
    "edit",
    [
        lambda raw: raw.replace(b'"threshold": 0.5', b'"threshold": 0.4'),
        lambda raw: raw.replace(b'"slope": 2.0', b'"slope": 2.00'),  # the same number
        lambda raw: json.dumps(json.loads(raw)).encode(),  # the same values
        lambda raw: raw + b"\n",
        lambda raw: raw.replace(b"\n", b"\r\n"),
        lambda raw: raw.replace(b'"digest": "', b'"digest": "0')[:-5] + b'"\n}\n',
    ],
)
def test_an_edited_manifest_names_the_command_that_seals_it(
    folder: Path, edit: Callable[[bytes], bytes]
) -> None:
    path = folder / "manifest.json"
    raw = path.read_bytes()
    path.write_bytes(edit(raw))
    assert path.read_bytes() != raw
    with pytest.raises(CheckpointError) as error:
        load_checkpoint(folder)
    assert str(error.value) == (
        f"{path} does not match its digest: it was damaged or edited. Restore it or, if the edit "
        f"is yours, seal it: basin seal {folder}"
    )
    seal_checkpoint(folder)
    assert load_checkpoint(folder).manifest.name == "example"


def test_sealing_keeps_the_edit_and_takes_the_card_as_it_is(folder: Path) -> None:
    path, card = folder / "manifest.json", folder / "README.md"
    raw = path.read_bytes()
    assert seal_checkpoint(folder).sha256 == hashlib.sha256(raw).hexdigest(), "nothing changed"
    assert path.read_bytes() == raw
    path.write_bytes(raw.replace(b'"threshold": 0.5', b'"threshold": 0.25'))
    card.write_text("# example, with notes of its owner\n")
    sealed = seal_checkpoint(folder)
    assert sealed.manifest.threshold == 0.25
    assert load_checkpoint(folder).sha256 == sealed.sha256
    assert path.read_bytes().count(b"\n") == raw.count(b"\n")


@pytest.mark.parametrize(
    ("name", "edit", "message"),
    [
        ("model.safetensors", lambda raw: raw[:-1] + b"x", "model.safetensors does not match"),
        ("manifest.json", lambda raw: raw.replace(b'"et"', b'"gpt"'), "unknown architecture"),
        ("manifest.json", lambda raw: raw[:-9], "JSON"),
    ],
)
def test_what_would_not_load_is_not_sealed(
    folder: Path, name: str, edit: Callable[[bytes], bytes], message: str
) -> None:
    path = folder / name
    path.write_bytes(edit(path.read_bytes()))
    manifest = (folder / "manifest.json").read_bytes()
    with pytest.raises(CheckpointError, match=message):
        seal_checkpoint(folder)
    assert (folder / "manifest.json").read_bytes() == manifest


@pytest.mark.parametrize(
    ("owner", "call"), [(tempfile, "mkstemp"), (os, "fsync"), (Path, "replace")]
)
def test_a_seal_that_cannot_be_written_changes_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, owner: object, call: str
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = folder / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b'"threshold": 0.5', b'"threshold": 0.25'))
    path.chmod(0o664)
    before = path.read_bytes(), sorted(folder.iterdir())
    with monkeypatch.context() as patched:
        patched.setattr(owner, call, fail)
        with pytest.raises(CheckpointError, match="No space left on device"):
            seal_checkpoint(folder)
    assert (path.read_bytes(), sorted(folder.iterdir())) == before
    (folder / ".partial-x").write_bytes(b"left by a process that was killed")
    assert seal_checkpoint(folder).manifest.threshold == 0.25
    assert load_checkpoint(folder).manifest.threshold == 0.25
    assert path.stat().st_mode & 0o777 == 0o664


def test_a_folder_that_cannot_be_read_is_not_sealed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", fail)
    with pytest.raises(CheckpointError, match="Permission denied"):
        seal_checkpoint(folder)


def test_a_manifest_of_before_digests_loads_with_a_warning(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["digest"]
    path.write_text(json.dumps(manifest, indent=1))
    assert load_checkpoint(folder).manifest.digest is None
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert f"{path} has no digest" in record.message
    assert f"basin seal {folder}" in record.message
    seal_checkpoint(folder)
    caplog.clear()
    load_checkpoint(folder)
    assert caplog.records == []


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.parent.name)
def test_the_digest_can_be_verified_by_hand(path: Path) -> None:
    """As docs/training.md says: what ships has one, of the file without its line."""
    command = f"grep -v '^ \"digest\": ' {path.name} | sha256sum"
    assert command in (REPO / "docs" / "training.md").read_text()
    done = subprocess.run(
        ["sh", "-c", command], cwd=path.parent, capture_output=True, text=True, check=True
    )
    assert json.loads(path.read_text())["digest"] == done.stdout.split()[0]


def test_weights_that_are_not_finite(folder: Path) -> None:
    path = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    tensors[next(k for k in tensors if k.endswith("bias"))][0] = torch.nan
    path.write_bytes(safetensors.torch.save(tensors))
    _rehash(folder)
    with pytest.raises(CheckpointError, match="not finite"):
        load_checkpoint(folder)


def test_weights_that_are_not_safetensors(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\x80\x04K\x01.")
    _rehash(folder)
    with pytest.raises(CheckpointError):
        load_checkpoint(folder)


def test_saving_over_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    network, _ = ET.build_example(0)
    with pytest.raises(CheckpointError, match=r"notes\.txt"):
        save_checkpoint(tmp_path, network, None, "")  # type: ignore[arg-type]


def test_calibration_and_percentile(folder: Path) -> None:
    manifest = load_checkpoint(folder).manifest
    probability = manifest.calibration(torch.tensor([0.5, -1e6, 1e6]).numpy())
    assert probability.tolist() == pytest.approx([0.5, 0.0, 1.0])
    assert manifest.energy.percentile(-2.5) == pytest.approx(25)
    assert manifest.energy.percentile(-9) == 0
    assert manifest.energy.percentile(9) == 100


def test_percentile_is_among_those_with_as_much_hidden() -> None:
    reference = EnergyReference(
        levels=(0.0, 1.0),
        values=(-9.0, 9.0),
        by_hidden=(
            HiddenReference(share=0.25, values=(0.0, 4.0)),
            HiddenReference(share=0.5, values=(10.0, 20.0)),
            HiddenReference(share=1.0, values=(20.0, 40.0)),
        ),
    )
    assert reference.percentile(0.0) == 50
    for hidden, energy, percentile in (
        *((0.25, 1.0, 25), (0.0, 1.0, 25), (0.5, 15.0, 50), (1.0, 25.0, 25)),
        (0.75, 22.5, 50),  # between 15 to 30, half way from 10 to 20 to 20 to 40
        (0.375, 5.0, 0),  # 5 to 12
    ):
        assert reference.percentile(energy, hidden) == pytest.approx(percentile)
    plain = EnergyReference(levels=(0.0, 1.0), values=(-9.0, 9.0))
    assert plain.percentile(0.0, 0.75) == 50


def test_percentile_is_among_graphs_of_that_degree() -> None:
    by_degree = (
        DegreeReference(log_degree=0.0, values=(0.0, 4.0)),
        DegreeReference(log_degree=2.0, values=(10.0, 20.0)),
    )
    given = {"levels": (0.0, 1.0), "values": (-9.0, 9.0), "by_degree": by_degree}
    reference = EnergyReference.model_validate(given)
    for degree, energy, percentile in ((0.0, 1.0, 25), (9.0, 15.0, 50), (1.0, 8.5, 50)):
        assert reference.percentile(energy, degree) == pytest.approx(percentile)
    both = (HiddenReference(share=0.0, values=(0.0, 1.0)),) * 2
    with pytest.raises(ValidationError, match="in order"):
        EnergyReference.model_validate(given | {"by_degree": by_degree[::-1]})
    with pytest.raises(ValidationError, match="not both"):
        EnergyReference.model_validate(
            given | {"by_hidden": (both[0], both[1].model_copy(update={"share": 1.0}))}
        )


@pytest.mark.parametrize(
    ("shares", "values", "message"),
    [
        ((0.5, 0.2), (0.0, 1.0), "in order"),
        ((0.5, 0.5), (0.0, 1.0), "in order"),
        ((0.5,), (0.0, 1.0), "two or more"),
        ((0.2, 0.5), (0.0, 1.0, 2.0), "one value"),
    ],
)
def test_references_that_cannot_be_read_are_refused(shares, values, message) -> None:
    by_hidden = tuple(HiddenReference(share=share, values=values) for share in shares)
    with pytest.raises(ValidationError, match=message):
        EnergyReference(levels=(0.0, 1.0), values=(0.0, 1.0), by_hidden=by_hidden)


def test_out_of_distribution_is_what_is_outside_the_central_99_percent() -> None:
    reference = EnergyReference(levels=(0.0, 0.01, 0.99, 1.0), values=(-3.0, -2.0, 0.0, 1.0))
    found = [
        reference.out_of_distribution(reference.percentile(energy))
        for energy in (-9.0, -2.6, -2.4, -1.0, 0.4, 0.6, 9.0)
    ]
    assert found == [True, True, False, False, False, True, True]
