"""`gibbsian report`: the page of a run."""

import argparse
from pathlib import Path

from gibbsian.app.cli.show import Output
from gibbsian.app.cli.train import judge


def run(options: argparse.Namespace, rest: list[str]) -> int:
    """Write the report; judge the model first where that has not been done."""
    return judge(Output(options), Path(options.run), fresh=options.fresh)
