"""Numbers as a compiled kernel has them: what an array element becomes once it is in a register.

NumPy keeps the type of a small integer (``uint16 << 16`` is 0); Numba widens every integer result to 64 bits, and
makes ``float32 + 1`` a float64. A recording that followed NumPy would call a correct kernel wrong, so elements are
read as subclasses of NumPy's scalars whose arithmetic follows Numba's rules:

* an integer result has 64 bits and wraps; it is unsigned if both sides are, for shifts if the left one is;
* a Python int counts as int64, a Python float as float64;
* float32 with float32 or an integer of at most 16 signed bits stays float32, with anything wider it is float64.

Indices computed from ``threadIdx`` are Python ints, which never wrap. Letters: none.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

_BITS_64 = 1 << 64
_SIGN_64 = 1 << 63
_INTS = (int, np.integer, np.bool_)
_FLOATS = (float, np.floating)


# NumPy finds the dtype of a scalar by the second class of its mro, so each class has one base and gets its methods
# from _install() below.


class I8(np.int8):
    __slots__ = ()


class I16(np.int16):
    __slots__ = ()


class I32(np.int32):
    __slots__ = ()


class I64(np.int64):
    __slots__ = ()


class U8(np.uint8):
    __slots__ = ()


class U16(np.uint16):
    __slots__ = ()


class U32(np.uint32):
    __slots__ = ()


class U64(np.uint64):
    __slots__ = ()


class F16(np.float16):
    __slots__ = ()


class F32(np.float32):
    __slots__ = ()


_SIGNED: Any = (I8, I16, I32, I64)
_UNSIGNED: Any = (U8, U16, U32, U64)
_FLOATING: Any = (F16, F32)
_MAKE: dict[type, Any] = {cls: cls.__base__.__new__ for cls in (*_SIGNED, *_UNSIGNED, *_FLOATING)}
"""NumPy's own constructors, which skip the checks of ours."""

_NARROW_INTS = (np.int8, np.int16, np.uint8)

# np.float64 needs no class of its own: whatever it meets, the result is float64, as in Numba.
CASTS: dict[str, Callable[[Any], Any]] = {
    "bool": bool,
    "int8": I8,
    "int16": I16,
    "int32": I32,
    "int64": I64,
    "uint8": U8,
    "uint16": U16,
    "uint32": U32,
    "uint64": U64,
    "float16": F16,
    "float32": F32,
    "float64": np.float64,
}
"""Name of a dtype to the function that casts to it, as ``np.float32(x)`` does in a kernel."""


def as_dtype(dtype: Any) -> np.dtype[Any]:
    """NumPy's dtype of a NumPy, Numba or torch type, or of its name."""
    name = getattr(dtype, "name", None) if not isinstance(dtype, type | str) else None
    if name is None and str(dtype).startswith("torch."):
        name = str(dtype).removeprefix("torch.")
    found: np.dtype[Any] = np.dtype(name or dtype)
    if found.name not in CASTS:
        raise TypeError(f"dtype {found.name}: the recorder has {', '.join(CASTS)}")
    return found


def reader(dtype: np.dtype[Any]) -> Callable[[Any], Any]:
    """The function that makes a register's value of an element that NumPy returned."""
    cls: Any = CASTS[dtype.name]
    if cls not in _MAKE:
        return cls  # type: ignore[no-any-return]
    make = _MAKE[cls]
    return lambda value: make(cls, value)


def writer(dtype: np.dtype[Any]) -> Callable[[Any], Any]:
    """The function that makes of a register's value what the array stores: integers wrap, floats are cut to whole."""
    if dtype.kind in "iu":
        bits, unsigned = dtype.itemsize * 8, dtype.kind == "u"
        return lambda value: _wrap(_whole(value), bits, unsigned)
    return bool if dtype.kind == "b" else float


def as_scalar(value: Any) -> Any:
    """A NumPy scalar as one of these classes; anything else as it is."""
    if isinstance(value, np.generic) and value.dtype.name in CASTS:
        return reader(value.dtype)(value)
    return value


def _whole(value: Any) -> int:
    """Towards zero, as the device converts; what is no number becomes 0, what is too large the largest."""
    if isinstance(value, _FLOATS) and not np.isfinite(value):
        return 0 if value != value else (_SIGN_64 - 1 if value > 0 else -_SIGN_64)
    return int(value)


def _wrap(value: int, bits: int, unsigned: bool) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if not unsigned and value >> (bits - 1) else value


