"""JSON Schemas that llguidance holds to the letter, or an error that names the keyword which it would not hold.

llguidance itself refuses the keywords that it does not implement. Here is the rest, where it reads other than JSON
Schema 2020-12 and ECMA-262 say: a keyword is rewritten where that repairs it, and refused where nothing does.
"""

import re
from decimal import Decimal
from typing import Any

from mxconv.errors import ModelError

MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")  # of schemas, by names
IN_PLACE = ("const", "enum", "allOf", "anyOf", "oneOf", "$ref")
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
ANNOTATIONS = ("default", "examples")
FIRST_INEXACT = 1 << 53  # llguidance computes in float64
MOST_DIGITS, MOST_DECIMALS = 15, 22  # of other numbers, which its parser then rounds correctly

# What llguidance's formats lack: 29 February comes in leap years alone, and no leap second (it depends on the offset).
LEAP = "[0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00"
DATE = f"^([0-9]{{4}}-(0[^2]|1|02-([01]|2[0-8]))|({LEAP})-02-29)"
FORMATS = {"date": [DATE], "time": ["^[^:]*:[^:]*:[0-5]"], "date-time": [DATE, "^[^:]*:[^:]*:[0-5]"]}

# A pattern in pieces: an escape, a class, or a character.
PIECES = re.compile(
    r"\\(?:x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|[xu]\{[0-9A-Fa-f]*\}|[\s\S])|\[(?:\\[\s\S]|[^\]\\])*\]|[\s\S]"
)
SPACES = r"\t-\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"  # ECMA-262's
IN_ECMA = {".": r"[^\n\r\u2028\u2029]", r"\s": f"[{SPACES}]", r"\S": f"[^{SPACES}]"}
SET_OPERATION = re.compile(r"&&|--|~~|.\[|^\[\^?\]$", re.DOTALL)  # in Rust's classes alone
CONTROL = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")  # characters that JSON writes by their numbers alone
CONTROL_ESCAPE = re.compile(r"\\(?:[xu]\{?0*(?:1?[0-9A-Fa-f]|7[Ff])\}?$|[va0])")


def strict_schema(schema: dict[str, Any], place: str = "#") -> dict[str, Any]:
    """The schema, rewritten so that llguidance accepts nothing that it rules out.

    Raises:
        ModelError: a keyword would be held in part; the message begins with its place, a JSON pointer.
    """
    made: dict[str, Any] = {}
    for keyword, value in schema.items():
        at = f"{place}/{keyword}"
        if keyword in ("const", "enum"):
            _check_value(value, at)
        elif keyword in BOUNDS:
            if isinstance(value, bool):
                raise _refused(at, value, "a number is required")
            _check_value(value, at)
        elif keyword == "pattern" and isinstance(value, str):
            value = _pattern(value, at)
        elif keyword in MAPS and isinstance(value, dict):
            is_by_pattern = keyword == "patternProperties"
            names = {name: _pattern(name, at) if is_by_pattern else name for name in value}
            value = {names[name]: _part(part, f"{at}/{name}") for name, part in value.items()}
        elif keyword not in ANNOTATIONS:
            value = _part(value, at)
        made[keyword] = value
    _check_beside(schema, place)
    if conditions := FORMATS.get(str(schema.get("format"))):
        made["allOf"] = [*made.get("allOf", ()), *({"pattern": pattern} for pattern in conditions)]
    return made


def _part(value: Any, place: str) -> Any:
    """A value with the schemas in it."""
    if isinstance(value, dict):
        return strict_schema(value, place)
    if isinstance(value, list):
        return [_part(each, f"{place}/{number}") for number, each in enumerate(value)]
    return value


def _check_beside(schema: dict[str, Any], place: str) -> None:
    """Refuse keywords that llguidance holds beside some others alone."""
    least, required = schema.get("minProperties", 0), schema.get("required", [])
    if isinstance(least, int) and isinstance(required, list) and least > len(set(map(str, required))) + 1:
        raise _refused(f"{place}/minProperties", least, "at most one more than the names in `required` is supported")
    if "additionalItems" in schema and (others := [name for name in IN_PLACE if name in schema]):
        raise _refused(f"{place}/additionalItems", f"beside {others[0]}", "prefixItems and items are required")
    if re.search("draft-0[0-3]", str(schema.get("$schema"))):
        raise _refused(f"{place}/$schema", schema["$schema"], "draft 4 or a later one is required")


def _check_value(value: Any, place: str) -> None:
    """Refuse numbers that llguidance would round, and texts that it cannot write."""
    if isinstance(value, list | dict):
        for each in value.values() if isinstance(value, dict) else value:
            _check_value(each, place)
    elif isinstance(value, int | float) and not _is_exact(value):
        raise _refused(place, value, "a number below 2^53 of at most 15 digits is required")
    elif isinstance(value, str) and CONTROL.search(value):
        raise _refused(place, repr(value), "a text without control characters is required")


def _is_exact(number: float) -> bool:
    if not abs(number) < FIRST_INEXACT:
        return False
    _, digits, exponent = Decimal(repr(number + 0)).as_tuple()
    return number == int(number) or (len(digits) <= MOST_DIGITS and int(exponent) >= -MOST_DECIMALS)


def _pattern(text: str, place: str) -> str:
    """A regular expression of ECMA-262 in Rust's syntax."""

    def piece(found: re.Match[str]) -> str:
        one = found[0]
        is_class = one.startswith("[") and len(one) > 1
        if is_class and SET_OPERATION.search(re.sub(r"\\[\s\S]", "x", one)):
            raise _refused(place, repr(one), "a class without `[`, `&&`, `--` and `~~` is required")
        inner = PIECES.findall(one[1:-1]) if is_class else [one]
        holds_others = is_class and (inner[0] == "^" or "-" in inner)
        if not holds_others and any(CONTROL.match(each) or CONTROL_ESCAPE.match(each) for each in inner):
            raise _refused(place, repr(one), "a pattern without control characters is required")
        if not is_class:
            return IN_ECMA.get(one, one)
        return f"[{''.join(each if each == '.' else IN_ECMA.get(each, each) for each in inner)}]"

    return PIECES.sub(piece, text)


def _refused(place: str, found: Any, required: str) -> ModelError:
    return ModelError(f"{place}: {found}; {required}. Change it.")
