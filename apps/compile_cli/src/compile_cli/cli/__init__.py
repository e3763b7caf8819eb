"""The command line: `compile-cli run | dump | explain | doctor`."""

from compile_cli.cli.app import main
