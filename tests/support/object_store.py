"""A real S3 server on the loopback, for tests of stores behind a URL."""

import contextlib
import logging
import os
from dataclasses import dataclass

import pytest

KEY, SECRET = "AKIAKEYOFTESTS", "secret-of-tests"


@dataclass(frozen=True)
class ObjectStore:
    """A server that speaks S3, with one bucket of one test."""

    endpoint: str
    bucket: str

    @property
    def url(self):
        return f"s3://{self.bucket}/team"

    @property
    def site(self):
        """The words of a command line that stand for the site file of this server."""
        return [f"store={self.url}", f"site.store_endpoint={self.endpoint}"]

    def open(self):
        """Return the client library's own file system, to look into the bucket and to break things in it."""
        import s3fs

        return s3fs.S3FileSystem(
            endpoint_url=self.endpoint, key=KEY, secret=SECRET, use_listings_cache=False, skip_instance_cache=True
        )

    def files(self):
        """Return the names of all objects below the store."""
        return sorted(name.removeprefix(f"{self.bucket}/team/") for name in self.open().find(f"{self.bucket}/team"))


class MemoryStore:
    """A store of one test in the memory of this process, where the kind of the store does not matter."""

    endpoint, bucket, url = "", "/team", "memory://team"

    def open(self):
        """Return its file system."""
        import fsspec

        return fsspec.filesystem("memory")

    def files(self):
        """Return the names of all files in the store."""
        return sorted(name.removeprefix("/team/") for name in self.open().find("/team"))


@contextlib.contextmanager
def serving():
    """Run a server in a thread of this process; yield its URL."""
    pytest.importorskip("s3fs", reason="precflow[test] has it")
    server_of = pytest.importorskip("moto.server", reason="precflow[test] has it").ThreadedMotoServer
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it writes a line for each request
    server = server_of(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()


def make_bucket(endpoint, name):
    """Make a bucket, and return the store in it."""
    store = ObjectStore(endpoint, name)
    store.open().mkdir(name)
    return store


def set_credentials(patch):
    """Put the credentials where the client library finds them, and nothing of the machine's own."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        patch.delenv(name)
    patch.setenv("AWS_ACCESS_KEY_ID", KEY)
    patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
