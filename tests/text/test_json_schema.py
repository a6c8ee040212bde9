"""JSON Schema by keyword: what a schema rules out is never accepted, and what is not held is refused by its name."""

import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from random_constraints import NAMES
from trained_levels import TRAINED

from mxconv.errors import ModelError
from mxconv.text.constraint import Constraint, ConstraintVocabulary, Grammar, check_cost
from mxconv.text.json_schema import BOUNDS, strict_schema, unheld_formats
from mxconv.text.tokenizer import Tokenizer

SUITE = os.environ.get("MXCONV_JSON_SCHEMA_SUITE")  # its folder draft2020-12
TOKENIZER = Tokenizer.from_folder(TRAINED)
VOCABULARY = ConstraintVocabulary(TOKENIZER, TOKENIZER.vocab_size)
OBJECT = {"type": "object"}
A = {"type": "object", "properties": {"a": {"type": "integer"}}}


def compiled(schema: Any) -> Grammar:
    return VOCABULARY.compile(Constraint("json_schema", json.dumps(schema)))


def accepts(grammar: Grammar, text: str) -> bool:
    """Whether a whole text can be written."""
    matcher = grammar.matcher()
    if not all(matcher.consume(token) for token in TOKENIZER.encode(text, add_special_tokens=False)):
        return False
    return bool(matcher.mask(TOKENIZER.vocab_size)[sorted(TOKENIZER.eos_token_ids)].any())


def spellings(value: Any) -> Iterator[str]:
    """JSON texts of a value: keys in several orders, and twice, numbers and characters in several notations."""
    if isinstance(value, dict):
        inner = {json.dumps(name, ensure_ascii=False): [*itertools.islice(spellings(value[name]), 4)] for name in value}
        for names in itertools.islice(itertools.permutations(inner), 24):
            for parts in itertools.islice(itertools.product(*(inner[name] for name in names)), 8):
                yield _object(list(zip(names, parts, strict=True)))
        once = [(name, parts[0]) for name, parts in inner.items()]
        yield from (_object([*once, pair]) for pair in once)
        yield from (
            _object([(f'"\\u{ord(name[1]):04x}{name[2:]}', part), *once]) for name, part in once if name[1] > "^"
        )
    elif isinstance(value, list):
        inner_lists = [[*itertools.islice(spellings(each), 6)] for each in value]
        yield from (f"[{', '.join(parts)}]" for parts in itertools.islice(itertools.product(*inner_lists), 32))
    else:
        yield json.dumps(value, ensure_ascii=False)
        yield json.dumps(value)
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e20 and value == int(value):
            yield from (f"{int(value)}{end}" for end in ("", ".0", "e0"))
        if isinstance(value, str) and all(ord(one) < 1 << 16 for one in value):
            yield '"' + "".join(f"\\u{ord(one):04X}" for one in value) + '"'


def _object(pairs: list[tuple[str, str]]) -> str:
    return "{" + ", ".join(f"{name}: {part}" for name, part in pairs) + "}"


