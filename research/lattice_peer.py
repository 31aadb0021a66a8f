"""pytorch-lattice, the other implementation of lattices, in an environment of its own.

It needs numpy below 2, which nothing else here can use any more. ``make lattice`` installs it in ``.venv-lattice``; the
study hands its rows over in a file and reads the logits from another.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isolayer.errors import MissingExtra

ROOT = Path(__file__).parents[1]
WORKER = "research.lattice_worker"  # what its interpreter runs


def interpreter() -> Path:
    """The Python of the environment that has pytorch-lattice: ``$ISOLAYER_LATTICE``, or else that of ``make lattice``.

    >>> os.environ["ISOLAYER_LATTICE"] = "a folder nobody has/python"
    >>> interpreter()
    Traceback (most recent call last):
        ...
    isolayer.errors.MissingExtra: pytorch-lattice needs an environment of its own, with numpy below 2: make lattice
    >>> del os.environ["ISOLAYER_LATTICE"]
    """
    path = Path(os.environ.get("ISOLAYER_LATTICE", ROOT / ".venv-lattice" / "bin" / "python"))
    if not path.exists():
        raise MissingExtra("pytorch-lattice needs an environment of its own, with numpy below 2: make lattice")
    return path


def logits(questions: Sequence[Mapping[str, Any]]) -> list[NDArray[np.float64]]:
    """What tuned lattices of the library say, one per question; see `research.lattice_worker` for what is given."""
    worker = ROOT.joinpath(*WORKER.split(".")).with_suffix(".py")
    with TemporaryDirectory() as folder:
        files = [(Path(folder, f"given{at}.npz"), Path(folder, f"answer{at}.npz")) for at in range(len(questions))]
        for (given, _), question in zip(files, questions, strict=True):
            np.savez(given, **question)
        command = [
            str(part) for part in (interpreter(), "-I", worker, *(path for pair in files for path in pair))
        ]  # isolated from this project's paths
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"pytorch-lattice failed:\n{done.stderr}")
        return [np.load(answer)["logit"] for _, answer in files]
