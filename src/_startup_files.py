"""Build step named in setup.cfg: puts the start-up files at the root of site-packages. Not installed itself.

setuptools leaves ``data_files`` and package data out of editable wheels, so only a ``build_py`` serves them all:
``pip install .``, ``pip install -e .`` and their uv counterparts, each with a RECORD that uninstalling goes by.
"""

from __future__ import annotations

import importlib.util
import py_compile
from pathlib import Path

from setuptools import find_packages
from setuptools.command.build_py import build_py as _build_py

STARTUP = Path("xpu_sitecustomize/startup")


class build_py(_build_py):  # noqa: N801, setuptools goes by the command's name
    def finalize_options(self) -> None:
        super().finalize_options()
        # two roots, which `packages = find:` can't express
        for package in tuple(self.packages):
            self.packages += [f"{package}.{sub}" for sub in find_packages(self.get_package_dir(package))]

    def run(self) -> None:
        super().run()
        # an editable wheel is unpacked from install_lib, any other from build_lib
        root = Path(self.get_finalized_command("install").install_lib if self.editable_mode else self.build_lib)
        self.mkpath(str(root))
        self.copy_file(str(STARTUP / "xpu_sitecustomize.pth"), str(root))
        self.copy_file(str(STARTUP / "_xpu_sitecustomize.py"), str(root))
        # uv and many images compile nothing; to compile even an empty module costs each start 11 M instructions
        module = root / "_xpu_sitecustomize.py"
        py_compile.compile(
            str(module),
            importlib.util.cache_from_source(str(module)),
            dfile=module.name,
            doraise=True,
            invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH,
        )

    def get_source_files(self) -> list[str]:
        return [*super().get_source_files(), "src/_startup_files.py"]  # what an sdist needs to be built from
