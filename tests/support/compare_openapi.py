"""Compare the OpenAPI documents of two versions, all but their descriptions.

python -m tests.support.compare_openapi dump > new.json     # of this checkout
python -m tests.support.compare_openapi old.json new.json   # prints each difference
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_PROSE = frozenset(("description", "summary", "title"))
_MISSING = object()


def describe() -> dict[str, Any]:
    """Documents of the public and the admin application."""
    from service.app import create_admin_app, create_app
    from service.settings import Settings

    with tempfile.TemporaryDirectory() as folder:
        var = Path(folder)
        settings = Settings(
            job_store=var / "jobs", graph_store=var / "graphs", memory_store=var / "memories"
        )
        app = create_app(settings)
        return {"public": app.openapi(), "admin": create_admin_app(app.state.context).openapi()}


def find_differences(old: Any, new: Any, place: str = "") -> Iterator[str]:
    """JSON Pointers at which the documents differ, descriptions apart."""
    if isinstance(old, dict) and isinstance(new, dict):
        is_properties = place.endswith(("/properties", "/schemas"))  # names, not keywords
        for name in sorted({*old, *new}):
            if name not in _PROSE or is_properties:
                yield from find_differences(
                    old.get(name, _MISSING), new.get(name, _MISSING), f"{place}/{name}"
                )
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for i, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from find_differences(before, after, f"{place}/{i}")
    elif old != new:
        yield place


def main(args: list[str]) -> int:
    if args == ["dump"]:
        print(json.dumps(describe()))
        return 0
    old, new = (json.loads(Path(name).read_text()) for name in args)
    differences = list(find_differences(old, new))
    print("\n".join(differences) or "The documents differ in descriptions alone.")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
