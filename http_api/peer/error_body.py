"""How a `KafkaError` crosses between nodes: ``{"error": number, "name", "message", "outcome"}``.

The same body goes over both planes (peer frames and the controllers' HTTP). Kafka's number decides;
the name is there for people who read a capture.
"""

from __future__ import annotations

from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome

MAX_MESSAGE_CHARACTERS = 4096
"""A message is cut there: it is for people, and an error must never be too large to send."""


def body_of(error: KafkaError) -> dict[str, object]:
    """The JSON object that `error_from_body` turns back into an equal error."""
    # File names may hold bytes that are no text; JSON has no way to say them.
    message = error.message[:MAX_MESSAGE_CHARACTERS].encode(errors="replace").decode()
    return {
        "error": error.code.number,
        "name": error.code.name,
        "message": message,
        "outcome": error.outcome.value,
    }


def error_from_body(body: object) -> KafkaError:
    """The error another node sent. ValueError when this is no such body."""
    match body:
        case {"error": int(number), "message": str(message), "outcome": str(outcome)}:
            return KafkaError(ErrorCode.from_number(number), message, outcome=Outcome(outcome))
        case _:
            msg = "expected an object with error, message and outcome"
            raise ValueError(msg)
