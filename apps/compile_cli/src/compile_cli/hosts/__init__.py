"""The host program as something to call: through torch.fx, a C++ library or CUDA graphs."""

from compile_cli.hosts.build import build_program, finished_run
from compile_cli.hosts.cuda_graphs import mutated_inputs, partition
from compile_cli.hosts.inputs import (
    LazyInput,
    Prepared,
    Runner,
    align_inputs,
    aligned_run,
    backward_run,
    boxed,
    in_memory_run,
)
from compile_cli.hosts.nan_asserts import ASSERT_FINITE, OPERATORS
from compile_cli.hosts.outside import Outside
