"""PostgreSQL's numeric: any number of digits, a display scale for each value, NaN and infinities. Values are texts."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Sequence
from decimal import ROUND_CEILING, ROUND_DOWN, ROUND_FLOOR, ROUND_HALF_UP, Context, Decimal
from typing import Final

from tailrace.query.scalar.scalar_error import ScalarError, invalid_text
from tailrace.query.scalar.short_cache import cache_short

_CONTEXT: Final = Context(prec=20_000, rounding=ROUND_HALF_UP, Emin=-999_999, Emax=999_999)
_NUMBER: Final = re.compile(r"[+-]?(?:[0-9][0-9_]*(?:\.[0-9_]*)?|\.[0-9][0-9_]*)(?:[eE][+-]?[0-9]+)?")
_WORDS: Final = {
    "nan": "NaN", "infinity": "Infinity", "+infinity": "Infinity", "-infinity": "-Infinity", "inf": "Infinity",
    "+inf": "Infinity", "-inf": "-Infinity",
}  # fmt: skip
_ZERO: Final = Decimal(0)
_MIN_DIGITS: Final = 16
_MAX_SCALE: Final = 16_383


@cache_short(8192)
def _value(text: str) -> Decimal:
    return Decimal(text)


def _scale(value: Decimal) -> int:
    exponent = value.as_tuple().exponent
    return max(0, -exponent) if isinstance(exponent, int) else 0


def _text(value: Decimal, scale: int | None = None) -> str:
    if not value.is_finite():
        return "NaN" if value.is_nan() else "Infinity" if value > 0 else "-Infinity"
    if scale is not None:
        value = value.quantize(Decimal(1).scaleb(-scale, _CONTEXT), context=_CONTEXT)
    return f"{abs(value) if value.is_zero() else value:f}"


def parse(text: str) -> str:
    """A numeric's text from anything that PostgreSQL accepts as input."""
    stripped = text.strip()
    if _NUMBER.fullmatch(stripped) and "__" not in stripped:
        value = Decimal(stripped.replace("_", ""))
        return _text(value, _scale(value))
    if stripped.lower() in _WORDS:
        return _WORDS[stripped.lower()]
    raise invalid_text("numeric", text)


def from_float(value: float, digits: int) -> str:
    if value != value or value in (float("inf"), float("-inf")):
        return _text(Decimal(value))
    found = Decimal(format(value, f".{digits}g"))
    return _text(found, _scale(found))


def from_double(value: float) -> str:
    return from_float(value, 15)


def from_single(value: float) -> str:
    return from_float(value, 6)


def to_double(text: str) -> float:
    found = float(text)
    if found in (float("inf"), float("-inf")) and "n" not in text.lower():
        raise ScalarError("22003", f'"{text}" is out of range for type double precision')
    return found


_LARGEST_SINGLE: Final = 3.40282356779733642748e38


def to_single(text: str) -> float:
    """The nearest real, rounded once: a double in between would sometimes round twice."""
    value = to_double(text)
    (bits,) = struct.unpack("!Q", struct.pack("!d", value))
    if bits & 0x1FFFFFFF == 0x10000000 and math.isfinite(value):
        # Halfway between two reals: the text says on which side of the double it is.
        exact, half = Decimal(text), Decimal(value)
        if exact != half:
            value = math.nextafter(value, math.inf if exact > half else -math.inf)
    if abs(value) >= _LARGEST_SINGLE and math.isfinite(value):
        raise ScalarError("22003", f'"{text}" is out of range for type real')
    (found,) = struct.unpack("!f", struct.pack("!f", value))
    if found == 0 and value != 0:
        raise ScalarError("22003", f'"{text}" is out of range for type real')
    return float(found)


def to_integer(text: str) -> str:
    """Rounded to an integer, half away from zero."""
    value = _value(text)
    if not value.is_finite():
        raise ScalarError("0A000", f"cannot convert {_text(value)} to integer")
    return _text(value, 0)


def fit(text: str, precision: int, scale: int) -> str:
    """Rounded to `numeric(precision, scale)`."""
    value = _value(text)
    if value.is_nan():
        return "NaN"
    if value.is_infinite():
        raise ScalarError("22003", "numeric field overflow")
    value = value.quantize(Decimal(1).scaleb(-scale, _CONTEXT), context=_CONTEXT)
    if not value.is_zero() and value.adjusted() >= precision - scale:
        raise ScalarError("22003", "numeric field overflow")
    return _text(value, max(scale, 0))


def add(a: str, b: str) -> str:
    x, y = _value(a), _value(b)
    if x.is_finite() and y.is_finite():
        return _text(_CONTEXT.add(x, y), max(_scale(x), _scale(y)))
    if x.is_nan() or y.is_nan() or (x.is_infinite() and y.is_infinite() and x != y):
        return "NaN"
    return _text(x if x.is_infinite() else y)


