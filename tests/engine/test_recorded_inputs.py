"""What a layer's matrices take and what their products are added to, beside what the layer makes of it."""

from collections.abc import Iterator

import numpy as np
import pytest
from checkpoints import write_tiny_tokenizer
from packages import quantize

from mxconv.drafts.loader import LoadedPackage
from mxconv.engine.decoder import Decoder
from mxconv.engine.recorded_inputs import NUM_STAGES, EnoughError, InputRecorder, RecordedLayer
from mxconv.engine.text_states import TextStates

TEXTS = [[5, 9, 11, 80], [7, 3]]
ADDED = {  # how many of the last matrices of mixer and MLP give rows that are added as they are
    "llama": 2,
    "granite": 2,  # times a factor
    "gpt_neox": 2,  # MLP beside attention, biases
    "gpt2": 2,  # turned
    "gemma2": 0,  # normed first
    "lfm2": 2,  # a mixer that is no attention
    "mixtral": 1,  # experts, whose rows are not those of the texts
}


@pytest.fixture(scope="module", params=ADDED)
def loaded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, LoadedPackage]]:
    checkpoints = pytest.importorskip("family_checkpoints", reason="torch and transformers make these checkpoints")
    folder = tmp_path_factory.mktemp("model")
    checkpoints.write_checkpoint(checkpoints.make_model(request.param), folder / "source")
    write_tiny_tokenizer(folder / "source/tokenizer.json", 96)
    quantize(folder / "source", folder / "package")
    with LoadedPackage(folder / "package", ["target"], kernel="numpy") as opened:
        yield request.param, opened


def recorded(loaded: LoadedPackage, index: int, stage: int | None) -> tuple[RecordedLayer, InputRecorder, TextStates]:
    config, exact = loaded.own.config, loaded.own.sixteen_bits
    recorder = InputRecorder(f"{config.layer_prefix}.{index}.", stage)
    return RecordedLayer(exact, config, index, recorder), recorder, TextStates(Decoder(config, exact, "test"), TEXTS)


def test_a_residual_and_the_product_beside_it_are_what_the_half_makes(loaded: tuple[str, LoadedPackage]) -> None:
    family, opened = loaded
    layer, recorder, texts = recorded(opened, 1, None)
    mixed = texts.mixed(layer, 0)
    made = texts.finished(layer, 0, mixed)
    taken, residuals = recorder.pass_rows()
    assert len(residuals) == ADDED[family]
    assert residuals.keys() <= recorder.last & recorder.paired <= taken.keys()
    weights = opened.own.sixteen_bits
    for key, residual in residuals.items():
        values = weights.matrices[key[0]].rows(np.arange(weights.matrices[key[0]].shape[0]))
        product = taken[key] @ (values if key in recorder.turned else values.T)
        product = product + weights.vectors.get(key[0].removesuffix("weight") + "bias", 0)
        half = mixed if key in recorder.of_mixer else made
        assert np.allclose((residual + product) * np.float32(recorder.factors[key]), half, atol=1e-5), key


def test_stages_are_recorded_one_by_one_and_those_of_the_mixer_stop_there(loaded: tuple[str, LoadedPackage]) -> None:
    _, opened = loaded
    whole, recorder, texts = recorded(opened, 1, None)
    texts.finished(whole, 0, texts.mixed(whole, 0))
    expected, found = recorder.pass_rows().taken, {}
    for stage in range(NUM_STAGES):
        layer, recorder, texts = recorded(opened, 1, stage)
        if stage < 2:
            with pytest.raises(EnoughError):
                texts.mixed(layer, 0)
        else:
            texts.finished(layer, 0, texts.mixed(layer, 0))
        rows = recorder.pass_rows().taken
        assert rows.keys().isdisjoint(found)
        found |= rows
    assert all(np.array_equal(found[key], rows) for key, rows in expected.items())
