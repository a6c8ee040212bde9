"""A real S3 server on loopback (moto's), and what lies on it, asked by its own client (never by mxconv)."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from mxconv.checkpoint.object_store import Store, open_filesystem
from mxconv.errors import PackageError

BUCKET = "bucket"


@dataclass(frozen=True)
class S3Server:
    """One that runs."""

    endpoint: str
    client: Any  # boto3's

    def files(self, folder: str) -> dict[str, bytes]:
        """Every object below a folder of the bucket, by relative name."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=f"{folder}/")
        keys = [found["Key"] for page in pages for found in page.get("Contents", [])]
        return {
            key.removeprefix(f"{folder}/"): self.client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
            for key in keys
        }

    def put(self, key: str, content: bytes) -> None:
        self.client.put_object(Bucket=BUCKET, Key=key, Body=content)

    def delete(self, key: str) -> None:
        self.client.delete_object(Bucket=BUCKET, Key=key)

    def unfinished_uploads(self, folder: str) -> list[str]:
        """Names, below a folder or beside it, of uploads that were begun and neither finished nor aborted."""
        found = self.client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])
        return [upload["Key"].removeprefix(folder) for upload in found if upload["Key"].startswith(folder)]


def store(folder: str) -> Store:
    """As `--output` names it."""
    return Store(f"s3://{BUCKET}/{folder}", PackageError)


@contextlib.contextmanager
def running() -> Iterator[S3Server]:
    """A server in threads of this process, with an empty bucket. Parts of any length; no keys but these."""
    boto3 = pytest.importorskip("boto3", reason="moto is not installed")
    server_module = pytest.importorskip("moto.server", reason="moto is not installed")
    pytest.importorskip("s3fs", reason="the extra `s3` is not installed")
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    try:
        with pytest.MonkeyPatch.context() as environment:
            for name, value in variables(endpoint).items():
                environment.setenv(name, value)
            environment.setattr("moto.s3.models.S3_UPLOAD_PART_MIN_SIZE", 1)
            client = boto3.client("s3")
            client.create_bucket(Bucket=BUCKET)
            with connected(endpoint):
                yield S3Server(endpoint, client)
            client.close()
    finally:
        server.stop()


@contextlib.contextmanager
def connected(endpoint: str) -> Iterator[None]:
    """mxconv's clients, those of commands and workers included, go to an address."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AWS_ENDPOINT_URL", endpoint)
        _forget_clients()
        try:
            yield
        finally:
            _forget_clients()


def variables(endpoint: str) -> dict[str, str]:
    """By which clients find a server."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "tests",
        "AWS_SECRET_ACCESS_KEY": "tests",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def _forget_clients() -> None:
    import s3fs

    open_filesystem.cache_clear()
    s3fs.S3FileSystem.clear_instance_cache()
