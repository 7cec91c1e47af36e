"""The package as it is shipped."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from server import REPOSITORY

PACKAGE = REPOSITORY / "clients/python"


def test_the_package_installs_without_a_network_and_works_from_there(tmp_path: Path) -> None:
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--target", str(tmp_path), str(PACKAGE)]
    subprocess.run(install, check=True)
    script = "import pgonce, pgonce.aio, pgonce.http, pgonce.webhooks; print(pgonce.__file__, pgonce.classify('40001').value)"
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert ran.stdout.split() == [str(tmp_path / "pgonce/__init__.py"), "retry"], ran.stderr
    assert (tmp_path / "pgonce/py.typed").exists()


def test_the_version_is_that_of_the_workspace() -> None:
    def version(path: Path) -> str:
        found = re.search(r'^version = "(.*)"$', path.read_text("utf-8"), re.M)
        assert found is not None
        return found[1]

    assert version(PACKAGE / "pyproject.toml") == version(REPOSITORY / "Cargo.toml")
