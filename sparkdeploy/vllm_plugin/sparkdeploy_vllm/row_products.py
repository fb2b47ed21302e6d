"""Matrix products whose rows do not depend on how many rows there are."""

import torch


# An operator of its own: a compiler that looked inside would unroll the rows, and compile anew for
# every number of them.
@torch.library.custom_op("sparkdeploy::linear_per_row", mutates_args=())
def linear_per_row(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """FP32 `x` [M, K] times FP32 `weight` [N, K] transposed: FP32 [M, N].

    One matrix-vector product per row, always of the same shape and alignment: a general matrix
    product picks its kernel, and with it the order of summation, by M, and greedy decoding with
    speculation (several rows a step) would then drift away from decoding without (one row).
    """
    product = x.new_empty((x.shape[0], weight.shape[0]))
    row_input = x.new_empty(x.shape[1])
    row_output = x.new_empty(weight.shape[0])
    for index in range(x.shape[0]):
        row_input.copy_(x[index])
        torch.mv(weight, row_input, out=row_output)
        product[index] = row_output
    return product


@linear_per_row.register_fake
def _shape_of_product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x.new_empty((x.shape[0], weight.shape[0]))