HELD: list[tuple[dict[str, Any], list[Any], list[Any]]] = [  # a schema, instances that it allows, others
    ({"type": "integer"}, [3, -1, 0], [3.5, "3", None, [3]]),
    ({"type": ["string", "null"]}, ["x", None], [1, False]),
    ({"const": {"a": [1, "é"]}}, [{"a": [1, "é"]}], [{"a": [1]}, {"a": [1, "é"], "b": 1}, 1]),
    ({"const": 9007199254740991}, [9007199254740991], [9007199254740990, 9007199254740992]),
    ({"enum": [1, "a\n", None]}, [1, "a\n", None], [2, "a", True]),
    ({"type": "integer", "minimum": -2, "exclusiveMaximum": 3}, [-2, 2], [-3, 3]),
    ({"type": "number", "exclusiveMinimum": 0.5, "maximum": 1.25}, [0.75, 1.25], [0.5, 1.5, -1]),
    ({"type": "number", "multipleOf": 0.01}, [19.99, 3, -0.5], [0.001, 1.234]),
    ({"allOf": [{"multipleOf": 4}, {"multipleOf": 6}], "type": "integer"}, [12, 0, -24], [4, 6, 18]),
    ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "🙂🙂🙂"], ["a", "abcd", "🙂"]),
    ({"type": "string", "pattern": "^a.c$"}, ["abc", "a🙂c"], ["ac", "xabc", "a\nc", "a\rc", "a\u2028c"]),
    ({"type": "string", "pattern": r"^\s\S$"}, ["\ufeffa", " é"], ["a ", " \ufeff", "\u0085a", "  "]),
    ({"type": "string", "pattern": r"^[^\d\s]\w$"}, ["ab"], ["1b", " b", "\u00a0b", "aé"]),
    ({"type": "string", "format": "date"}, ["2024-02-29", "2000-02-29", "1999-12-31"],
     ["2023-02-29", "1900-02-29", "2024-02-30", "2024-13-01", "24-01-01"]),
    ({"type": "string", "format": "time"}, ["12:30:59Z"], ["12:30:60Z", "25:00:00Z"]),
    ({"type": "string", "format": "date-time"}, ["2024-02-29T12:30:59Z"],
     ["2023-02-29T12:30:59Z", "2024-01-01T22:59:60Z"]),
    ({"type": "array", "prefixItems": [{"type": "integer"}], "items": {"type": "string"}},
     [[], [1], [1, "a"]], [["a"], [1, 2]]),
    ({"type": "array", "items": False, "prefixItems": [{}]}, [[], ["x"]], [["x", 1]]),
    ({"type": "array", "minItems": 1, "maxItems": 2}, [[1], [1, [2]]], [[], [1, 2, 3]]),
    (A, [{}, {"a": 1}], [{"a": "x"}, {"a": None}, [], {"a": 1, "b": None}]),
    ({**A, "additionalProperties": True}, [{}, {"a": 1}, {"a": 1, "b": None}], [{"a": "x"}, {"a": None}, []]),
    ({"properties": {"properties": A}, **OBJECT}, [{"properties": {"a": 1}}], [{"properties": {"b": 1}}, {"a": 1}]),
    ({"$ref": "#/$defs/x", "$defs": {"x": A}}, [{"a": 1}], [{"a": 1, "b": 1}]),
    ({"allOf": [A, {"properties": {"b": {}}}], **OBJECT}, [{"a": 1, "b": 1}, {"c": 1}], [{"a": "x"}]),
    ({"type": "array", "uniqueItems": False, "items": {"type": "null"}}, [[None, None]], [[1]]),
    ({**OBJECT, "propertyNames": {"type": "string"}}, [{"a": 1}], [1]),
    ({"type": "string", "format": "regex"}, ["(", "x"], [1]),
    ({"type": "integer", "format": "int32"}, [2**40], ["x"]),
    ({**A, "additionalProperties": False}, [{"a": 1}, {}], [{"b": 1}, {"a": 1, "b": 1}]),
    ({**A, "additionalProperties": {"type": "string"}}, [{"a": 1, "b": "x"}], [{"b": 1}, {"a": "x"}]),
    ({**A, "required": ["a", "b"]}, [{"a": 1, "b": 2}], [{"a": 1}, {}]),
    ({**OBJECT, "patternProperties": {"^x": {"type": "null"}}}, [{"x1": None, "y": 1}], [{"x1": 1}, {"xx": "a"}]),
    ({**OBJECT, "minProperties": 1, "maxProperties": 2}, [{"a": 1}, {"a": 1, "b": 1}], [{}, {"a": 1, "b": 1, "c": 1}]),
    ({**OBJECT, "required": ["a"], "minProperties": 2}, [{"a": 1, "b": 2}], [{"a": 1}]),
    ({"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 1}]}, [1, "a"], ["ab", None]),
    ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, [1, "a"], [None, []]),
    ({"allOf": [A, {"required": ["a"]}]}, [{"a": 1}], [{}, {"a": "x"}]),
    ({"$ref": "#/$defs/x", "$defs": {"x": {"type": "integer"}}, "maximum": 3}, [3], [4, "a"]),
    ({"type": "array", "items": {"$ref": "#"}}, [[], [[], [[]]]], [[1], 1]),
    ({"$ref": "#here", "$defs": {"x": {"$anchor": "here", "type": "null"}}}, [None], [0]),
    ({"type": "boolean", "title": "x", "description": "y", "default": 1e300, "examples": [2**70]}, [True], [1, None]),
]  # fmt: skip
UNKNOWN = ("not", "if", "contains", "propertyNames", "dependentSchemas", "dependentRequired", "dependencies",
           "unevaluatedProperties", "unevaluatedItems", "uniqueItems", "$dynamicRef")  # fmt: skip
