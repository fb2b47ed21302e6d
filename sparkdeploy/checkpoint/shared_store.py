"""The store that repositories of a hub cache share, kept as the hub's own library keeps it.

Since huggingface_hub 2.4 a blob that came as Xet chunks is a link to <cache>/blobs/<2 digits>/<Xet
hash>. Beside each such file the library notes who links to it; only it writes and reads these
notes, here as well. Importing it takes the 0.3 s that the library takes.
"""

from __future__ import annotations

import shlex
import threading
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import DeleteCacheStrategy
from huggingface_hub.utils import _shared_blobs

from sparkdeploy.checkpoint.cache import BLOBS, STORE
from sparkdeploy.checkpoint.model_files import real_path, shared_files
from sparkdeploy.errors import CheckpointError

_PUBLISHING = threading.Lock()


@dataclass(frozen=True, slots=True)
class StoredBlob:
    """A blob of a repository, and the file of the store that may have its content."""

    blob: Path
    xet_hash: str
    size_bytes: int

    @property
    def root(self) -> Path:
        return self.blob.parent.parent

    @property
    def path(self) -> Path:
        return self.root.parent / STORE / self.xet_hash[:2] / self.xet_hash

    def link(self) -> bool:
        """Let the blob be a link to what is in the store already; say whether it is one now."""
        return self._is_allowed() and _shared_blobs.try_link_from_shared_store(
            blob_path=str(self.blob),
            xet_hash=self.xet_hash,
            cache_dir=self.root.parent,
            expected_size=self.size_bytes,
        )

    def publish(self) -> None:
        """Move the blob into the store, and link to it; it stays where that cannot be."""
        if not self._is_allowed():
            return
        # Of two that make the store at once, one takes it for somebody else's folder.
        with _PUBLISHING:
            _shared_blobs.publish_blob_to_shared_store(
                blob_path=str(self.blob),
                xet_hash=self.xet_hash,
                cache_dir=self.root.parent,
                expected_size=self.size_bytes,
            )

    def _is_allowed(self) -> bool:
        # The library writes the link's letters from where the root's name is, and the kernel reads
        # them from where the root is.
        return _shared_blobs.shared_blobs_enabled() and not self.root.is_symlink()


def freed_bytes_of(root: Path) -> int:
    """Bytes of the store that nobody else links to, and that `remove_repository` would delete."""
    shared = shared_files(root)
    if not shared:
        return 0
    real = real_path(root)
    blobs = {real / BLOBS / blob.name for blob in shared}
    return sum(
        _shared_blobs.expected_shared_blob_freed_size(
            stored, blob_paths_to_delete=blobs, cache_dir=real.parent
        )
        for stored in set(shared.values())
    )


def remove_repository(root: Path) -> None:
    """Delete a repository's folder, and what of the store no other repository links to.

    Raises CheckpointError when some of the folder stays.
    """
    real, none = real_path(root), frozenset[Path]()
    DeleteCacheStrategy(
        expected_freed_size=0,
        blobs=none,
        refs=none,
        repos=frozenset({real}),
        snapshots=none,
        cache_dir=real.parent,
    ).execute()
    if real.exists():
        raise CheckpointError(
            f"{real} cannot be removed.",
            hint=f"look at whose it is: ls -ld {shlex.quote(str(real))}",
        )
    if root.is_symlink():
        root.unlink()
