"""The container's entrypoint: runs vLLM as its child, and kills it before memory runs out.

Standard library only; importing it imports neither vLLM nor torch.
"""

import signal


def main() -> int:
    # A first process loses every signal that it has no handler for and does not block: a stop that
    # comes while the rest is still being imported would wait for its deadline.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
    from sparkdeploy_vllm.guard import supervision

    return supervision.main()
