"""The list of packages: pyproject.toml has no pattern for those that lie beside `tvmconv/` and are installed in it."""

from setuptools import find_packages, setup

FOLDERS = {"tvmconv": "tvmconv", "tvmconv.schedules": "schedules", "tvmconv.tuning_logs": "tuning_logs"}

setup(
    package_dir=FOLDERS,
    packages=[
        name
        for package, folder in FOLDERS.items()
        for name in (package, *(f"{package}.{inner}" for inner in find_packages(folder, exclude=["schedules*"])))
    ],
)
