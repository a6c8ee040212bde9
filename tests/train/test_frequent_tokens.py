"""The tokens that come most often, against sorting by counts written out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from mxconv.errors import ModelError
from mxconv.train.frequent_tokens import frequent_tokens
from mxconv.train.windows import Windows

VOCAB_SIZE = 12
TOKENS = arrays(np.int32, array_shapes(min_dims=2, max_dims=2, max_side=6), elements=st.integers(0, VOCAB_SIZE - 1))


@given(st.lists(TOKENS, min_size=1, max_size=3), st.integers(1, VOCAB_SIZE))
def test_they_are_the_first_of_all_sorted_by_count(texts: list[np.ndarray], count: int) -> None:
    ids = [token for text in texts for token in text.ravel().tolist()]
    by_count = sorted(range(VOCAB_SIZE), key=lambda token: (-ids.count(token), token))
    found = frequent_tokens([Windows(text) for text in texts], count, VOCAB_SIZE)
    assert found.tolist() == sorted(by_count[:count])
    assert found.dtype == np.int64


@pytest.mark.parametrize("count", [0, 13])
def test_a_vocabulary_that_the_target_cannot_give_is_refused(count: int) -> None:
    with pytest.raises(ModelError, match=f"draft vocabulary of {count} tokens: the target has 12; 1 to so many"):
        frequent_tokens([Windows(np.zeros((1, 2), np.int32))], count, VOCAB_SIZE)
