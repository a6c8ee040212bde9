import pytest

from mxconv.package.stored import StoredArray, bsfp_arrays, mxfp4_arrays, mxint8_arrays


def described(arrays: tuple[StoredArray, ...]) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {array.name: (array.dtype, array.shape) for array in arrays}


@pytest.mark.parametrize(
    ("shape", "codes", "scales"),
    [
        ((1, 1), (1, 4, 64), (1, 1, 16)),
        ((16, 32), (1, 4, 64), (1, 1, 16)),
        ((17, 33), (2, 8, 64), (2, 2, 16)),
        ((33, 172), (3, 24, 64), (3, 6, 16)),
        ((64, 257), (4, 36, 64), (4, 9, 16)),
    ],
)
def test_mxfp4_pads_rows_to_16_and_columns_to_32(
    shape: tuple[int, int], codes: tuple[int, ...], scales: tuple[int, ...]
) -> None:
    assert described(mxfp4_arrays("w", shape)) == {"w.codes": ("U8", codes), "w.scales": ("U8", scales)}


@pytest.mark.parametrize(
    ("shape", "elements", "scales"),
    [((1, 1), (1, 8, 64), (1, 1, 16)), ((16, 32), (1, 8, 64), (1, 1, 16)), ((33, 172), (3, 48, 64), (3, 6, 16))],
)
def test_mxint8_pads_likewise_and_has_quads_of_columns(
    shape: tuple[int, int], elements: tuple[int, ...], scales: tuple[int, ...]
) -> None:
    assert described(mxint8_arrays("w", shape)) == {"w.elements": ("I8", elements), "w.scales": ("U8", scales)}


@pytest.mark.parametrize(
    ("shape", "tiles", "groups"), [((1, 1), (1, 4), 1), ((16, 128), (1, 16), 1), ((17, 129), (2, 20), 2)]
)
def test_bsfp_pads_rows_to_16_and_columns_to_32_and_a_group_may_be_shorter(
    shape: tuple[int, int], tiles: tuple[int, int], groups: int
) -> None:
    assert described(bsfp_arrays("w", shape, 8, False, 5)) == {
        "w.codes": ("U8", (*tiles, 64)),
        "w.residual_low": ("U8", (*tiles, 128)),
        "w.scales": ("BF16", (tiles[0], groups, 16)),
        "w.escape_counts": ("U8", tiles),
        "w.escape_offsets": ("I64", (tiles[0] + 1,)),
        "w.escape_positions": ("U8", (5,)),
        "w.escape_high": ("U8", (5,)),
    }


def test_further_residual_bits_are_planes_and_row_shifts_a_byte_a_padded_row() -> None:
    plain = described(bsfp_arrays("w", (17, 129), 8, False, 0))
    more = described(bsfp_arrays("w", (17, 129), 11, True, 0))
    assert {name: more[name] for name in more.keys() - plain.keys()} == {
        "w.residual_high": ("U8", (2, 20, 3, 16)),
        "w.row_shifts": ("I8", (32,)),
    }