def subtract(a: str, b: str) -> str:
    return add(a, negate(b))


def negate(a: str) -> str:
    return _text(_value(a).copy_negate() if not _value(a).is_nan() else _value(a))


def multiply(a: str, b: str) -> str:
    x, y = _value(a), _value(b)
    if x.is_finite() and y.is_finite():
        return _text(_CONTEXT.multiply(x, y), min(_scale(x) + _scale(y), _MAX_SCALE))
    if x.is_nan() or y.is_nan() or x.is_zero() or y.is_zero():
        return "NaN"
    return "Infinity" if x.is_signed() == y.is_signed() else "-Infinity"


def divide(a: str, b: str) -> str:
    x, y = _value(a), _value(b)
    if x.is_nan() or y.is_nan():
        return "NaN"
    if y.is_zero():
        raise ScalarError("22012", "division by zero")
    if y.is_infinite():
        return "NaN" if x.is_infinite() else "0"
    if x.is_infinite():
        return "Infinity" if x.is_signed() == y.is_signed() else "-Infinity"
    return _text(_quotient(x, y, _quotient_scale(x, y)), None)


def _quotient(x: Decimal, y: Decimal, scale: int) -> Decimal:
    """The quotient rounded half away from zero at `scale`."""
    numerator, denominator = x.scaleb(scale, _CONTEXT), y
    shift = max(_scale(numerator), _scale(denominator))
    n, d = int(numerator.scaleb(shift, _CONTEXT)), int(denominator.scaleb(shift, _CONTEXT))
    whole, rest = divmod(abs(n), abs(d))
    whole += 2 * rest >= abs(d)
    return Decimal(-whole if (n < 0) != (d < 0) else whole).scaleb(-scale, _CONTEXT)


def _leading(value: Decimal) -> tuple[int, int]:
    """Weight and value of the first digit to the base 10,000."""
    if value.is_zero():
        return 0, 0
    weight = value.adjusted() // 4
    return weight, int(abs(value).scaleb(-4 * weight, _CONTEXT))


def _quotient_scale(x: Decimal, y: Decimal) -> int:
    """The scale that PostgreSQL gives a quotient: at least 16 significant digits."""
    (weight_x, first_x), (weight_y, first_y) = _leading(x), _leading(y)
    weight = weight_x - weight_y - (first_x <= first_y)
    return min(max(_MIN_DIGITS - weight * 4, _scale(x), _scale(y), 0), 1000)


def remainder(a: str, b: str) -> str:
    x, y = _value(a), _value(b)
    if x.is_nan() or y.is_nan():
        return "NaN"
    if y.is_zero():
        raise ScalarError("22012", "division by zero")
    if x.is_infinite():
        return "NaN"
    if y.is_infinite():
        return _text(x, _scale(x))
    return _text(_CONTEXT.remainder(x, y), max(_scale(x), _scale(y)))


def integer_quotient(a: str, b: str) -> str:
    x, y = _value(a), _value(b)
    if y.is_zero() and not x.is_nan():
        raise ScalarError("22012", "division by zero")
    if not (x.is_finite() and y.is_finite()):
        return divide(a, b)
    return _text(_CONTEXT.divide_int(x, y), 0)


def rounded(a: str, scale: int) -> str:
    value = _value(a)
    return (
        _text(value.quantize(Decimal(1).scaleb(-scale, _CONTEXT), context=_CONTEXT), max(scale, 0))
        if value.is_finite()
        else a
    )


def truncated(a: str, scale: int) -> str:
    value = _value(a)
    if not value.is_finite():
        return a
    return _text(value.quantize(Decimal(1).scaleb(-scale, _CONTEXT), ROUND_DOWN, _CONTEXT), max(scale, 0))


def ceiling(a: str) -> str:
    value = _value(a)
    return _text(value.quantize(Decimal(1), ROUND_CEILING, _CONTEXT)) if value.is_finite() else a


def floor(a: str) -> str:
    value = _value(a)
    return _text(value.quantize(Decimal(1), ROUND_FLOOR, _CONTEXT)) if value.is_finite() else a


def absolute(a: str) -> str:
    return a.removeprefix("-")


def sign(a: str) -> str:
    value = _value(a)
    return "NaN" if value.is_nan() else "0" if value.is_zero() else "-1" if value.is_signed() else "1"


def trim_scale(a: str) -> str:
    return a.rstrip("0").rstrip(".") if "." in a else a


def scale_of(a: str) -> int | None:
    value = _value(a)
    return _scale(value) if value.is_finite() else None


def total(values: Sequence[str | None]) -> str | None:
    """The sum of the values that are not NULL."""
    given = [_value(v) for v in values if v is not None]
    if not given:
        return None
    if all(v.is_finite() for v in given):
        found = _ZERO
        for value in given:
            found = _CONTEXT.add(found, value)
        return _text(found, max(map(_scale, given)))
    found_text = "0"
    for value in given:
        found_text = add(found_text, _text(value))
    return found_text


