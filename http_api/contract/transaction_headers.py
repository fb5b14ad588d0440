"""Names of transactions on the wire: ids, idempotency keys, and the headers of staged requests.

``Idempotency-Key`` makes a write happen once: its transaction has the id ``key:K``, which no client
may choose for a producer. ``Quorumlog-Transaction`` and the headers beside it make a produce a
chunk of a transaction that is decided later. Both sides read and write these by the functions
below.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from http_api.contract.errors import RestCode, RestError, excerpt
from http_api.contract.v2 import as_pictures, check_name, has_control_characters

IDEMPOTENCY_KEY: Final = "Idempotency-Key"
TRANSACTION: Final = "Quorumlog-Transaction"
TRANSACTION_GROUP: Final = "Quorumlog-Transaction-Group"
TRANSACTION_EPOCH: Final = "Quorumlog-Transaction-Epoch"
TRANSACTION_NUMBER: Final = "Quorumlog-Transaction-Number"
ATTEMPT: Final = "Quorumlog-Attempt"
CHUNK: Final = "Quorumlog-Chunk"
STAGING_HEADERS: Final = (
    *(TRANSACTION, TRANSACTION_GROUP, TRANSACTION_EPOCH, TRANSACTION_NUMBER),
    *(ATTEMPT, CHUNK),
)
"""Headers of a chunk; any of the others needs the first."""

KEY_PREFIX: Final = "key:"
"""Beginning of the id of a transaction that an idempotency key names."""
EPOCH_MAX: Final = 2**31 - 1
NUMBER_MAX: Final = 10**18 - 1
"""Largest number of a transaction within its id and epoch."""
CHUNK_MAX: Final = 99_999
"""Largest number of a chunk that any cluster takes; one takes those below transaction.max.chunks.
"""

KEY: Final = re.compile(r"[!-~]{1,128}")
TRANSACTIONAL_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,320}")
ATTEMPT_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_UNREPEATABLE = re.compile(r" [0-9a-f]{32}")
"""In place of a key where the client sent none; no key of a client holds a space."""
_NUMBER = re.compile(r"[0-9]{1,18}")
_ID_EXPECTED = (
    "1 to 320 characters of A-Z a-z 0-9 . _ : -, not beginning with 'key:'; or 'key:' and an "
    "idempotency key"
)
_KEY_EXPECTED = "1 to 128 visible characters, '!' to '~'"
ATTEMPT_EXPECTED: Final = "1 to 64 characters of A-Z a-z 0-9 . _ -"


@dataclass(frozen=True, slots=True, kw_only=True)
class Staging:
    """The chunk that a request's headers make of its records."""

    transaction_id: str
    """A client's id, or ``key:K``."""
    group: str
    """Empty: the transaction commits no offsets of a group."""
    epoch: int | None
    """The producer's; None for a numbered id or a key."""
    number: int | None
    """None for a key."""
    attempt_id: str
    chunk: int


def is_key(transaction_id: str) -> bool:
    """Return True for the id of an idempotency key."""
    return transaction_id.startswith(KEY_PREFIX)


def check_transactional_id(where: str, text: str, *, described: bool = False) -> str:
    """Return an id that a client may name; ``where`` says in a refusal where it stands.

    ``described``: the id is only looked up, so it may be one that was given to a request without a
    key.

    Raises:
        RestError: 400/400 for control characters, 400/40002 for any other bad id.
    """
    if is_key(text):
        key = text[len(KEY_PREFIX) :]
        if KEY.fullmatch(key) or (described and _UNREPEATABLE.fullmatch(key)):
            return text
    elif TRANSACTIONAL_ID.fullmatch(text):
        return text
    raise _bad_name(where, text, _ID_EXPECTED)


def unrepeatable_id(random_hex: str) -> str:
    """Return the id of a transaction without a key; no request can name it to write.

    ``random_hex``: 32 random hexadecimal digits.
    """
    return f"{KEY_PREFIX} {random_hex}"


