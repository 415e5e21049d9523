"""What is told by a template: to_char and to_date of dates and times, format; in DuckDB's words.

An element that DuckDB cannot write as PostgreSQL does is an error: left as it stands it would be a wrong text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from tailrace.query.failure import UNSUPPORTED, Failure
from tailrace.query.lexer import Token, joined
from tailrace.query.shape import literal
from tailrace.query.walking import arguments, closing, following, raw, string_at, word_at

# Element → strftime's; those for names only without padding.
_CODES: Final = {
    "YYYY": "%Y", "YY": "%y", "IYYY": "%G", "MM": "%m", "DD": "%d", "DDD": "%j", "HH24": "%H", "HH12": "%I", "HH": "%I",
    "MI": "%M", "SS": "%S", "MS": "%g", "US": "%f", "IW": "%V", "ID": "%u", "TZ": "%Z",
    "Month": "%B", "Mon": "%b", "Day": "%A", "Dy": "%a", "AM": "%p", "PM": "%p",
}  # fmt: skip
_PADDED: Final = ("Month", "Day")
# Others: a number, and with how many digits at least.
_NUMBERS: Final = {
    "YYY": ("{year} % 1000", 3), "Y": ("{year} % 10", 1), "IYY": ("{isoyear} % 1000", 3), "IY": ("{isoyear} % 100", 2),
    "I": ("{isoyear} % 10", 1), "CC": ("{century}", 2), "Q": ("{quarter}", 1), "WW": ("({doy} - 1) // 7 + 1", 2),
    "W": ("({day} - 1) // 7 + 1", 1), "D": ("{dow} + 1", 1), "J": ("floor({julian})::BIGINT", 1),
    "SSSSS": ("{hour} * 3600 + {minute} * 60 + {second}", 1), "SSSS": ("{hour} * 3600 + {minute} * 60 + {second}", 1),
}  # fmt: skip
_REFUSED: Final = ("Y,YYY", "IDDD", "RM", "TZH", "TZM", "OF", "A.M.", "P.M.", "AD", "BC", "B.C.", "A.D.", "TM", "FX")
_NAMES: Final = sorted((*_CODES, *_NUMBERS, *_REFUSED), key=len, reverse=True)
_ELEMENT: Final = re.compile(
    rf"""
      "(?P<quoted>[^"]*)" | \\(?P<escaped>.)
    | (?P<fill>FM)? (?P<name>{"|".join(map(re.escape, _NAMES))}|FF[1-6]) (?P<th>TH)?
    """,
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)


class _Part(NamedTuple):
    text: str
    """Of an element its name as it was written; else what stands there."""
    name: str = ""
    """As in the tables here; empty for text."""
    is_short: bool = False
    """FM: without zeros or blanks that fill it up."""


def _parts(pattern: str) -> Iterator[_Part]:
    by_letters = {name.upper(): name for name in _NAMES}
    at = 0
    while at < len(pattern):
        found = _ELEMENT.match(pattern, at)
        if found is None:
            yield _Part(pattern[at])
            at += 1
            continue
        at = found.end()
        if found["name"] is None:
            yield _Part(found["quoted"] if found["quoted"] is not None else found["escaped"])
            continue
        name = by_letters.get(found["name"].upper(), "")
        if name in _REFUSED or not name or found["th"]:
            raise _refusal(found[0])
        yield _Part(found["name"], name, found["fill"] is not None)


def _refusal(element: str) -> Failure:
    return Failure(UNSUPPORTED, f"{element} is not possible in a template here")


def parse_format(pattern: str) -> str:
    """For strptime."""
    found = ""
    for part in _parts(pattern):
        if part.name and part.name not in _CODES:
            raise _refusal(part.text)
        found += _CODES[part.name] if part.name else part.text.replace("%", "%%")
    return found


def written(value: str, pattern: str) -> str:
    """`value`, an expression, by that template: an expression, too. What strftime can write together is one call."""
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


def _plain_code(part: _Part) -> str | None:
    """strftime's, where it writes the very same."""
    if part.name not in _CODES:
        return None
    if part.name[1:].islower():
        is_alike = part.text == part.name and (part.is_short or part.name not in _PADDED)
    else:
        is_alike = (part.text.isupper() or part.name not in ("AM", "PM")) and not part.is_short
    return _CODES[part.name] if is_alike else None


