"""Numbers at the ends of what can be represented, as JSON spells them, in the place of others."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from random import Random
from typing import Any

_SPECIAL = (
    *("0", "-0", "0.0", "-0.0", "-0e0", "1e-999", "-1e-999", "1E+2", "0.1e1", "true", "null"),
    *("NaN", "Infinity", "-Infinity", "nan", "1e999", "-1e999", f"1{'0' * 400}", f"0.{'0' * 400}1"),
    *("5e-324", "-5e-324", "4.9e-324", "2.2250738585072014e-308", "2.225073858507201e-308"),
    *("1e-46", "7e-46", "1.4e-45", "1.1754942e-38", "1.17549435e-38", "1e-12", "9.99e-13"),
    *("3.4028235e38", "-3.4028235e38", "3.4028236e38", "1e39", "1e19", "1.8e19", "-1e20", "1e154"),
    *("1.7976931348623157e308", "-1.7976931348623157e308", "1.7976931348623159e308"),
    *("1.0000000000000002", "0.9999999999999999", "0.5", "1.5", "65504", "65520", "6e-8"),
)  # fmt: skip
_MARK = "\ue000"


def draw_literal(rng: Random) -> str:
    """Draw a number as text: the ends of float16, float32 and float64 and beyond, subnormals, both
    zeros, what is not finite, powers of two and their neighbours, huge counts, any bits."""
    kind = rng.random()
    if kind < 0.3:
        return rng.choice(_SPECIAL)
    if kind < 0.5:
        (value,) = struct.unpack("<d", rng.randbytes(8))
        return json.dumps(value)
    if kind < 0.65:
        (value,) = struct.unpack("<f", rng.randbytes(4))
        return json.dumps(value)
    if kind < 0.75:
        return repr(rng.choice((1, 1, -1)) * 10 ** rng.uniform(-13, 7))
    if kind < 0.95:
        return str(rng.choice((1, 1, -1)) * (1 << rng.randrange(66)) + rng.randint(-1, 1))
    return str(rng.randint(-3, 20))


def mark(literal: str) -> str:
    """Return a value that `dump_marked` writes as `literal`, without quotes."""
    return f"{_MARK}{literal}{_MARK}"


def dump_marked(body: Any) -> bytes:
    """Write JSON with the literals of `mark` in it."""
    text = json.dumps(body)
    return re.sub(r'"\\ue000(.*?)\\ue000"', r"\1", text).encode()


def place_extremes(body: Any, rng: Random) -> None:
    """Put extreme numbers in place of one to three numbers of `body`, each field as probable as the
    others however many numbers it has; now and then in place of all numbers of a field."""
    fields: dict[tuple[str, ...], list[tuple[Any, Any]]] = {}
    for name, place, key in _numbers(body, ()):
        fields.setdefault(name, []).append((place, key))
    for _ in range(rng.choice((0, 1, 1, 1, 1, 2, 3)) if fields else 0):
        places = fields[rng.choice(list(fields))]
        literal = draw_literal(rng)
        for place, key in places if rng.random() < 0.2 else [rng.choice(places)]:
            place[key] = mark(literal)


def _numbers(value: Any, name: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """Yield field, container and key of each number; the entries of a list are one field."""
    if not isinstance(value, dict | list):
        return
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        own = (*name, key) if isinstance(key, str) else name
        if isinstance(inner, int | float) and not isinstance(inner, bool):
            yield own, value, key
        yield from _numbers(inner, own)


class SchemaReader:
    """Makes values of the schemas of an OpenAPI document, of modest numbers."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._schemas = document["components"]["schemas"]

    def variants(self, schema: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the alternatives of a schema, without null, references resolved."""
        if "$ref" in schema:
            return self.variants(self._schemas[schema["$ref"].rsplit("/", 1)[1]])
        several = schema.get("oneOf") or schema.get("anyOf")
        if several is None:
            return [] if schema.get("type") == "null" else [schema]
        return [each for one in several for each in self.variants(one)]

    def fits(self, body: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any] | None:
        """Return the first alternative that has all fields of `body`."""
        for each in self.variants(schema):
            if body.keys() <= each.get("properties", {}).keys():
                return each
        return None

    def add_fields(self, body: dict[str, Any], schema: dict[str, Any], rng: Random) -> None:
        """Add optional fields at random, in objects within `body` too; texts are left out."""
        for name, inner in schema.get("properties", {}).items():
            if isinstance(body.get(name), dict):
                if (own := self.fits(body[name], inner)) is not None:
                    self.add_fields(body[name], own, rng)
            elif name not in body and rng.random() < 0.12:
                choices = [each for each in self.variants(inner) if _is_no_text(each)]
                if choices:
                    body[name] = self.make(rng.choice(choices), rng)

    def make(self, schema: dict[str, Any], rng: Random, depth: int = 0) -> Any:
        """Make a value."""
        variants = self.variants(schema)
        schema = rng.choice(variants) if variants else {}
        if "const" in schema or "enum" in schema:
            return rng.choice([schema["const"]] if "const" in schema else schema["enum"])
        match schema.get("type"):
            case "integer" | "number":
                return _make_number(schema, rng)
            case "boolean":
                return rng.random() < 0.5
            case "string":
                return rng.choice(("a", "b", "1", "2026-01-31T23:59:59Z"))
            case "array":
                count = rng.randint(schema.get("minItems", 0), max(2, schema.get("minItems", 0)))
                return [self.make(schema.get("items", {}), rng, depth + 1) for _ in range(count)]
            case "object":
                required = schema.get("required", ())
                made = {
                    name: self.make(inner, rng, depth + 1)
                    for name, inner in schema.get("properties", {}).items()
                    if name in required or rng.random() < 0.3
                }
                more = schema.get("additionalProperties")
                if isinstance(more, dict) and depth < 6:
                    made |= {name: self.make(more, rng, depth + 1) for name in ("a", "time")}
                return made
        return rng.choice((1, 0.5, [1.0, 2.0], "a"))


def _is_no_text(schema: dict[str, Any]) -> bool:
    return schema.get("type") != "string" or "enum" in schema or "const" in schema


def _make_number(schema: dict[str, Any], rng: Random) -> float:
    low = schema.get("minimum", schema.get("exclusiveMinimum", -2))
    high = min(schema.get("maximum", schema.get("exclusiveMaximum", low + 8)), low + 8)
    if schema["type"] == "integer":
        return rng.randint(int(low), int(high))
    return round(rng.uniform(low, high), 3) or high
