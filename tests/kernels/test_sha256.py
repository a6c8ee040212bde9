import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mxconv.kernels.engine import kernel_names
from mxconv.kernels.sha256 import new_stream, update


@pytest.fixture(autouse=True, scope="module", params=["numpy", kernel_names()[0]])
def kernel(request: pytest.FixtureRequest) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MXCONV_KERNEL", request.param)
        yield request.param


def as_array(piece: bytes) -> np.ndarray:
    return np.frombuffer(piece, np.uint8)


@pytest.mark.parametrize("num_streams", range(1, 10))
def test_streams_of_any_lengths_get_the_digests_of_openssl(num_streams: int) -> None:
    rng = np.random.default_rng(num_streams)
    edges = [0, 1, 54, 55, 56, 57, 63, 64, 65, 119, 120, 127, 128, 129, 1000, 4096]
    for _ in range(30):
        streams = [new_stream() for _ in range(num_streams)]
        expected = [hashlib.sha256() for _ in range(num_streams)]
        for _ in range(4):
            pieces = [rng.bytes(int(rng.choice(edges))) for _ in range(num_streams)]
            update(streams, [as_array(piece) for piece in pieces])
            for digest, piece in zip(expected, pieces, strict=True):
                digest.update(piece)
        assert [stream.hexdigest() for stream in streams] == [digest.hexdigest() for digest in expected]


@given(st.lists(st.lists(st.binary(max_size=200), max_size=4), min_size=1, max_size=5))
def test_any_pieces_give_the_digest_of_their_bytes(contents: list[list[bytes]]) -> None:
    streams = [new_stream() for _ in contents]
    for stream, pieces in zip(streams, contents, strict=True):
        for piece in pieces:
            update([stream], [as_array(piece)])
            stream.hexdigest()  # asking changes nothing
    assert [s.hexdigest() for s in streams] == [hashlib.sha256(b"".join(p)).hexdigest() for p in contents]


def test_the_examples_of_the_standard() -> None:
    # FIPS 180-4 examples: "abc", and two blocks
    for text, digest in (
        (b"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
        (b"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
        (
            b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1",
        ),
        (b"a" * 1_000_000, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"),
    ):
        stream = new_stream()
        update([stream], [as_array(text)])
        assert stream.hexdigest() == digest


def test_a_stream_may_not_be_updated_twice_at_once(kernel: str) -> None:
    if kernel == "numpy":
        return  # hashlib takes one piece after another
    stream = new_stream()
    if hasattr(stream, "update"):
        return  # no SHA instructions here
    with pytest.raises(ValueError, match="a stream occurs twice"):
        update([stream, stream], [as_array(b"a"), as_array(b"b")])
