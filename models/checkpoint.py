"""A checkpoint is a folder: weights in safetensors, a manifest with their hash, a model card.

Nothing in it is executed. Loading refuses a folder whose files are not exactly those of the
manifest, byte for byte, and a manifest that is not the one that was written.
"""

from __future__ import annotations

import hashlib
import json
import platform
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from pydantic import ValidationError

from models.base import Architecture
from models.files import PARTIAL, write_file
from models.manifest import (
    MANIFEST,
    CheckpointError,
    Manifest,
    TrainedKnobs,
    parse_manifest,
    read_manifest_bytes,
    verify_manifest,
)
from models.manifest_digest import write_with_digest
from models.registry import find_architectures

WEIGHTS, CARD = "model.safetensors", "README.md"


@dataclass(frozen=True)
class Checkpoint:
    """A loaded network in evaluation mode. `sha256` is the manifest's, and so covers every file."""

    network: Architecture
    manifest: Manifest
    sha256: str


def read_trained_params(network: Architecture) -> TrainedKnobs:
    """The knobs a network carries."""
    blocks = network.blocks_in_order()
    return TrainedKnobs(
        steps=network.config.steps,
        step_size=network.config.step_size,
        beta=tuple(tuple(block.log_beta_H.detach().exp().tolist()) for block in blocks),
        resonance=network.resolve_resonance(None),
    )


def require_replaceable(folder: Path) -> None:
    """Raises CheckpointError where writing a checkpoint to `folder` would mix it with others."""
    for old in folder.iterdir() if folder.is_dir() else ():
        if old.name not in (MANIFEST, WEIGHTS, CARD):
            raise CheckpointError(f"{folder} holds {old.name!r}, which is no part of a checkpoint")


def save_checkpoint(
    folder: Path, network: Architecture, manifest: Manifest, card: str
) -> Checkpoint:
    """Write a checkpoint and read it back; hashes and versions in `manifest` are filled in."""
    require_replaceable(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: t.detach().cpu().contiguous() for name, t in network.state_dict().items()}
    (folder / WEIGHTS).write_bytes(safetensors.torch.save(tensors))
    (folder / CARD).write_text(card, encoding="utf-8")
    manifest = manifest.model_copy(
        update={
            "files": {
                name: hashlib.sha256(_content(folder / name)).hexdigest()
                for name in (WEIGHTS, CARD)
            },
            "versions": {
                "python": platform.python_version(),
                **{name: version(name) for name in ("torch", "numpy", "safetensors", "rdkit")},
            },
        }
    )
    (folder / MANIFEST).write_bytes(write_with_digest(manifest.model_dump(mode="json")))
    return load_checkpoint(folder)


def load_checkpoint(folder: Path, device: str | torch.device = "cpu") -> Checkpoint:
    """Verify and load a checkpoint. A manifest of before version 0.2.0, without a digest, is loaded
    with a warning in the log.

    Raises:
        CheckpointError: a file is missing, unlisted, altered or malformed, or the architecture,
            its configuration or the weights do not fit each other.
    """
    return _load(folder, read_manifest_bytes(folder / MANIFEST), device)


def seal_checkpoint(folder: Path) -> Checkpoint:
    """Write the digest of a manifest, and the hash of the card, as they are after an edit. The
    manifest is replaced atomically.

    Raises:
        CheckpointError: it would not load then, or a file cannot be read or written; nothing has
            changed.
    """
    try:
        return _seal(folder)
    except OSError as error:
        raise CheckpointError(f"{folder} is not sealed: {error}") from error


def _seal(folder: Path) -> Checkpoint:
    path = folder / MANIFEST
    raw = read_manifest_bytes(path)
    manifest = parse_manifest(path, raw)
    content = json.loads(raw)
    if CARD in manifest.files:
        content["files"][CARD] = hashlib.sha256(_content(folder / CARD)).hexdigest()
    sealed = write_with_digest(content)
    checkpoint = _load(folder, sealed, "cpu")
    write_file(path, sealed)
    return checkpoint


def _load(folder: Path, raw: bytes, device: str | torch.device) -> Checkpoint:
    """Load a checkpoint whose manifest has the bytes `raw`."""
    manifest = verify_manifest(folder / MANIFEST, raw)
    listed = set(manifest.files) | {MANIFEST}
    # One who seals it may be writing the next manifest, or was killed while doing so.
    present = {path.name for path in folder.iterdir() if not path.name.startswith(PARTIAL)}
    if WEIGHTS not in manifest.files:
        raise CheckpointError(f"{folder}: the manifest lists no {WEIGHTS}")
    if missing := sorted(listed - present):
        raise CheckpointError(f"{folder}: {missing[0]} is missing")
    if unlisted := sorted(present - listed):
        raise CheckpointError(f"{folder}: {unlisted[0]} is not in the manifest")
    weights = b""
    for name, expected in manifest.files.items():
        content = _content(folder / name)
        if hashlib.sha256(content).hexdigest() != expected:
            raise CheckpointError(f"{folder}: {name} does not match its hash; it was altered")
        if name == WEIGHTS:  # what was verified is loaded, whatever becomes of the file
            weights = content
    try:
        kind = find_architectures()[manifest.architecture]
    except KeyError:
        known = ", ".join(sorted(find_architectures()))
        raise CheckpointError(
            f"{folder}: unknown architecture {manifest.architecture!r}; known are {known}"
        ) from None
    try:
        config = kind.config_type.model_validate(manifest.config)
        tensors = safetensors.torch.load(weights)
        network = kind(config)  # type: ignore[call-arg]
        network.load_state_dict(tensors)
    except (ValidationError, safetensors.SafetensorError, RuntimeError, ValueError) as error:
        raise CheckpointError(f"{folder}: {_first_line(error)}") from error
    for name, tensor in tensors.items():
        if not tensor.isfinite().all():
            raise CheckpointError(f"{folder}: {name} holds values that are not finite")
    network.requires_grad_(False)
    return Checkpoint(network.eval().to(device), manifest, hashlib.sha256(raw).hexdigest())


def _content(path: Path) -> bytes:
    if path.is_symlink() or not path.is_file():
        raise CheckpointError(f"{path} is not a plain file")
    return path.read_bytes()


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
