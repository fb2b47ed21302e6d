"""Compare TurboQuant's decode kernel with FP64 attention over the same slots; also the hard cases.

`python tests/gpu/kernels/turboquant_accuracy.py` prints what it compared and 1 line for each that
fails. Needs a Hopper GPU with 10 GB free and torch; with vLLM on the path its own kernel is held
against FP64 too, and ours must not be further away (by more than ROOM).
"""

# mypy: disable-error-code="import-not-found, no-untyped-def"

import sys
from dataclasses import replace

import torch
from turboquant_cache import (
    FORMATS,
    AttentionLayer,
    Requests,
    Shape,
    attention_of,
    centroids,
    decode_attention,
    exact_attention,
    hadamard,
    new_scratch,
    pack_slots,
    random_pages,
    requests_of,
    vllm_kernel,
)

ROOM = 1.002
"""How much further from FP64 than rounding to BF16, and than vLLM's kernel, ours may be."""
SHAPES = (
    Shape("122B", 32, 2, 256),
    Shape("35B", 16, 2, 256),
    Shape("one KV head", 8, 1, 256),
    Shape("8B", 32, 8, 128),
    Shape("small", 16, 8, 64),
)
LENGTHS = (1, 2, 15, 16, 17, 63, 64, 65, 777, 4_097, 32_771)
LONGEST = (262_143, 262_144)
REPEATS = 20
STORED_TOKENS = 4_096
STORED_OTHERWISE = {"keys": 1e-5, "values": 5e-3, "scalars": 0.0}
"""Most bytes, as shares of each part, that rounding may put elsewhere in vLLM's store kernel."""
NOT_A_NUMBER = 0xFF
"""As bytes: NaN in FP16 and in FP8."""

failures: list[str] = []


def main() -> int:
    """Run every comparison; 1 when one fails."""
    say(f"card: {torch.cuda.get_device_name()}; torch {torch.__version__}")
    for name in FORMATS:
        for shape in SHAPES:
            compare(name, shape)
        stored(name)
        long_contexts(name)
        hard_cases(name)
    say("all right" if not failures else "\n".join(failures))
    return 1 if failures else 0


def compare(name: str, shape: Shape) -> None:
    """Every length, with 1 to 8 query tokens, on the smallest and the largest pages."""
    attention = attention_of(shape, name)
    worst = (0.0, "")
    for number, page in enumerate((16, 128)):
        lengths = [length + number for length in LENGTHS]
        tokens = [min(length, 1 + (number + k) % 8) for k, length in enumerate(lengths)]
        pages, requests = pages_of(attention, lengths, tokens, page)
        query = asked(shape, sum(tokens))
        exact = exact_attention(attention, query, pages, requests)
        error = distance(ours(attention, query, pages, requests), exact)
        rounding = distance(exact.to(query.dtype), exact)
        worst = max(worst, (error / rounding, f"{error:.4e} against {rounding:.4e}"))
    check(worst[0] <= ROOM, f"{name}, {shape.name}: {worst[1]}")
    say(f"{name}, {shape}: {worst[1]} by rounding to BF16 alone ({worst[0]:.4f})")


