"""Builds the package with nothing but Python itself (PEP 517, PEP 660)."""

from __future__ import annotations

import base64
import hashlib
import io
import re
import tarfile
import zipfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# Archives must not depend on when they were made.
EPOCH = (2026, 1, 1, 0, 0, 0)


def field(name: str) -> str:
    """A text of the project table, which is all that we need of TOML."""
    found = re.search(rf'^{name} = "(.*)"$', (ROOT / "pyproject.toml").read_text("utf-8"), re.M)
    if found is None:
        raise SystemExit(f"pyproject.toml has no {name}")
    return found[1]


def extras() -> str:
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    section = text.partition("[project.optional-dependencies]\n")[2].partition("\n[")[0]
    found = re.findall(r'^(\w+) = \["([^"]+)"\]$', section, re.M)
    return "".join(f"Provides-Extra: {name}\nRequires-Dist: {needs}; extra == '{name}'\n" for name, needs in found)


def metadata() -> bytes:
    head = (
        f"Metadata-Version: 2.1\nName: {field('name')}\nVersion: {field('version')}\n"
        f"Summary: {field('description')}\nLicense: {field('license')}\n"
        f"Requires-Python: {field('requires-python')}\n{extras()}Description-Content-Type: text/markdown\n\n"
    )
    return head.encode("utf-8") + (ROOT / "README.md").read_bytes()


def package() -> dict[str, bytes]:
    source = ROOT / "src"
    files = sorted(path for path in source.rglob("*") if path.suffix in (".py", ".json", ".typed"))
    return {path.relative_to(source).as_posix(): path.read_bytes() for path in files}


def write_wheel(folder: str, files: dict[str, bytes]) -> str:
    stem = f"{field('name')}-{field('version')}"
    info = f"{stem}.dist-info"
    wheel = b"Wheel-Version: 1.0\nGenerator: pgonce\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files = {**files, f"{info}/METADATA": metadata(), f"{info}/WHEEL": wheel}
    lines = []
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(data)}\n")
    files[f"{info}/RECORD"] = ("".join(lines) + f"{info}/RECORD,,\n").encode()
    target = f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(Path(folder) / target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED)
    return target


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: Any = None) -> str:
    return write_wheel(wheel_directory, package())


def build_editable(wheel_directory: str, config_settings: Any = None, metadata_directory: Any = None) -> str:
    return write_wheel(wheel_directory, {"pgonce.pth": f"{ROOT / 'src'}\n".encode()})


def build_sdist(sdist_directory: str, config_settings: Any = None) -> str:
    stem = f"{field('name')}-{field('version')}"
    files = {f"src/{name}": data for name, data in package().items()}
    for name in ("pyproject.toml", "README.md", "scripts/build_backend.py"):
        files[name] = (ROOT / name).read_bytes()
    files["PKG-INFO"] = metadata()
    with tarfile.open(Path(sdist_directory) / f"{stem}.tar.gz", "w:gz") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(f"{stem}/{name}")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return f"{stem}.tar.gz"
