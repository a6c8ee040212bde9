"""What the files beside a tokenizer.json say about its tokens: which are special, and those that it lacks.

Source:
    `_from_pretrained` and `TokenizersBackend` of transformers 5.24. special_tokens_map.json and added_tokens.json count
    where tokenizer_config.json has no `added_tokens_decoder`, and the former wins over it. A token that tokenizer.json
    has keeps its id there; others get the next free ids: declared ones in the order of their ids, then named ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from mxconv.checkpoint.regular_file import read_json_object
from mxconv.errors import CheckpointError

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer

CONFIG_FILE = "tokenizer_config.json"
MAP_FILE = "special_tokens_map.json"
ADDED_FILE = "added_tokens.json"
NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
SPECIAL = {"special": True}
LEFT_OUT = "mxconv_left_out"  # of tokenizer_config.json: why a GGUF vocabulary gave no tokenizer.json
REMEDY = "Take the file that belongs to the weights."


@dataclass(frozen=True)
class TokenizerSettings:
    """The special tokens by name, and the tokens that tokenizer.json may lack."""

    named: "Mapping[str, list[AddedToken]]"  # by bos_token and the like, the standard names first
    declared: "Mapping[int, AddedToken]"  # by id, ascending
    extra: "list[AddedToken]"
    ends: list[str]  # the texts of eos_token in every file, also in one that does not count
    is_legacy: bool  # whether there is no `added_tokens_decoder`

    @classmethod
    def read(cls, folder: Path) -> "TokenizerSettings":
        """Read whichever of the files are in a folder. Raises CheckpointError where one is damaged."""
        config, listed = _File.read(folder / CONFIG_FILE), _File.read(folder / MAP_FILE)
        named, (extra, additional) = config.named(), config.further()
        if not extra and not isinstance(config.values.get("extra_special_tokens"), dict):
            extra, additional = additional, []
        ends = [token.content for file in (config, listed) for token in file.named().get("eos_token", ())]
        declared = config.by_id("added_tokens_decoder")
        is_legacy = declared is None
        if declared is None:
            named |= listed.named()
            more, theirs = listed.further()
            extra = extra + more
            additional = theirs or additional
            special = {token.content for tokens in (*named.values(), extra) for token in tokens}
            declared = _File.read(folder / ADDED_FILE).by_text(special)
        return cls(
            {name: named[name] for name in (*NAMES, *named) if named.get(name)},
            dict(sorted(declared.items())),
            extra or additional,
            ends,
            is_legacy,
        )

    @property
    def texts(self) -> dict[str, str]:
        """The special tokens' texts by name."""
        return {name: tokens[0].content for name, tokens in self.named.items()}

    @property
    def every(self) -> list[str]:
        """The texts of all tokens, in the order in which those that tokenizer.json lacks get their ids."""
        tokens = [*self.declared.values(), *(token for tokens in self.named.values() for token in tokens), *self.extra]
        return list(dict.fromkeys(token.content for token in tokens))

    def complete(self, backend: "Tokenizer") -> None:
        """Add the tokens that a tokenizer lacks, and make the named ones special."""
        present = backend.get_added_tokens_decoder()
        added = [token for number, token in self.declared.items() if not (self.is_legacy and number in present)]
        flagged = {token.content: token for token in [*added, *(present.values() if self.is_legacy else ())]}
        special = [
            flagged.get(token.content, token) if name in NAMES else token
            for name, tokens in (*self.named.items(), ("", self.extra))
            for token in tokens
        ]
        known = {token.content for token in [*present.values(), *added]}
        backend.add_tokens([*added, *(token for token in special if token.content not in known)])
        backend.add_special_tokens(special)


@dataclass(frozen=True)
class _File:
    """The members of one of the files; none of one that is not there."""

    path: Path
    values: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path) -> "_File":
        return cls(path, read_json_object(path, unique_keys=False) if path.is_file() else {})

    def named(self) -> "dict[str, list[AddedToken]]":
        """Tokens by names that end in `_token`; null and an empty text name none."""
        extra = self.values.get("extra_special_tokens")
        values = {key: value for key, value in self.values.items() if key.endswith("_token")}
        return {
            key: self._tokens(key, value)
            for key, value in (values | (extra if isinstance(extra, dict) else {})).items()
            if key in NAMES or isinstance(value, str) or (isinstance(value, dict) and "content" in value)
        }

    def further(self) -> "tuple[list[AddedToken], list[AddedToken]]":
        """`extra_special_tokens`, where they are a list, and `additional_special_tokens`."""
        extra = self.values.get("extra_special_tokens")
        return (
            [] if isinstance(extra, dict) else self._tokens("extra_special_tokens", extra),
            self._tokens("additional_special_tokens", self.values.get("additional_special_tokens")),
        )

    def by_id(self, key: str) -> "dict[int, AddedToken] | None":
        """The objects under `key`, by id; None where there are none."""
        entries = self.values.get(key)
        if entries is None:
            return None
        if not isinstance(entries, dict):
            self._reject(key, entries, "an object of tokens by id")
        return {
            self._id(key, int(number) if number.isdecimal() and len(number) < 12 else number): token
            for number, entry in entries.items()
            for token in self._tokens(key, entry, {})
        }

    def by_text(self, special: set[str]) -> "dict[int, AddedToken]":
        """The ids of an added_tokens.json, the other way round."""
        from tokenizers import AddedToken

        return {
            self._id(f"the id of {text[:80]!r}", number): AddedToken(text, special=text in special)
            for text, number in self.values.items()
            if number is not None
        }

    def _tokens(self, key: str, value: Any, more: Mapping[str, bool] = SPECIAL) -> "list[AddedToken]":
        """What a member names, with `more` flags than its own."""
        from tokenizers import AddedToken

        tokens = []
        for entry in value if isinstance(value, list) else [value]:
            given: dict[str, Any] = entry if isinstance(entry, dict) else {"content": "" if entry is None else entry}
            text, flags = given.get("content"), {flag: given[flag] for flag in FLAGS if given.get(flag) is not None}
            if not isinstance(text, str) or not all(isinstance(flag, bool) for flag in flags.values()):
                self._reject(key, entry, "a text, an object with content and flags that are true or false, or null")
            if text:
                tokens.append(AddedToken(text, **{**flags, **more}))
        return tokens

    def _id(self, label: str, number: object) -> int:
        if type(number) is not int or not 0 <= number < 1 << 31:
            self._reject(label, number, "a token id, which is a whole number,")
        return number

    def _reject(self, key: str, value: object, required: str) -> NoReturn:
        raise CheckpointError(f"{self.path}: {key} is {str(value)[:80]!r}; {required} is required. {REMEDY}")
