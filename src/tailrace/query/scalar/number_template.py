"""to_char of numbers, for the templates that the server supports: 9 and 0, a point, groups, FM."""

from __future__ import annotations

import re
from decimal import ROUND_HALF_UP, Context, Decimal
from functools import lru_cache
from typing import Final, NamedTuple

from tailrace.query.scalar.scalar_error import ScalarError

_TEMPLATE: Final = re.compile(r"(FM)?([90](?:[90,G]*[90])?)(?:[.D]([90]+))?", re.IGNORECASE)
_CONTEXT: Final = Context(prec=20_000, rounding=ROUND_HALF_UP, Emin=-999_999, Emax=999_999)


class NumberTemplate(NamedTuple):
    is_short: bool
    """FM: no blanks, and no zeros at the end where the template has a 9."""
    whole: str
    fraction: str


@lru_cache(256)
def parse(template: str) -> NumberTemplate | None:
    """The template, or None if it is not supported."""
    found = _TEMPLATE.fullmatch(template)
    if found is None:
        return None
    return NumberTemplate(found[1] is not None, found[2].upper().replace("G", ","), found[3] or "")


def to_char(text: str, template: str) -> str:
    """A numeric's text by a template."""
    parsed = parse(template)
    value = Decimal(text)
    if parsed is None or not value.is_finite():
        raise ScalarError("0A000", f"to_char of {'this template' if parsed is None else text} is not supported")
    places = len(parsed.fraction)
    rounded = value.quantize(Decimal(1).scaleb(-places, _CONTEXT), context=_CONTEXT)
    whole, _, fraction = f"{abs(rounded):f}".partition(".")
    digits = len(parsed.whole.replace(",", ""))
    if len(whole) > digits:
        whole, fraction = "#" * digits, "#" * places
    body = _whole(parsed, whole, fraction)
    if places:
        body += "." + (fraction[: _kept(parsed, fraction)] if parsed.is_short else fraction)
    sign = "-" if rounded < 0 else ""
    if parsed.is_short:
        return sign + body
    number = body.lstrip(" ")
    return (sign or " ").rjust(len(body) - len(number) + 1) + number


def _kept(template: NumberTemplate, fraction: str) -> int:
    """How many decimals FM keeps."""
    return max(len(fraction.rstrip("0")), template.fraction.rfind("0") + 1)


def _whole(template: NumberTemplate, whole: str, fraction: str) -> str:
    """The digits before the point, after blanks or zeros."""
    digits = template.whole.replace(",", "")
    blanks = len(digits) - len(whole)
    first_zero = digits.find("0")
    is_hidden = whole == "0" and bool(fraction) and first_zero < 0  # 0.5 is .5
    blank = "" if template.is_short else " "
    found, place = "", 0
    for letter in template.whole:
        if letter == ",":
            found += "," if found.strip() else blank
            continue
        if place < blanks:
            found += "0" if 0 <= first_zero <= place else blank
        elif is_hidden:
            found += "0" if template.is_short and _kept(template, fraction) == 0 else blank
        else:
            found += whole[place - blanks]
        place += 1
    return found
