"""Statistics of two runs, a file a step, with the activations of both in the same order.

python -m onnxtrain.utils.hooks.merge_activation_summary --pt_dir torch-run --ort_dir other-run
    --output_dir compared [--overwrite]

Both folders are what ``StatisticsSubscriber`` wrote. Runs compute in different orders; that of the
first run holds for both, so that two files can be compared line by line.
"""

from __future__ import annotations

import argparse
import logging
import pathlib
import shutil
from collections.abc import Sequence

from onnxtrain.errors import OptionError, SaveError
from onnxtrain.utils.hooks._statistics_subscriber import ORDER


def merge(
    first: pathlib.Path, second: pathlib.Path, output: pathlib.Path, overwrite: bool = False
) -> list[pathlib.Path]:
    """Write ``merge_pt`` and ``merge_ort`` with a file a step; returns what a run did not have.

    Raises:
        OptionError: if a folder has no steps, lies where the output is to be, or the first one does
            not know the order.
        SaveError: if the output exists and may not be overwritten.
    """
    runs = {"merge_pt": _steps(first), "merge_ort": _steps(second)}
    order = next((step / ORDER for step in runs["merge_pt"] if (step / ORDER).exists()), None)
    if order is None:
        raise OptionError(f"no step in '{first}' has '{ORDER}', which StatisticsSubscriber writes")
    names, missing = order.read_text().split("\n")[:-1], list[pathlib.Path]()
    for run in (first, second):
        if run.resolve().is_relative_to(output.resolve()):
            raise OptionError(f"'{output}' has the run '{run}' in it\n  write somewhere else")
    if output.exists() and not overwrite:
        raise SaveError(f"folder '{output}' exists\n  give another one, or --overwrite")
    if output.exists():
        shutil.rmtree(output)
    for kind, steps in runs.items():
        folder = output / kind
        folder.mkdir(parents=True)
        for step in steps:
            found = [step / name for name in names]
            missing += [path for path in found if not path.exists()]
            text = [path.read_text() for path in found if path.exists()]
            (folder / f"{step.name}_.txt").write_text("".join(f"{one}\n" for one in text))
    return missing


def _steps(folder: pathlib.Path) -> list[pathlib.Path]:
    """Folders of steps, in the order of their numbers."""
    found = [path for path in folder.glob("step_*") if path.is_dir()]
    if not found:
        raise OptionError(f"'{folder}' has no folders of steps, which StatisticsSubscriber writes")
    return sorted(found, key=lambda path: (len(path.name), path.name))


def main(arguments: Sequence[str] | None = None) -> None:
    """The command; it warns of activations that a run does not have."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pt_dir", type=pathlib.Path, required=True, help="the first run")
    parser.add_argument("--ort_dir", type=pathlib.Path, required=True, help="the second run")
    parser.add_argument("--output_dir", type=pathlib.Path, required=True, help="where to write")
    parser.add_argument("--overwrite", action="store_true", help="even if something is there")
    given = parser.parse_args(arguments)
    for path in merge(given.pt_dir, given.ort_dir, given.output_dir, given.overwrite):
        logging.getLogger(__name__).warning("there is no '%s'", path)


if __name__ == "__main__":
    main()
