"""A part is a NamedTuple of numbers; `implements` attaches compiled math to it.

All algorithms here are one update made of parts: a loss, a response, a clip, … A part only
holds numbers. What it *does* is written in plain functions, one per *operation*, which are
looked up by the type of the part::

    class Halved(NamedTuple):
        scale: float = 0.5

    @implements(respond, Halved)
    def _(response, deployed, features, label, moved, rng): ...

The same function runs interpreted when an operation is called from Python, and compiled when
it is called inside the engine's loop: Numba selects it by the type of the NamedTuple at compile
time, so nothing is looked up while the loop runs. (Functions passed as arguments would defeat
Numba's cache.)
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from numbers import Number
from types import CodeType
from typing import Any, Protocol, TypeVar

import numpy as np
from numba import types
from numba.extending import overload

from clipsilon._core.checks import frozen, short_repr
from clipsilon._core.options import INLINE

__all__ = ["Part", "checked", "fallback", "implements", "operation", "traits"]

Implementation = Callable[..., Any]
Class = TypeVar("Class", bound=type)


class Part(Protocol):
    """The type of every part: a NamedTuple.

    The operations of a part are registered with `implements` and checked by `require` when a `Problem` or a `Rule` is
    created. The roles (`Loss`, `Clip`, `Schedule`, …) are this type under a name that states which operations are
    expected.
    """

    @property
    def _fields(self) -> tuple[str, ...]: ...

    def _asdict(self) -> dict[str, Any]: ...


_IMPLEMENTATIONS: dict[tuple[str, type], Implementation] = {}
_COMPILED: set[tuple[str, type]] = set()  # looked up while compiling a kernel
_PACKAGE = __name__.split(".")[0]
_ROLES: dict[str, str] = {}  # the module that declares an operation
_FALLBACKS: dict[str, Callable[[type], Implementation | None]] = {}


def operation(declared: Callable[..., Any]) -> Callable[..., Any]:
    """Turn a declaration without a body into an operation, dispatched on the type of its first argument."""
    name = declared.__name__
    _ROLES[name] = declared.__module__

    @wraps(declared)
    def call(part: Part, *arguments: Any) -> Any:
        found = implementation(call, type(part))
        if found is None:
            raise TypeError(f"{type(part).__name__} does not implement {name}.")
        return found(part, *arguments)

    def compiled(part: Any, *arguments: Any) -> Implementation | None:
        if isinstance(part, types.BaseNamedTuple):
            _COMPILED.add((name, part.instance_class))
            return implementation(call, part.instance_class)
        return None

    overload(call, strict=False, jit_options=INLINE)(compiled)
    return call


def implements(op: Callable[..., Any], part: type) -> Callable[[Implementation], Implementation]:
    """Attach the decorated function to a part as its implementation of an operation.

    Parameters
    ----------
    op : callable
        An operation, such as `clipsilon.losses.slope`.
    part : type
        The class of the part, a NamedTuple of your own.

    Returns
    -------
    callable
        A decorator, which returns the function unchanged. The function takes as many arguments as the operation and
        must be one that Numba can compile.

    Raises
    ------
    TypeError
        If the arguments differ, the part belongs to clipsilon, or it implements the operation already.
    """
    if getattr(op, "__name__", None) not in _ROLES:
        raise TypeError(f"op must be an operation, such as clipsilon.losses.slope, got {short_repr(op)}.")
    if not isinstance(part, type):
        raise TypeError(f"part must be a class, got {short_repr(part)}.")

    def attach(function: Implementation) -> Implementation:
        _check_arguments(op, part, function)
        if is_ours(part) and function.__module__.split(".")[0] != _PACKAGE:
            raise TypeError(f"{part.__name__} belongs to clipsilon; define a part of your own instead.")
        if (op.__name__, part) in _IMPLEMENTATIONS or (op.__name__, part) in _COMPILED:
            # Kernels compiled with the first implementation would silently keep using it.
            raise TypeError(f"{part.__name__} implements {op.__name__} already; define a new part instead.")
        _make_name_unique(op, part)
        _IMPLEMENTATIONS[op.__name__, part] = function
        return function

    return attach


def _check_arguments(op: Callable[..., Any], part: type, function: Implementation) -> None:
    """Raise TypeError unless the function can be called with the arguments of the operation, by position."""
    if not inspect.isfunction(function):
        raise TypeError(f"{op.__name__} of {part.__name__} must be a function, got {short_repr(function)}.")
    expected, given = _bare_signature(op), _bare_signature(function)
    by_position = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
    kinds = {parameter.kind for parameter in given.parameters.values()}
    if len(given.parameters) != len(expected.parameters) or not kinds <= by_position:
        raise TypeError(f"{op.__name__} of {part.__name__} must take {expected}, got {given}.")


def _bare_signature(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a function without its types."""
    parameters = inspect.signature(function).parameters.values()
    return inspect.Signature([parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters])


