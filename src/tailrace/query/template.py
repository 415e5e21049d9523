"""Translation of functions with a template: to_char, to_date, to_timestamp and format.

A template element that DuckDB cannot format like PostgreSQL is an error: ignoring it would give a wrong text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from tailrace.query.query_error import EXACT, UNSUPPORTED, QueryError
from tailrace.query.table_view import sql_literal

# Template element → strftime code; those for names are without padding.
_CODES: Final = {
    "YYYY": "%Y", "YY": "%y", "IYYY": "%G", "MM": "%m", "DD": "%d", "DDD": "%j", "HH24": "%H", "HH12": "%I", "HH": "%I",
    "MI": "%M", "SS": "%S", "MS": "%g", "US": "%f", "IW": "%V", "ID": "%u", "TZ": "%Z",
    "Month": "%B", "Mon": "%b", "Day": "%A", "Dy": "%a", "AM": "%p", "PM": "%p",
}  # fmt: skip
_PADDED: Final = ("Month", "Day")
# Other elements → a numeric expression and its minimum number of digits.
_NUMBERS: Final = {
    "YYY": ("{year} % 1000", 3), "Y": ("{year} % 10", 1), "IYY": ("{isoyear} % 1000", 3), "IY": ("{isoyear} % 100", 2),
    "I": ("{isoyear} % 10", 1), "CC": ("{century}", 2), "Q": ("{quarter}", 1), "WW": ("({doy} - 1) // 7 + 1", 2),
    "W": ("({day} - 1) // 7 + 1", 1), "D": ("{dow} + 1", 1), "J": ("floor({julian})::BIGINT", 1),
    "SSSSS": ("{hour} * 3600 + {minute} * 60 + {second}", 1), "SSSS": ("{hour} * 3600 + {minute} * 60 + {second}", 1),
}  # fmt: skip
_UNSUPPORTED: Final = (
    "Y,YYY",
    "IDDD",
    "RM",
    "TZH",
    "TZM",
    "OF",
    "A.M.",
    "P.M.",
    "AD",
    "BC",
    "B.C.",
    "A.D.",
    "TM",
    "FX",
)
_NAMES: Final = sorted((*_CODES, *_NUMBERS, *_UNSUPPORTED), key=len, reverse=True)
_ELEMENT: Final = re.compile(
    rf"""
      "(?P<quoted>(?:[^"\\]|\\.)*)" | \\(?P<escaped>")
    | (?P<fill>FM)? (?P<name>{"|".join(map(re.escape, _NAMES))}|FF[1-6]) (?P<th>TH)?
    """,
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)


class _TemplatePart(NamedTuple):
    text: str
    """An element's name as written, or literal text."""
    name: str = ""
    """The element's name as in the tables above; empty for literal text."""
    is_short: bool = False
    """FM: without padding zeros or blanks."""


def _parts(pattern: str) -> Iterator[_TemplatePart]:
    by_letters = {name.upper(): name for name in _NAMES}
    at = 0
    while at < len(pattern):
        found = _ELEMENT.match(pattern, at)
        if found is None:
            yield _TemplatePart(pattern[at])
            at += 1
            continue
        at = found.end()
        if found["name"] is None:
            quoted = found["quoted"]
            yield _TemplatePart(found["escaped"] if quoted is None else re.sub(r"\\(.)", r"\1", quoted))
            continue
        name = by_letters.get(found["name"].upper(), "")
        if name in _UNSUPPORTED or not name or found["th"]:
            raise _refusal(found[0])
        yield _TemplatePart(found["name"], name, found["fill"] is not None)


def _refusal(element: str) -> QueryError:
    return QueryError(UNSUPPORTED, f"template element {element} is not supported", EXACT)


def strptime_format(pattern: str) -> str:
    """The strptime format for a template."""
    found = ""
    for part in _parts(pattern):
        if part.name and part.name not in _CODES:
            raise _refusal(part.text)
        found += _CODES[part.name] if part.name else part.text.replace("%", "%%")
    return found


def to_char_sql(value: str, pattern: str) -> str:
    """The SQL of `to_char(value, pattern)`. Adjacent elements that strftime supports share one call."""
    calls: list[str] = []
    format_ = ""
    for part in _parts(pattern):
        if not part.name:
            format_ += part.text.replace("%", "%%")
        elif (code := _plain_code(part)) is not None:
            format_ += code
        else:
            calls += [_strftime(value, format_)] if format_ else []
            calls.append(_number(value, part) if part.name in _NUMBERS or part.is_short else _name(value, part))
            format_ = ""
    if format_ or not calls:
        calls.append(_strftime(value, format_))
    return f"({' || '.join(calls)})"


def _plain_code(part: _TemplatePart) -> str | None:
    """The strftime code, if it gives exactly the same text; else None."""
    if part.name not in _CODES:
        return None
    if part.name[1:].islower():
        is_same = part.text == part.name and (part.is_short or part.name not in _PADDED)
    else:
        is_same = part.text.isupper() or part.name not in ("AM", "PM")
        is_same = is_same and (not part.is_short or part.name in ("MS", "US"))
    return _CODES[part.name] if is_same else None


def _strftime(value: str, format_: str) -> str:
    return f"strftime({value}, {sql_literal(format_)})"


def _number(value: str, part: _TemplatePart) -> str:
    if part.name not in _NUMBERS:
        if part.name[1:].islower() or part.name in ("AM", "PM"):
            return _name(value, part)
        return f"regexp_replace({_strftime(value, _CODES[part.name])}, '^0+(.)', '\\1')"
    expression, digits = _NUMBERS[part.name]
    fields = {name: f"system.main.date_part('{name}', {value})" for name in re.findall(r"\{(\w+)\}", expression)}
    text = f"CAST({expression.format(**fields)} AS VARCHAR)"
    return text if digits == 1 or part.is_short else f"lpad({text}, {digits}, '0')"


def _name(value: str, part: _TemplatePart) -> str:
    text = _strftime(value, _CODES[part.name])
    if part.text.isupper():
        text = f"upper({text})"
    elif part.text.islower():
        text = f"lower({text})"
    return f"rpad({text}, 9, ' ')" if part.name in _PADDED and not part.is_short else text
