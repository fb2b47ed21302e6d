"""The hub's own library with one function replaced: a file of the Xet store comes by a GET.

hf_xet speaks a protocol of its own, to servers that no test has. Links, notes and the sweep of the
store that repositories share are the library's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import requests
from huggingface_hub import file_download
from huggingface_hub.utils._xet import XetFileData, refresh_xet_connection_info

CHUNK_BYTES = 1 << 18
IN_PROCESSES = Path(__file__).parent / "xet_in_processes"
"""On PYTHONPATH, this lets any Python process fetch as `get` does."""


def get(
    *,
    incomplete_path: Path,
    xet_file_data: XetFileData,
    headers: dict[str, str],
    expected_size: int | None = None,
    tqdm_class: Any = None,
    **_shown: object,
) -> None:
    """What `xet_get` does, by its own arguments: asks for a token, then for the file by hash."""
    store = refresh_xet_connection_info(file_data=xet_file_data, headers=headers)
    url = f"{store.endpoint}/xet/{xet_file_data.file_hash}"
    said = {"Authorization": f"Bearer {store.access_token}", "Accept-Encoding": "identity"}
    bar = None if tqdm_class is None else tqdm_class(total=expected_size)
    with requests.get(url, headers=said, stream=True, timeout=30) as answer:
        answer.raise_for_status()
        with incomplete_path.open("r+b") as file:
            for chunk in answer.iter_content(CHUNK_BYTES):
                file.write(chunk)
                _tell(bar, chunk)


@contextlib.contextmanager
def xet_by_get() -> Iterator[None]:
    """Let this process fetch files of the Xet store by GET."""
    original = file_download.xet_get
    install()
    try:
        yield
    finally:
        file_download.xet_get = original


def install() -> None:
    """Replace the library's function for good."""
    file_download.xet_get = get


def _tell(bar: Any, chunk: bytes) -> None:
    if bar is not None:
        bar.update(len(chunk))
