"""The vnni8 order, one element at a time. A matrix is a list of rows; a tile is 16 rows x 8 columns."""


def pad(matrix: list[list[int]], row_multiple: int, column_multiple: int) -> list[list[int]]:
    """Zeros to the right and below, up to the next multiples."""
    width = -(-len(matrix[0]) // column_multiple) * column_multiple
    padded = [row + [0] * (width - len(row)) for row in matrix]
    while len(padded) % row_multiple:
        padded.append([0] * width)
    return padded


def tiles(matrix: list[list[int]]) -> list[list[list[int]]]:
    """All tiles: along the columns first, then along the rows. Each is 16 lists of 8."""
    return [
        [matrix[top + r][left : left + 8] for r in range(16)]
        for top in range(0, len(matrix), 16)
        for left in range(0, len(matrix[0]), 8)
    ]


def nibbles_hex(matrix: list[list[int]]) -> str:
    """64 bytes a tile: byte 4r + j holds column j in its low nibble, column j + 4 in its high one."""
    return "".join(f"{row[j] | row[j + 4] << 4:02x}" for tile in tiles(matrix) for row in tile for j in range(4))


def bytes_hex(matrix: list[list[int]]) -> str:
    """128 bytes a tile: byte 8r + c is column c."""
    return "".join(f"{value:02x}" for tile in tiles(matrix) for row in tile for value in row)


def quads_hex(matrix: list[list[int]]) -> str:
    """64 bytes for four columns of 16 rows: byte 4r + j is column j."""
    return "".join(
        f"{matrix[top + r][left + j]:02x}"
        for top in range(0, len(matrix), 16)
        for left in range(0, len(matrix[0]), 4)
        for r in range(16)
        for j in range(4)
    )


def bits_hex(planes: list[list[list[int]]]) -> str:
    """16 bytes a tile and plane, the planes of a tile side by side: bit c of byte r is column c."""
    tiled = [tiles(plane) for plane in planes]
    return "".join(
        f"{sum(row[c] << c for c in range(8)):02x}"
        for one_tile in zip(*tiled, strict=True)
        for tile in one_tile
        for row in tile
    )


def scales_in_order(scales: list[list[int]]) -> list[int]:
    """(rows, blocks) -> (rows/16, blocks, 16), flat."""
    return [
        scales[top + r][block]
        for top in range(0, len(scales), 16)
        for block in range(len(scales[0]))
        for r in range(16)
    ]
