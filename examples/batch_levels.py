"""The kinds of drafts that batch_maps.py times, each made to run, and as `mxconv cost` sees it."""

import json
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np
from batch_drafts import Draft, ModelDraft, SpeculatorDrafts, SpireDrafts
from batch_plans import MOST_TOKENS
from batch_texts import Texts, with_positions

from mxconv.arch.model_sizes import ModelSizes
from mxconv.arrays import F32
from mxconv.codecs.float16 import BF16
from mxconv.cost.hardware import Hardware
from mxconv.cost.levels import CostLevel, Workload, pass_seconds
from mxconv.cost.package_levels import package_levels
from mxconv.drafts.loader import LoadedPackage
from mxconv.drafts.readers.mlp_speculator import MlpSpeculator, SpeculatorConfig
from mxconv.drafts.readers.spire_layers import MEMORY_WEIGHTS, Spire, SpireConfig, config_for
from mxconv.engine.decoder import Decoder
from mxconv.engine.own_weights import OwnWeights
from mxconv.engine.sight import SinkWindow
from mxconv.engine.weights import ModelWeights
from mxconv.errors import MxconvError
from mxconv.kernels.matrix import Matrix

SINK, WINDOW = 1, 64  # of MagicDec and SPIRe, arXiv 2504.06419, section 4
MOST_STAGES = 64
BYTES_PER_WEIGHT = 2


@dataclass(frozen=True)
class Sizes:
    """Of drafts that are made here: layers of a SPIRe draft, and the length of a speculator's states."""

    spire_layers: int
    inner_size: int


