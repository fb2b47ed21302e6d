"""Others' commands: a template of a shell's words, filled in, and taken apart without a shell.

Nothing here is run. What a shell would do before or after vLLM is named, so that it can be said.
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sparkdeploy.errors import RecipeError
from sparkdeploy.recipe.words import shown

PLACEHOLDER = re.compile(r"(?<!\$)\{([A-Za-z_][A-Za-z0-9_]*)\}")
"""A parameter; `${NAME}` is a shell's own."""
FORMATTED = re.compile(r"\{\{|\}\}|" + PLACEHOLDER.pattern)
"""Where braces stand doubled, Python's `str.format` fills the template, as eugr's scripts do."""
MAX_ROUNDS = 8
"""A parameter may name another one."""
MAX_LENGTH = 64 * 1024
CONTINUED = re.compile(r"\\[ \t]*\r?\n")
"""With blanks behind the backslash a shell would not go on; sparkrun mends it, and so do we."""
COMMENT_LINE = re.compile(r"^[ \t]*#.*\n?", re.MULTILINE)
"""Also between lines that go on, where a shell would end the command: nobody means that."""
NO_WORDS = re.compile(
    r"""(?P<kept>\\.|'[^']*'|"(?:\\.|[^"\\])*")|(?P<before>\A|[\s;&|()])(?:#[^\n]*|[12](?=>))""",
    re.DOTALL,
)
"""Comments and, right before `>`, the numbers of streams; what is quoted stays as it is."""
ENDS = frozenset({";", "&&", "||", "|", "&", "\n", "|&", ";;", "(", ")"})
SIGNS = "();<>|&\n"
OPERATORS = re.compile(r"\n|&&|\|\||;;|&>>|&>|>>|<<|>&|<&|>\||\|&|[();<>|&]")
REDIRECTS = frozenset({">", ">>", "<", "<<", ">&", "<&", "&>", "&>>", ">|"})
ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
SERVERS = (("vllm", "serve"), ("-m", "vllm.entrypoints.openai.api_server"))
WRAPPERS = frozenset({"exec", "env", "export", "time", "nice", "sudo", "stdbuf"})


@dataclass(frozen=True, slots=True)
class ServeCommand:
    arguments: tuple[str, ...]
    """What follows `vllm serve`."""
    env: tuple[tuple[str, str], ...] = ()
    """Variables that are set in words before it."""
    others: tuple[str, ...] = ()
    """Commands before and after it, and where its output would go."""


def fill_in(template: str, values: Mapping[str, str]) -> str:
    """Return the command with its parameters; RecipeError names those that have no value."""
    text = COMMENT_LINE.sub("", template)
    _refuse_too_long(text, values)
    text = _formatted(text, values) if "{{" in text else _substituted(text, values)
    missing = {name: None for name in PLACEHOLDER.findall(text) if name not in values}
    if missing:
        names = ", ".join(f"{{{name}}}" for name in missing)
        raise RecipeError(
            f"command: {names} stands in it and has no value in defaults",
            hint=" ".join(f"--set {name}=..." for name in missing),
        )
    return CONTINUED.sub(" ", text)


def _formatted(text: str, values: Mapping[str, str]) -> str:
    def one(match: re.Match[str]) -> str:
        return values.get(match[1], match[0]) if match[1] else match[0][0]

    return FORMATTED.sub(one, text)


def _substituted(text: str, values: Mapping[str, str]) -> str:
    for _ in range(MAX_ROUNDS):
        filled = PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), text)
        if filled == text:
            break
        _refuse_too_long(filled, values)
        text = filled
    return text


def _refuse_too_long(text: str, values: Mapping[str, str]) -> None:
    """Count what a text would become before it is made."""
    named = PLACEHOLDER.findall(text)
    if len(text) + sum(len(values.get(name, "")) for name in named) > MAX_LENGTH:
        raise RecipeError(f"command: more than {MAX_LENGTH} characters once it is filled in")


def take_apart(text: str) -> ServeCommand:
    """Return vLLM's words, and what stands around them; RecipeError where vLLM is not started."""
    env: list[tuple[str, str]] = []
    others: list[str] = []
    arguments: tuple[str, ...] | None = None
    for words in _commands(text):
        assigned, rest = _assignments(words)
        if arguments is None and (found := _within_a_shell(rest)) is not None:
            arguments, others = found.arguments, [*others, *found.others]
            env += [*assigned, *found.env]
            continue
        start = _server(rest)
        if start is not None and arguments is None:
            kept, redirected = _without_redirects(rest[start:])
            arguments, others = tuple(kept), [*others, *redirected]
        elif rest:
            others.append(shlex.join(words))
            continue
        env += assigned
    if arguments is None:
        first = shown(text.strip().partition("\n")[0])
        raise RecipeError(f"command: {first} does not start `vllm serve`")
    return ServeCommand(arguments, tuple(env), tuple(others))


def _commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each simple command, as a shell would divide them."""
    kept = NO_WORDS.sub(lambda match: match["kept"] or match["before"] or "", text)
    # A line's end divides commands as `;` does; shlex alone takes it for a blank.
    lexer = shlex.shlex(kept.strip(), posix=True, punctuation_chars=SIGNS)
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    words: list[str] = []
    try:
        for token in (*lexer, "\n"):
            # A run of operators, as `;` and the line's end behind it, is one token.
            for word in OPERATORS.findall(token) if token and not token.strip(SIGNS) else [token]:
                if word not in ENDS:
                    words.append(word)
                elif words:
                    yield words
                    words = []
    except ValueError as error:
        raise RecipeError(f"command: a quote has no end ({error})") from error


def _within_a_shell(words: Sequence[str]) -> ServeCommand | None:
    """Take apart what `bash -c` is given; None where that does not start vLLM either."""
    is_shell = len(words) > 2 and words[0].rpartition("/")[2] in ("bash", "sh")
    if not is_shell or words[1] not in ("-c", "-lc", "-ec", "-exc"):
        return None
    try:
        return take_apart(words[2])
    except RecipeError:
        return None


def _assignments(words: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Divide words into the variables that they set and the rest; `exec` and `env` are left out."""
    env: list[tuple[str, str]] = []
    for at, word in enumerate(words):
        if match := ASSIGNMENT.fullmatch(word):
            env.append((match[1], match[2]))
        elif word not in WRAPPERS:
            return env, [*words[at:]]
    return env, []


def _server(words: Sequence[str]) -> int | None:
    """Return where the arguments of vLLM's server begin, among its first words."""
    for index in range(min(len(words), 4) - 1):
        pair = (words[index].rpartition("/")[2] or words[index], words[index + 1])
        if pair in SERVERS:
            return index + 2
    return None


def _without_redirects(words: Sequence[str]) -> tuple[list[str], list[str]]:
    kept: list[str] = []
    redirected: list[str] = []
    rest = iter(words)
    for word in rest:
        if word in REDIRECTS:
            redirected.append(" ".join(filter(None, (word, next(rest, "")))))
        else:
            kept.append(word)
    return kept, redirected
