"""The entry point of worker processes: `python -m triton_rt.worker MODULE PID`.

`MODULE.open_handler()` gives the function that answers requests. The module is imported here, and
not before: what it prints as it is imported must not come between the answers."""

import importlib
import signal
import sys

from triton_rt.worker_process import serve

if __name__ == "__main__":
    # An interrupt of the terminal is for the process that asks, which ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(lambda: importlib.import_module(sys.argv[1]).open_handler(), int(sys.argv[2]))
