"""Settings of the page: what it may read, where it writes, and its limits."""

import ipaddress
import os
import re
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ttdg.errors import UserError
from ttdg.newsite.inputs import PIXELS, is_image_name

TOKEN = re.compile(r"[!#-+\--:<-\[\]-~]*")  # what the value of a cookie may hold
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class PageSettings:
    """Everything that the command decides. Nothing of it can be changed from a browser."""

    work: Path  # folder of the sites
    models: tuple[str, ...] = ("demo",)  # checkpoint folders, or names of embedded models
    folders: tuple[Path, ...] = ()  # image folders may be named below these folders
    runs: tuple[Path, ...] = ()  # folders of benchmark runs
    host: str = "127.0.0.1"
    port: int = 8020
    names: tuple[str, ...] = ()  # further host names by which the server may be called
    token: str = field(default="", repr=False)  # asked for if not empty
    device: str = "auto"
    most_bytes: int = 200_000_000  # of one uploaded file
    most_files: int = 5_000  # uploaded files of one site
    most_pixels: int = PIXELS

    def __post_init__(self) -> None:
        if self.host not in LOOPBACK and not self.token:
            raise UserError(f"a page on {self.host} can be reached by others; give it a token")
        if not TOKEN.fullmatch(self.token):
            raise UserError(
                "the token holds letters that no cookie can hold; make one of ASCII letters, digits and signs other "
                'than " , ; and \\'
            )

    def allows_host(self, header: str) -> bool:
        """Return whether a Host header names this server, so that no foreign name is resolved to it."""
        name = _host_name(header)
        if name in (*LOOPBACK, self.host.lower(), *(other.lower() for other in self.names)):
            return True
        return self.host in ("0.0.0.0", "::") and _is_address(name)

    def known_folders(self, most: int = 40, looks: int = 400) -> list[str]:
        """Return folders below `folders` that hold images, to choose from; at most `looks` folders are searched."""
        found, waiting = list[str](), deque(self.folders)
        while waiting and len(found) < most and (looks := looks - 1) >= 0:
            folder = waiting.popleft()
            with suppress(OSError), os.scandir(folder) as entries:
                inside = sorted(entries, key=lambda entry: entry.name)
                if folder.name != "masks" and any(is_image_name(e.name) for e in inside):
                    found.append(str(folder))
                waiting += [
                    Path(e.path)
                    for e in inside
                    if e.is_dir(follow_symlinks=False) and not e.name.startswith(".")
                ]
        return found

    def image_folder(self, text: str) -> Path:
        """Return the folder that a user named; it must be below one of `folders`."""
        try:
            path = Path(text).expanduser().resolve(strict=True)
        except (OSError, RuntimeError, ValueError):
            path = None
        if path is None or not any(path.is_relative_to(folder.resolve()) for folder in self.folders):
            allowed = ", ".join(map(str, self.folders)) or "none"
            raise UserError(f"there is no such folder below the folders that this page may read ({allowed})")
        if not path.is_dir():
            raise UserError("this is a file; name the folder that holds it")
        return path


def _host_name(header: str) -> str:
    """Return a Host header without its port, in lower case; an IPv6 address loses its brackets."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.rpartition(":")[0].lower() if ":" in header else header.lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
