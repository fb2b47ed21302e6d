#!/usr/bin/python3
"""`vllm serve`, as far as a stand-in goes: port and names are flags, STAND_IN says the rest."""

import argparse
import os
import shlex
import sys

sys.path.insert(0, "/stand_in")
from server import main  # type: ignore[import-not-found]

parser = argparse.ArgumentParser()
parser.add_argument("--port", required=True)
parser.add_argument("--served-model-name", nargs="+", required=True)
known, _ = parser.parse_known_args()
names = ["--served-model-name", *known.served_model_name, "--only-names"]
main(["--port", known.port, *names, *shlex.split(os.environ.get("STAND_IN", ""))])