def _strftime(value: str, format_: str) -> str:
    return f"strftime({value}, {literal(format_)})"


def _number(value: str, part: _Part) -> str:
    if part.name not in _NUMBERS:
        if part.name[1:].islower() or part.name in ("AM", "PM"):
            return _name(value, part)
        return f"regexp_replace({_strftime(value, _CODES[part.name])}, '^0+(.)', '\\1')"
    expression, digits = _NUMBERS[part.name]
    fields = {name: f"system.main.date_part('{name}', {value})" for name in re.findall(r"\{(\w+)\}", expression)}
    text = f"CAST({expression.format(**fields)} AS VARCHAR)"
    return text if digits == 1 or part.is_short else f"lpad({text}, {digits}, '0')"


def _name(value: str, part: _Part) -> str:
    text = _strftime(value, _CODES[part.name])
    if part.text.isupper():
        text = f"upper({text})"
    elif part.text.islower():
        text = f"lower({text})"
    return f"rpad({text}, 9, ' ')" if part.name in _PADDED and not part.is_short else text


def templates(tokens: list[Token]) -> list[Token]:
    """`to_char(x, 'YYYY')` and `to_date(x, 'YYYY')`, `format('%s', x)`: what is told by a template, which has to be
    known before anything runs."""
    out = list(tokens)
    for at in range(len(tokens) - 1, -1, -1):
        if tokens[at].word not in _WITH_TEMPLATE or word_at(tokens, following(tokens, at)) != "(":
            continue
        opens = following(tokens, at)
        given = arguments(out, opens)
        if tokens[at].word == "to_timestamp" and len(given) == 1:
            continue
        place = 0 if tokens[at].word == "format" else 1
        first, last = given[place] if len(given) > place else (at, at)
        text = string_at(out, first) if last == first + 1 else None
        if text is None and "NULL" in out[first].text:  # a parameter that has no value yet
            text = ""
        if text is None:
            raise Failure(UNSUPPORTED, f"{tokens[at].word} wants its template as a plain text here")
        values = [joined(out[first:last]) for first, last in given]
        end = closing(out, opens)
        out[at : end + 1] = [raw(_WITH_TEMPLATE[tokens[at].word](text, values)), *[raw("")] * (end - at)]
    return out


def _formatted(template: str, values: Sequence[str]) -> str:
    """`format` with %s, %I, %L."""
    parts, place = [], 1
    for text, kind in re.findall(r"([^%]*)(%.|%$|$)", template, re.DOTALL):
        parts += [literal(text)] if text else []
        if kind == "%%":
            parts.append("'%'")
        elif kind:
            if kind not in _FORMATS or place >= len(values):
                raise Failure(
                    UNSUPPORTED, f"{kind} is not possible in format() here", "%s, %I, %L, with a value for each"
                )
            parts.append(_FORMATS[kind].format(values[place]))
            place += 1
    return f"concat({', '.join(parts) or repr('')})"


_FORMATS: Final = {"%s": "as_text({})", "%I": "quote_ident(as_text({}))", "%L": "coalesce(quote_literal({}), 'NULL')"}
_WITH_TEMPLATE: Final[dict[str, Callable[[str, Sequence[str]], str]]] = {
    "to_char": lambda template, values: written(f"({values[0]})", template),
    "to_date": lambda template, values: f"(strptime({values[0]}, {literal(parse_format(template))})::DATE)",
    "to_timestamp": lambda template, values: f"(strptime({values[0]}, {literal(parse_format(template))})::TIMESTAMPTZ)",
    "format": _formatted,
}
