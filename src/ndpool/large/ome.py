"""Multiscale images as OME-Zarr describes them: version 0.4 in zarr's format 2, version 0.5 in format 3.

Level 0 has a scale, the distance between neighbours along each axis, and perhaps a translation, where the first one is.
Position o of a level whose windows of f positions tile the level above is the middle of these: it lies at

    translation + scale (f - 1) / 2 + f scale o
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zarr
from zarr.storage import LocalStore

VERSIONS = {2: "0.4", 3: "0.5"}
TYPES = {"t": "time", "time": "time", "c": "channel", "channel": "channel", "z": "space", "y": "space", "x": "space"}
CARRIED = ("omero", "image-label")  # what else a group says of an image that its levels do not change


@dataclass(frozen=True)
class Image:
    """What is known of level 0: its axes, as OME has them, where its positions lie, and what else its group says."""

    axes: tuple[dict[str, Any], ...]
    scale: tuple[float, ...]
    translation: tuple[float, ...]
    name: str
    carried: dict[str, Any] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(axis["name"] for axis in self.axes)

    @property
    def in_space(self) -> tuple[int, ...]:
        """The axes of space, which a pyramid pools unless it is told which."""
        return tuple(a for a, axis in enumerate(self.axes) if axis.get("type") == "space")


def plain(names: Sequence[str], name: str) -> Image:
    """An image of which nothing but the names of its axes is known."""
    axes = tuple({"name": one, "type": TYPES.get(one, "space")} for one in names)
    return Image(axes, (1.0,) * len(axes), (0.0,) * len(axes), name)


def image_of(path: str | None) -> Image | None:
    """What the group around an array says of it, if it is the first level of an image."""
    group = Path(path).parent if path else None
    attributes = _attributes(group) if group else {}
    ome = attributes.get("ome", attributes)
    for scales in ome.get("multiscales", []) if group and path else []:
        first = next(iter(scales.get("datasets", [])), None)
        if first is None or (group / first["path"]).resolve() != Path(path).resolve():  # type: ignore[arg-type]
            continue
        axes = tuple(_axis(axis) for axis in scales.get("axes", []))
        moves = {m["type"]: m for m in (*first.get("coordinateTransformations", []),)}
        whole = {m["type"]: m for m in scales.get("coordinateTransformations", [])}
        if not axes or "path" in moves.get("scale", {}):
            return None
        scale = tuple(map(float, moves.get("scale", {}).get("scale", [1.0] * len(axes))))
        translation = tuple(map(float, moves.get("translation", {}).get("translation", [0.0] * len(axes))))
        carried = {key: ome[key] for key in CARRIED if key in ome}
        if whole:
            carried["coordinateTransformations"] = scales["coordinateTransformations"]
        return Image(axes, scale, translation, str(scales.get("name", group.name if group else "")), carried)
    return None


def _axis(axis: Any) -> dict[str, Any]:
    """An axis as version 0.4 has it; 0.3 had its name alone."""
    return dict(axis) if isinstance(axis, dict) else {"name": str(axis), "type": TYPES.get(str(axis), "space")}


def _attributes(group: Path) -> dict[str, Any]:
    for file, key in (("zarr.json", "attributes"), (".zattrs", None)):
        if (group / file).is_file():
            found = json.loads((group / file).read_text())
            return dict(found.get(key, {}) if key else found)
    return {}


def is_group(path: Path) -> bool:
    """Whether zarr has a group there."""
    if (path / ".zgroup").is_file():
        return True
    file = path / "zarr.json"
    return file.is_file() and json.loads(file.read_text()).get("node_type") == "group"


def format_at(path: Path) -> int:
    """The format of zarr's that a group or array has."""
    return 3 if (path / "zarr.json").is_file() else 2


def multiscales(
    image: Image, names: Sequence[str], factors: Sequence[Sequence[int]], method: str, zarr_format: int
) -> dict[str, Any]:
    """The attributes of a group whose levels have these names; `factors` says by how much each is smaller than the one
    before, level 0 by 1."""
    scale, translation, datasets = image.scale, image.translation, []
    for name, by in zip(names, factors, strict=True):
        translation = tuple(t + s * (f - 1) / 2 for t, s, f in zip(translation, scale, by, strict=True))
        scale = tuple(s * f for s, f in zip(scale, by, strict=True))
        moves: list[dict[str, Any]] = [{"type": "scale", "scale": list(scale)}]
        if any(translation):
            moves.append({"type": "translation", "translation": list(translation)})
        datasets.append({"path": name, "coordinateTransformations": moves})
    carried = dict(image.carried)
    found = {"name": image.name, "axes": list(image.axes), "datasets": datasets, "type": method}
    if "coordinateTransformations" in carried:
        found["coordinateTransformations"] = carried.pop("coordinateTransformations")
    if zarr_format == 2:
        return {**carried, "multiscales": [{"version": VERSIONS[2], **found}]}
    return {"ome": {"version": VERSIONS[3], **carried, "multiscales": [found]}}


def create_group(path: Path, zarr_format: int) -> None:
    """A new, empty group."""
    zarr.create_group(LocalStore(path), zarr_format=zarr_format)


def describe(path: Path, attributes: dict[str, Any]) -> None:
    """Put attributes into those of a group, which keeps its others."""
    group = zarr.open_group(LocalStore(path), mode="r+")
    kept = {**dict(group.attrs).get("ome", {}), **attributes["ome"]} if "ome" in attributes else None
    group.attrs.update({"ome": kept} if kept else attributes)
