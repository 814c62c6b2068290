"""The commands that pages show, run on a CPU one after another, in a folder with the files that they read.

    python -m tests.page_commands

Commands that need a GPU or another machine, or that take more than a minute or two, are left out, and listed with the
reason.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.shared.pages import snippets

ROOT = Path(__file__).parents[1]
PAGES = (
    *("README.md", "docs/networks.md", "docs/choosing.md", "docs/tuning.md", "docs/deploying.md", "docs/sparse.md"),
    *("docs/training.md", "docs/estimates.md", "docs/benchmarks.md", "CONTRIBUTING.md"),
)
"""The pages with commands, in an order in which logs and models are written before they are read."""

LEFT_OUT = {
    r"--target cuda(?!.*(--serial-twin|--dry-run))|gradients\.py|sequences\.py|training\.py": "needs a GPU",
    r"rpc": "needs another machine",
    r"aarch64": "needs a cross compiler, and QEMU",
    r"bfloat16": "needs AVX512_BF16 or AMX",
    r"COMMIT|SUITE|BATCH|\$WORKLOAD": "has a word for something of the reader's",
    r"-o schedules/|calibrate": "replaces rates",
    r"sparse\.jsonl": "reads a log that was tuned on a GPU",
    r"bench |--count \d{2,}|--time-budget|python benchmarks/(?!fit)": "takes minutes to hours",
}
"""The reasons for which commands are left out, by expressions for them; the first that matches is told."""

SECONDS = 600
"""The time after which a command is ended, and has failed."""

LOGS = ("LOG", "A", "B")
"""The names of a reader's logs, copies of the one that the README has tuned."""


class Command(NamedTuple):
    """A command of a page, as a shell takes it."""

    page: str
    text: str

    @property
    def why_not(self) -> str | None:
        """The reason for which it is left out, or None."""
        return next((reason for pattern, reason in LEFT_OUT.items() if re.search(pattern, self.text)), None)


def commands() -> Iterator[Command]:
    """Yield the commands of all pages, in order: lines of blocks that begin with `tvmconv` or `python`."""
    for page in PAGES:
        text = re.sub(r"\\\n\s*", " ", (ROOT / page).read_text())
        blocks = re.findall(r"^```(\w*)\n(.*?)^```|^((?:    [^\n]*\n)+)", text, re.MULTILINE | re.DOTALL)
        shown = "".join(fenced + indented for language, fenced, indented in blocks if language in ("", "sh"))
        for line in shown.splitlines():
            found = re.fullmatch(r" *(?:\$ )?((?:time |[A-Z_]+=\S+ )*(?:tvmconv|python) .+?)(?:\s+#.*)?", line)
            if found and found[1].count('"') % 2 == 0:
                yield Command(page, found[1])


def prepare(folder: Path) -> None:
    """Write the models and samples that the commands read into a folder, and link the folders of scripts into it."""
    import numpy as np
    import onnx

    from tests.shared.network_graph import Graph

    for name in ("benchmarks", "examples", "tuning_logs"):
        (folder / name).symlink_to(ROOT / name)
    graph = Graph((1, 4, 8, 8))
    second = graph.conv(graph.conv("x", (8, 4, 3, 3)), (8, 8, 1, 1))
    onnx.save(graph.model(graph.conv(second, (8, 1, 3, 3), group=8)), folder / "model.onnx")
    (snippet, *_) = snippets((ROOT / "docs/networks.md").read_text())
    subprocess.run([sys.executable, "-c", snippet], cwd=folder, check=True, capture_output=True)
    np.savez(folder / "samples.npz", x=np.random.default_rng(0).random((2, 3, 224, 224), "float32"))


def run(command: Command, folder: Path) -> str | None:
    """Run a command in a folder; return the end of its output where it fails, or None."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    for name in LOGS:
        if (folder / "tuned.jsonl").exists():
            shutil.copy(folder / "tuned.jsonl", folder / name)
    try:
        shell = ["bash", "-c", command.text]
        done = subprocess.run(
            shell, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"it takes more than {SECONDS} s"
    return None if done.returncode == 0 else f"exit code {done.returncode}: {(done.stdout + done.stderr)[-600:]}"


def main() -> int:
    failed = False
    with tempfile.TemporaryDirectory() as name:
        prepare(Path(name))
        for command in dict.fromkeys(commands()):
            begun = time.monotonic()
            if command.why_not is not None:
                said = f"left out: {command.why_not}"
            elif (failure := run(command, Path(name))) is not None:
                said, failed = f"FAILED: {failure}", True
            else:
                said = f"right in {time.monotonic() - begun:.0f} s"
            print(f"{command.page}: {command.text}: {said}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
