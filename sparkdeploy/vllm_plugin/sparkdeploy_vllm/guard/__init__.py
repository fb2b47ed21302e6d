"""The container's entrypoint: runs vLLM as its child, and kills it before memory runs out.

Standard library only; importing it imports neither vLLM nor torch.
"""


def main() -> int:
    """Guard the command line's command."""
    from sparkdeploy_vllm.guard import command_line

    return command_line.main()
