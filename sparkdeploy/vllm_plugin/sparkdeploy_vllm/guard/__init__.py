"""The container's entrypoint: kills its child, vLLM, before memory runs out. Imports no vLLM."""

import signal


def main() -> int:
    # A first process loses every signal that it has no handler for and does not block: a stop that
    # comes while the rest is still being imported would wait for its deadline.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
    from sparkdeploy_vllm.guard import supervision

    return supervision.main()
