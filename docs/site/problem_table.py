"""Print a markdown table of all problem types: `python -m docs.site.problem_table`.

The details are read from the source of `service` and of what reads images, with `<name>` for each
value filled in.
"""

import ast
import re
from functools import cache
from pathlib import Path

from models.inputs.molecules import MoleculeError
from service.errors import PROBLEM_TYPES

_CALLS = {  # that make a problem: its type, or the position of that; position of the detail
    **{"Problem": (0, 1), "make_problem": (0, 3), "FieldError": ("invalid-request", 2)},
    **{"ImageError": (2, 1), "CheckpointError": ("invalid-checkpoint", 0)},
    **{"make_graph_problem_at": ("graph", 2), "make_graph_problem_where": ("graph", 3)},
}
_FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef


_REPO = Path(__file__).parents[2]
_ROOTS = (_REPO / "service", _REPO / "models" / "inputs" / "image_files")


@cache
def collect_details() -> set[tuple[str, str, str]]:
    """Return problem type, detail and place of each message in the source."""
    unread, unclassified = str(MoleculeError("not_reached")), str(MoleculeError("timeout"))
    details = {("molecules-unread", unread, ""), ("nothing-classified", unclassified, "")}
    for path in (path for root in _ROOTS for path in root.rglob("*.py")):
        tree = ast.parse(source := path.read_text())
        graph = (re.findall(r'reraise_as\("([\w-]+)"\)', source) or ["invalid-graph"])[0]
        for scope in ast.walk(tree):
            if not isinstance(scope, _FUNCTION):
                continue
            for name, args, line in _calls(scope):
                kind, index = _CALLS.get(name, (0, len(args)))
                kinds = [graph if kind == "graph" else str(kind)]
                if isinstance(kind, int):  # elsewhere it is a parameter of `parse_json_object`
                    default = "invalid-image" if name == "ImageError" else "invalid-json"
                    kinds = _texts(args[kind : kind + 1], scope, tree) or [default]
                for text in _texts(args[index : index + 1], scope, tree):
                    details |= {(kind, text, f"{path}:{line}") for kind in kinds}
    return details


@cache
def _calls(tree: ast.AST) -> list[tuple[str, list[ast.expr], int]]:
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [(ast.unparse(node.func), node.args, node.lineno) for node in nodes]


def _texts(args: list[ast.expr], scope: ast.AST, tree: ast.AST) -> list[str]:
    """Return the texts that `args` may have: literals, also of variables and parameters."""
    texts: list[str] = []
    for arg in args:
        if isinstance(arg, ast.Constant | ast.JoinedStr):
            texts.append("".join(map(_part, getattr(arg, "values", [arg]))))
        elif isinstance(arg, ast.IfExp):
            texts += _texts([arg.body, arg.orelse], scope, tree)
        elif isinstance(arg, ast.Name) and isinstance(scope, _FUNCTION):
            sets = [node for node in ast.walk(scope) if isinstance(node, ast.Assign)]
            values = [node.value for node in sets if ast.unparse(node.targets[0]) == arg.id]
            for index, param in enumerate(scope.args.args):
                calls = [
                    c for name, c, _ in _calls(tree) if (name, param.arg) == (scope.name, arg.id)
                ]
                values += [value for call in calls for value in call[index : index + 1]]
            texts += _texts(values, ast.Pass(), tree)
    return texts


def _part(part: ast.expr) -> str:
    names = [getattr(node, "attr", getattr(node, "id", "")) for node in ast.walk(part)]
    name = next((name.strip("_").lower() for name in names if name), "value")
    return str(part.value) if isinstance(part, ast.Constant) else f"<{name}>"


if __name__ == "__main__":
    examples = {kind: text for kind, text, _ in sorted(collect_details(), reverse=True)}
    print("| code | status | title | detail, for example |\n|---|---|---|---|")
    for kind, (status, title) in PROBLEM_TYPES.items():
        print(f"| `{kind}` | {status} | {title} | {examples.get(kind, '')} |")
