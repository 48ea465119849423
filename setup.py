"""What pyproject.toml cannot say: the checkpoints and memories that ship are package data."""

from pathlib import Path

from setuptools import find_packages, setup

_SHIPPED = {f"models.shipped.{folder}": folder for folder in ("checkpoints", "memories")}
# The images install the dependencies before there is any code.
_PRESENT = {package: folder for package, folder in _SHIPPED.items() if Path(folder).is_dir()}

setup(
    packages=[*find_packages(include=["models*", "service*", "training*", "basin*"]), *_PRESENT],
    package_dir=_PRESENT,
    package_data={
        "service.endpoints.page": ["static/**/*"],
        **{package: ["**/*"] for package in _PRESENT},
    },
)
