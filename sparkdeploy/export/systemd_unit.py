"""systemd units of a deployment: started by the very `up` a user would type, watched, woken.

With a socket the first connection wakes it: systemd listens in the server's place.

sparkdeploy-NAME.socket           listens on the port that clients know, always
sparkdeploy-NAME-proxy.service    takes what comes there to the server, once that answers
sparkdeploy-NAME.service          the deployment, on a port of its own
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sparkdeploy.errors import UsageError

PROXY = "/usr/lib/systemd/systemd-socket-proxyd"
PORT_DISTANCE = 10_000
MAX_PORT = 65_535
MAX_STARTS = 3
"""A machine that cannot serve is left alone after three tries: restart storms freeze Sparks."""
BETWEEN_STARTS_S = 60
LONGEST_LINE_BYTES = 1 << 20
"""What systemd reads of a line; a unit with a longer one is not loaded."""
FAILING_IS_FINE = "-"
"""Before a program's path: a stop that finds nothing to end is none that failed."""
UNLESS_IT_ENDED = ("/bin/sh", "-c", '[ -z "$MAINPID" ] || exec "$@"', "sh")
"""systemd stops also what has ended by itself, then without MAINPID: what somebody has stopped by
hand may be starting again by now."""


@dataclass(frozen=True, slots=True)
class Unit:
    name: str
    subject: str
    """What it runs, in words."""
    up: Sequence[str]
    """The command that starts it, with its absolute program first."""
    stop: Sequence[str]
    """The command that stops it; without one it ends by SIGTERM."""
    user: str
    env: Mapping[str, str]
    startup_timeout_s: float
    notifies: bool = True
    """Whether the command says when it is ready; else it is once it has begun."""
    needed: Sequence[str] = ()
    """Folders that have to be there first, absolute."""
    is_woken: bool = False
    """Whether a socket starts it; systemd counts each wake as a start, so none is limited."""


def unit_name(deployment: str) -> str:
    return f"sparkdeploy-{deployment}.service"


def gateway_unit_name(stack: str) -> str:
    """Return a name that no deployment's unit has: theirs begin with `sparkdeploy-`."""
    return f"sparkdeploy_gateway-{stack}.service"


def unit_text(unit: Unit) -> str:
    """Return the unit file; raise UsageError for a value that systemd would not take as it is.

    Three failed starts within the interval end it (`systemctl reset-failed` forgets them); the
    interval is longer than three tries that each use up their time.
    """
    _check_admitted(unit)
    shell, *words = UNLESS_IT_ENDED
    text = _rendered(
        "systemd.service.j2",
        name=unit.name,
        subject=unit.subject,
        type="notify" if unit.notifies else "exec",
        is_woken=unit.is_woken,
        interval_s=int((MAX_STARTS + 1) * (unit.startup_timeout_s + BETWEEN_STARTS_S)),
        max_starts=MAX_STARTS,
        between_starts_s=BETWEEN_STARTS_S,
        user=_specifiers_escaped(unit.user),
        # systemd knows no escapes for bytes there.
        needed=" ".join(quoted(path) for path in unit.needed if path.isprintable()),
        environment=[quoted(f"{name}={value}") for name, value in sorted(unit.env.items())],
        up=command_line(unit.up),
        stop=command_line((f"{FAILING_IS_FINE}{shell}", *words, *unit.stop)) if unit.stop else "",
    )
    if max(len(line) for line in text.encode(errors="replace").split(b"\n")) >= LONGEST_LINE_BYTES:
        raise UsageError("a line of the unit is longer than the 1 MiB that systemd reads")
    return text


def _check_admitted(unit: Unit) -> None:
    """Raise UsageError for what no quoting brings through; systemd ignores such a line, or worse.

    Variables have to be UTF-8 without noncharacters. In a program's path a `$` cannot be doubled.
    """
    for name, value in unit.env.items():
        if any(
            0xD800 <= (code := ord(letter)) <= 0xDFFF
            or 0xFDD0 <= code <= 0xFDEF
            or code & 0xFFFE == 0xFFFE
            for letter in value
        ):
            raise UsageError(
                f"{name} is {value!r}: systemd takes only UTF-8 text for a variable",
                hint=f"unset {name}, or name its folder otherwise",
            )
    if "$" in unit.up[0]:
        raise UsageError(
            f"systemd would expand the $ in {unit.up[0]!r}",
            hint="install sparkdeploy in a folder without a $ in its name",
        )


def command_line(argv: Sequence[str]) -> str:
    """Return a command as ExecStart= takes it: every word quoted, nothing expanded."""
    program, *words = argv
    return " ".join([quoted(program), *(quoted(word).replace("$", "$$") for word in words)])


def quoted(word: str) -> str:
    """Return a word in quotes that systemd reads back as it was (systemd.syntax, "Quoting")."""
    escaped = "".join(_escaped(character) for character in word)
    return f'"{_specifiers_escaped(escaped)}"'


def _escaped(character: str) -> str:
    if character in {'"', "\\"}:
        return f"\\{character}"
    if character.isprintable():
        return character
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogateescape"))


def _specifiers_escaped(text: str) -> str:
    return text.replace("%", "%%")


def socket_name(deployment: str) -> str:
    return f"sparkdeploy-{deployment}.socket"


def proxy_name(deployment: str) -> str:
    return f"sparkdeploy-{deployment}-proxy.service"


def server_port(port: int) -> int:
    """Return the port of the server behind the one that clients know."""
    beyond = port + PORT_DISTANCE
    return beyond if beyond <= MAX_PORT else port - PORT_DISTANCE


def socket_text(deployment: str, host: str, port: int) -> str:
    """Return the socket's unit; connections that come before the server answers wait."""
    return _rendered(
        "systemd.socket.j2",
        name=socket_name(deployment),
        deployment=deployment,
        host=host,
        port=port,
        proxy=proxy_name(deployment),
    )


def proxy_text(deployment: str, port: int) -> str:
    """Return the unit that starts with the deployment, once it answers, and ends with it."""
    return _rendered(
        "systemd-proxy.service.j2",
        name=proxy_name(deployment),
        deployment=deployment,
        server=unit_name(deployment),
        socket=socket_name(deployment),
        program=PROXY,
        port=port,
    )


def _rendered(template: str, **values: object) -> str:
    # `status` needs the units' names alone, and Jinja takes its time to load.
    from sparkdeploy.image.templates import render  # noqa: PLC0415

    return render(Path(__file__).parent, template, **values)
