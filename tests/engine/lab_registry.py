"""Debian's docker-registry: a real one, of the tests' own."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import subprocess
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import docker.errors

from tests.engine.conftest import until

USER, PASSWORD = "owl", "hidden"
HTPASSWD = f"{USER}:$2b$04$Sw2lnZUNMRoSpY2MDRXTxOqpp2.NhYC9yLdWxWXY5WFMa5NpozMDW\n"
"""bcrypt of the word above, with the least of rounds."""
MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
LIST = "application/vnd.docker.distribution.manifest.list.v2+json"


@dataclass
class LabRegistry:
    """Debian's docker-registry on a port of its own."""

    folder: Path
    data: Path
    """Shared by the tests of this file: the base's layers are packed and pushed once."""
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self, *, is_private: bool = False) -> None:
        program = shutil.which("docker-registry")
        assert program is not None, "apt-get install docker-registry"
        self.folder.mkdir(exist_ok=True)
        (self.folder / "htpasswd").write_text(HTPASSWD)
        login = f"auth: {{htpasswd: {{realm: lab, path: {self.folder}/htpasswd}}}}\n"
        (self.folder / "config.yml").write_text(
            f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {self.data}}}}}\n"
            f'http: {{addr: "{self.address}"}}\n{login if is_private else ""}'
        )
        self.process = subprocess.Popen(
            [program, "serve", str(self.folder / "config.yml")],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until(self._answers)

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self._remove_its_images()

    def _remove_its_images(self) -> None:
        """Remove what this machine's engine pulled from it: no later listing is longer for it."""
        with contextlib.closing(docker.from_env()) as client:
            for image in client.images.list():
                for name in (*image.attrs["RepoTags"], *image.attrs["RepoDigests"]):
                    # With the last tag of a repository Docker removes its digests, too.
                    if name.startswith(f"{self.address}/"):
                        with contextlib.suppress(docker.errors.ImageNotFound):
                            client.images.remove(name)

    def _answers(self) -> bool:
        try:
            self.ask("GET", "/v2/")
        except urllib.error.HTTPError as error:
            return error.code == 401
        except OSError:
            return False
        return True

    def ask(self, method: str, path: str, body: bytes | None = None, **heads: str) -> Any:
        request = urllib.request.Request(f"http://{self.address}{path}", body, heads, method=method)
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.read()

    def offer(self, name: str, tag: str, *architectures: str) -> None:
        """Put a list in a tag's place that names its image for these platforms."""
        path = f"/v2/{name}/manifests/{tag}"
        told = self.ask("GET", path, Accept=MANIFEST)
        digest = f"sha256:{hashlib.sha256(told).hexdigest()}"
        row = {"mediaType": MANIFEST, "size": len(told), "digest": digest}
        rows = [{**row, "platform": {"architecture": it, "os": "linux"}} for it in architectures]
        content = {"schemaVersion": 2, "mediaType": LIST, "manifests": rows}
        heads = {"Content-Type": LIST}
        self.ask("PUT", path, json.dumps(content).encode(), **heads)
