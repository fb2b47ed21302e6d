"""The base stage made from Debian packages, for where no registry answers."""

import concurrent.futures
import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sparkdeploy import shell
from sparkdeploy.atomic_files import make_private
from sparkdeploy.errors import BuildError, NodeError
from sparkdeploy.image.stages import DebianRecipe, Stage
from sparkdeploy.settings import Settings
from sparkdeploy.terminal.step import Step

POLL_EVERY_S = 0.5
MAKE_TIMEOUT_S = 3600
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
DEBIAN_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
DEBIAN_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@contextlib.contextmanager
def debian_root(stage: Stage, settings: Settings, step: Step) -> Iterator[Path]:
    """Yield the tar of a root file system that mmdebstrap makes."""
    if stage.debian is None:
        raise BuildError(f"stage {stage.tag} is not made from Debian packages")
    if shell.which("mmdebstrap") is None:
        raise NodeError(
            "mmdebstrap is not installed, and no registry answers for the base image",
            hint=f"sudo apt-get install --yes {' '.join(missing_packages(os.geteuid()))}",
        )
    if stage.platform is not None and shell.which("arch-test") is None:
        raise NodeError(
            f"arch-test is not installed: without it mmdebstrap makes nothing for {stage.platform}",
            hint="sudo apt-get install --yes arch-test",
        )
    make_private(settings.cache_dir)
    with tempfile.TemporaryDirectory(prefix="base-", dir=settings.cache_dir) as scratch:
        archive, log = Path(scratch) / "root.tar", Path(scratch) / "mmdebstrap.log"
        argv = mmdebstrap_argv(stage.debian, stage.architecture, settings, archive, log)
        _run_watched(argv, log, step)
        yield archive


def base_of_root(name: str) -> str:
    """Return the Dockerfile that makes a base of a root file system's tar."""
    return f'FROM scratch\nADD {name} /\nENV PATH={SEARCH_PATH}\nCMD ["/bin/sh"]\n'


def missing_packages(uid: int) -> list[str]:
    """Return what a user lacks here to make a base image; root needs no user namespace."""
    wanted = {
        "mmdebstrap": shell.which("mmdebstrap") is None,
        # Ubuntu's apt cannot verify Debian's signatures without it.
        "debian-archive-keyring": not DEBIAN_KEYRING.exists(),
        "uidmap": uid != 0 and not any(map(shell.which, ("newuidmap", "fakechroot"))),
    }
    return [name for name, is_wanted in wanted.items() if is_wanted]


def mmdebstrap_argv(
    recipe: DebianRecipe, architecture: str, settings: Settings, archive: Path, log: Path
) -> tuple[str, ...]:
    """Return the command that writes the root file system; proxies come from the environment."""
    bundle = settings.build.ca_bundle
    reach = [] if bundle is None else [f'--aptopt=Acquire::https::CAInfo "{bundle}"']
    return (
        "mmdebstrap",
        *recipe.options,
        f"--architectures={DEBIAN_ARCHITECTURES[architecture]}",
        *reach,
        f"--logfile={log}",
        recipe.suite,
        str(archive),
        settings.hosts.debian_mirror,
    )


def _run_watched(argv: tuple[str, ...], log: Path, step: Step) -> None:
    with concurrent.futures.ThreadPoolExecutor(max_workers=1) as pool:
        running = pool.submit(shell.run, argv, timeout_s=MAKE_TIMEOUT_S)
        while not running.done():
            step.say(_tail(log, 1) or "mmdebstrap")
            concurrent.futures.wait([running], timeout=POLL_EVERY_S)
        done = running.result()
    if done.exit_code != 0:
        detail = _tail(log, 30) or done.stderr[-2000:]
        raise BuildError(
            f"mmdebstrap failed with exit code {done.exit_code}: the base was not made",
            detail=detail,
            hint=_hint(detail, log.parent),
        )


def _hint(log_text: str, scratch: Path) -> str:
    hints = {
        "o space left on device": f"free space below {scratch.parent}",
        "NO_PUBKEY": "sudo apt-get install debian-archive-keyring",
        "is not signed": "sudo apt-get install debian-archive-keyring",
        "unable to pick chroot mode": "sudo apt-get install uidmap",
    }
    unknown = "does the Debian mirror answer? `debian_mirror` in config.yaml names another"
    return next((hint for words, hint in hints.items() if words in log_text), unknown)


def _tail(log: Path, lines: int) -> str:
    text = log.read_text(errors="replace") if log.is_file() else ""
    return "\n".join(text.splitlines()[-lines:])
