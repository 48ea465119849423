"""`python -m service key NAME`: create an API key, print it once, and store its hash."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from service.auth.key_store import (
    ApiKeyFileError,
    KeyFile,
    format_validation_errors,
    parse_key_file,
)
from service.auth.keys import ALL, ApiKey, hash_secret, new_secret


def main(arguments: Sequence[str]) -> None:
    """Create a key and print it on stdout; it cannot be shown again."""
    args = _parser().parse_args(arguments)
    secret = new_secret()
    try:
        key_file = (
            parse_key_file(args.file.read_bytes()) if args.file and args.file.exists() else None
        )
        key = _key(args, secret, key_file)
    except ValidationError as error:
        sys.exit(format_validation_errors(error))
    except (ApiKeyFileError, OSError) as error:
        sys.exit(f"{args.file}: {error}")
    if args.file is None:
        print(key.model_dump_json(exclude_none=True), file=sys.stderr)
    else:
        others = [other for other in key_file.keys if other.name != key.name] if key_file else []
        _write(args.file, KeyFile(keys=(*others, key)))
    print(secret)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m service key", description=__doc__)
    parser.add_argument(
        "name", help="whose it is; of a name there is, one more key with its rights"
    )
    parser.add_argument("--routes", nargs="+", metavar="ROUTE", help="as /classify or GET /jobs")
    parser.add_argument("--models", nargs="+", metavar="MODEL", help="names; all if not given")
    parser.add_argument("--expires", help="date and time with its zone, as 2030-01-31T00:00:00Z")
    parser.add_argument("--rate", nargs=2, metavar=("PER_SECOND", "BURST"), help="requests")
    parser.add_argument("--quota", nargs=2, metavar=("COST", "SECONDS"), help="tokens x steps")
    parser.add_argument("--only", action="store_true", help="the keys it had are none any more")
    default_file = os.environ.get("BASIN_KEYS")
    where = (
        "file of keys, made if there is none; BASIN_KEYS if not given, else the entry is printed"
    )
    parser.add_argument(
        "--file", type=Path, default=default_file and Path(default_file), help=where
    )
    return parser


def _key(args: argparse.Namespace, secret: str, key_file: KeyFile | None) -> ApiKey:
    """Return the key of this name, with the given fields replaced."""
    known = (
        next((key for key in key_file.keys if key.name == args.name), None) if key_file else None
    )
    entry = known.model_dump() if known else {"name": args.name, "routes": ALL, "models": ALL}
    hashes = () if known is None or args.only else known.sha256
    entry["sha256"] = (*hashes, hash_secret(secret))
    for name in ("routes", "models", "expires"):
        if (given := getattr(args, name)) is not None:
            entry[name] = ALL if given == [ALL] else given
    for name, fields in (("rate", ("per_second", "burst")), ("quota", ("cost", "seconds"))):
        if (given := getattr(args, name)) is not None:
            entry[name] = dict(zip(fields, given, strict=True))
    return ApiKey.model_validate(entry)


def _write(path: Path, keys: KeyFile) -> None:
    """Replace the file atomically, so that a server reads the old keys or the new ones."""
    handle, partial = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(keys.model_dump_json(indent=1, exclude_none=True) + "\n")
            file.flush()
            os.fsync(file.fileno())
        if path.exists():  # keep its permissions
            Path(partial).chmod(path.stat().st_mode & 0o777)
        Path(partial).replace(path)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise
