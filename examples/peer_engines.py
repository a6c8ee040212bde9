"""The engines that `compare_peers.py` times: mxconv, llama.cpp and OpenVINO, each made in a process of its own."""

import sys
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from mxconv.arrays import F32
from mxconv.drafts.loader import LoadedPackage
from mxconv.engine.cache import KVCache

THREADS = 2
WIDTHS, LATER_WIDTHS = (1, 4, 8), (1, 8)  # tokens in one step, and after a long prompt
LLAMA_LOG_ERROR = 4  # GGML_LOG_LEVEL_ERROR
GROUP = 32  # weights that share a scale in OpenVINO's INT4


class Contender(Protocol):
    def step(self, num_tokens: int) -> object:
        """The step that is timed."""

    def rewind(self) -> None:
        """Forget the tokens of a step, after it and outside its time."""

    def check(self, num_tokens: int) -> F32:
        """The logits, (num_tokens, vocab_size)."""


class MxconvModel:
    """A level of a package: tokens after `context` others, which stay in its cache. After none they are a prompt.

    Of a prompt only the last token's logits are wanted, here as in the other engines.
    """

    def __init__(self, package: Path, level: int, ids: list[int], context: int) -> None:
        self.loaded = LoadedPackage(package, num_threads=THREADS)
        decoder = self.loaded.levels[level].decoder
        assert decoder is not None  # only a look-up has none
        self.decoder, self.ids, self.context = decoder, ids, context
        self.cache = KVCache(decoder.config, len(ids))
        if context:
            self.decoder.forward(ids[:context], self.cache, last_only=True)

    def step(self, num_tokens: int) -> F32:
        ids = self.ids[self.context : self.context + num_tokens]
        return self.decoder.forward(ids, self.cache, last_only=self.context == 0)

    def rewind(self) -> None:
        self.cache.truncate(self.context)

    check = step


def open_llama(path: Path) -> tuple[Any, Any, int]:
    """A GGUF file on the CPU: the log's callback, which must be kept since C calls it, the model, and its tokens."""
    import llama_cpp

    log = llama_cpp.llama_log_callback(print_errors)
    llama_cpp.llama_log_set(log, None)
    parameters = llama_cpp.llama_model_default_params()
    parameters.n_gpu_layers, parameters.use_mmap = 0, True
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), parameters)
    if model is None:
        raise RuntimeError(f"{path}: llama.cpp does not load it")
    return log, model, llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))


class LlamaCppModel:
    """A GGUF file in the same place; its flash attention, cache type and repacking are llama.cpp's own defaults."""

    def __init__(self, path: Path, ids: list[int], context: int) -> None:
        import llama_cpp

        self.library, self.ids, self.num_before = llama_cpp, ids, context
        self.log, self.model, self.num_logits = open_llama(path)
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_ctx, parameters.n_batch = len(ids), len(ids)
        parameters.n_ubatch = min(len(ids), parameters.n_ubatch)  # 512, its default, takes prompts fastest
        parameters.n_threads = parameters.n_threads_batch = THREADS
        self.context = llama_cpp.llama_init_from_model(self.model, parameters)
        self.memory = llama_cpp.llama_get_memory(self.context)
        self.batch = llama_cpp.llama_batch_init(len(ids), 0, 1)
        if context:
            self._decode(0, context, last_only=True)

    def step(self, num_tokens: int) -> Any:
        return self._decode(self.num_before, num_tokens, last_only=self.num_before == 0)

    def rewind(self) -> None:
        """A recurrent state cannot be taken back in llama.cpp: the tokens before are evaluated again."""
        if not self.library.llama_memory_seq_rm(self.memory, 0, self.num_before, -1):
            self.library.llama_memory_clear(self.memory, True)
            self._decode(0, self.num_before, last_only=True)

    def check(self, num_tokens: int) -> F32:
        num_rows = num_tokens if self.num_before else 1
        return np.ctypeslib.as_array(self.step(num_tokens), (num_rows, self.num_logits)).copy()

    def _decode(self, position: int, num_tokens: int, last_only: bool) -> Any:
        self.batch.n_tokens = num_tokens
        for index in range(num_tokens):
            self.batch.token[index], self.batch.pos[index] = self.ids[position + index], position + index
            self.batch.n_seq_id[index], self.batch.seq_id[index][0] = 1, 0
            self.batch.logits[index] = not last_only or index == num_tokens - 1
        if self.library.llama_decode(self.context, self.batch) != 0:
            raise RuntimeError("llama_decode failed")
        return self.library.llama_get_logits(self.context)  # waits until they are there


def print_errors(level: int, text: bytes, _: Any) -> None:
    if level == LLAMA_LOG_ERROR:
        print(text.decode(errors="replace"), end="", file=sys.stderr)


def openvino_settings(is_int4: bool) -> dict[str, Any]:
    settings: dict[str, Any] = {"INFERENCE_NUM_THREADS": THREADS, "NUM_STREAMS": 1}
    return settings | ({"DYNAMIC_QUANTIZATION_GROUP_SIZE": GROUP} if is_int4 else {"INFERENCE_PRECISION_HINT": "bf16"})


class OpenVinoModel:
    """What optimum-intel exported, in the same place."""

    def __init__(self, folder: Path, ids: list[int], context: int) -> None:
        import openvino

        settings = openvino_settings(folder.name.endswith("int4"))
        compiled = openvino.Core().compile_model(folder / "openvino_model.xml", "CPU", settings)
        self.request, self.ids, self.context = compiled.create_infer_request(), ids, context
        if context:
            self._infer(0, context)
        self.states = [(state, state.state.data.copy()) for state in self.request.query_state() if context]
        self.tensor = openvino.Tensor

    def step(self, num_tokens: int) -> F32:
        return self._infer(self.context, num_tokens)

    def rewind(self) -> None:
        if not self.context:
            self.request.reset_state()
        for state, stored in self.states:
            state.state = self.tensor(stored)

    def check(self, num_tokens: int) -> F32:
        return self.step(num_tokens)[0 if self.context else -1 :].copy()

    def _infer(self, position: int, num_tokens: int) -> F32:
        end = position + num_tokens
        inputs = {
            "input_ids": np.array([self.ids[position:end]], np.int64),
            "attention_mask": np.ones((1, end), np.int64),
            "position_ids": np.arange(position, end, dtype=np.int64)[None],
            "beam_idx": np.zeros(1, np.int32),
        }
        self.request.infer(inputs, share_inputs=True)
        logits: F32 = self.request.get_tensor("logits").data[0]
        return logits
