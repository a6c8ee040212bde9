"""Random JSON Schemas, regular expressions and grammars, each from a seed, and whether a text fits them."""

import json
import random
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import jsonschema

from mxconv.text.constraint import Constraint

NAMES = ("a", "id", "é", "a b", "x-1", '"', "\\", "🙂")
PATTERNS = ("^a+$", "b", "^[a-c]{2,4}$", r"^\d{1,3}(-\d)?$", r"^\w+$", "^(ab|c)*$", "é", "^.{2}$", "^[^a] ?$", "x$")
FORMATS = ("date", "time", "date-time", "uuid", "ipv4", "email", "hostname", "uri", "duration")
BOUNDS = (-17, -1, -0.5, 0, 0.25, 3, 3.5, 10, 99, 1000)
Values = dict[str, Any]


class SchemaMaker:
    """Makes one schema; a fifth of its parts may use keywords that llguidance knows in part."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def schema(self) -> Values:
        """A schema of JSON objects or arrays, most of the time."""
        made = self._part(3)
        made["$defs"] = {
            "one": self._rng.choice([self._object, self._array, self._text])(0),
            "list": {"type": "array", "items": {"$ref": "#/$defs/list"}},
        }
        return made

    def _part(self, depth: int) -> Values:
        leaves: list[Callable[[int], Values]] = [self._text, self._number, self._literal, self._number]
        branches = [self._object, self._object, self._array, self._choice, self._both, self._reference]
        return self._rng.choice(leaves if depth == 0 else [*branches, *leaves[: 2 if depth < 3 else 0]])(depth - 1)

    def _some(self, values: Values, most: int = 2) -> Values:
        names = self._rng.sample(list(values), self._rng.randint(0, most))
        return {name: values[name] for name in names}

    def _text(self, _: int) -> Values:
        least = self._rng.randint(0, 3)
        return {"type": "string"} | self._some(
            {
                "minLength": least,
                "maxLength": least + self._rng.randint(0, 4),
                "pattern": self._rng.choice(PATTERNS),
                "format": self._rng.choice(FORMATS),
            }
        )

    def _number(self, _: int) -> Values:
        low, high = sorted(self._rng.sample(BOUNDS, 2))
        return {"type": self._rng.choice(["integer", "number", ["integer", "null"]])} | self._some(
            {
                self._rng.choice(["minimum", "exclusiveMinimum"]): low,
                self._rng.choice(["maximum", "exclusiveMaximum"]): high,
                "multipleOf": self._rng.choice([2, 3, 5, 0.5, 0.01, 1.5]),
            }
        )

    def _literal(self, _: int) -> Values:
        values = [None, True, False, 0, -3, 2.5, "", "a", "é", 'say "hi"\n', [1, "a"], {"a": [None]}, {"é": 1, "b": 2}]
        if self._rng.random() < 0.3:
            return {"const": self._rng.choice(values)}
        return {"enum": self._rng.sample(values, self._rng.randint(1, 4))}

    def _array(self, depth: int) -> Values:
        least = self._rng.randint(0, 2)
        return {"type": "array", "maxItems": least + self._rng.randint(0, 2)} | self._some(
            {
                "items": self._part(depth),
                "minItems": least,
                "prefixItems": [self._part(depth) for _ in range(self._rng.randint(1, 2))],
                "uniqueItems": True,
            },
            3 if self._rng.random() < 0.1 else 2,
        )

    def _object(self, depth: int) -> Values:
        names = self._rng.sample(NAMES, self._rng.randint(1, 3))
        made = {"type": "object", "properties": {name: self._part(depth) for name in names}}
        made["additionalProperties"] = self._rng.choice([False, False, True, self._part(0)])
        return made | self._some(
            {
                "required": self._rng.sample([*names, "other"], self._rng.randint(0, len(names))),
                "patternProperties": {self._rng.choice(["^x", "b$"]): self._part(0)},
                "minProperties": self._rng.randint(0, 3),
                "maxProperties": self._rng.randint(1, 4),
                "title": "Some object",
            }
        )

    def _choice(self, depth: int) -> Values:
        kind = "oneOf" if self._rng.random() < 0.3 else "anyOf"
        return {kind: [self._part(depth) for _ in range(self._rng.randint(1, 3))]}

    def _both(self, depth: int) -> Values:
        same = self._rng.choice([self._text, self._number, self._object])
        return same(depth) | {"allOf": [same(depth) for _ in range(self._rng.randint(1, 2))]}

    def _reference(self, depth: int) -> Values:
        return {"$ref": self._rng.choice(["#/$defs/one", "#/$defs/list"])}


# Regular expressions that Python reads as Rust does, and grammars beside a regular expression of the same texts.
PIECES = (
    "[a-c]{1,3}",
    "(x|yz)",
    r"\d{2}",
    "[A-Z]?",
    "(, [a-z]{1,4})*",
    "é+",
    r"\.",
    "[^a-z\n]{1,2}",
    "self",
    "(0|[1-9][0-9]*)",
)
GRAMMARS = {
    'start: WORD ("," WORD)*\nWORD: /[a-z]{1,4}/': r"[a-z]{1,4}(,[a-z]{1,4})*",
    'start: "(" start ")" | NUMBER\nNUMBER: /[0-9]{1,3}/': r"\(*[0-9]{1,3}\)*",
    'root ::= "yes" | "no" | item+ "."\nitem ::= [a-c] " "': r"yes|no|([a-c] )+\.",
    'root ::= "def " name "(" ")"\nname ::= [a-z] [a-z0-9]*': r"def [a-z][a-z0-9]*\(\)",
}


def random_constraint(seed: int) -> Constraint:
    """Six schemas to two regular expressions, a grammar and a choice."""
    rng = random.Random(seed)
    kind = rng.choice(["json_schema"] * 6 + ["regex"] * 2 + ["grammar", "choice"])
    if kind == "json_schema":
        return Constraint(kind, json.dumps(SchemaMaker(seed).schema()))
    if kind == "regex":
        return Constraint(kind, "".join(rng.choices(PIECES, k=rng.randint(1, 4))))
    if kind == "grammar":
        return Constraint(kind, rng.choice(list(GRAMMARS)))
    return Constraint("choice", json.dumps(["".join(rng.choices('abé \n"{', k=rng.randint(1, 5))) for _ in range(4)]))


def fits(constraint: Constraint, text: str) -> bool:
    """Whether a whole text is what a constraint asks for, by other libraries, in exact arithmetic."""
    if constraint.kind == "json_schema":
        schema, value = (json.loads(each, parse_float=_exact) for each in (constraint.text, text))
        return jsonschema.Draft202012Validator(schema).is_valid(value)
    if constraint.kind == "choice":
        return text in json.loads(constraint.text)
    pattern = GRAMMARS[constraint.text] if constraint.kind == "grammar" else constraint.text
    return re.fullmatch(pattern, text) is not None


def _exact(text: str) -> Decimal | float:
    """A number as it is written; those beyond any arithmetic are infinite or zero."""
    return Decimal(text) if len(text.lower().partition("e")[2]) < 4 else float(text)