def _make_name_unique(op: Callable[..., Any], part: type) -> None:
    """Rename a part if another part of the same role has the same name.

    Numba's fast path distinguishes NamedTuples by *name*: a class that is defined again in a notebook would
    run the math of the first one. The operations of a role are declared in one module; two parts of a role need not
    implement the same ones.
    """
    role = _ROLES[op.__name__]
    taken = {other.__name__ for name, other in _IMPLEMENTATIONS if _ROLES[name] == role and other is not part}
    name, number = part.__name__, 2
    while part.__name__ in taken:
        part.__name__ = f"{name}_{number}"
        number += 1


def fallback(op: Callable[..., Any]) -> Callable[[Callable[[type], Any]], Callable[[type], Any]]:
    """Register a function that derives `op` for parts that do not implement it.

    The decorated function takes the class of a part and returns an implementation, or None if there is none.
    """

    def attach(derive: Callable[[type], Implementation | None]) -> Callable[[type], Any]:
        _FALLBACKS[op.__name__] = derive
        return derive

    return attach


def implementation(op: Callable[..., Any], part: type) -> Implementation | None:
    """Return the function that implements `op` for parts of type `part`, or None."""
    name = op.__name__
    found = _IMPLEMENTATIONS.get((name, part))
    if found is None and name in _FALLBACKS:
        found = _FALLBACKS[name](part)
    return found


def implemented(op: Callable[..., Any]) -> list[type]:
    """Return every part type that implements `op` itself, without a fallback."""
    return [part for name, part in _IMPLEMENTATIONS if name == op.__name__]


_EXAMPLES = {
    "step": "of clipsilon.schedules such as Constant(0.1)",
    "loss": "of clipsilon.losses such as Logistic()",
    "response": "of clipsilon.responses such as LocationShift(0.1)",
    "region": "of clipsilon.regions such as Ball(10.0)",
}


def require(role: str, part: object, operations: Iterable[Callable[..., Any]]) -> None:
    """Raise TypeError if `part` is not a part or lacks an operation.

    Parameters
    ----------
    role : str
        The name of the argument, such as "loss", for the message.
    part : object
        The value to check.
    operations : iterable of callable
        The operations that the engine will call.
    """
    if isinstance(part, type):
        raise TypeError(
            f"{role} must be a part, got the class {part.__name__}: parentheses are missing, as in {part.__name__}()."
        )
    if not (isinstance(part, tuple) and hasattr(part, "_fields")):
        kind = _EXAMPLES.get(role, "(a NamedTuple such as those in clipsilon)")
        raise TypeError(f"{role} must be a part {kind}, got {short_repr(part)}.")
    missing = [op.__name__ for op in operations if implementation(op, type(part)) is None]
    if missing:
        raise TypeError(f"{role} {type(part).__name__} does not implement {', '.join(missing)}.")


