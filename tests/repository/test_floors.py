"""The order of rooms of tvmconv: each imports rooms on its own floor and below, without a circle.

A room is a folder of `tvmconv/` or a file beside them; `schedules/` and `tuning_logs/` are two of them.
"""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

FLOORS = (
    ("problem", "support", "tuning_logs"),
    ("targets",),
    ("compute",),
    ("schedules",),
    ("dispatch", "lowering"),
    ("runtime",),
    ("checking", "network", "nn"),
    ("autotvm",),
    ("bench", "calibration", "contrib", "integrations", "relay", "testing"),
    ("__main__", "cli", "tvmconv"),
)
"""The rooms of each floor, from the ground up: a room may import those on its own floor and below.

The room `tvmconv` is `tvmconv/__init__.py`.
"""

NOT_BETWEEN = ("network", "schedules")
"""A room, and one below it that it does not import."""

DEVICES_UNNAMED = ("problem", "compute", "dispatch", "lowering", "runtime", "network", "nn")
"""The rooms that tell kinds of devices apart by what their `Backend` says, not by name."""

BACKENDS_ASKED = ("problem", "compute", "schedules", "dispatch", "runtime", "nn")
"""The rooms that ask a `Backend` what its kernels can do, not whether they run on a GPU."""

TELLING_APART = ("dispatch/registry.py", "network/passes/__init__.py")
"""The files that list templates by their folder, and passes with the device that they are for."""

Imports = Mapping[str, Sequence[str]]
"""The modules that each module imports, by its name."""

READ = """
import json, sys, grimp
graph = grimp.build_graph(sys.argv[1], cache_dir=None)
print(json.dumps({each: sorted(graph.find_modules_directly_imported_by(each)) for each in sorted(graph.modules)}))
"""


def imports_of(package: str, folder: Path) -> Imports:
    """Return the imports within a package that lies in a folder, with those inside functions and for types."""
    command = [sys.executable, "-c", READ, package]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    imports: Imports = json.loads(done.stdout)
    return imports


def room(module: str, folder: str = "") -> str:
    """Return the file or folder inside `folder`, a prefix that ends in a dot, that a module is in.

    Without a folder it is the whole package. The folder's own `__init__` has the folder's name.
    """
    folder = folder or f"{module.partition('.')[0]}."
    return f"{module}.".removeprefix(folder).partition(".")[0] or folder.rstrip(".")


def climbing(imports: Imports, floors: Sequence[Sequence[str]]) -> list[str]:
    """Return the imports of rooms on a floor above."""
    floor = {name: number for number, names in enumerate(floors) for name in names}
    return [
        f"{module} imports {other}"
        for module, others in imports.items()
        for other in others
        if floor[room(other)] > floor[room(module)]
    ]


