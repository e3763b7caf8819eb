"""What a compilation gives: the compiled graph, and the model that finds the right one by sizes."""

from compile_cli.result.compiled import CompiledGraph, lazy_inputs
from compile_cli.result.model import CompiledModel
from compile_cli.result.recapture import CAPTURING, Source, twin
from compile_cli.result.regimes import Regime
