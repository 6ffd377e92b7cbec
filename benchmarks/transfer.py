"""What moving a dump to an object store and back costs, against the client library alone with the same bytes in the same run.

    python benchmarks/transfer.py                        a table on stdout: 256 MB as one file and as 512 small ones, a minute
    python benchmarks/transfer.py --megabytes 1024
    python benchmarks/transfer.py --url s3://bucket/folder      a store of yours; profile and endpoint from AWS_* variables
    python benchmarks/transfer.py --json

Ours hashes each file, asks for the checksum of what has arrived, and verifies what comes back; `put` and `get` of s3fs do not.
Both take turns, and the ratio is of the fastest round of each. Without ``--url`` the store is a server on this machine, which
shares its processors: then the ratio is of our own work rather than of a network.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from precflow.run.remote.filesystem import Address, open_filesystem
from precflow.run.remote.transfer import RemoteFolder, download_files, upload_files

_SERVER = """
from moto.server import ThreadedMotoServer
import sys
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print("http://%s:%s" % server.get_host_and_port(), flush=True)
sys.stdin.read()
"""
_ROUNDS = 3


def write_files(folder: Path, megabytes: int, count: int) -> list[str]:
    """Write ``count`` files of together so many megabytes; return their names."""
    names = [f"rank0/step{number}/tensors-0.safetensors" for number in range(count)]
    for name in names:
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_bytes(os.urandom(megabytes * 1_000_000 // count))
    return names


def measure(address: Address, megabytes: int, count: int, rounds: int = _ROUNDS) -> dict[str, float]:
    """Return the fastest seconds of upload and download, ours and the client library's, and the ratios."""
    every = [measure_once(address, megabytes, count) for _ in range(rounds)]
    best = {name: min(seconds[name] for seconds in every) for name in every[0]}
    ratios = {f"{way}_ratio": best[way] / best[f"client_{way}"] for way in ("upload", "download")}
    return {"megabytes": megabytes, "files": count, **best, **ratios}


def measure_once(address: Address, megabytes: int, count: int) -> dict[str, float]:
    """Move fresh files there and back in both ways; return the seconds of each."""
    filesystem, root = open_filesystem(address)
    with tempfile.TemporaryDirectory() as place:
        folder, back, theirs = (Path(place) / name for name in ("here", "back", "theirs"))
        names = write_files(folder, megabytes, count)
        there = RemoteFolder(filesystem, f"{root}/{secrets.token_hex(4)}", address.url)
        other = [f"{root}/{secrets.token_hex(4)}/{name}" for name in names]
        local, targets = [str(folder / name) for name in names], [str(theirs / name) for name in names]
        began = time.perf_counter()
        files = upload_files(folder, names, there, lambda _: None)
        uploaded = time.perf_counter()
        filesystem.put(local, other)
        put = time.perf_counter()
        lost = download_files(there, files, back, lambda _: None)
        downloaded = time.perf_counter()
        filesystem.get(other, targets)
        ended = time.perf_counter()
        if lost or any((back / name).read_bytes() != (folder / name).read_bytes() for name in names):
            sys.exit("other bytes came back")
        filesystem.rm([there.path, *other], recursive=True)
    return {
        "upload": uploaded - began,
        "client_upload": put - uploaded,
        "download": downloaded - put,
        "client_download": ended - downloaded,
    }


@contextmanager
def serving() -> Iterator[Address]:
    """Run a server in a process of its own, and yield the address of a bucket in it."""
    os.environ |= {"AWS_ACCESS_KEY_ID": "benchmark", "AWS_SECRET_ACCESS_KEY": "benchmark", "AWS_DEFAULT_REGION": "us-east-1"}
    with subprocess.Popen(
        [sys.executable, "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        try:
            address = Address("s3://benchmark/x", endpoint=(server.stdout.readline() if server.stdout else "").strip())
            open_filesystem(address)[0].mkdir("benchmark")
            yield address
        finally:
            server.kill()


def main(arguments: list[str] | None = None) -> int:
    """Measure both shapes of the same bytes, and print."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--url", default="", help="a store to measure; default: a server on this machine")
    options.add_argument("--megabytes", type=int, default=256)
    options.add_argument("--json", action="store_true")
    chosen = options.parse_args(arguments)
    with serving() if not chosen.url else _named(chosen.url) as address:
        rows = [measure(address, chosen.megabytes, count) for count in (1, 512)]
    if chosen.json:
        print(json.dumps(rows, indent=1))
        return 0
    print("files     MB    upload  s3fs alone   ratio  download  s3fs alone   ratio")
    for row in rows:
        shown = [
            f"{row[f'{way}']:>8.2f}s{row[f'client_{way}']:>10.2f}s{row[f'{way}_ratio']:>8.2f}" for way in ("upload", "download")
        ]
        print(f"{row['files']:>5}{row['megabytes']:>7} {' '.join(shown)}")
    return 0


@contextmanager
def _named(url: str) -> Iterator[Address]:
    yield Address(url)


if __name__ == "__main__":
    sys.exit(main())