def checked(**rules: Callable[[str, Any], Any]) -> Callable[[Class], Class]:
    """Validate the fields of a part whenever one is created (a class decorator).

    Each keyword names a field and gives its check, a function of `clipsilon._core.checks` or one of the same form.
    Then the method `check` of the part is called, if it has one.
    """

    def decorate(cls: Class) -> Class:
        build = cls.__new__

        @wraps(build)
        def validated(kind: type, *values: Any, **named: Any) -> Any:
            raw = build(kind, *values, **named)
            fields = (rules[name](name, value) if name in rules else value for name, value in raw._asdict().items())
            part = build(kind, *fields)
            if hasattr(part, "check"):
                part.check()
            return part

        # _replace() creates its copy with _make(), which would bypass the checks.
        cls._make = classmethod(lambda kind, values: kind(*values))  # type: ignore[attr-defined]
        cls.__new__ = validated  # type: ignore[assignment, method-assign]
        return cls

    return decorate


def traits(**facts: Any) -> Callable[[Class], Class]:
    """State facts about a kind of part, such as `labels="binary"` for a loss (a class decorator).

    The facts become class attributes. In the class body, type checkers would take them for fields.
    """

    def decorate(cls: Class) -> Class:
        for name, fact in facts.items():
            setattr(cls, name, fact)
        return cls

    return decorate


def read_only(role: str, part: Any) -> Any:
    """Return a part whose arrays cannot be written to; raise TypeError if it holds anything else that can change.

    A loss or a response that could change would carry something from one record to the next, and clipping one gradient
    at a time would not bound what one record does.

    Parameters
    ----------
    role : str
        The name of the argument, such as "loss", for the message.
    part : Part
        The part, which is left unchanged.

    Returns
    -------
    Part
        The part itself if its arrays are read-only already.
    """
    changed: dict[str, Any] = {}
    for name, field in part._asdict().items():
        if hasattr(field, "_fields"):
            kept = read_only(role, field)
        elif isinstance(field, np.ndarray):
            kept = frozen(field) if field.flags.writeable else field
        elif field is None or isinstance(field, Number | np.generic | str):
            kept = field
        else:
            raise TypeError(
                f"{role} {type(part).__name__} must hold numbers, arrays and parts, got {name}={short_repr(field)}."
            )
        if kept is not field:
            changed[name] = kept
    return part._replace(**changed) if changed else part


def is_ours(part: type) -> bool:
    """Return whether a part is defined by the package, and so is covered by the digest of its sources."""
    return part.__module__.split(".")[0] == _PACKAGE


def all_ours(part: Part) -> bool:
    """Return whether a part and all parts nested in it are defined by the package."""
    nested = [field for field in part._asdict().values() if hasattr(field, "_fields")]
    return is_ours(type(part)) and all(all_ours(field) for field in nested)


def all_ours_compiled(kind: Any) -> bool:
    """Return the same for the type that a part has in compiled code."""
    nested = [field for field in kind.types if isinstance(field, types.BaseNamedTuple)]
    return is_ours(kind.instance_class) and all(map(all_ours_compiled, nested))


def fingerprint(part: Part) -> str:
    """Return a digest of a part: its type, its numbers and, for users' parts, the code attached to it."""
    content: list[Any] = [type(part).__module__, type(part).__qualname__]
    for field in part._asdict().values():
        content.append(fingerprint(field) if hasattr(field, "_fields") else _numbers(field))
    if not is_ours(type(part)):
        attached = {name: function for (name, kind), function in _IMPLEMENTATIONS.items() if kind is type(part)}
        content += [(name, _code(attached[name])) for name in sorted(attached)]
    return hashlib.sha256(repr(content).encode()).hexdigest()


def _numbers(field: object) -> object:
    return field.tolist() if hasattr(field, "tolist") else field


def _code(function: Implementation) -> list[Any]:
    """Return what determines a function: its bytecode, names and constants, and the values of its free variables."""
    closed = [repr(cell.cell_contents) for cell in function.__closure__ or ()]
    around = {name: function.__globals__.get(name) for name in function.__code__.co_names}
    values = {name: value for name, value in around.items() if isinstance(value, int | float | str)}
    return [_bytecode(function.__code__), closed, values]


def _bytecode(code: CodeType) -> list[Any]:
    """Return code without its file and line numbers, so that moving it changes nothing."""
    constants = [_bytecode(item) if isinstance(item, CodeType) else repr(item) for item in code.co_consts]
    return [code.co_code, code.co_names, code.co_varnames, constants]
