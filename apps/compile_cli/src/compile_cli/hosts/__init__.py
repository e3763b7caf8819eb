"""The host program as something to call: through torch.fx, a C++ library or CUDA graphs."""

from compile_cli.hosts.cuda_graphs import graphed
from compile_cli.hosts.emitters import EMITTERS, Host
from compile_cli.hosts.nan_asserts import ASSERT_FINITE, OPERATORS

__all__ = ["ASSERT_FINITE", "EMITTERS", "OPERATORS", "Host", "graphed"]
