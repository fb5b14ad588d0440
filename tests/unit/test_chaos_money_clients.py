"""Clients with money: their reading of answers, and their requests."""

from __future__ import annotations

import orjson
import pytest

from chaos.buyers import BuyerLife
from chaos.history import Line
from chaos.http import HttpReply
from chaos.ledger import CREDITS, DEBITS, Entry, Told, Transfer, booked
from chaos.tellers import chunks_of
from chaos.transfers import told_by, topics_text


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (HttpReply(200, {"state": "complete"}), "complete"),
        (HttpReply(202, {"state": "committing"}), "committing"),
        (HttpReply(200, {"state": "aborted", "lost": []}), "aborted"),
        (HttpReply(200, {"offsets": [{"partition": 0, "offset": None}]}), "complete"),
        (HttpReply(200, {"offsets": [{"error_code": None}, {"error_code": 40909}]}), "refused"),
        (HttpReply(200, {}), "unknown"),
        (HttpReply(409, {"error_code": 40907, "outcome": "not_written"}), "refused"),
        (HttpReply(409, {"error_code": 40911, "outcome": "unknown"}), "unknown"),
        (HttpReply(503, {"error_code": 50003, "outcome": "not_written"}), "refused"),
        (HttpReply(503, {"error_code": 50003, "outcome": "unknown"}), "unknown"),
        (HttpReply(503, {}), "unknown"),
        (HttpReply(400, {"error_code": 40002}), "refused"),
        (HttpReply(0, {}, is_sent=False), "refused"),
        (HttpReply(0, {}), "unknown"),
    ],
)
def test_an_answer_means_what_is_documented(reply: HttpReply, told: Told) -> None:
    assert told_by(reply) == told


def test_each_row_of_a_body_names_its_transfer() -> None:
    entries = (Entry(DEBITS, 1, -5), Entry(CREDITS, 2, 3), Entry(CREDITS, 3, 2))
    transfer = Transfer(id="t", transaction="t", kind="one shot", entries=entries)
    topics = orjson.loads(topics_text(transfer))
    assert [one["topic_name"] for one in topics] == [DEBITS, CREDITS]
    rows = [
        booked(Line(0, b"null", orjson.dumps(record["value"])))
        for one in topics
        for record in one["records"]
    ]
    assert rows == [("t", 0, 1, -5), ("t", 1, 2, 3), ("t", 2, 3, 2)]
    assert topics[1]["records"][1]["key"] == "account-3"


def test_a_staged_transfer_is_cut_into_chunks_of_one_topic_each() -> None:
    entries = (Entry(DEBITS, 1, -4), *(Entry(CREDITS, account, 1) for account in range(2, 6)))
    transfer = Transfer(id="t", transaction="t", kind="staged", entries=entries)
    assert chunks_of(transfer) == [(DEBITS, [0]), (CREDITS, [1, 2, 3]), (CREDITS, [4])]


def test_a_member_keeps_its_position_in_what_it_still_owns() -> None:
    life = BuyerLife("b")
    assert orjson.loads(life.heartbeat()) == {"member_epoch": 0, "owned": []}
    life.learn({"member_epoch": 1, "assignment": [{"partition_id": 2, "offset": 7}]})
    life.positions[2] = 9
    given = [{"partition_id": 1, "offset": None}, {"partition_id": 2, "offset": 7}]
    life.learn({"member_epoch": 2, "assignment": given})
    assert life.positions == {1: 0, 2: 9}
    life.learn({"member_epoch": 3, "assignment": given[:1]})
    life.learn({"member_epoch": 4, "assignment": given})
    assert life.positions == {1: 0, 2: 7}, "it was another's meanwhile"
    assert orjson.loads(life.heartbeat())["owned"] == [
        {"topic_name": "orders", "partitions": [1, 2]}
    ]
