"""Adds a tensor up over all nodes through NCCL, in an engine's image, and says how fast that was.

`python -I -c THIS RANK NODES HEAD_ADDRESS PORT`, on every node at once. NCCL's own words go to
stdout as well, where NCCL_DEBUG asks for them.
"""

import faulthandler
import json
import sys
import time
from datetime import timedelta

MARK = "sparkdeploy-all-reduce: "
MEET_S, GIVE_UP_S = 60, 25
ELEMENTS, ROUNDS = 16 * 2**20, 10


def main(rank: int, nodes: int, address: str, port: str) -> None:
    """Meet the others, add, and print the sum of one element and the rate."""
    # The rest of the program reads this module too, and has no torch.
    import torch  # noqa: PLC0415
    from torch import distributed  # noqa: PLC0415

    gpu, limit = torch.device("cuda", 0), timedelta(seconds=MEET_S)
    # All are here before the time counts: one machine may take long to import torch.
    store = distributed.TCPStore(address, int(port), nodes, rank == 0, timeout=limit)
    # A queue pair that never answers hangs in native code, where no exception arrives.
    faulthandler.dump_traceback_later(GIVE_UP_S, exit=True)
    distributed.init_process_group("nccl", store=store, rank=rank, world_size=nodes, device_id=gpu)
    one, many = torch.ones(1, device=gpu), torch.ones(ELEMENTS, device=gpu)
    distributed.all_reduce(one)
    distributed.all_reduce(many)
    torch.cuda.synchronize()
    begun_s = time.perf_counter()
    for _ in range(ROUNDS):
        distributed.all_reduce(many)
    torch.cuda.synchronize()
    took_s = (time.perf_counter() - begun_s) / ROUNDS
    # What each node sends; nccl-tests call it bus bandwidth.
    sent_bytes = 2 * (nodes - 1) / nodes * ELEMENTS * one.element_size()
    told = {"sum": one.item(), "gb_per_s": round(sent_bytes / took_s / 1e9, 2)}
    sys.stdout.write(f"{MARK}{json.dumps(told)}\n")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
