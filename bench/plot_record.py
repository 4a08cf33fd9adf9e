"""What the plot_*.py programs share: a record and a folder from the command line."""

import json
import os
import sys


def main(usage: str, draw) -> int:
    """draw(record, folder) writes pictures into the folder, which is made if it is not there. Exit code: 3 bad usage."""
    if len(sys.argv) != 3:
        print(usage, file=sys.stderr)
        return 3
    with open(sys.argv[1], encoding="utf-8") as file:
        record = json.load(file)
    os.makedirs(sys.argv[2], exist_ok=True)
    draw(record, sys.argv[2])
    return 0
