"""Kernels cut into stages, so that more programs share the work of few or long rows."""

from loop_ir.splitting.crowds import beside
from loop_ir.splitting.online_softmax import pair_softmax
from loop_ir.splitting.row_pieces import in_pieces, row_of_pieces
