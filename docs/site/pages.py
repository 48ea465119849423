"""A hook of MkDocs: pages that are made of the code, and formulas as MathML.

The routes are those of the server's OpenAPI document, the cards those of the checkpoints that ship.
Links to folders and out of `docs/` lead to what the site has not, and become plain text.
"""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Section
from mkdocs.structure.pages import Page

from service.app import create_app
from service.settings import Settings

REPO = Path(__file__).resolve().parents[2]
_FORMULA = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.S)
_OUT = re.compile(
    r"\[([^\]]+)\]\(((?:\.\./)+(?![\w-]+\.md)[^)#]+|tables/[^)]*/|tables/)(?:#[^)]*)?\)"
)
_VERBS = ("get", "put", "post", "patch", "delete")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the routes and the cards."""
    document = create_app(Settings()).openapi()
    files.append(File.generated(config, "reference.md", content=reference(document)))
    for card in sorted((REPO / "checkpoints").glob("*/README.md")):
        name = f"models/{card.parent.name}.md"
        files.append(File.generated(config, name, content=card.read_text()))
    return files


def on_nav(nav: Any, config: MkDocsConfig, files: Files) -> Any:
    """Put the cards and the decisions behind what `nav` in mkdocs.yml names."""
    for title, start in (("Model cards", "models/"), ("Decisions", "decisions/")):
        under = sorted((f for f in files if f.src_uri.startswith(start)), key=lambda f: f.src_uri)
        pages = [file.page or Page(None, file, config) for file in under]
        section = Section(title, pages)
        for page in pages:
            page.parent = section
        nav.items.append(section)
        nav.pages.extend(pages)
    for before, after in zip(nav.pages, nav.pages[1:], strict=False):
        before.next_page, after.previous_page = after, before
    return nav


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Leave of links out of `docs/` their text."""
    return _OUT.sub(r"\1 (`\2`)", markdown)


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Formulas as MathML, which browsers draw by themselves."""

    def drawn(found: re.Match[str]) -> str:
        latex = html.unescape(found[2]).strip()[2:-2]  # without \( \) or \[ \]
        if found[1] == "div":
            return f'<div class="formula">{convert(latex, display="block")}</div>'
        return convert(latex, display="inline")

    return _FORMULA.sub(drawn, content)


def reference(document: dict[str, Any]) -> str:
    """Every operation and every schema of an OpenAPI document, as Markdown."""
    lines = [
        "# Routes",
        "",
        "`GET /openapi.json` has the same for programs, `GET /docs` to try.",
        "",
    ]
    for path, operations in document["paths"].items():
        for verb in _VERBS:
            if verb in operations:
                lines += _operation(verb, path, operations[verb])
    lines += ["## Schemas", ""]
    for name, schema in sorted(document["components"]["schemas"].items()):
        lines += _schema(name, schema)
    return "\n".join(lines)


def _operation(verb: str, path: str, told: dict[str, Any]) -> list[str]:
    lines = [f"## {verb.upper()} {path}", "", told.get("summary", ""), ""]
    lines += [told.get("description", ""), ""]
    if parameters := told.get("parameters"):
        lines += ["| parameter | in | type | |", "|---|---|---|---|"]
        for one in parameters:
            said = _cell(one.get("description", ""))
            lines.append(f"| `{one['name']}` | {one['in']} | {_type(one['schema'])} | {said} |")
        lines.append("")
    if body := told.get("requestBody"):
        lines += [body.get("description", ""), ""]
        for media_type, content in body["content"].items():
            lines.append(f"- `{media_type}`: {_type(content['schema'])}")
        lines.append("")
    lines += ["| status | answer |", "|---|---|"]
    for status, answer in told["responses"].items():
        shapes = {_type(c.get("schema", {})) for c in answer.get("content", {}).values()}
        kinds = ", ".join(f"`{kind}`" for kind in answer.get("content", {}))
        said = "; ".join(filter(None, (answer["description"], kinds, ", ".join(sorted(shapes)))))
        lines.append(f"| {status} | {_cell(said, escape=False)} |")
    return [*lines, ""]


def _schema(name: str, schema: dict[str, Any]) -> list[str]:
    lines = [f"### {name}", "", schema.get("description", ""), ""]
    if fields := schema.get("properties"):
        needed = set(schema.get("required", ()))
        lines += ["| field | type | default | |", "|---|---|---|---|"]
        for field, told in fields.items():
            default = "required" if field in needed else ""
            if "default" in told:
                default = f"`{_cell(json.dumps(told['default'], ensure_ascii=False))}`"
            bounds = _bounds(told)
            said = "; ".join(filter(None, (told.get("description", ""), bounds)))
            lines.append(f"| `{field}` | {_type(told)} | {default} | {_cell(said)} |")
    elif "enum" in schema:
        lines.append(", ".join(f"`{value}`" for value in schema["enum"]))
    return [*lines, ""]


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].split("/")[-1]
        return f"[{name}](#{name.lower()})"
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " or ".join(dict.fromkeys(_type(one) for one in schema[several]))
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return ", ".join(f"`{value}`" for value in values)
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"map to {_type(schema['additionalProperties'])}"
    return schema.get("type", "anything")


_NAMES = {
    "minimum": "at least {}",
    "exclusiveMinimum": "above {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "below {}",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "maxLength": "at most {} characters",
}


def _bounds(schema: dict[str, Any]) -> str:
    every = [schema, *schema.get("anyOf", ())]
    told = [rule.format(one[key]) for one in every for key, rule in _NAMES.items() if key in one]
    return ", ".join(dict.fromkeys(told))


def _cell(text: str, escape: bool = True) -> str:
    plain = " ".join(text.split()).replace("|", "\\|")
    return plain.replace("<", "&lt;") if escape else plain
