"""Where the shipped data lies: the repository's ``data/`` first, then the copy inside the package."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from twellviz.errors import ConfigError, TwellvizError

PACKAGED = Path(__file__).resolve().parents[1] / "_data"
REPOSITORY = Path(__file__).resolve().parents[2]


class DataNotFoundError(TwellvizError, FileNotFoundError):
    """A file of the shipped data is in neither place."""

    # FileNotFoundError prints an errno pair; this error has a sentence.
    __str__ = ValueError.__str__


def data_path(name: str) -> Path:
    """Path of a file or folder of the shipped data.

    Parameters
    ----------
    name : str
        Relative to ``data/``, with forward slashes: ``"nano/model.safetensors"``.

    Returns
    -------
    Path
        In a checkout the repository's file, in an installed package the packaged one.

    Raises
    ------
    DataNotFoundError
        Also a ``FileNotFoundError``; names both places.
    ConfigError
        ``name`` is empty, absolute, or leaves the folder.
    """
    parts = PurePosixPath(name).parts
    if not parts or PurePosixPath(name).is_absolute() or ".." in parts:
        raise ConfigError(f"name={name!r}: give a path inside data/, such as 'nano/model.safetensors'")
    in_repository, in_package = REPOSITORY.joinpath("data", *parts), PACKAGED.joinpath(*parts)
    # Beside an installed package, a folder called data/ would be somebody else's.
    if (REPOSITORY / "pyproject.toml").is_file() and in_repository.exists():
        return in_repository
    if in_package.exists():
        return in_package
    raise DataNotFoundError(
        f"data {name!r} is neither at {in_repository} (a checkout) nor at {in_package} (an installed package): "
        "the wheel holds the nano set only, the rest is in the repository"
    )