REFUSED: list[tuple[dict[str, Any], str]] = [
    *(({keyword: []}, re.escape(f"#/{keyword}: []; a schema without {keyword}, which")) for keyword in UNKNOWN),
    ({"properties": {"tags": {"type": "array", "uniqueItems": True}}}, "#/properties/tags/uniqueItems: True; a schema"),
    ({"pattern": "^(?!a).*$"}, re.escape("#/pattern: '^(?!a).*$'; a pattern without look-around is required")),
    ({"oneOf": [{"minLength": 1}, {"maxLength": 2}]}, "oneOf"),
    ({"x-guidance": {"lenient": True}, "not": {}}, "#/not: {}"),
    ({"properties": {"const": {"const": 2**53}}}, "#/properties/const/const: 9007199254740992; a number below 2.53"),
    *(({"type": "number", bound: 0.1234567890123456}, f"#/{bound}: 0.1234.*at most 15 digits") for bound in BOUNDS),
    ({"enum": ["a", ["\x00"]]}, "#/enum: .*without control characters"),
    ({"type": "string", "pattern": "a\\u0001"}, "#/pattern: .*without control characters"),
    ({"type": "string", "pattern": "[^a&&b]"}, "#/pattern: .*a class without"),
    ({"patternProperties": {"[^!--b]": {}}}, "#/patternProperties: .*a class without"),
    ({**OBJECT, "allOf": [{"minProperties": 2}]}, "#/allOf/0/minProperties: 2; at most one more"),
    ({"minimum": 1, "exclusiveMinimum": True}, "#/exclusiveMinimum: True; a number is required"),
    ({"items": [{}], "anyOf": [{}], "additionalItems": False}, "#/additionalItems: beside anyOf"),
    ({"$schema": "http://json-schema.org/draft-03/schema#"}, "#/.schema: .*draft 4 or a later one"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "valid", "invalid"), HELD, ids=lambda value: json.dumps(value)[:40])
def test_a_schema_allows_what_it_says_and_nothing_else(schema: Any, valid: list[Any], invalid: list[Any]) -> None:
    grammar = compiled(schema)
    for value in valid:
        assert any(accepts(grammar, text) for text in spellings(value)), value
    for value in invalid:
        assert [text for text in spellings(value) if accepts(grammar, text)] == []


@pytest.mark.parametrize(("schema", "message"), REFUSED, ids=lambda value: json.dumps(value)[:40])
def test_what_is_not_held_is_refused_by_its_name(schema: Any, message: str) -> None:
    with pytest.raises(ModelError, match=f"^json_schema: .*{message}"):
        compiled(schema)


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_no_other_name_when_it_is_written_otherwise(name: str) -> None:
    grammar = compiled({"properties": {name: {"type": "integer"}}, "type": "object"})
    assert accepts(grammar, json.dumps({name: 1}, ensure_ascii=False))
    for text in spellings({name: "x"}):
        assert not accepts(grammar, text), text


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "multipleOf": 12345677},
        {"allOf": [{"type": "string", "pattern": f"a{{{number * 7 + 1}}}.*b"} for number in range(40)]},
    ],
)
def test_what_would_not_compile_in_time_is_given_up(schema: Any) -> None:
    with pytest.raises(ModelError, match=r"^json_schema: more than .* to compile; less is required"):
        check_cost(Constraint("json_schema", json.dumps(schema)))


def test_what_changes_nothing_stays_as_it_was() -> None:
    schema = {"properties": {"pattern": {"type": "string", "pattern": "^a[b-c]$"}}, "default": {"pattern": "."}}
    assert strict_schema(schema) == {**schema, "additionalProperties": False}
    assert strict_schema(schema | {"additionalProperties": True}) == schema | {"additionalProperties": True}


def test_formats_that_annotate_are_named_with_their_places() -> None:
    schema = {"properties": {"format": {"format": "uri"}, "a": {"anyOf": [{"format": "binary"}]}}, "format": "x"}
    schema["default"] = {"format": "regex"}
    assert unheld_formats(schema) == [
        "#/format: 'x' annotates values; no text is checked by it",
        "#/properties/a/anyOf/0/format: 'binary' annotates values; no text is checked by it",
    ]


def test_the_official_suite_finds_nothing_accepted_that_is_invalid(capsys: pytest.CaptureFixture[str]) -> None:
    """Counts, by keyword, of schemas: all held, accepted in part, refused."""
    if SUITE is None:
        pytest.skip("MXCONV_JSON_SCHEMA_SUITE names no folder draft2020-12 of the JSON Schema Test Suite")
    files = sorted(Path(SUITE).rglob("*.json"))
    found: dict[str, Counter[str]] = {}
    for path in files:
        counts = found.setdefault(path.relative_to(SUITE).with_suffix("").as_posix(), Counter())
        for case in json.loads(path.read_text()):
            try:
                grammar = compiled(case["schema"])
            except ModelError as error:
                assert str(error).startswith("json_schema: ") and "required" in str(error)
                counts["refused"] += 1
                continue
            state = "held"
            for test in case["tests"]:
                accepted = [text for text in itertools.islice(spellings(test["data"]), 300) if accepts(grammar, text)]
                assert test["valid"] or not accepted, (case, test, accepted)
                state = state if accepted or not test["valid"] else "in part"
            counts[state] += 1
    assert len(files) > 60
    with capsys.disabled():
        print(*(f"{keyword}: {dict(counts)}" for keyword, counts in found.items()), sep="\n")
