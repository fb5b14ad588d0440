"""Mutual TLS between three real voters: whoever can't prove the name it claims is not let in."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import NodeId
from raft_metadata.common.tls import TlsFiles, load_contexts
from raft_metadata.quorum.metadata_quorum import MetadataQuorum
from raft_metadata.quorum.peer_links import HELLO_TIMEOUT_S
from raft_metadata.quorum.wire import Codec, hello
from tests.support.certificates import Authority
from tests.support.quorum_process import (
    CLUSTER,
    PayloadList,
    SilentListener,
    config,
    format_all,
    free_addresses,
)
from tests.support.raising_faults import RaisingFaults

NODES = (101, 102, 103)
READY_S = 15.0


class Cluster:
    """Voters in this process, each with a certificate of its own."""

    def __init__(self, root: Path) -> None:
        format_all(root, NODES)
        self.root = root
        self.authority = Authority(root / "tls")
        self.addresses = free_addresses(NODES)
        self.up: dict[int, MetadataQuorum] = {}
        self.machines: dict[int, PayloadList] = {}

    async def start(self, *nodes: int, tls: TlsFiles | None = None) -> None:
        for node in nodes:
            settings = dataclasses.replace(
                config(node, self.root, self.addresses),
                tls=tls or self.authority.files(f"controller-{node}"),
            )
            self.machines[node] = PayloadList()
            self.up[node] = MetadataQuorum(
                settings,
                self.machines[node],
                RaisingFaults(),
            )
            await self.up[node].start(SilentListener())

    async def stop(self) -> None:
        await asyncio.gather(*(quorum.stop() for quorum in self.up.values()))

    def address(self, node: int) -> tuple[str, int]:
        host, _, port = self.addresses[node].rpartition(":")
        return host, int(port)

    def connected(self, node: int) -> set[int]:
        voters: Any = self.up[node].status()["voters"]
        return {int(voter) for voter, facts in voters.items() if facts["connected"]}

    async def all_connected(self, *nodes: int) -> None:
        for node in nodes or NODES:
            await until(lambda node=node: self.connected(node) == {*(nodes or NODES)} - {node})  # type: ignore[misc]

    async def commit(self, payload: str) -> None:
        """As often as it takes; the payload is known to be new."""
        async with asyncio.timeout(READY_S):
            while True:
                for quorum in self.up.values():
                    with contextlib.suppress(KafkaError):
                        await quorum.submit(payload.encode(), quorum.term)
                        return
                await asyncio.sleep(0.02)


async def until(condition: Callable[[], object], seconds: float = READY_S) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 a deadline stands around it
            await asyncio.sleep(0.01)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    cluster = Cluster(tmp_path)
    yield cluster
    await cluster.stop()


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_three_voters_work_over_tls(tmp_path: Path, run: Any) -> None:
    async def story() -> None:
        cluster = Cluster(tmp_path)
        await cluster.start(*NODES)
        await cluster.all_connected()
        await cluster.commit("first")
        leader = next(quorum for quorum in cluster.up.values() if quorum.is_leader)
        large = [b"%d" % number + b"." * 200_000 for number in range(60)]
        await asyncio.gather(*(leader.submit(payload, leader.term) for payload in large))
        lists = [machine.payloads for machine in cluster.machines.values()]
        await until(lambda: all(len(payloads) == 61 for payloads in lists))
        assert lists[0] == lists[1] == lists[2]
        await leader.stop()
        del cluster.up[next(node for node, quorum in cluster.up.items() if quorum is leader)]
        await cluster.commit("second")
        await cluster.stop()

    run(story())


def client(files: TlsFiles | None) -> ssl.SSLContext:
    """A stranger that believes anybody, with or without a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if files is not None:
        context.load_cert_chain(files.certificate, files.key)
    return context


def said(node: int) -> bytes:
    data = Codec.dumps(hello(node, CLUSTER, f"disk-{node}"))
    return struct.pack("<I", len(data)) + data


async def answer(address: tuple[str, int], context: ssl.SSLContext | None, words: bytes) -> bytes:
    """What a stranger hears until it is sent away."""
    heard = b""
    async with asyncio.timeout(5):
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(*address, ssl=context)
            try:
                writer.write(words)
                heard = await reader.read(1000)
            finally:
                writer.transport.abort()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
    return heard


