"""What fusion may do."""

from dataclasses import dataclass


@dataclass(frozen=True)
class FuseOptions:
    """vertical: producer with consumer. horizontal: kernels that read the same tensor.
    inline: compute a pointwise producer where it is loaded at other points (broadcast,
    transposed). epilogue: move pointwise kernels into matmuls whose result they read. prologue:
    those that make an operand, likewise, if they cost at most `max_prologue` operations an element
    (a function such as `exp` counts as eight). drop_round_casts: keep f32 where
    eager rounds to bf16 or f16 between the fused operations. launch_bytes: what one kernel less
    is worth, in bytes of traffic (1 MiB is a fifth of a microsecond at 4.8 TB/s).
    split: share long reductions between programs where rows are few.
    max_statements, max_buffers: limits of one kernel."""

    vertical: bool = True
    horizontal: bool = True
    inline: bool = True
    epilogue: bool = False
    prologue: bool = False
    drop_round_casts: bool = True
    launch_bytes: int = 1 << 20
    max_prologue: int = 40
    split: bool = True
    max_statements: int = 600
    max_buffers: int = 40