def circle(imports: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a circle of imports, from a module to itself; empty where there is none."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def between_rooms(imports: Imports, folder: str = "") -> Imports:
    """Return the imports of one room of a folder, as `room` takes it, by another."""
    rooms: dict[str, set[str]] = {}
    for module, others in imports.items():
        if f"{module}.".startswith(folder):
            inside = {room(other, folder) for other in others if f"{other}.".startswith(folder)}
            rooms.setdefault(room(module, folder), set()).update(inside - {room(module, folder)})
    return {name: sorted(others) for name, others in rooms.items()}


def of_schedules(imports: Imports) -> list[str]:
    """Return the imports of schedules by passes and runtime of networks, which ask dispatch instead."""
    pairs = [(module, other) for module, others in imports.items() for other in others]
    return [f"{module} imports {other}" for module, other in pairs if (room(module), room(other)) == NOT_BETWEEN]


def naming_devices(package: Path, room: str, word: str) -> list[str]:
    """Return the file and line of each attribute of a name, or of each string if the word is in quotes, in a room.

    Folders `gpu/` and the files in `TELLING_APART` may have them.
    """
    files = [path for path in sorted((package / room).rglob("*.py")) if "gpu" not in path.relative_to(package).parts]
    named = []
    for path in files:
        if str(path.relative_to(package)) not in TELLING_APART:
            tree = ast.parse(path.read_text())
            named += [
                f"{path.relative_to(package)}:{node.lineno}"
                for node in ast.walk(tree)
                if (isinstance(node, ast.Constant) and f'"{node.value}"' == word)
                or (isinstance(node, ast.Attribute) and node.attr == word)
            ]
    return named


@pytest.fixture(scope="module")
def imports(tmp_path_factory: pytest.TempPathFactory) -> Imports:
    """Return the imports of tvmconv, with `schedules/` in it as when installed: grimp does not follow its link."""
    folder = tmp_path_factory.mktemp("installed")
    shutil.copytree(ROOT / "tvmconv", folder / "tvmconv", ignore=shutil.ignore_patterns("__pycache__"))
    return imports_of("tvmconv", folder)


def test_every_room_has_one_floor(imports: Imports) -> None:
    assert sorted(name for names in FLOORS for name in names) == sorted(between_rooms(imports))


def test_no_import_climbs(imports: Imports) -> None:
    assert climbing(imports, FLOORS) == []


def test_no_circle(imports: Imports) -> None:
    assert circle(imports) == []
    assert circle(between_rooms(imports)) == []


def test_no_circle_of_the_folders_in_a_folder(imports: Imports) -> None:
    folders = {module.rpartition(".")[0] for module in imports if "." in module}
    assert {name: found for name in folders if (found := circle(between_rooms(imports, f"{name}.")))} == {}


def test_networks_import_no_schedules(imports: Imports) -> None:
    assert of_schedules(imports) == []


def test_kinds_of_devices_are_named_where_they_are_told_apart() -> None:
    assert [name for room in DEVICES_UNNAMED for name in naming_devices(ROOT / "tvmconv", room, '"cuda"')] == []
    assert [name for room in BACKENDS_ASKED for name in naming_devices(ROOT / "tvmconv", room, "on_gpu")] == []


def test_what_ships_does_without_the_room_of_tests(imports: Imports) -> None:
    """Only `tvmconv verify`, which tries random convolutions, uses `tvmconv.testing`."""
    users = {module for module, others in imports.items() if any(room(other) == "testing" for other in others)}
    assert {module for module in users if room(module) != "testing"} == {"tvmconv.cli.verify"}


def test_names_of_devices_and_imports_of_schedules_are_seen(tmp_path: Path) -> None:
    (tmp_path / "network" / "gpu").mkdir(parents=True)
    text = 'kind = "cuda"\nif backend.on_gpu:\n    kind = None\n'
    (tmp_path / "network" / "passes.py").write_text(text)
    (tmp_path / "network" / "gpu" / "passes.py").write_text(text)
    assert naming_devices(tmp_path, "network", "on_gpu") == ["network/passes.py:2"]
    assert naming_devices(tmp_path, "network", '"cuda"') == ["network/passes.py:1"]
    imports = {
        "house.network.passes": ["house.schedules.cuda", "house.dispatch"],
        "house.dispatch": ["house.schedules"],
    }
    assert of_schedules(imports) == ["house.network.passes imports house.schedules.cuda"]


@pytest.mark.parametrize("line", ["from ..roof import tiles", "def late():\n    from ..roof import tiles"])
def test_an_import_that_climbs_is_seen(line: str, tmp_path: Path) -> None:
    files = {
        "__init__": "",
        "ground/__init__": "",
        "ground/floor": line,
        "roof": "from .ground import floor\ntiles = 1",
    }
    for name, text in files.items():
        path = tmp_path / "house" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    imports = imports_of("house", tmp_path)
    assert climbing(imports, [("ground",), ("roof",), ("house",)]) == ["house.ground.floor imports house.roof"]
    assert set(circle(imports)) == {"house.ground.floor", "house.roof"}
    assert set(circle(between_rooms(imports))) == {"ground", "roof"}
