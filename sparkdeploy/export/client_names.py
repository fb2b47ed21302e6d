"""The clients that `connect` knows: apart, so that `--help` loads their names and nothing else."""

from enum import Enum


class Client(Enum):
    OPENAI = "openai"
    OPENCODE = "opencode"
    CLAUDE_CODE = "claude-code"
    CONTINUE = "continue"
    OPEN_WEBUI = "open-webui"
    CURL = "curl"
