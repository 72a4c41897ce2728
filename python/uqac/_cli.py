"""The `uqac` command of an installed package."""

import signal
import sys

from . import _uqac


def main() -> int:
    """Runs the command line of this process, and returns the exit code."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Python's handler would only run once the engine returns
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _uqac.main(sys.argv)
