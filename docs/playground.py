"""For the site, if asked for: a page that audits a file inside the browser, with Python compiled for it (Pyodide).

``ISOLAYER_PLAYGROUND=DIR make docs`` adds ``playground.html``; ``DIR`` is an unpacked release of Pyodide with its
packages, which is copied beside the page. The page then loads nothing from elsewhere but Ibis and what it needs.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def write_playground(site: Path, pyodide: Path) -> Path:
    """The page with the runtime and the wheel of this package beside it."""
    if not (pyodide / "pyodide.mjs").exists():
        raise SystemExit(f"ISOLAYER_PLAYGROUND: expected a folder with Pyodide's pyodide.mjs, got {pyodide}")
    wheel = ("-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", site, ROOT)
    subprocess.run([sys.executable, *map(str, wheel)], check=True)
    (name,) = (path.name for path in site.glob("isolayer-*.whl"))
    shutil.copytree(pyodide, site / "pyodide", dirs_exist_ok=True)
    page = site / "playground.html"
    page.write_text((ROOT / "docs" / "playground.html").read_text().replace("WHEEL", name))
    return page


def on_post_build(config: Any, **_: Any) -> None:
    """What MkDocs calls when the pages are written."""
    folder = os.environ.get("ISOLAYER_PLAYGROUND")
    if folder:
        write_playground(Path(config["site_dir"]), Path(folder))
