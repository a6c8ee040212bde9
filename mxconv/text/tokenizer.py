"""Text to token ids and back, by the model's own tokenizer.json, or by its tokenizer.model."""

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from mxconv.arch.fields import Fields
from mxconv.checkpoint.folder import TOKENIZER_FILE
from mxconv.checkpoint.tokenizer_files import WRITE_IT, read_tokenizer_json
from mxconv.checkpoint.tokenizer_settings import CONFIG_FILE, LEFT_OUT, TokenizerSettings
from mxconv.errors import ModelError, MxconvError
from mxconv.text.chat_templates import read_templates

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

REMEDY = "Copy it from the model's source; mxconv quantize takes it along."
# end a turn by name in llama.cpp; here where a chat template of the model writes them
TURN_ENDS = (
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|return|>", "<|call|>", "<|calls|>", "<|flush|>", "[EOT]",
    "<end_of_turn>", "<turn|>", "<end_of_utterance>", "<|endoftext|>", "<|end_of_text|>", "<EOT>", "_<EOT>",
)  # fmt: skip
# of tokenizers that mxconv does not read, in the order in which a message names them
OTHER_FILES = ("tekken.json", "tiktoken.model", "spiece.model", "sentencepiece.bpe.model", "vocab.json", "vocab.txt")
# Letters that byte-level vocabularies write bytes as: printable ones as themselves, the others from U+0100 on.
PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
OTHERS = [byte for byte in range(256) if byte not in PRINTABLE]
BYTE_OF_LETTER = {chr(byte): byte for byte in PRINTABLE} | {
    chr(0x100 + place): byte for place, byte in enumerate(OTHERS)
}


