"""Small changes to a module's source, each of which some test ought to notice."""

import ast
from collections.abc import Iterator
from typing import NamedTuple

_COMPARED = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_COMPUTED = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
_CALLED = {"min": "max", "max": "min", "any": "all", "all": "any", "sorted": "list"}
# Texts for people, and what only a type checker reads.
_UNREAD = (ast.Raise, ast.Import, ast.ImportFrom, ast.JoinedStr)
_UNREAD_FUNCTIONS = ("__repr__", "__str__")


class Mutation(NamedTuple):
    """One change.

    Attributes:
        function: Where it is: the names of classes and functions, with dots between.
        line: The number of its line.
        statement: The number of the line at which its statement begins.
        start: Where it begins in the source.
        end: Where it ends there.
        before: What is there.
        after: What comes instead.
    """

    function: str
    line: int
    statement: int
    start: int
    end: int
    before: str
    after: str

    def applied(self, source: str) -> str:
        """Returns a module's source with this change."""
        return source[: self.start] + self.after + source[self.end :]


def of(source: str) -> list[Mutation]:
    """Returns all changes to a module, from top to bottom."""
    return sorted(_Finder(source).found(), key=lambda one: (one.start, one.end, one.after))


class _Finder:
    """Looks for what can be changed in a module."""

    def __init__(self, source: str):
        self._source = source
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line.encode()))
        self._is_ascii = source.isascii()

    def found(self) -> Iterator[Mutation]:
        """Yields the changes."""
        yield from self._within(ast.parse(self._source), (), 1)

    def _within(self, node: ast.AST, names: tuple[str, ...], line: int) -> Iterator[Mutation]:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names = (*names, node.name)
        for name, field in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "bases"):
                continue
            for child in field if isinstance(field, list) else [field]:
                if not isinstance(child, ast.AST) or _is_unread(child):
                    continue
                begin = child.lineno if isinstance(child, ast.stmt) else line
                for after in _instead(child):
                    yield self._mutation(child, after, ".".join(names), begin)
                yield from self._within(child, names, begin)

    def _mutation(self, node: ast.AST, after: ast.AST, function: str, line: int) -> Mutation:
        start, end = (
            self._place(node.lineno, node.col_offset),
            self._place(node.end_lineno, node.end_col_offset),
        )
        text = ast.unparse(after)
        if isinstance(node, ast.expr):
            text = f"({text})"
        return Mutation(function, node.lineno, line, start, end, self._source[start:end], text)

    def _place(self, line: int, column: int) -> int:
        place = self._starts[line - 1] + column
        return place if self._is_ascii else len(self._source.encode()[:place].decode())


def _is_unread(node: ast.AST) -> bool:
    if isinstance(node, ast.FunctionDef) and node.name in _UNREAD_FUNCTIONS:
        return True
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True  # a docstring
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        if node.targets[0].id == "__all__":
            return True
    return isinstance(node, _UNREAD)


def _instead(node: ast.AST) -> Iterator[ast.AST]:
    """Yields what may come instead of a part of a module."""
    match node:
        case ast.Compare(left=left, ops=[operator], comparators=others):
            yield ast.Compare(left, [_COMPARED[type(operator)]()], others)
        case ast.BoolOp(op=ast.And(), values=values):
            yield ast.BoolOp(ast.Or(), values)
        case ast.BoolOp(op=ast.Or(), values=values):
            yield ast.BoolOp(ast.And(), values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _COMPUTED:
            yield ast.BinOp(left, _COMPUTED[type(operator)](), right)
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield ast.Constant(value + 1)
        case ast.Call(func=ast.Name(id=name), args=given, keywords=[]) if name in _CALLED:
            yield ast.Call(ast.Name(_CALLED[name]), given, [])
        case ast.IfExp(test=test, body=body, orelse=other):
            yield ast.IfExp(ast.UnaryOp(ast.Not(), test), body, other)
        case ast.comprehension():
            return  # has no place of its own: what it asks for is looked at by itself
        case ast.Return(value=ast.expr(), lineno=_) if not _is_nothing(node.value):
            yield ast.Return(None)
        case ast.Expr(value=ast.Call()):
            yield ast.Pass()
        case ast.Continue():
            yield ast.Break()
        case ast.Break():
            yield ast.Continue()


def _is_nothing(node: ast.AST | None) -> bool:
    """Whether it is None, or False, which is taken for the same; that it is True is another one."""
    return isinstance(node, ast.Constant) and (node.value is None or node.value is False)
