#!/usr/bin/python3
"""`vllm serve`, as far as a stand-in goes: the port is vLLM's flag, the rest stands in STAND_IN."""

import argparse
import os
import shlex
import sys

sys.path.insert(0, "/stand_in")
from server import main  # type: ignore[import-not-found]

parser = argparse.ArgumentParser()
parser.add_argument("--port", required=True)
known, _ = parser.parse_known_args()
main(["--port", known.port, *shlex.split(os.environ.get("STAND_IN", ""))])
