"""How images are named: by Docker's own grammar, and what a name says of the vLLM in it."""

import re

MAX_NAME = 255
"""Without tag and digest, as Docker has it."""
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_HOST = rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9A-Fa-f:]+\])(?::[0-9]{{1,5}})?"
_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
# What stands before the first slash is a host only where it looks like one.
_NAME = rf"(?:(?=[^/]*[.:]|localhost/){_HOST}/)?{_PART}(?:/{_PART})*"
_TAG = r":[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
_TAGGED = re.compile(rf"(?P<name>{_NAME})(?:{_TAG})?")
_PINNED = re.compile(
    rf"(?P<name>{_NAME})(?:{_TAG})?@sha256:[0-9a-f]{{64}}|(?:sha256:)?[0-9a-f]{{12,64}}"
)
WAYS = "NAME:TAG, NAME@sha256:... (a digest) or sha256:... (a local id)"
OFFICIAL_IMAGES = ("vllm-openai", "vllm-openai-cu129", "vllm-openai-cu130")
ANY_IMAGE = "image"
"""The engine of an image that a recipe or a user names; its own release is an assumption."""


def is_pinned(image: str) -> bool:
    """Say whether it is a digest or a local id, which is the same image tomorrow."""
    return _fits(_PINNED.fullmatch(image))


def is_tag(image: str | None) -> bool:
    """Say whether an image is named by a tag, which may be another image tomorrow."""
    return image is not None and not is_pinned(image)


def image_name(image: str) -> str:
    """Return it; ValueError where Docker would take it for no image."""
    if is_pinned(image) or _fits(_TAGGED.fullmatch(image)):
        return image
    raise ValueError(f"an image is {WAYS}; the letters of NAME are small")


def stated_release(image: str) -> str | None:
    """Return the release that a tag of vLLM's own image says it holds: `v0.27.1-cu130`.

    Others number their builds by themselves.
    """
    name, _, tag = image.partition("@")[0].rpartition("/")[2].partition(":")
    match = re.match(r"v?(\d+\.\d+\.\d+)(?![\d.])", tag)
    return match[1] if match is not None and name in OFFICIAL_IMAGES else None


def _fits(match: re.Match[str] | None) -> bool:
    return match is not None and len(match["name"] or "") <= MAX_NAME
