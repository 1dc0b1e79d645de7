"""Folders of images: each group of images spans one subspace of the space of their pixels."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gramian.errors import InputError

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm"})
DEEP = ("I", "F")  # modes that start so have more than 8 bits: kept as they are, in gray only


def image_paths(root: Path) -> list[Path]:
    """All images in a folder and the folders in it, sorted by their path; hidden ones are passed over."""
    found = []
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [
            Path(folder, name)
            for name in files
            if not name.startswith(".") and PurePosixPath(name).suffix.lower() in SUFFIXES
        ]
    return sorted(found, key=lambda path: path.relative_to(root).parts)


class ImageGroups:
    """Images of one folder tree in groups.

    Parameters
    ----------
    root : Path
    group_by : int, str or None
        A level of the tree (1 is the first below the root): images in the same folder down to that level
        belong together. Or a regular expression that is searched for in the path of each image below the
        root: images with the same captured groups (without any: the same match) belong together. None: the
        folder that the image lies in.
    labels : int, str or None
        A level, whose folder's name is the class; or such an expression.
    gray : bool, optional
        Read as gray, or as colour; None: as the first image is.
    size : (int, int), optional
        Height and width to scale to; else all images must have one size.
    """

    named = True
    dtype = np.dtype(np.float32)

    def __init__(
        self,
        root: Path,
        *,
        group_by: int | str | None = None,
        labels: int | str | None = None,
        gray: bool | None = None,
        size: tuple[int, int] | None = None,
    ) -> None:
        self.where = str(root)
        paths = image_paths(root)
        if not paths:
            raise InputError(
                f"{root} holds no image", f"give a folder with {', '.join(sorted(SUFFIXES))} files"
            )
        self._gray, self._size = gray, size
        first = self._read(paths[0])
        self._shape, self._first = first.shape, paths[0]
        self.n = first.size
        members = _members(paths, root, group_by)
        self.names = list(members)
        self._paths = list(members.values())
        self.sides = {} if labels is None else {"labels": _labels(members, root, labels)}

    def count(self, index: int) -> int:
        """The number of images of a group."""
        return len(self._paths[index])

    def vectors(self, index: int) -> NDArray[Any]:
        """The pixels of the images of a group, an image a column."""
        return np.stack([self._pixels(path) for path in self._paths[index]], axis=1)

    def _pixels(self, path: Path) -> NDArray[np.float64]:
        image = self._read(path)
        if image.shape[2] != self._shape[2]:
            raise InputError(
                f"{path} has {image.shape[2]} colour channel(s), {self._first} has {self._shape[2]}",
                "read all as --gray or all in --color",
            )
        if image.shape != self._shape:
            raise InputError(
                f"{path} has {image.shape[0]} x {image.shape[1]} pixels (height x width), "
                f"{self._first} has {self._shape[0]} x {self._shape[1]}",
                "scale all images with --size HxW",
            )
        return image.reshape(-1).astype(np.float64)

    def _read(self, path: Path) -> NDArray[Any]:
        """One image as (height, width, channels)."""
        from PIL import Image, UnidentifiedImageError

        try:
            with Image.open(path) as file:
                mode = _mode(file, self._gray, path)
                image = file if mode is None else file.convert(mode)
                pixels = np.asarray(image if self._size is None else image.resize(self._size[::-1]))
        except (UnidentifiedImageError, OSError, SyntaxError, Image.DecompressionBombError) as error:
            raise InputError(
                f"{path} cannot be read as an image: {_line(error)}", "mend or remove the file"
            ) from error
        return pixels[..., None] if pixels.ndim == 2 else pixels


def _line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _mode(image: Any, gray: bool | None, path: Path) -> str | None:
    """The mode to convert to, None to keep the pixels as they are."""
    deep = image.mode.startswith(DEEP)
    if gray is None:
        gray = deep or image.mode in ("1", "L", "LA")
    if deep and not gray:
        raise InputError(f"{path} has mode {image.mode}, without colours", "read the images as --gray")
    if deep:
        return None
    return "L" if gray else "RGB"


def _members(paths: Sequence[Path], root: Path, group_by: int | str | None) -> dict[str, list[Path]]:
    members: dict[str, list[Path]] = {}
    for path in paths:
        inside = path.relative_to(root)
        group = (
            inside.parent.as_posix()
            if group_by is None
            else _key(inside, group_by, root, "--group-by", whole=True)
        )
        members.setdefault(group, []).append(path)
    return dict(sorted(members.items()))


def _labels(members: dict[str, list[Path]], root: Path, labels: int | str) -> NDArray[Any]:
    found = []
    for name, paths in members.items():
        classes = sorted({_key(path.relative_to(root), labels, root, "--labels") for path in paths})
        if len(classes) > 1:
            raise InputError(
                f"group {name!r} of {root} has images of the classes {', '.join(classes[:3])}",
                "group by a level that lies within the classes",
            )
        found.append(classes[0])
    return np.array(found, dtype=np.str_)


def _key(inside: Path, rule: int | str, root: Path, option: str, *, whole: bool = False) -> str:
    """What a level or a pattern makes of a path below the root; ``whole``: the folders above too."""
    if isinstance(rule, int) or rule.isdigit():
        return _at_level(inside, int(rule), root, option, whole=whole)
    try:
        match = re.search(rule, inside.as_posix())
    except re.error as error:
        raise InputError(
            f"{option} is {rule!r}, no regular expression: {error}", "give a level of folders or a pattern"
        ) from error
    if match is None:
        raise InputError(
            f"{option} {rule!r} does not match {inside.as_posix()}", "give a pattern that matches every image"
        )
    return "/".join(part or "" for part in match.groups()) if match.groups() else match.group()


def _at_level(inside: Path, level: int, root: Path, option: str, *, whole: bool) -> str:
    folders = inside.parent.parts
    if not 1 <= level <= len(folders):
        raise InputError(
            f"{option} is level {level}, {inside.as_posix()} lies {len(folders)} folder(s) below {root}",
            "give a level that every image has, counted from 1",
        )
    return "/".join(folders[:level]) if whole else folders[level - 1]