def _int64(value: int, unsigned: bool) -> Any:
    if unsigned:
        return _MAKE[U64](U64, value % _BITS_64)
    if not -_SIGN_64 <= value < _SIGN_64:
        value = (value + _SIGN_64) % _BITS_64 - _SIGN_64
    return _MAKE[I64](I64, value)


def _is_unsigned(value: Any) -> bool:
    return isinstance(value, np.unsignedinteger)


def _integer_method(
    op: Callable[[Any, Any], Any], *, reflected: bool, shift: bool, self_unsigned: bool
) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        if isinstance(other, _INTS):
            left, right = (int(other), int(self)) if reflected else (int(self), int(other))
            if shift:
                unsigned = _is_unsigned(other) if reflected else self_unsigned
            else:
                unsigned = self_unsigned and _is_unsigned(other)
            result = op(left, right)
            return _int64(result, unsigned) if isinstance(result, int) else result
        if isinstance(other, _FLOATS) and not shift:
            return _float_result(op, other, self) if reflected else _float_result(op, self, other)
        return NotImplemented

    return method


def _float_method(op: Callable[[Any, Any], Any], *, reflected: bool) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        if isinstance(other, (*_INTS, *_FLOATS)):
            return _float_result(op, other, self) if reflected else _float_result(op, self, other)
        return NotImplemented

    return method


_EXACT_FROM_DOUBLE = (operator.add, operator.sub, operator.mul)


def _float_result(op: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    """``op`` at the width that Numba gives two operands of which one is a float."""
    width = _float_width(left, right)
    if width is np.float64:
        return op(np.float64(left), np.float64(right))
    if op in _EXACT_FROM_DOUBLE:  # rounding the double's result gives the same bits, and is quicker
        return width(op(float(left), float(right)))
    plain = np.float32 if width is F32 else np.float16
    return width(op(plain(left), plain(right)))


def _float_width(left: Any, right: Any) -> Any:
    width: Any = F16
    for value in (left, right):
        if isinstance(value, (np.float32, *_NARROW_INTS)):
            width = F32
        elif not isinstance(value, np.float16):
            return np.float64
    return width


def _true_divide(left: Any, right: Any) -> Any:
    return np.float64(left) / np.float64(right)


def _view(self: Any, dtype: Any) -> Any:
    return as_scalar(np.asarray(self).view(as_dtype(dtype))[()])


def _astype(self: Any, dtype: Any) -> Any:
    return CASTS[as_dtype(dtype).name](self)


def _install() -> None:
    """Give the classes their construction and arithmetic; spelled out it would be two hundred methods."""
    shifts = {"lshift": operator.lshift, "rshift": operator.rshift}
    bitwise = {"and": operator.and_, "or": operator.or_, "xor": operator.xor}
    common: dict[str, Callable[[Any, Any], Any]] = {
        "add": operator.add,
        "sub": operator.sub,
        "mul": operator.mul,
        "floordiv": operator.floordiv,
        "mod": operator.mod,
        "pow": operator.pow,
    }
    for cls in (*_SIGNED, *_UNSIGNED):
        _install_integer(cls, {**common, **bitwise, "truediv": _true_divide}, shifts)
    for cls in _FLOATING:
        cls.__neg__ = lambda self: type(self)(-float(self))
        for name, op in {**common, "truediv": operator.truediv}.items():
            setattr(cls, f"__{name}__", _float_method(op, reflected=False))
            setattr(cls, f"__r{name}__", _float_method(op, reflected=True))
    for cls in _MAKE:
        cls.view, cls.astype = _view, _astype  # type: ignore[attr-defined]


def _install_integer(cls: Any, plain: Mapping[str, Any], shifts: Mapping[str, Any]) -> None:
    make, bits, unsigned = _MAKE[cls], np.dtype(cls).itemsize * 8, cls in _UNSIGNED
    cls.__new__ = lambda cls, value=0: make(cls, _wrap(_whole(value), bits, unsigned))
    cls.__neg__ = lambda self: _int64(-int(self), unsigned)
    cls.__invert__ = lambda self: _int64(~int(self), unsigned)
    cls.__abs__ = lambda self: cls(abs(int(self)))
    for name, op in {**plain, **shifts}.items():
        for reflected in (False, True):
            method = _integer_method(op, reflected=reflected, shift=name in shifts, self_unsigned=unsigned)
            setattr(cls, f"__{'r' if reflected else ''}{name}__", method)


_install()
