"""A Docker Engine as the rest of the program sees it; images are found, built and carried here."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import IO

from sparkdeploy import labels
from sparkdeploy.errors import NodeError
from sparkdeploy.node import reports
from sparkdeploy.node.connection import DockerRefusedError, NotInDockerError, translated
from sparkdeploy.node.container import ImageFact, own_tags
from sparkdeploy.node.containers import Containers
from sparkdeploy.node.reports import BuildEvent, RegistryImage

__all__ = ["DockerHost", "DockerRefusedError"]
_EMPTY_TAR = bytes(1024)
_NOT_FOUND = 404
_NO_SUCH_CALL = frozenset({_NOT_FOUND, 405, 410, 501})
_BUILDER_IS_GONE = re.compile(r"buildkit|\b(legacy|classic|v1) builder|\bbuilder version", re.I)
_IS_MISSED = "dockerfile"


class DockerHost(Containers):
    """One Docker Engine with its images and containers; every call may raise NodeError."""

    def own_images(self) -> tuple[ImageFact, ...]:
        """Return every image with our label, and its tags of ours; `measured` knows its size."""
        with translated("list images"):
            found = self._api.images(filters={"label": f"{labels.KIND}=image"})
        images = map(reports.read_image, found)
        # Who writes our labels on an image of theirs, or a tag of theirs on ours, keeps the tag.
        return tuple(replace(image, tags=own_tags(image.tags)) for image in images)

    def find_image(self, reference: str) -> ImageFact | None:
        with suppress(NotInDockerError), translated(f"inspect image {reference}"):
            found = self._api.inspect_image(reference)  # type: ignore[no-untyped-call]
            return self.measured(reports.read_image(found))
        return None

    def image_chain(self, image: ImageFact) -> tuple[ImageFact, ...]:
        """Return an image and those it stands on, downwards, as far as they are here."""
        chain = [image]
        while below := chain[-1].below:
            found = self.find_image(below)
            # A label may name the very image that bears it.
            if found is None or found.image_id in {image.image_id for image in chain}:
                break
            # Tags of the user's own are not what the next build looks for.
            chain.append(replace(found, tags=own_tags(found.tags) or (below,)))
        return tuple(chain)

    def measured(self, image: ImageFact) -> ImageFact:
        """Return the image with the size of its layers: containerd's store says other things."""
        # There the list says packed and unpacked together, the inspection says packed.
        if not self.info().has_containerd_store:
            return image
        with suppress(NodeError), translated(f"measure image {image.image_id}"):
            layers = self._api.history(image.image_id)  # type: ignore[no-untyped-call]
            sizes = (int(layer.get("Size") or 0) for layer in layers or ())
            return replace(image, size_bytes=sum(sizes))
        return image

    def builder_refusal(self) -> str | None:
        """Return what an engine without the builder that `build` needs says; None with one."""
        with translated("ask for the builder"):
            url = self._api._url("/build")  # type: ignore[attr-defined]
            headers = {"Content-Type": "application/x-tar"}
            answer = self._api._post(url, data=_EMPTY_TAR, headers=headers)  # type: ignore[attr-defined]
            text = str(answer.text).strip()
        # One with a builder refuses as well: the tar holds no Dockerfile.
        is_missed = answer.status_code == _NOT_FOUND and _IS_MISSED in text.lower()
        is_unknown = answer.status_code in _NO_SUCH_CALL and not is_missed
        is_gone = is_unknown or _BUILDER_IS_GONE.search(text)
        return (text or f"HTTP {answer.status_code}") if is_gone else None

    def build(
        self,
        context: IO[bytes],
        *,
        tag: str,
        build_args: Mapping[str, str],
        image_labels: Mapping[str, str],
        network: str | None = None,
        platform: str | None = None,
    ) -> Iterator[BuildEvent]:
        """Build from a context tar; yield its events, of which one with `error` ends it."""
        with translated(f"build {tag}"):
            stream = self._api.build(
                fileobj=context,
                custom_context=True,
                tag=tag,
                buildargs=dict(build_args),
                labels=dict(image_labels),
                network_mode=network,
                platform=platform,
                rm=True,
                forcerm=True,
                decode=True,
                timeout=None,
            )
            for message in stream:
                yield reports.read_build_event(message)

    def remove_image(self, reference: str) -> None:
        """Remove one image of ours; an image without our label is refused."""
        image = self.find_image(reference)
        if image is None:
            return
        if image.labels.get(labels.KIND) != "image":
            raise NodeError(f"image {reference} was not made by sparkdeploy; it stays")
        with translated(f"remove image {reference}"):
            self._api.remove_image(reference)

    def remove_own_images(self) -> tuple[str, ...]:
        """Remove all our images and the steps made on them; return the ids of those that stay."""
        while True:
            # One goes only after those made from it: in rounds, until a round removes nothing.
            ours, count = self._own_images_and_steps(), 0
            for image_id in ours:
                with suppress(NodeError), translated(f"remove image {image_id}"):
                    self._api.remove_image(image_id, force=True)
                    count += 1
            if count == 0:
                return tuple(sorted(ours))

    def _own_images_and_steps(self) -> set[str]:
        """What stands on an image of ours inherits its labels; a tag says whose it is."""
        with translated("list images"):
            listed = self._api.images(all=True)
        tags = {it["Id"]: set(it.get("RepoTags") or ()) - {"<none>:<none>"} for it in listed}
        ours = {
            it["Id"]
            for it in listed
            if labels.KIND in (it.get("Labels") or {})
            and set(own_tags(tags[it["Id"]])) == tags[it["Id"]]
        }
        untagged = [it for it in listed if not tags[it["Id"]]]
        while more := {it["Id"] for it in untagged if it.get("ParentId") in ours} - ours:
            ours |= more
        return ours

    def remove_leftover_tag(self, reference: str) -> None:
        """Take a tag off an image with our label `leftover`; never raise."""
        with suppress(NodeError), translated(f"remove leftover {reference}"):
            # It tidies up after a failure: the next build of the same stage finds what stays.
            image = self.find_image(reference)
            if image is not None and image.labels.get(labels.KIND) == "leftover":
                self._api.remove_image(reference)

    def remove_leftovers(self, image_ids: Sequence[str]) -> None:
        """Remove the untagged ones with our label `leftover` that nothing uses; never raise."""
        for image_id in image_ids:
            with suppress(NodeError), translated(f"remove leftover {image_id}"):
                image = self.find_image(image_id)
                if image is None or image.tags or image.labels.get(labels.KIND) != "leftover":
                    continue
                # An engine that died in the middle left all that its instruction had written.
                label = f"{labels.KIND}=leftover"
                ended = {"ancestor": image.image_id, "label": label, "status": ["exited", "dead"]}
                for container in self._api.containers(all=True, filters=ended):
                    self._api.remove_container(container["Id"], v=True)
                self._api.remove_image(image.image_id)

    def save_images(self, references: Sequence[str]) -> Iterator[bytes]:
        """Yield a tar of these images with their tags; layers that they share stand in it once."""
        with translated(f"save {', '.join(references)}"):
            # The SDK's own call takes one image, and would repeat the layers for each.
            url = self._api._url("/images/get")  # type: ignore[attr-defined]
            names = {"names": list(references)}
            # The engine packs everything before it sends the first byte: minutes for 11 GB.
            answer = self._api._get(url, params=names, stream=True, timeout=None)  # type: ignore[attr-defined]
            yield from self._api._stream_raw_result(answer, 2**20, False)  # type: ignore[attr-defined]

    def load_images(self, archive: IO[bytes] | Iterator[bytes]) -> None:
        """Load a tar of images with their tags, gzipped or not; NodeError when Docker fails."""
        with translated("load images"):
            url = self._api._url("/images/load")  # type: ignore[attr-defined]
            answer = self._api._post(url, data=archive, stream=True, timeout=None)  # type: ignore[attr-defined]
            for message in self._api._stream_helper(answer, decode=True):  # type: ignore[attr-defined]
                failure = reports.read_failure(message)
                if failure is not None:
                    raise NodeError(f"load images: {failure}")

    def registry_digest(self, reference: str) -> str | None:
        """Return the digest the registry has for a reference, or None when it does not answer."""
        try:
            return self.registry_image(reference).digest
        except NodeError:
            return None

    def registry_image(self, reference: str) -> RegistryImage:
        """Ask the registry; NodeError says what it said. Logins are those of Docker's own file."""
        with translated(f"ask the registry for {reference}"):
            answer = self._api.inspect_distribution(reference)  # type: ignore[no-untyped-call]
        found = reports.read_registry_image(answer)
        if found is None:
            raise NodeError(f"ask the registry for {reference}: it returned no digest")
        return found

    def pull(self, reference: str) -> Iterator[BuildEvent]:
        """Pull an image by its digest, one event at a time; the last has `error` where it fails."""
        with translated(f"pull {reference}"):
            for message in self._api.pull(reference, stream=True, decode=True):
                yield reports.read_build_event(message)
