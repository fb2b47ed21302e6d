"""For the stand's servers: of a Triton kernel's configurations take the smallest, try none.

Python runs this in each process that has its folder on PYTHONPATH. The kernels of a prompt's Gated
DeltaNet have dozens of configurations; each server compiles them one after another, for minutes.
The kernels of a decode step have one each, so what the stand measures stays the same. A process
that gets SIGUSR1 writes where its threads are.
"""

# mypy: disable-error-code="import-not-found, no-untyped-def"

import faulthandler
import math
import signal

faulthandler.register(signal.SIGUSR1)
try:
    import triton
except ImportError:
    pass
else:
    tries_all = triton.autotune

    def size(config) -> tuple[int, int]:  # noqa: ANN001
        """The pipeline's stages, then the cells of a block: how much shared memory it takes."""
        blocks = [value for value in config.kwargs.values() if isinstance(value, int)]
        return config.num_stages, math.prod(blocks)

    def takes_the_smallest(configs, *rest, **named):  # noqa: ANN001, ANN002, ANN003, ANN201
        return tries_all([min(configs, key=size)], *rest, **named)

    triton.autotune = takes_the_smallest
