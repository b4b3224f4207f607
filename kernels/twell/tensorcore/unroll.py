"""Loops written out before compilation, so that an array of registers is indexed by constants alone.

Accumulators of tensor cores live in registers, and a register has no address: ``acc[i]`` with an ``i`` known only at
run time sends the whole array to memory. LLVM writes out short loops by itself, long ones not. :func:`unrolled` does
it in the source: ``for i in unroll(64)`` becomes its body 64 times, with the number in the place of ``i``. Letters:
none.
"""

from __future__ import annotations

import ast
import copy
import inspect
import textwrap
from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

from twell.errors import OptionError

F = TypeVar("F", bound=Callable[..., Any])

unroll = range
"""``range`` by another name: :func:`unrolled` writes these loops out."""

MOST = 4096
"""Copies of a body; more is a mistake."""


def unrolled(function: F) -> F:
    """The function with each ``for i in unroll(...)`` written out.

    Bounds may name globals, variables of an enclosing function, and outer loops that are written out as well.
    Line numbers stay those of the source.

    Raises
    ------
    OptionError
        A bound is known at run time only, the loop has an ``else``, ``break`` or ``continue``, or assigns its variable.
    """
    assert isinstance(function, FunctionType)
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    definition = tree.body[0]
    assert isinstance(definition, ast.FunctionDef)
    definition.decorator_list = []
    for argument in (*definition.args.args, *definition.args.kwonlyargs):
        argument.annotation = None
    definition.returns = None
    known = dict(function.__globals__)
    closure = inspect.getclosurevars(function).nonlocals
    known.update(closure)
    ast.increment_lineno(tree, function.__code__.co_firstlineno - definition.lineno + _lines_before(function))
    _Unroller(known, function.__qualname__).visit(tree)
    ast.fix_missing_locations(tree)
    scope = known
    exec(compile(tree, function.__code__.co_filename, "exec"), scope)
    written: Any = scope[function.__name__]
    written.__doc__, written.__qualname__ = function.__doc__, function.__qualname__
    written.__module__ = function.__module__
    return written  # type: ignore[no-any-return]


def _lines_before(function: FunctionType) -> int:
    """Lines of decorators: the code object counts from the first of them."""
    lines = inspect.getsource(function).splitlines()
    return next(i for i, line in enumerate(lines) if line.lstrip().startswith("def "))


class _Unroller(ast.NodeTransformer):
    def __init__(self, known: dict[str, Any], where: str) -> None:
        self.known, self.where = known, where

    def visit_For(self, node: ast.For) -> Any:
        call = node.iter
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "unroll"):
            return self.generic_visit(node)
        assert isinstance(node.target, ast.Name)
        name = node.target.id
        bad = [part for part in ast.walk(node) if isinstance(part, ast.Break | ast.Continue)]
        if bad or node.orelse:
            raise OptionError(f"{self.where}, line {node.lineno}: break, continue and else cannot be written out")
        for part in ast.walk(ast.Module(node.body, [])):
            if isinstance(part, ast.Name) and part.id == name and not isinstance(part.ctx, ast.Load):
                raise OptionError(
                    f"{self.where}, line {node.lineno}: the body assigns {name}, which is a constant here"
                )
        values = range(*(self._constant(argument) for argument in call.args))
        if len(values) > MOST:
            raise OptionError(f"{self.where}, line {node.lineno}: {len(values)} copies, at most {MOST} are written out")
        body: list[ast.stmt] = []
        for value in values:
            for statement in node.body:
                found = self.visit(_Substitute(name, value).visit(copy.deepcopy(statement)))
                body += found if isinstance(found, list) else [found]
        return body or ast.Pass()

    def _constant(self, node: ast.expr) -> int:
        try:
            return int(eval(compile(ast.Expression(node), "<bound>", "eval"), self.known))
        except NameError as error:
            raise OptionError(
                f"{self.where}, line {node.lineno}: unroll({ast.unparse(node)}): {error}; bounds must be known before "
                "the kernel runs"
            ) from None


class _Substitute(ast.NodeTransformer):
    """A number in the place of a name."""

    def __init__(self, name: str, value: int) -> None:
        self.name, self.value = name, value

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.copy_location(ast.Constant(self.value), node) if node.id == self.name else node