def stored(name: str) -> None:
    """What vLLM's kernel stores, beside the plugin's own packing in plain torch."""
    try:
        from vllm.v1.attention.ops.triton_turboquant_store import triton_turboquant_store as store
    except ImportError:
        return
    shape = SHAPES[0]
    slot = attention_of(shape, name).slot
    size, dim = (STORED_TOKENS, shape.kv_heads, slot.head_dim), slot.head_dim
    drawn = torch.Generator("cuda").manual_seed(5)
    keys = torch.randn(size, device="cuda", generator=drawn).bfloat16()
    values = torch.randn(size, device="cuda", generator=drawn).bfloat16()
    pages = torch.zeros((STORED_TOKENS // 64, 64, size[1], slot.slot_bytes)).byte().cuda()
    table = centroids(slot.key_bits if slot.has_rotated_keys else slot.value_bits, dim)
    store(
        keys, values, pages, torch.arange(STORED_TOKENS, device="cuda"),
        hadamard(dim).float(), ((table[:-1] + table[1:]) / 2).cuda(),
        mse_bits=slot.key_bits if slot.has_rotated_keys else 0,
        key_packed_size=slot.value_offset, value_quant_bits=slot.value_bits,
        key_fp8=not slot.has_rotated_keys,
    )  # fmt: skip
    ours = pack_slots(keys.cpu(), values.cpu(), slot, table)
    differing = (ours != pages.flatten(0, 1).cpu()).float()
    parts = {
        "keys": slice(0, slot.value_offset),
        "values": slice(slot.value_offset, slot.scale_offset),
        "scalars": slice(slot.scale_offset, slot.scale_offset + 4),
    }
    shares = {part: float(differing[..., at].mean()) for part, at in parts.items()}
    within = all(shares[part] <= most for part, most in STORED_OTHERWISE.items())
    check(within, f"{name}: stored bytes differ, {shares}")
    say(f"{name}: bytes that vLLM stores otherwise than plain torch: {shares}")


def long_contexts(name: str) -> None:
    """The longest contexts, beside vLLM's own kernel."""
    shape = SHAPES[0]
    attention = attention_of(shape, name)
    for length in (*LONGEST, 65_537):
        pages, requests = pages_of(attention, [length], [1], 64)
        query = asked(shape, 1)
        exact = exact_attention(attention, query, pages, requests)
        error = distance(ours(attention, query, pages, requests), exact)
        kernel = vllm_kernel(attention)
        theirs = distance(kernel(query, pages, requests), exact) if kernel else float("nan")
        check(not error > theirs * ROOM, f"{name} at {length}: {error:.4e}, vLLM's {theirs:.4e}")
        say(f"{name} at {length:,} tokens: ours {error:.4e}, vLLM's own {theirs:.4e}")


def hard_cases(name: str) -> None:
    """NaN in every slot that is nobody's, empty and padded requests, graphs, repeats."""
    shape = SHAPES[1]
    attention = attention_of(shape, name)
    lengths, tokens = [1_000, 0, 333, 70], [3, 0, 1, 2]
    pages, requests = pages_of(attention, lengths, tokens, 64)
    query = asked(shape, sum(tokens) + 2)  # two rows of padding
    exact = exact_attention(attention, query, pages, requests)
    spoiled = torch.full_like(pages, NOT_A_NUMBER)
    for number, length in enumerate(lengths):
        for position in range(length):
            block = int(requests.table[number, position // 64])
            spoiled[block, position % 64] = pages[block, position % 64]
    first = ours(attention, query, spoiled, requests)
    rows = slice(0, sum(tokens))
    check(distance(first[rows], exact[rows]) < 2e-3, f"{name}: NaN beside reaches a request")
    same = all(
        torch.equal(ours(attention, query, spoiled, requests)[rows], first[rows])
        for _ in range(REPEATS)
    )
    check(same, f"{name}: {REPEATS} repeats differ")
    ill = query.clone()
    ill[0] = float("nan")
    beside = ours(attention, ill, spoiled, requests)[1 : sum(tokens)]
    check(torch.equal(beside, first[1 : sum(tokens)]), f"{name}: a NaN query reaches others")
    captured(name, attention, spoiled, requests, query)
    say(f"{name}: NaN beside, empty and padded requests, {REPEATS} repeats, graphs")


def captured(
    name: str,
    attention: AttentionLayer,
    pages: torch.Tensor,
    requests: Requests,
    query: torch.Tensor,
) -> None:
    """A graph replayed over other lengths, starts and queries gives what a launch gives."""
    out = torch.zeros_like(query)
    scratch = new_scratch(attention, query, requests)
    kept = replace(
        requests, lengths=torch.ones_like(requests.lengths), starts=requests.starts.clone()
    )
    asked_now = query.clone()
    decode_attention(attention, asked_now, pages, kept, out, scratch)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        decode_attention(attention, asked_now, pages, kept, out, scratch)
    for lengths, starts in (
        ([1_000, 0, 333, 70], [0, 3, 3, 4, 6]),
        ([64, 9, 0, 1], [0, 2, 3, 3, 4]),
    ):
        kept.lengths.copy_(torch.tensor(lengths))
        kept.starts.copy_(torch.tensor(starts))
        asked_now.copy_(torch.randn_like(asked_now))
        graph.replay()
        rows = slice(0, starts[-1])
        expected = ours(attention, asked_now, pages, kept)[rows]
        check(torch.equal(out[rows], expected), f"{name}: a replayed graph differs")


def pages_of(
    attention: AttentionLayer, lengths: list[int], tokens: list[int], page: int
) -> tuple[torch.Tensor, Requests]:
    drawn = torch.Generator("cuda").manual_seed(sum(lengths) + page)
    blocks = sum(-(-length // page) for length in lengths) + 2
    return (
        random_pages(attention, blocks, drawn, page),
        requests_of(lengths, tokens, blocks, page),
    )


def asked(shape: Shape, tokens: int) -> torch.Tensor:
    drawn = torch.Generator("cuda").manual_seed(tokens)
    size = (tokens, shape.query_heads, shape.head_dim)
    return torch.randn(size, device="cuda", generator=drawn).bfloat16()


def ours(
    attention: AttentionLayer, query: torch.Tensor, pages: torch.Tensor, requests: Requests
) -> torch.Tensor:
    out = torch.full_like(query, float("nan"))
    scratch = new_scratch(attention, query, requests)
    return decode_attention(attention, query, pages, requests, out, scratch)


def distance(result: torch.Tensor, exact: torch.Tensor) -> float:
    return float((result.double() - exact).norm() / exact.norm())


def check(holds: bool, what: str) -> None:
    if not holds:
        failures.append(f"WRONG: {what}")


def say(line: str) -> None:
    """Print at once, so that a run cut short shows what it compared."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
