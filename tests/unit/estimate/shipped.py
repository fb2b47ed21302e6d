"""What the planner reads of this checkout."""

from sparkdeploy.estimate.hardware import read_hardware
from sparkdeploy.estimate.model import read_shipped_facts
from sparkdeploy.estimate.speed import read_acceptance
from tests.unit.conftest import REPOSITORY

FACTS_FOLDER = REPOSITORY / "recipes" / "facts"
MODELS = read_shipped_facts(FACTS_FOLDER / "models.yaml")
HARDWARE = read_hardware(FACTS_FOLDER / "hardware.yaml")
ACCEPTANCE = read_acceptance(FACTS_FOLDER / "speculation.yaml")
SPARK = HARDWARE["spark"]
BIG = MODELS["Intel/Qwen3.5-122B-A10B-int4-AutoRound"]
