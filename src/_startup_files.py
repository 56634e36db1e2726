"""Build step named in setup.cfg: puts the start-up file at the root of site-packages. Not installed itself.

setuptools leaves ``data_files`` and package data out of editable wheels, so only a ``build_py`` serves them all:
``pip install .``, ``pip install -e .`` and their uv counterparts, each with a RECORD that uninstalling goes by.
"""

from __future__ import annotations

from setuptools import find_packages
from setuptools.command.build_py import build_py as _build_py

STARTUP_FILE = "xpu_sitecustomize/xpu_sitecustomize.pth"


class build_py(_build_py):  # noqa: N801, setuptools goes by the command's name
    def finalize_options(self) -> None:
        super().finalize_options()
        # two roots, which `packages = find:` can't express
        for package in tuple(self.packages):
            self.packages += [f"{package}.{sub}" for sub in find_packages(self.get_package_dir(package))]

    def run(self) -> None:
        super().run()
        # an editable wheel is unpacked from install_lib, any other from build_lib
        root = self.get_finalized_command("install").install_lib if self.editable_mode else self.build_lib
        self.mkpath(root)
        self.copy_file(STARTUP_FILE, root)

    def get_source_files(self) -> list[str]:
        return [*super().get_source_files(), "src/_startup_files.py"]  # what an sdist needs to be built from
