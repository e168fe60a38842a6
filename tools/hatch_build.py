"""Hatchling's hook: a wheel carries the native library, with every instruction set of its architecture."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import platform_tags


class NativeLibrary(BuildHookInterface[Any]):
    """Compiles headway/native/source; where that cannot be the wheel is pure, and its users' compilers serve."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Adds the library to a wheel. An editable install has none: it builds in its cache when first used."""
        if version == "editable":
            return
        sys.path.insert(0, self.root)
        from headway.native import build

        self.folder = tempfile.TemporaryDirectory()
        try:
            made = build.compile_library(build.compiler(), Path(self.folder.name), build.all_sets())
        except build.BuildError as error:
            self.app.display_warning(f"headway: a wheel without native library, for any platform: {error}")
            return
        shipped = build.shipped_path().relative_to(Path(self.root).resolve())
        build_data["force_include"][str(made)] = shipped.as_posix()
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform()}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Removes what was compiled, once it is in the wheel."""
        if version != "editable":
            self.folder.cleanup()


def platform() -> str:
    """This machine as wheels name it; a promise about older C libraries (manylinux) is auditwheel's to make."""
    return next(tag for tag in platform_tags() if not tag.startswith(("manylinux", "musllinux")))