async def test_a_voters_place_is_taken_only_with_its_own_certificate(cluster: Cluster) -> None:
    await cluster.start(101, 102)  # 103's place is free
    await cluster.commit("before")
    own, other = cluster.authority, Authority(cluster.root / "other")
    strangers = {
        "plain": None,
        "no certificate": client(None),
        "wrong authority": client(other.files("controller-103")),
        "another node": client(own.files("controller-102", label="stolen")),
        "expired": client(own.files("controller-103", expired=True, label="old")),
        "no node": client(own.files("somebody", "controller-1033", label="name")),
    }
    for who, context in strangers.items():
        assert await answer(cluster.address(101), context, said(103)) == b"", who
        assert cluster.connected(101) == {102}, who
    await cluster.commit("meanwhile")
    right = client(own.files("controller-103", label="right"))
    assert len(await answer(cluster.address(101), right, said(103))) > 4, "the test can fail"
    assert await answer(cluster.address(101), right, said(102)) == b"", "a claim beside its name"
    await cluster.start(103)
    await cluster.all_connected()
    await cluster.commit("after")
    await until(lambda: cluster.machines[103].payloads == ["before", "meanwhile", "after"])


@pytest.mark.parametrize("fault", ["another node", "wrong authority", "expired"])
async def test_a_voter_with_a_bad_certificate_stays_outside_and_the_others_go_on(
    cluster: Cluster, fault: str
) -> None:
    own = cluster.authority
    files = {
        "another node": lambda: own.files("controller-102", label="stolen"),
        "wrong authority": lambda: Authority(cluster.root / "other").files(
            "controller-103", ca=own.ca
        ),
        "expired": lambda: own.files("controller-103", expired=True, label="old"),
    }[fault]()
    await cluster.start(101, 102)
    await cluster.start(103, tls=files)
    await cluster.all_connected(101, 102)
    await cluster.commit("x")
    await asyncio.sleep(0.3)  # 103 has dialled several times
    assert cluster.connected(103) == set()
    assert cluster.connected(101) == {102}
    terms = {quorum.term for node, quorum in cluster.up.items() if node != 103}
    assert len(terms) == 1


async def test_a_dialled_voter_must_prove_its_name_too(cluster: Cluster) -> None:
    """A process with a valid certificate of 102 listens at the address of 101."""
    heard: list[bytes] = []
    impostor = load_contexts(cluster.authority.files("controller-102", label="stolen")).server
    impostor.verify_mode = ssl.CERT_NONE

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read(100))
        writer.close()

    server = await asyncio.start_server(listen, *cluster.address(101), ssl=impostor)
    async with server:
        await cluster.start(103)
        await asyncio.sleep(0.5)
        assert b"".join(heard) == b"", "it told the impostor who it is"
        assert cluster.connected(103) == set()


async def test_a_handshake_that_never_ends_is_ended(cluster: Cluster) -> None:
    await cluster.start(101)
    loop = asyncio.get_running_loop()
    start = loop.time()
    assert await answer(cluster.address(101), None, b"\x16\x03\x01\x02\x00\x01") == b""
    assert HELLO_TIMEOUT_S - 0.5 < loop.time() - start < HELLO_TIMEOUT_S + 1


async def test_the_connection_is_encrypted_and_resumes_nothing(cluster: Cluster) -> None:
    await cluster.start(101)
    files = cluster.authority.files("controller-103")
    reader, writer = await asyncio.open_connection(*cluster.address(101), ssl=client(files))
    proof = writer.get_extra_info("ssl_object")
    assert proof.version() == "TLSv1.3"
    writer.write(said(103))
    assert len(await reader.read(1000)) > 4
    assert proof.session is None or not proof.session.has_ticket
    writer.transport.abort()
    await until(lambda: cluster.connected(101) == set())


# ---------------------------------------------------------------- what an operator may get wrong


def broken(files: TlsFiles, fault: str) -> TlsFiles:
    match fault:
        case "ca":
            files.ca.write_text("no certificate")
        case "certificate":
            files.certificate.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n")
        case "key":
            files.key.unlink()
    return files


@pytest.mark.parametrize("fault", ["ca", "certificate", "key"])
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, fault: str) -> None:
    files = broken(Authority(tmp_path).files("controller-101"), fault)
    with pytest.raises(KafkaError, match=rf"tls\.{fault} = '.*expected a PEM file") as refused:
        load_contexts(files)
    assert refused.value.code is ErrorCode.INVALID_CONFIG


def test_a_key_of_another_certificate_is_refused(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    one, two = authority.files("controller-101"), authority.files("controller-102")
    mixed = dataclasses.replace(one, key=two.key)
    with pytest.raises(KafkaError, match=r"tls\.certificate = .*tls\.key = "):
        load_contexts(mixed)


def test_a_key_with_a_password_is_refused_and_asked_for_nowhere(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    files = Authority(tmp_path).files("controller-101")
    key = serialization.load_pem_private_key(files.key.read_bytes(), None)
    files.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(KafkaError, match="without a password"):
        load_contexts(files)


async def test_a_bad_certificate_leaves_the_directory_to_the_next_start(cluster: Cluster) -> None:
    files = cluster.authority.files("controller-101")
    with pytest.raises(KafkaError):
        await cluster.start(101, tls=dataclasses.replace(files, ca=Path("/nowhere")))
    del cluster.up[101]
    await cluster.start(101)
    assert NodeId(101) in cluster.up
