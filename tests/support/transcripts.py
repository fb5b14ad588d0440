"""Transcripts: commands and the state that they lead to, in text files that read as documentation.

In the manner of etcd's ``raft/testdata``: a block is commands, a line ``----`` and what the core
under test shows then; lines that begin with ``#`` tell what is seen. The first word of a command
names a method of the file's interpreter, the rest are its arguments, ``name=value`` or plain.
``--rewrite-transcripts`` writes what is shown now; read the diff before it is committed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

SEPARATOR = "----"


@dataclass(frozen=True, slots=True)
class Block:
    """A paragraph of a transcript; one without commands is a comment."""

    comment: tuple[str, ...]
    commands: tuple[str, ...]
    shown: tuple[str, ...]

    def lines(self) -> Iterable[str]:
        """Return the lines of the block, as they stand in the file."""
        yield from self.comment
        if self.commands:
            yield from (*self.commands, SEPARATOR, *self.shown)


def parse(text: str) -> list[Block]:
    """Return the blocks of a transcript; a block without ``----`` has an empty answer."""
    blocks = []
    for paragraph in text.strip().split("\n\n"):
        lines = paragraph.splitlines()
        comment = tuple(line for line in lines if line.startswith("#"))
        rest = [line for line in lines if not line.startswith("#")]
        at = rest.index(SEPARATOR) if SEPARATOR in rest else len(rest)
        blocks.append(Block(comment, tuple(rest[:at]), tuple(rest[at + 1 :])))
    return blocks


class Interpreter:
    """The commands of one kind of transcript: public methods that return lines, or nothing."""

    def state(self) -> Iterable[str]:
        """Return the lines that show the state after each block."""
        raise NotImplementedError

    def run(self, block: Block) -> Block:
        """Carry out a block's commands; return the block as it is shown now."""
        if not block.commands:
            return block
        shown: list[str] = []
        for command in block.commands:
            name, *words = command.split()
            named = dict(word.split("=", 1) for word in words if "=" in word)
            plain = [word for word in words if "=" not in word]
            answer: Iterable[str] | None = getattr(self, name.replace("-", "_"))(*plain, **named)
            shown += answer or ()
        return replace(block, shown=(*shown, *self.state()))


def check(path: Path, interpreter: Interpreter, *, rewrite: bool) -> None:
    """Run a transcript and compare each block, or write the file anew."""
    expected = parse(path.read_text())
    found = [interpreter.run(block) for block in expected]
    if rewrite:
        path.write_text("\n\n".join("\n".join(block.lines()) for block in found) + "\n")
        return
    for number, (wanted, seen) in enumerate(zip(expected, found, strict=True), 1):
        assert seen.shown == wanted.shown, f"{path.name}, block {number}: {wanted.commands}"


def numbers(text: str) -> tuple[int, ...]:
    """Return the numbers of an argument like ``1,2,3``; ``-`` is none."""
    return () if text == "-" else tuple(int(word) for word in text.split(","))


def listed(values: Iterable[Any]) -> str:
    """Return values as such an argument, sorted."""
    return ",".join(map(str, sorted(values))) or "-"
