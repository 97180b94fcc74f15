"""List the small mistakes that can be made in one Python source file.

A mistake replaces one piece of the text: a comparison by its neighbour or its opposite, `and` by `or`, an integer by
the one beside it, `min` by `max`, an arithmetic operator by another, a returned value by None, a condition by its
opposite, a statement by `pass`. Texts, annotations, decorators and docstrings stay as they are. Functions compiled by
numba get no `return None`: numba would refuse it.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

_COMPARISONS: dict[type[ast.cmpop], tuple[str, tuple[str, ...]]] = {
    ast.Lt: (r"<(?!=)", ("<=", ">=")),
    ast.LtE: (r"<=", ("<", ">")),
    ast.Gt: (r">(?!=)", (">=", "<=")),
    ast.GtE: (r">=", (">", "<")),
    ast.Eq: (r"==", ("!=",)),
    ast.NotEq: (r"!=", ("==",)),
    ast.In: (r"\bin\b", ("not in",)),
    ast.NotIn: (r"\bnot\s+in\b", ("in",)),
    ast.Is: (r"\bis\b(?!\s+not)", ("is not",)),
    ast.IsNot: (r"\bis\s+not\b", ("is",)),
}
_ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: (r"\+", "-"),
    ast.Sub: (r"-", "+"),
    ast.Mult: (r"\*", "//"),
    ast.FloorDiv: (r"//", "*"),
    ast.Mod: (r"%", "//"),
    ast.LShift: (r"<<", ">>"),
    ast.RShift: (r">>", "<<"),
    ast.BitAnd: (r"&", "|"),
    ast.BitOr: (r"\|", "&"),
}
_EXTREMES = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum"}
_FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One mistake: in the file's UTF-8 bytes `start` to `end` become `new`.

    `function` is empty for a module's own statements, `line` is the first line that changes, `occurrence` counts equal
    mistakes in equal lines of the function.
    """

    path: str
    function: str
    line: int
    start: int
    end: int
    new: str
    old_line: str
    new_line: str
    occurrence: int = 0

    def apply(self, source: bytes) -> bytes:
        """The changed file."""
        return source[: self.start] + self.new.encode() + source[self.end :]

    @property
    def key(self) -> str:
        """What it is, wherever the function lies."""
        return f"{self.function}|{self.old_line}|{self.new_line}|{self.occurrence}"

    def rank(self, seed: int) -> str:
        """A place in the order of `seed`."""
        return hashlib.sha256(f"{seed}|{self.key}".encode()).hexdigest()


def list_mutants(path: str, text: str) -> list[Mutant]:
    """All mistakes of a file, as they come in it; those that do not parse are left out."""
    source = text.encode()
    return [each for each in iter_changes(path, text) if parses(each.apply(source))]


def iter_changes(path: str, text: str, only: Collection[str] | None = None) -> Iterator[Mutant]:
    """As `list_mutants`, of some functions, with those that do not parse."""
    source = text.encode()
    finder = _Finder(path, source)
    finder.visit(ast.parse(text))
    counts: dict[tuple[str, str, str], int] = {}
    for function, start, end, new in sorted(finder.found, key=lambda each: (each[1], each[2], each[3])):
        if only is not None and function not in only:
            continue
        first = source.rfind(b"\n", 0, start) + 1
        last = source.find(b"\n", end) % (len(source) + 1)
        old_line = source[first:last].decode().strip()
        new_line = (source[first:start] + new.encode() + source[end:last]).decode().strip()
        key = function, old_line, new_line
        counts[key] = counts.get(key, -1) + 1
        mutant = Mutant(
            path=path, function=function, line=source.count(b"\n", 0, start) + 1, start=start, end=end, new=new,
            old_line=old_line, new_line=new_line, occurrence=counts[key],
        )  # fmt: skip
        if old_line != new_line:
            yield mutant


def function_spans(tree: ast.Module) -> Iterator[tuple[str, int, int, _FunctionNode]]:
    """(qualified name, first line with decorators, last line, node) of a module's functions and its classes' methods;
    functions within functions belong to those."""
    yield from _spans(tree.body, "")


def _spans(body: Iterable[ast.stmt], prefix: str) -> Iterator[tuple[str, int, int, _FunctionNode]]:
    for node in body:
        if isinstance(node, _FunctionNode):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            yield prefix + node.name, first, node.end_lineno or node.lineno, node
        elif isinstance(node, ast.ClassDef):
            yield from _spans(node.body, f"{prefix}{node.name}.")


