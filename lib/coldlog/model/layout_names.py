"""List the layouts of an archive: the values of `archive.layout`, and the module that opens each.

The modules are imported when an archive is opened, so that the settings can list the layouts without reading archives.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self


class LayoutName(StrEnum):
    """How an archive names its objects. `module` is in coldlog.archive.layouts and has a function `open_layout`."""

    module: str

    LOCAL_TIERED_STORAGE = "local_tiered_storage", "local_tiered_storage"
    LOG_DIRECTORIES = "log_directories", "log_directories_layout"
    AIVEN = "aiven", "aiven_layout"

    def __new__(cls, name: str, module: str) -> Self:
        """Make a member that is the text `name`."""
        member = str.__new__(cls, name)
        member._value_, member.module = name, module
        return member