class Tokenizer:
    """The tokenizer of one model folder.

    Whether a text gets a first <s> is up to the post-processor in tokenizer.json. The keys add_bos_token and
    add_eos_token of tokenizer_config.json have no say where that file exists, as in transformers 5.

    Args:
        backend: a `tokenizers.Tokenizer`.
        bos_token_id: the token that begins a text, if the model names one.
        eos_token_ids: the tokens that end one.
        name: what messages call it.
    """

    def __init__(self, backend: "Backend", bos_token_id: int | None, eos_token_ids: frozenset[int], name: str) -> None:
        self._backend = backend
        self.special_token_ids = frozenset(
            token for token, added in backend.get_added_tokens_decoder().items() if added.special
        )
        self.bos_token_id = bos_token_id
        self.eos_token_ids = eos_token_ids
        self.name = name

    @classmethod
    def from_folder(cls, folder: Path) -> "Tokenizer":
        """Read tokenizer.json, or else tokenizer.model, with the tokens that the files beside it declare.

        A text ends at the ids that generation_config.json names, or else config.json; at the tokenizer's `eos_token`;
        and at those of `TURN_ENDS` that a chat template of the model writes. Ids that the model does not have are none.

        Raises:
            ModelError: tokenizer.json is missing or malformed, or a token id is none.
            CheckpointError: one of the others is damaged, or the tokenizer.model is none that mxconv reads.
        """
        from tokenizers import Tokenizer as Backend  # here, because the import takes time that --help need not spend

        path = folder / TOKENIZER_FILE
        if (raw := read_tokenizer_json(folder)) is None:
            others = [*OTHER_FILES, *(file.name for file in sorted(folder.glob("*.tiktoken")))]
            other = next((name for name in others if (folder / name).is_file()), None)
            found = "there is no such file" if other is None else f"there is no such file, only {other}"
            if isinstance(reason := _object(folder / CONFIG_FILE).values.get(LEFT_OUT), str):
                found = f"{found} ({reason})"
            raise ModelError(
                f"{path}: {found}; a fast tokenizer is required. {REMEDY}{'' if other is None else f' Or: {WRITE_IT}'}"
            )
        try:
            backend = Backend.from_buffer(raw)
        except Exception as error:  # the library raises bare Exception for whatever is wrong with the file
            raise ModelError(f"{path}: not a tokenizer ({error}); a fast tokenizer is required. {REMEDY}") from error
        backend.no_truncation()
        backend.no_padding()
        settings = TokenizerSettings.read(folder)
        settings.complete(backend)
        bos = _ids(folder, backend, [settings.texts.get("bos_token", "")], "bos_token_id")
        ends = _ids(folder, backend, settings.ends, "eos_token_id")
        return cls(backend, bos[0] if bos else None, frozenset([*ends, *_turn_ends(folder, backend)]), str(path))

    def to_json(self) -> str:
        """The content of tokenizer.json, for other libraries."""
        return str(self._backend.to_str())

    @property
    def vocab_size(self) -> int:
        """Distinct tokens, added ones included. The model's matrices may have more rows."""
        return self._backend.get_vocab_size(with_added_tokens=True)

    @cached_property
    def prefix(self) -> list[int]:
        """The tokens that are put before every text: none in many models, or one such as <s>."""
        plain, whole = self.encode("a", add_special_tokens=False), self.encode("a")
        return next((whole[:begin] for begin in range(len(whole)) if whole[begin : begin + len(plain)] == plain), [])

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text.

        Raises:
            ModelError: the text holds something that is not Unicode (a lone surrogate, from undecodable bytes).
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ModelError(
                f"{self.name}: text with {text[error.start]!r} at character {error.start}; Unicode that UTF-8 can "
                "carry is required. Remove the character."
            ) from error
        ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    @cached_property
    def special_names(self) -> list[str]:
        """The names of special tokens, as `encode` finds them in a text."""
        added = self._backend.get_added_tokens_decoder()
        return [name for token in self.special_token_ids if (name := added[token].content)]

    @cached_property
    def _plain_backend(self) -> "Backend":
        """The same, which finds no special tokens in texts."""
        made = type(self._backend).from_str(self.to_json())
        made.encode_special_tokens = True
        return made

    def encode_as_text(self, name: str) -> list[int]:
        """Token ids of the name of a special token where it is text."""
        ids: list[int] = self._plain_backend.encode(name, add_special_tokens=False).ids
        return ids

    def encode_from(self, text: str, begin: int) -> list[int]:
        """Token ids of what begins at character `begin` of a text or later, without special tokens around it.

        Where a token spans that place, its end is missing from the result.
        """
        encoding = self._backend.encode(text, add_special_tokens=False)
        return [token for token, (start, _) in zip(encoding.ids, encoding.offsets, strict=True) if start >= begin]

    def special_token_id(self, name: str) -> int | None:
        """The id of a special token, which `decode` leaves out; None where there is none of this name."""
        token: int | None = self._backend.token_to_id(name)
        return token if token in self.special_token_ids else None

    def is_silent(self, token: int) -> bool:
        """Whether `decode` leaves a token out: a special one, or none of this tokenizer."""
        return token in self.special_token_ids or self._backend.id_to_token(token) is None

    def is_byte(self, token: int) -> bool:
        """Whether a token is a single byte, written as <0xE2>, of which several may make a character."""
        content = self._backend.id_to_token(token)
        return content is not None and len(content) == 6 and content.startswith("<0x")

    def bytes_of(self, token: int) -> bytes | None:
        """The bytes that a token adds to a text, where its name alone says so: in byte-level vocabularies, and of
        single bytes. A special token has none."""
        name = self.name_of(token)
        if self.is_byte(token):
            return bytes([int(name[3:5], 16)])
        if token in self.special_token_ids:
            return b""
        if not self._is_byte_level or not all(letter in BYTE_OF_LETTER for letter in name):
            return None
        return bytes(BYTE_OF_LETTER[letter] for letter in name)

    @cached_property
    def _is_byte_level(self) -> bool:
        return isinstance(decoder := json.loads(self.to_json()).get("decoder"), dict) and "ByteLevel" in str(decoder)

    def name_of(self, token: int) -> str:
        """A token as the vocabulary spells it; empty for none of this tokenizer's."""
        content: str | None = self._backend.id_to_token(token)
        return content or ""

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of token ids. Bytes that make no whole character become U+FFFD."""
        text: str = self._backend.decode([int(token) for token in token_ids], skip_special_tokens=skip_special_tokens)
        return text


def _ids(folder: Path, backend: "Backend", texts: list[str], key: str) -> list[int]:
    """The ids of special tokens that the model has: the tokenizer's, then those under `key` in generation_config.json,
    or else in config.json."""
    ids = [backend.token_to_id(text) for text in texts]
    config = _object(folder / "config.json")
    text = config.section("text_config")
    for fields in (_object(folder / "generation_config.json"), config, text):
        value = fields.values.get(key)
        if value is None:
            continue
        listed = value if isinstance(value, list) else [value]
        if not all(type(token) is int and token >= 0 for token in listed):
            fields.reject(key, "a token id, a list of them or null is required")
        ids += listed
        break
    sizes = [size for fields in (config, text) if type(size := fields.values.get("vocab_size")) is int]
    num_rows = max(sizes, default=0)  # a model may have more than its tokenizer
    known = [token for token in ids if token is not None and token < 1 << 32]
    return [token for token in known if token < num_rows or backend.id_to_token(token) is not None]


def _object(path: Path) -> Fields:
    return Fields.read(path) if path.is_file() else Fields({}, str(path))


def _turn_ends(folder: Path, backend: "Backend") -> set[int]:
    """Ids of the tokens with which chat templates end a turn."""
    try:
        written = "".join(read_templates(folder)[0].values())
    except MxconvError:  # said when a chat is asked for
        return set()
    found = {name: backend.token_to_id(name) for name in TURN_ENDS if name in written}
    if found.get("<|return|>") is not None:  # of gpt-oss, where <|end|> ends a part of a turn
        found.pop("<|end|>", None)
    return {token for token in found.values() if token is not None}