class Levels:
    """The target of a package, and drafts for it.

    Args:
        loaded: a package whose first level is its target, and the second its 4-bit level.
        num_positions: that all models are to have.
        stack: closes what is opened.
        spire_layers: None takes a quarter of the target's, as SPIRe's report does.
        inner_size: None takes the target's hidden size, as published accelerators of the MLP speculators do.

    Raises:
        MxconvError: more layers than the target has, or learned positions that end too early.
    """

    def __init__(
        self,
        loaded: LoadedPackage,
        num_positions: int,
        stack: ExitStack,
        spire_layers: int | None = None,
        inner_size: int | None = None,
    ) -> None:
        target, four_bits = (level.decoder for level in loaded.levels[:2])
        assert target is not None and four_bits is not None
        self.target = with_positions(target, num_positions)
        self._four_bits = with_positions(four_bits, num_positions)
        self._num_positions, self._loaded = num_positions, loaded
        self._own = OwnWeights(loaded.package, loaded.matrices, stack)
        config = target.config
        quarter = max(round(config.num_hidden_layers / 4), 1)
        self.sizes = Sizes(spire_layers or quarter, inner_size or config.hidden_size)
        if not 1 <= self.sizes.spire_layers <= config.num_hidden_layers:
            raise MxconvError(
                f"--spire-layers: {self.sizes.spire_layers}; 1 to {config.num_hidden_layers}, the target's, are "
                "required. Name fewer."
            )
        self._costs = package_levels(loaded.package)[:2]

    def drafts(self, kinds: Iterable[str], texts: Texts) -> dict[str, Draft]:
        """To run, by kind."""
        return {kind: self._draft(kind, texts) for kind in kinds}

    def verify_seconds(self, hardware: Hardware, workload: Workload, num_rows: float) -> float:
        """Predicted, of the target's pass over so many rows of each sequence."""
        return pass_seconds(hardware, self._costs[0], workload, num_rows)

    def draft_seconds(self, hardware: Hardware, workload: Workload, kind: str, draft_rows: Iterable[int]) -> float:
        """Predicted, of all passes of a proposal."""
        level = self._cost(kind)
        return sum(pass_seconds(hardware, level, workload, count) for count in draft_rows)

    def _draft(self, kind: str, texts: Texts) -> Draft:
        name, _, variant = kind.rpartition("-")
        if name == "self-draft":
            return ModelDraft(self._four_bits)
        if name == "magicdec":
            decoder: Decoder = self.target if variant == "16" else self._four_bits
            return ModelDraft(decoder.variant(sink_window=SinkWindow(SINK, WINDOW), name=kind))
        if name == "spire":
            return SpireDrafts(self._spire(in_four_bits=variant == "4"), texts)
        return SpeculatorDrafts(self._speculator(), MOST_TOKENS * len(texts.passes))

    def _spire(self, in_four_bits: bool) -> Spire:
        """The last layers as they are in the target: what training would begin with."""
        own = self._own.four_bits("spire", with_target=True) if in_four_bits else self._own.sixteen_bits
        config, prefix = self._spire_config(), self.target.config.layer_prefix
        numbers = {f"{prefix}.{layer}.": f"{prefix}.{place}." for place, layer in enumerate(config.target_layers)}

        def renamed(name: str) -> str | None:
            """What a tensor is called in the draft; None of layers that it does not have."""
            if not name.startswith(f"{prefix}."):
                return name
            return next((new + name[len(old) :] for old, new in numbers.items() if name.startswith(old)), None)

        def of(tensors: dict[str, Matrix] | dict[str, F32]) -> dict[str, Matrix | F32]:
            return {new: tensor for name, tensor in tensors.items() if (new := renamed(name)) is not None}

        shares = np.zeros((config.num_layers, config.num_layers + 1), np.uint16)  # a layer like any other
        mixing = {MEMORY_WEIGHTS: self._loaded.matrices.dense(shares, BF16)}
        weights = ModelWeights(of(dict(own.matrices)) | mixing, of(dict(own.vectors)))  # type: ignore[arg-type]
        return Spire(config, weights, self._loaded.matrices, "spire")

    def _spire_config(self) -> SpireConfig:
        values = json.loads((self._loaded.package.root / "config.json").read_text(encoding="utf-8"))
        count = self.target.config.num_hidden_layers
        values["max_position_embeddings"] = self._num_positions
        layers = range(count - self.sizes.spire_layers, count)
        return SpireConfig.from_dict(config_for(values, layers, SINK, WINDOW))

    def _speculator(self) -> MlpSpeculator:
        config, inner = self.target.config, self.sizes.inner_size
        sizes = SpeculatorConfig(
            config.vocab_size, config.hidden_size, inner, MOST_STAGES, (1,) * MOST_STAGES, 1, True, True
        )
        shapes = {"emb.0": (config.vocab_size, inner), "head.0": (config.vocab_size, inner)}
        shapes |= {"proj.0": (inner, config.hidden_size), "proj.1": (inner, inner)}
        matrices = {f"speculator.{name}.weight": self._random(shape) for name, shape in shapes.items()}
        norms = {f"speculator.ln.0.{name}": np.ones(inner, np.float32) for name in ("weight", "bias")}
        return MlpSpeculator(sizes, ModelWeights(matrices, norms), "speculator")

    def _random(self, shape: tuple[int, int]) -> Matrix:
        values = np.random.default_rng(3).standard_normal(shape, np.float32) / np.float32(np.sqrt(shape[1]))
        return self._loaded.matrices.dense(BF16.encode(values), BF16)

    def _cost(self, kind: str) -> CostLevel:
        name, _, variant = kind.rpartition("-")
        target, four_bits = self._costs
        architecture = target.architecture
        assert architecture is not None
        level = four_bits if variant == "4" else target
        seen = SINK + WINDOW
        if name == "self-draft":
            return level
        if name == "magicdec":
            windows = [seen if window is None else min(window, seen) for window in architecture.windows]
            return replace(level, name=kind, architecture=architecture.with_windows(windows))
        if name == "spire":
            layers = ModelSizes.of(self._spire_config().decoder).with_windows([seen] * self.sizes.spire_layers)
            return CostLevel(kind, level.codec, layers)
        inner = self.sizes.inner_size
        stage = replace(
            architecture, hidden_size=inner, mixers=(), norms=(), dense_sizes=(), has_experts=(), num_experts=0
        )
        num_bytes = BYTES_PER_WEIGHT * inner * (architecture.vocab_size + inner)
        return CostLevel(kind, "bf16", stage, num_bytes=num_bytes)
