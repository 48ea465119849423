"""Content negotiation by the Accept header (RFC 9110 section 12.5.1)."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request

from service.errors import Problem


def select_media_type(request: Request, offered: Sequence[str]) -> str:
    """Return the type of `offered` with the highest quality in `Accept`, by default the first.

    Raises:
        Problem: the client accepts none of them.
    """
    header = request.headers.get("accept") or "*/*"
    quality = dict.fromkeys(offered, 0.0)
    matched = dict.fromkeys(offered, -1)  # specificity of the media range that set the quality
    for part in header.split(",")[:64]:
        media_range, *parameters = (piece.strip().lower() for piece in part.split(";"))
        for name in offered:
            kind = name.partition("/")[0]
            specific = {"*/*": 0, f"{kind}/*": 1, name: 2}.get(media_range, -1)
            if specific > matched[name]:
                matched[name], quality[name] = specific, _quality(parameters)
    best = max(offered, key=lambda name: quality[name])
    if quality[best] <= 0:
        raise Problem(
            "not-acceptable",
            f"No type in Accept is supported. This route responds with {' or '.join(offered)}.",
        )
    return best


def _quality(parameters: Sequence[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return min(max(float(value), 0.0), 1.0)
            except ValueError:
                return 0.0
    return 1.0
