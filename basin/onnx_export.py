"""Export the steps of a checkpoint as ONNX files, for ONNX Runtime and others that read them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from basin_client import InputError

from models import checkpoint
from models.manifest import CheckpointError
from service.registry.handles import handle_for


def export_steps(folder: Path, out: Path) -> Iterator[Path]:
    """Write one ONNX file per block and yield its path.

    `models.onnx_backend.export` documents the inputs and outputs of each graph.

    Raises:
        InputError: the checkpoint cannot be loaded, a block has no ONNX form, or ONNX is not
            installed.
    """
    try:
        import onnx

        from models.onnx_backend.export import NotExportableError, export, form_of
    except ModuleNotFoundError as error:
        raise InputError(
            f"{error.name} is not installed. Run: pip install 'basin-server[cpu]'"
        ) from error
    try:
        model = handle_for(checkpoint.load_checkpoint(folder))
        graphs = []
        for block, layout in zip(model.network.blocks_in_order(), model.layouts(), strict=True):
            if (form := form_of(layout)) is None:
                raise NotExportableError(f"The layout {type(layout).__name__} has no ONNX form.")
            graphs.append(export(block, form))
    except (CheckpointError, NotExportableError) as error:
        raise InputError(str(error)) from error
    out.mkdir(parents=True, exist_ok=True)
    for i, graph in enumerate(graphs):
        path = out / f"block-{i}.onnx"
        onnx.save(graph, path)
        yield path
