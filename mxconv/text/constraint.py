"""Constraints of answers: JSON, by a schema or any, a regular expression, or a grammar.

Masks come from llguidance, which knows how the bytes of a tokenizer's tokens run across what a grammar describes.
"""

import json
import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from mxconv.arrays import Bool
from mxconv.checkpoint.regular_file import open_file
from mxconv.errors import ModelError, MxconvError, install_line
from mxconv.text.json_schema import strict_schema
from mxconv.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MOST_BYTES = 1 << 16  # of a constraint's text
# Of a grammar and of a mask, fractions of the library's own.
LIMITS: Any = {"initial_lexer_fuel": 500_000, "step_lexer_fuel": 100_000, "step_max_items": 20_000,
               "max_lexer_states": 50_000, "max_grammar_size": 100_000}  # fmt: skip
LAST_SECONDS = 30.0  # to compile what a stranger sent, on a busy processor
# Compiles a grammar, over bytes, for nothing but the processor's time and the memory that it takes.
TRIAL = r"""
import os, re, sys
if os.name == "posix":
    import resource
    resource.setrlimit(resource.RLIMIT_AS, (1 << 31, 1 << 31))
    resource.setrlimit(resource.RLIMIT_CPU, (3, 3))
from llguidance import LLMatcher, LLTokenizer
LLMatcher(LLTokenizer("byte"), re.sub(r"<\[.*?\]>", "<[0]>", sys.stdin.buffer.read().decode()), log_level=0)
"""
Kind = Literal["json_schema", "json_object", "regex", "grammar", "choice"]

# One way to write each value, that of Python's json.dumps: so most of what is between values is certain.
# No \u escapes: under them llguidance misses that a name is one of `properties`.
JSON_STYLE: Any = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "json_allowed_escapes": 'nrbtf\\"',
}


class ConstraintError(ModelError):
    """A constraint turns out, in the middle of an answer, to be one that cannot be followed."""


@dataclass(frozen=True)
class Constraint:
    """A constraint of an answer, as somebody asks for it.

    Args:
        kind: of the text.
        text: a JSON Schema; a regular expression (Rust's syntax; the whole answer matches); a grammar in GBNF or in the
            variant of Lark that llguidance reads; a JSON list of answers to choose from; of `json_object` nothing.

    Raises:
        ModelError: the text is longer than 64 KiB, a schema no JSON object, or GBNF malformed.
    """

    kind: Kind
    text: str = ""

    def __post_init__(self) -> None:
        size = len(self.text.encode(errors="replace"))
        if size > MOST_BYTES:
            raise ModelError(f"{self.kind}: {size:,} bytes; at most {MOST_BYTES:,} are taken. Shorten it.")
        if self.kind == "json_schema":
            try:
                is_schema = isinstance(json.loads(self.text), dict)
            except (ValueError, RecursionError):
                is_schema = False
            if not is_schema:
                raise ModelError(f"{self.kind}: no JSON object; a JSON Schema is required. Correct it.")

    def grammar(self) -> str:
        """The same as llguidance reads it."""
        from llguidance import LLMatcher  # here: most runs have no constraint

        if self.kind == "regex":
            return LLMatcher.grammar_from_regex(self.text)
        if self.kind == "choice":
            answers = (json.dumps(answer, ensure_ascii=False) for answer in json.loads(self.text))
            return LLMatcher.grammar_from_lark(f"start: {' | '.join(answers)}")
        if self.kind == "grammar":
            return LLMatcher.grammar_from_lark(_lark(self.text))
        try:
            schema = strict_schema(json.loads(self.text)) if self.kind == "json_schema" else {"type": "object"}
            return LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=JSON_STYLE)
        except ModelError as error:
            raise ModelError(f"{self.kind}: {error}") from error
        except (ValueError, RecursionError) as error:
            raise ModelError(f"{self.kind}: {error}; a schema that is nested less is required. Change it.") from error


@lru_cache(maxsize=256)
def check_cost(constraint: Constraint) -> None:
    """Try in another process whether a constraint compiles in time, which a thread could not give up.

    Raises:
        ModelError: it does not, or what `Constraint.grammar` raises.
    """
    words, grammar = [sys.executable, "-P", "-c", TRIAL], constraint.grammar().encode()
    try:
        subprocess.run(words, input=grammar, check=True, capture_output=True, timeout=LAST_SECONDS)
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError):
        limits = "more than 3 seconds or 2 GiB of memory to compile; less is required. Simplify it."
        raise ModelError(f"{constraint.kind}: {limits}") from None


def _reason(message: str) -> str:
    """The library's message on one line, without the state of its parser."""
    return " ".join(message.partition("<state>")[0].split())[:300]


def read_constraint(kind: Kind, path: Path) -> Constraint:
    """A constraint whose text is in a file.

    Raises:
        MxconvError: it cannot be read, is no UTF-8, or what `Constraint` raises.
    """
    with open_file(path) as file:
        raw = file.read(MOST_BYTES + 1)
    try:
        return Constraint(kind, raw.decode())
    except UnicodeDecodeError as error:
        raise ModelError(f"{path}: no UTF-8 at byte {error.start}; a text is required. Give another file.") from error
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from error


def _lark(text: str) -> str:
    """A grammar, translated where it is GBNF."""
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        return any_to_lark(text)
    except Exception as error:  # the library raises bare Exception for whatever is wrong with the text
        raise ModelError(f"grammar: {error}; GBNF or Lark is required. Correct it.") from error


