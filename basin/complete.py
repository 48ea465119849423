"""`basin complete`: fill the masked part of images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from basin_client import InputError, ProblemError
from basin_client.errors import one_line

from basin.console import (
    AsJson,
    Key,
    Model,
    Params,
    Server,
    connect,
    exit_with,
    is_about_one_input,
    parse_dynamics,
    tell,
    with_progress_bar,
)
from basin.io import find_images


def complete(
    images: Annotated[list[Path], typer.Argument(help="Images, or folders of images.")],
    mask: Annotated[
        Path | None,
        typer.Option(
            help="Image that is white where to fill, or a folder with one mask per image, of the "
            "same name."
        ),
    ] = None,
    mask_mode: Annotated[
        str | None, typer.Option(help="white_fill, black_fill, alpha or soft.")
    ] = None,
    num_samples: int = 1,
    model: Model = None,
    memory: Annotated[
        str | None,
        typer.Option(help="Fill from the images of a stored memory, in place of a model."),
    ] = None,
    params: Params = None,
    server: Server = None,
    key: Key = None,
    out: Annotated[
        Path,
        typer.Option(help="Folder for the completed images; of one image also a file, X.png."),
    ] = Path("completed"),
    as_json: AsJson = False,
) -> None:
    """Fill the masked part of images. The exit code is 1 if one of them could not be completed."""
    paths = list(find_images(images, tell))
    if mask is None and mask_mode != "alpha":
        raise InputError("No mask: name one with --mask, or pass --mask-mode alpha.")
    is_file = bool(out.suffix) and not out.is_dir()
    if is_file and (out.suffix.lower() != ".png" or len(paths) > 1 or num_samples > 1):
        raise InputError(
            f"--out {out}: name a folder, without a suffix; a file X.png is for one completion."
        )
    path_of_name = {path.stem: path for path in paths}
    for path in paths:
        if (other := path_of_name[path.stem]) != path:
            raise InputError(
                f"{path} and {other} would both be written to {out / path.stem}.png: rename one."
            )
    dynamics = parse_dynamics(params)
    folder = out.parent if is_file else out
    folder.mkdir(parents=True, exist_ok=True)
    failures, outputs = list[str](), list[dict[str, str]]()
    with connect(server, key) as client:
        for path in with_progress_bar(paths, "images"):
            try:
                result = client.complete(
                    path,
                    _find_mask(path, mask),
                    mask_mode=cast(Any, mask_mode),
                    num_samples=num_samples,
                    model=model,
                    memory=memory,
                    dynamics=dynamics,
                )
            except (InputError, ProblemError) as error:
                if not is_about_one_input(error):
                    raise
                failures.append(f"{path}: {one_line(error)}")
                continue
            for i, image in enumerate(result.images):
                name = f"{path.stem}.png" if num_samples == 1 else f"{path.stem}-{i}.png"
                target = out if is_file else out / name
                if target.resolve() == path.resolve():
                    raise InputError(f"{target} is the image itself: name another place by --out.")
                image.save(target)
                outputs.append({"image": str(path), "completed": str(target)})
                if not as_json:
                    print(target)
    if as_json:
        print(json.dumps(outputs, indent=1))
    if not paths:
        failures.append("The arguments contain no images.")
    exit_with(failures)


def _find_mask(image: Path, mask: Path | None) -> Path | None:
    if mask is None or not mask.is_dir():
        return mask
    masks = sorted(path for path in mask.iterdir() if path.stem == image.stem)
    if not masks:
        raise InputError(f"{mask}: no mask with the name {image.stem}, for {image}.")
    return masks[0]
