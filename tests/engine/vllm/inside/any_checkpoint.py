"""In the CPU engine's image: make a small model of another architecture and ask it five ways.

`any_checkpoint.py ARCHITECTURE`, with sparkdeploy and tests on PYTHONPATH: one line of JSON for
each server, `{"name", "ids", "accepted"}`, where `ids` are greedy texts of three prompts.
"""

# mypy: disable-error-code="import-not-found"

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path("/tmp/m")
PROMPTS = [[(7 * n * n + n * turn) % 500 + 5 for n in range(8 + turn)] for turn in range(3)]
TOKENS = 24
SERVERS = (("twins/{}", 0), ("twins/{}", 2), ("m/ck/{}-draft", 2), ("m/ck/{}-fast", 0),
           ("m/ck/{}-fast", 2))  # fmt: skip


def ask(folder: str, drafts: int) -> None:
    from vllm import LLM, SamplingParams

    by_mtp = {"method": "mtp", "num_speculative_tokens": drafts}
    sees = "next" not in folder
    server = LLM(
        model=folder,
        max_model_len=512,
        max_num_seqs=4,
        enforce_eager=True,
        disable_log_stats=False,
        # Its kernel for states needs Triton.
        enable_prefix_caching=False,
        **({"speculative_config": by_mtp} if drafts else {}),
        **({"limit_mm_per_prompt": {"image": 0, "video": 0}} if sees else {}),
    )
    greedy = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    asked = server.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], greedy)
    accepted = [it.value for it in server.get_metrics() if it.name.endswith("accepted_tokens")]
    said = {
        "name": f"{Path(folder).name}-{drafts}",
        "ids": [list(answer.outputs[0].token_ids) for answer in asked],
        "accepted": sum(accepted),
    }
    print(f"SAID {json.dumps(said)}", flush=True)


def main(architecture: str) -> None:
    from tests.gpu.stand import formats

    formats.make(architecture, ROOT)
    for folder, drafts in SERVERS:
        path = str(ROOT / folder.format(architecture))
        subprocess.run([sys.executable, __file__, path, str(drafts)], check=True)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        main(sys.argv[1])
    else:
        ask(sys.argv[1], int(sys.argv[2]))