class ConstraintVocabulary:
    """The tokens of a model, for constraints of its answers.

    Args:
        tokenizer: of the model.
        vocab_size: rows of its output head; those beyond the tokenizer's are never allowed.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size

    @cached_property
    def _guide(self) -> "LLTokenizer":
        try:
            from llguidance import LLTokenizer, TokenizerWrapper
        except ImportError as error:
            raise MxconvError(
                "constraints: llguidance is not installed; it belongs to the extra `constrain`. "
                + install_line("constrain")
            ) from error
        ends = sorted(self.tokenizer.eos_token_ids)
        if not ends:
            raise ModelError(
                "tokenizer: no token that ends a text; one is required for constraints. Name it as "
                "eos_token_id in generation_config.json."
            )
        try:
            return LLTokenizer(self.tokenizer.to_json(), n_vocab=self.vocab_size, eos_token=ends)
        except ValueError:  # a decoder that the library does not know
            spelled = TokenizerWrapper(_SpelledTokens(self.tokenizer, ends[0]))
            return LLTokenizer(spelled, n_vocab=self.vocab_size, eos_token=ends)

    def compile(self, constraint: Constraint, is_from_stranger: bool = False) -> "Grammar":
        """Check a constraint against the tokens; what comes from a stranger has a limit of time.

        Raises:
            ModelError: it does not compile, or not in time, or has a part that is not supported.
            MxconvError: llguidance is not installed.
        """
        guide = self._guide  # raises where the library is missing
        from llguidance import LLMatcher, LLParserLimits

        if is_from_stranger:
            check_cost(constraint)
        matcher = LLMatcher(guide, constraint.grammar(), log_level=0, limits=LLParserLimits(**LIMITS))
        if messages := [matcher.get_error()] if matcher.is_error() else matcher.get_grammar_warnings():
            reason = _reason(" ".join(messages))
            raise ModelError(f"{constraint.kind}: {reason}; what llguidance supports is required. Change it.")
        made = Grammar(constraint, guide, matcher, self.tokenizer.eos_token_ids)
        made.matcher().mask(self.vocab_size)  # raises where there is no beginning
        return made


class _SpelledTokens:
    """A tokenizer whose tokens are spelled as in SentencePiece: a text, with its spaces as U+2581, or a byte."""

    def __init__(self, tokenizer: Tokenizer, end: int) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id, self.bos_token_id = end, tokenizer.bos_token_id
        self.special_token_ids = sorted(tokenizer.special_token_ids)
        self.tokens = [self._bytes(token) for token in range(tokenizer.vocab_size)]

    def _bytes(self, token: int) -> bytes:
        name = self._tokenizer.name_of(token)
        return bytes([int(name[3:5], 16)]) if self._tokenizer.is_byte(token) else name.replace("\u2581", " ").encode()

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)


@dataclass(frozen=True, eq=False)
class Grammar:
    """A constraint that can be followed."""

    constraint: Constraint
    guide: "LLTokenizer"
    beginning: "LLMatcher"  # compiled once, copied for every answer
    ends: frozenset[int]  # tokens that end an answer

    def matcher(self) -> "GrammarMatcher":
        """A matcher at the beginning of an answer."""
        return GrammarMatcher(self.beginning.deep_copy(), self)


class GrammarMatcher:
    """The state of an answer in what a constraint describes."""

    def __init__(self, matcher: "LLMatcher", grammar: Grammar) -> None:
        self._matcher = matcher
        self._grammar = grammar

    def consume(self, token: int) -> bool:
        """Go on by a token; False, and nothing has changed, where it is not allowed."""
        return bool(self._matcher.try_consume_tokens([token]))

    def rollback(self, num_tokens: int) -> None:
        """Take the last tokens back."""
        self._matcher.rollback(num_tokens)
        self._check()

    def mask(self, vocab_size: int) -> Bool:
        """(vocab_size,): the tokens that may come next; where the text may end, those that end it.

        Raises:
            ModelError: no token can come next, or a limit is reached.
        """
        import llguidance.numpy as arrays

        words: Any = arrays.allocate_token_bitmask(1, self._grammar.guide.vocab_size)
        arrays.fill_next_token_bitmask(self._matcher, words, 0)
        self._check()
        bits = np.unpackbits(words.view(np.uint8)[0], bitorder="little")
        allowed = np.zeros(vocab_size, np.bool_)
        count = min(vocab_size, self._grammar.guide.vocab_size)
        allowed[:count] = bits[:count]
        only = np.flatnonzero(allowed)[:2].tolist()
        if len(only) < 2 and not self._grammar.ends.issuperset(only) and not self._matcher.validate_tokens(only):
            raise ConstraintError(
                f"{self._grammar.constraint.kind}: {self._matcher.compute_ff_bytes()!r} must come next, for which "
                "the tokenizer has no tokens; tokens for all of it are required. Change the constraint."
            )
        return allowed

    def forced(self) -> list[int]:
        """The tokens that certainly come next, in the way that the tokenizer writes them."""
        if self._matcher.is_stopped():
            return list(self._grammar.ends) if len(self._grammar.ends) == 1 else []
        tokens = self._matcher.compute_ff_tokens()
        return list(tokens[: self._matcher.validate_tokens(tokens)])

    def _check(self) -> None:
        if self._matcher.is_error():
            reason = _reason(self._matcher.get_error())
            raise ConstraintError(
                f"{self._grammar.constraint.kind}: {reason}; a constraint that can be followed within llguidance's "
                "limits is required. Simplify it."
            )