def is_compiled(node: _FunctionNode) -> bool:
    """Whether numba compiles the function."""
    return any("njit" in ast.unparse(each) for each in node.decorator_list)


def parses(source: bytes) -> bool:
    """Whether it is Python."""
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


class _Finder(ast.NodeVisitor):
    """Collects (function, start, end, new text) of a tree."""

    def __init__(self, path: str, source: bytes) -> None:
        self.path = path
        self.source = source
        self.found: list[tuple[str, int, int, str]] = []
        self._line_starts = [0, *(each.end() for each in re.finditer(rb"\n", source))]
        self._names: list[str] = []
        self._function = ""
        self._is_compiled = False

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._names.append(node.name)
        self._visit_all(node.body)
        self._names.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if self._function:
            self._visit_function(node)
            return
        self._function = ".".join([*self._names, node.name])
        self._is_compiled = is_compiled(node)
        self._visit_function(node)
        self._function, self._is_compiled = "", False

    def _visit_function(self, node: ast.FunctionDef) -> None:
        self._visit_all(node.args.defaults)
        self._visit_all(each for each in node.args.kw_defaults if each is not None)
        self._visit_all(node.body)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Positions within f-strings are wrong before Python 3.12, and messages are not what is looked for."""

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):
            self._replace(node, "pass")
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._replace(node, "pass")
        if type(node.op) in _ARITHMETIC:
            old, new = _ARITHMETIC[type(node.op)]
            self._replace_between(node.target, node.value, old + "(?==)", new)
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if all(isinstance(each, ast.Attribute | ast.Subscript) for each in node.targets):
            self._replace(node, "pass")
        self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        self._replace(node, "pass")
        self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        is_none = node.value is None or (isinstance(node.value, ast.Constant) and node.value.value is None)
        if not is_none and not self._is_compiled:
            self._replace(node, "return None")
        self.generic_visit(node)

    def visit_Break(self, node: ast.Break) -> None:
        self._replace(node, "continue")

    def visit_Continue(self, node: ast.Continue) -> None:
        self._replace(node, "break")

    def visit_If(self, node: ast.If) -> None:
        self._negate(node.test)
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        self._negate(node.test)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._negate(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for each in node.ifs:
            self._negate(each)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        for left, operator, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
            old, changes = _COMPARISONS[type(operator)]
            for new in changes:
                self._replace_between(left, right, old, new)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        old, new = (r"\band\b", "or") if isinstance(node.op, ast.And) else (r"\bor\b", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            self._replace_between(left, right, old, new)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if type(node.op) in _ARITHMETIC:
            self._replace_between(node.left, node.right, *_ARITHMETIC[type(node.op)])
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not | ast.USub):
            operand = self.source[self._start(node.operand) : self._end(node.operand)].decode()
            self._replace(node, f"({operand})")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._replace(node, str(not node.value))
        elif isinstance(node.value, int):
            self._replace(node, str(node.value + 1))
            self._replace(node, str(node.value - 1) if node.value else "(-1)")

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if name in _EXTREMES:
            end = self._end(node.func)
            self.found.append((self._function, end - len(name), end, _EXTREMES[name]))
        self.generic_visit(node)

    def _visit_all(self, nodes: Iterable[ast.AST]) -> None:
        for each in nodes:
            self.visit(each)

    def _negate(self, test: ast.expr) -> None:
        if not isinstance(test, ast.Compare | ast.UnaryOp):
            self._replace(test, f"not ({self.source[self._start(test) : self._end(test)].decode()})")

    def _replace(self, node: ast.stmt | ast.expr, new: str) -> None:
        self.found.append((self._function, self._start(node), self._end(node), new))

    def _replace_between(self, left: ast.expr, right: ast.expr, old: str, new: str) -> None:
        start, end = self._end(left), self._start(right)
        match = re.search(old, self.source[start:end].decode())
        if match is not None:
            self.found.append((self._function, start + match.start(), start + match.end(), new))

    def _start(self, node: ast.stmt | ast.expr) -> int:
        return self._line_starts[node.lineno - 1] + node.col_offset

    def _end(self, node: ast.stmt | ast.expr) -> int:
        return self._line_starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
