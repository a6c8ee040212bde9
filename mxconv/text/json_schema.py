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
UNHELD = (  # what nobody can tell of a text before it is whole
    *("not", "if", "contains", "propertyNames", "uniqueItems", "dependentSchemas", "dependentRequired", "dependencies"),
    *("unevaluatedProperties", "unevaluatedItems", "$dynamicRef"),
)
NEUTRAL_VALUES: dict[str, tuple[Any, ...]] = {"uniqueItems": (False,), "propertyNames": (True, {}, {"type": "string"})}
ASSERTED = ("date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid")  # formats
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
LOOK_AROUND = re.compile(r"\(\?<?[=!]")
CONTROL = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")  # characters that JSON writes by their numbers alone
CONTROL_ESCAPE = re.compile(r"\\(?:[xu]\{?0*(?:1?[0-9A-Fa-f]|7[Ff])\}?$|[va0])")


def strict_schema(schema: dict[str, Any], place: str = "#", closes: bool | None = None) -> dict[str, Any]:
    """The schema, rewritten so that llguidance accepts nothing that it rules out.

    Objects whose properties are named have no others, unless the schema says which: models would add some for ever.

    Args:
        schema: a JSON Schema.
        place: a JSON pointer to it.
        closes: whether objects may be closed; None of a whole schema, which says that.

    Raises:
        ModelError: a keyword would be held in part; the message begins with its place, a JSON pointer.
    """
    closes = not _has_objects_in_parts(schema) if closes is None else closes
    made: dict[str, Any] = {}
    for keyword, value in schema.items():
        at = f"{place}/{keyword}"
        if keyword in UNHELD:
            if value in NEUTRAL_VALUES.get(keyword, ()):
                continue
            raise _refused(
                at, value, f"a schema without {keyword}, which cannot be checked token by token, is required"
            )
        if keyword == "format" and value not in ASSERTED:
            continue
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
            value = {names[name]: _part(part, f"{at}/{name}", closes) for name, part in value.items()}
        elif keyword not in ANNOTATIONS:
            value = _part(value, at, closes)
        made[keyword] = value
    named, required = schema.get("properties"), schema.get("required", [])
    has_all = isinstance(named, dict) and isinstance(required, list) and set(map(str, required)) <= named.keys()
    if closes and has_all and not {"additionalProperties", "patternProperties", "minProperties"} & schema.keys():
        made["additionalProperties"] = False
    _check_beside(schema, place)
    if conditions := FORMATS.get(str(schema.get("format"))):
        made["allOf"] = [*made.get("allOf", ()), *({"pattern": pattern} for pattern in conditions)]
    return made


def unheld_formats(schema: Any, place: str = "#") -> list[str]:
    """The formats in a schema that annotate values, as JSON Schema has it, and hold for none; a sentence each."""
    if isinstance(schema, list):
        return [each for number, part in enumerate(schema) for each in unheld_formats(part, f"{place}/{number}")]
    if not isinstance(schema, dict):
        return []
    found = [] if not isinstance(name := schema.get("format"), str) or name in ASSERTED else [name]
    parts = ((f"{place}/{key}", value) for key, value in schema.items() if key not in ("const", "enum", *ANNOTATIONS))
    return [
        *(f"{place}/format: {name!r} annotates values; no text is checked by it" for name in found),
        *(each for at, value in parts for each in unheld_formats(value, at)),
    ]


def _part(value: Any, place: str, closes: bool) -> Any:
    """A value with the schemas in it."""
    if isinstance(value, dict):
        return strict_schema(value, place, closes)
    if isinstance(value, list):
        return [_part(each, f"{place}/{number}", closes) for number, each in enumerate(value)]
    return value


def _has_objects_in_parts(value: Any) -> bool:
    """Whether some object's properties may be named in several places of a schema, so that none of these is all."""
    if isinstance(value, list):
        return any(map(_has_objects_in_parts, value))
    if not isinstance(value, dict):
        return False
    several = (isinstance(parts := value.get("allOf"), list) and len(parts) > 1) or (
        "properties" in value and bool({*IN_PLACE[2:]} & value.keys())
    )
    return several or any(map(_has_objects_in_parts, value.values()))


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
        if one == "(" and LOOK_AROUND.match(text, found.start()):
            raise _refused(place, repr(text), "a pattern without look-around is required")
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