def key_of(headers: Mapping[str, str]) -> str | None:
    """Return the ``Idempotency-Key`` of a request, None without one.

    Raises:
        RestError: 400/400 for control characters, 400/40002 for any other bad key.
    """
    key = headers.get(IDEMPOTENCY_KEY)
    if key is None or KEY.fullmatch(key):
        return key
    raise _bad_name(f"Header '{IDEMPOTENCY_KEY}'", key, _KEY_EXPECTED)


def staging_of(headers: Mapping[str, str]) -> Staging | None:
    """Return the chunk that a request's headers name, None if it has none of these headers.

    Raises:
        RestError: 400/40002 for headers that are incomplete, bad, or contradict each other.
    """
    given = {name: headers[name] for name in STAGING_HEADERS if name in headers}
    if not given:
        return None
    if TRANSACTION not in given:
        raise _missing(TRANSACTION, given)
    id_ = check_transactional_id(f"Header '{TRANSACTION}'", given[TRANSACTION])
    group = given.get(TRANSACTION_GROUP, "")
    if TRANSACTION_GROUP in given:
        check_name(TRANSACTION_GROUP, group)
    epoch = _number(given, TRANSACTION_EPOCH, EPOCH_MAX)
    number = _number(given, TRANSACTION_NUMBER, NUMBER_MAX)
    if is_key(id_):
        for name in (TRANSACTION_EPOCH, TRANSACTION_NUMBER):
            if name in given:
                raise _bad(f"Header '{name}' contradicts the id '{excerpt(id_)}': a key has none")
    elif number is None:
        raise _missing(TRANSACTION_NUMBER, given)
    attempt = given.get(ATTEMPT)
    if attempt is None:
        if epoch is None:
            raise _missing(ATTEMPT, given)
        attempt = f"{epoch}.{number}"
    elif not ATTEMPT_ID.fullmatch(attempt):
        raise _bad_name(f"Header '{ATTEMPT}'", attempt, ATTEMPT_EXPECTED)
    chunk = _number(given, CHUNK, CHUNK_MAX)
    if chunk is None:
        raise _missing(CHUNK, given)
    return Staging(
        transaction_id=id_,
        group=group,
        epoch=epoch,
        number=number,
        attempt_id=attempt,
        chunk=chunk,
    )


def staging_headers(staging: Staging) -> dict[str, str]:
    """Return the headers with which a client sends a chunk."""
    values = (
        staging.transaction_id,
        staging.group or None,
        staging.epoch,
        staging.number,
        staging.attempt_id,
        staging.chunk,
    )
    return {
        name: str(value)
        for name, value in zip(STAGING_HEADERS, values, strict=True)
        if value is not None
    }


def check_chunk(staging: Staging, chunks: int) -> None:
    """Refuse a chunk behind the last that a transaction may have; ``chunks``: how many those are.

    Raises:
        RestError: 400/40002, naming the limit.
    """
    if staging.chunk >= chunks:
        expected = f"an integer from 0 to {chunks - 1} (transaction.max.chunks={chunks})"
        raise _bad(f"Header '{CHUNK}' is '{staging.chunk}': expected {expected}")


def refuse_headers(headers: Mapping[str, str], names: Iterable[str], why: str) -> None:
    """Refuse a request that has one of these headers; ``why`` completes the sentence.

    Raises:
        RestError: 400/40002, naming the first of them.
    """
    for name in names:
        if name in headers:
            raise _bad(f"Header '{name}' {why}")


def _number(given: Mapping[str, str], name: str, most: int) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    if not _NUMBER.fullmatch(text) or int(text) > most:
        expected = f"an integer from 0 to {most}"
        raise _bad(f"Header '{name}' is '{_shown(text)}': expected {expected}")
    return int(text)


def _missing(name: str, given: Iterable[str]) -> RestError:
    return _bad(f"Header '{name}' is missing beside {', '.join(given)}")


def _bad_name(where: str, text: str, expected: str) -> RestError:
    code = RestCode.BAD_REQUEST if has_control_characters(text) else RestCode.KAFKA_BAD_REQUEST
    return RestError(400, code, f"{where} is '{_shown(text)}': expected {expected}")


def _bad(text: str) -> RestError:
    return RestError(400, RestCode.KAFKA_BAD_REQUEST, text)


def _shown(text: str) -> str:
    return as_pictures(excerpt(text))
