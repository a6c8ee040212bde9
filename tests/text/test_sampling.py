import numpy as np

from mxconv.text.sampling import greedy


def test_greedy_takes_the_most_likely_token_of_each_position() -> None:
    assert greedy(np.array([[0, 2, 1], [5, -1, 4]], np.float32)).tolist() == [1, 0]


def test_greedy_takes_the_lowest_id_among_equals() -> None:
    assert greedy(np.array([-1, 3, 3, 0, 3], np.float32)) == 1