def distinct_total(values: Sequence[str | None]) -> str | None:
    return total(list({key(v): v for v in values if v is not None}.values()))


def average(values: Sequence[str | None]) -> str | None:
    given = [v for v in values if v is not None]
    found = total(given)
    return None if found is None else divide(found, str(len(given)))


def distinct_average(values: Sequence[str | None]) -> str | None:
    return average(list({key(v): v for v in values if v is not None}.values()))


def variance(values: Sequence[str | None], is_sample: bool, is_root: bool) -> str | None:
    given = [_value(v) for v in values if v is not None]
    count = len(given)
    if count == 0 or (is_sample and count == 1):
        return None
    if not all(v.is_finite() for v in given):
        return "NaN"
    sum_x = sum_x2 = _ZERO
    for value in given:
        sum_x = _CONTEXT.add(sum_x, value)
        sum_x2 = _CONTEXT.add(sum_x2, _CONTEXT.multiply(value, value))
    return _variance_of_sums(count, sum_x, sum_x2, max(map(_scale, given)), is_sample, is_root)


def sums_variance(count: int, total: str, squares: str, is_sample: bool, is_root: bool) -> str | None:
    """The variance or deviation of finite values of one scale, by their sum and the sum of their squares."""
    if count <= is_sample:
        return None
    sum_x = _value(total)
    return _variance_of_sums(count, sum_x, _value(squares), _scale(sum_x), is_sample, is_root)


def _variance_of_sums(count: int, sum_x: Decimal, sum_x2: Decimal, scale: int, is_sample: bool, is_root: bool) -> str:
    above = _CONTEXT.subtract(_CONTEXT.multiply(Decimal(count), sum_x2), _CONTEXT.multiply(sum_x, sum_x))
    if above <= 0:
        return "0"
    above = above.quantize(Decimal(1).scaleb(-2 * scale, _CONTEXT), context=_CONTEXT)
    below = Decimal(count * (count - 1 if is_sample else count))
    result_scale = _quotient_scale(above, below)
    found = _quotient(above, below, result_scale)
    return _text(_square_root(found, result_scale)) if is_root else _text(found)


def _square_root(value: Decimal, scale: int) -> Decimal:
    """The root, rounded to a scale. Integers are exact, and faster than a context of thousands of digits."""
    square = int(value.scaleb(2 * scale, _CONTEXT).to_integral_value(context=_CONTEXT))
    root = math.isqrt(square)
    # (root + 1/2)² is root² + root + 1/4.
    return Decimal(root + (square - root * root > root)).scaleb(-scale, _CONTEXT)


def sample_variance(values: Sequence[str | None]) -> str | None:
    return variance(values, is_sample=True, is_root=False)


def sample_deviation(values: Sequence[str | None]) -> str | None:
    return variance(values, is_sample=True, is_root=True)


def population_variance(values: Sequence[str | None]) -> str | None:
    return variance(values, is_sample=False, is_root=False)


def population_deviation(values: Sequence[str | None]) -> str | None:
    return variance(values, is_sample=False, is_root=True)


_COMPLEMENT: Final = str.maketrans("0123456789", "9876543210")


@cache_short(65_536)
def key(a: str) -> str:
    """A text that sorts as the value does, and is equal for equal values such as 1.5 and 1.50."""
    value = _value(a)
    if value.is_nan():
        return "z"
    if value.is_infinite():
        return "A" if value.is_signed() else "y"
    if value.is_zero():
        return "o"
    digits = "".join(map(str, value.as_tuple().digits)).lstrip("0").rstrip("0")
    exponent = f"{value.adjusted() + 500_000:06d}"
    if value.is_signed():
        return f"n{exponent.translate(_COMPLEMENT)}{digits.translate(_COMPLEMENT)}~"
    return f"p{exponent}{digits}"


def width_bucket(a: str, low: str, high: str, count: int) -> int:
    x, x1, x2 = _value(a), _value(low), _value(high)
    if count <= 0:
        raise ScalarError("2201G", "count must be greater than zero")
    if x1.is_nan() or x2.is_nan() or x.is_nan():
        raise ScalarError("2201G", "operand, lower bound, and upper bound cannot be NaN")
    if x1 == x2:
        raise ScalarError("2201G", "lower bound cannot equal upper bound")
    if x1 < x2:
        if x < x1:
            return 0
        return count + 1 if x >= x2 else int(_CONTEXT.divide_int((x - x1) * count, x2 - x1)) + 1
    if x > x1:
        return 0
    return count + 1 if x <= x2 else int(_CONTEXT.divide_int((x1 - x) * count, x1 - x2)) + 1
