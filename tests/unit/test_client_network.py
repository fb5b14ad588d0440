"""Ways to a cluster over both transports: TLS, prefixes, credentials, names, and leaders."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from http_api.client.async_client import AsyncClient
from http_api.client.calls import Call, Request
from http_api.client.client_errors import (
    AuthenticationError,
    ConfigError,
    OutcomeUnknownError,
    UnreachableError,
)
from http_api.client.network import ClientNetwork, ClientSecurity, server_address
from http_api.client.routes import Routes
from http_api.client.sdk.settings import CommonConfig
from http_api.client.transport import Client
from tests.support.certificates import Authority
from tests.support.http_door import open_door
from tests.support.raw_server import Heard, always, answer_of, raw_server

SECRET = "s3cr3t-value"
SHORT_S = 0.2
KEYED = Call(Request(method="GET", path="/x", leader_key=("t", 0)), lambda answer: answer.body)
WRITE = Call(Request(method="POST", path="/w", body=b"{}"), lambda answer: answer.body)


def run_blocking(routes: Routes, network: ClientNetwork, *calls: Call[Any]) -> list[Any]:
    with Client(routes, retry_s=0.0, network=network) as client:
        return [client.run(call) for call in calls]


def run_async(routes: Routes, network: ClientNetwork, *calls: Call[Any]) -> list[Any]:
    async def work() -> list[Any]:
        async with AsyncClient(routes, retry_s=0.0, network=network) as client:
            return [await client.run(call) for call in calls]

    return asyncio.run(work())


Run = Callable[..., list[Any]]
both = pytest.mark.parametrize("run", [run_blocking, run_async])


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ours"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("strange"))


def server_context(authority: Authority, *, asks: bool = False) -> ssl.SSLContext:
    files = authority.files("127.0.0.1", label="server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    if asks:
        context.load_verify_locations(authority.ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


# TLS


@both
def test_https_with_an_own_authority(run: Run, authority: Authority) -> None:
    network = ClientNetwork(security=ClientSecurity(ca=str(authority.ca)))
    with raw_server(always(answer_of()), tls=server_context(authority)) as server:
        routes = Routes([server.url], checks_cluster=True)
        assert run(routes, network, WRITE, WRITE) == [b"{}"] * 2
        assert server.connections == 1


@both
def test_a_strange_authority_and_a_wrong_name_are_refused_before_anything_is_sent(
    run: Run, authority: Authority, stranger: Authority
) -> None:
    with raw_server(always(answer_of()), tls=server_context(authority)) as server:
        for security in (ClientSecurity(ca=str(stranger.ca)), ClientSecurity(), None):
            with pytest.raises(UnreachableError, match="certificate verify failed"):
                run(Routes([server.url]), ClientNetwork(security=security), WRITE)
        security = ClientSecurity(ca=str(authority.ca), token=SECRET)
        by_name = f"https://localhost:{server.port}"
        with pytest.raises(UnreachableError, match=r"(?i)hostname|certificate") as error:
            run(Routes([by_name]), ClientNetwork(security=security), WRITE)
        assert SECRET not in str(error.value)
        assert server.heard == []


@both
def test_a_client_certificate_is_shown(run: Run, authority: Authority, stranger: Authority) -> None:
    mine, other = authority.files("client"), stranger.files("client")
    ca = str(authority.ca)
    with raw_server(always(answer_of()), tls=server_context(authority, asks=True)) as server:
        security = ClientSecurity(ca=ca, certificate=str(mine.certificate), key=str(mine.key))
        assert run(Routes([server.url]), ClientNetwork(security=security), WRITE) == [b"{}"]
        wrong = ClientSecurity(ca=ca, certificate=str(other.certificate), key=str(other.key))
        for refused in (wrong, ClientSecurity(ca=ca)):
            routes = Routes([server.url], checks_cluster=True)
            with pytest.raises(UnreachableError) as error:
                run(routes, ClientNetwork(security=refused), WRITE)
            assert server.url in str(error.value)
        assert len(server.heard) == 1


@both
def test_plain_http_to_a_tls_port_and_the_reverse_are_errors(
    run: Run, authority: Authority
) -> None:
    network = ClientNetwork(
        security=ClientSecurity(ca=str(authority.ca)), connect_timeout_s=SHORT_S
    )
    with raw_server(always(answer_of()), tls=server_context(authority)) as server:
        plain = Routes([server.url.replace("https", "http")])
        with pytest.raises(OutcomeUnknownError):
            run(plain, network, WRITE)
        assert server.heard == []
    with raw_server(always(answer_of())) as server:
        secure = Routes([server.url.replace("http", "https")])
        with pytest.raises(UnreachableError):
            run(secure, network, WRITE)
        assert not any("POST" in one.line for one in server.heard)


@both
def test_files_of_tls_that_can_not_be_used_are_named(
    run: Run, authority: Authority, tmp_path: Path
) -> None:
    files = authority.files("named")
    (tmp_path / "garbage.pem").write_text("no certificate")
    garbage, missing = str(tmp_path / "garbage.pem"), str(tmp_path / "missing.pem")
    certificate, key = str(files.certificate), str(files.key)
    locked = tmp_path / "locked.key"
    locked.write_text(
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n"
    )
    cases = {
        "ca=": [ClientSecurity(ca=garbage), ClientSecurity(ca=missing)],
        "certificate=": [
            ClientSecurity(certificate=garbage, key=key),
            ClientSecurity(certificate=certificate, key=missing),
            ClientSecurity(certificate=certificate, key=str(locked)),
        ],
    }
    for name, securities in cases.items():
        for security in securities:
            with pytest.raises(ConfigError, match=name):
                run(Routes(["https://127.0.0.1:1"]), ClientNetwork(security=security), WRITE)


# leaders


def naming(leader: str) -> Callable[[socket.socket, Heard], bool]:
    return always(answer_of(b"{}", "200 OK", f"Quorumlog-Leader-Url: {leader}"))


@both
def test_a_leader_without_tls_is_not_followed_from_https(run: Run, authority: Authority) -> None:
    network = ClientNetwork(security=ClientSecurity(ca=str(authority.ca), token=SECRET))
    with (
        raw_server(always(answer_of())) as plain,
        raw_server(naming(plain.url), tls=server_context(authority)) as secure,
    ):
        run(Routes([secure.url]), network, KEYED, KEYED, KEYED)
        assert plain.connections == 0
        assert len(secure.heard) == 3


@both
def test_a_leader_with_tls_is_followed_from_http_with_the_given_authority(
    run: Run, authority: Authority
) -> None:
    network = ClientNetwork(security=ClientSecurity(ca=str(authority.ca)))
    with (
        raw_server(always(answer_of()), tls=server_context(authority)) as secure,
        raw_server(naming(secure.url)) as plain,
    ):
        run(Routes([plain.url]), network, KEYED, KEYED)
        assert (len(plain.heard), len(secure.heard)) == (1, 1)


@both
def test_every_request_has_the_prefix_and_leaders_are_not_followed(run: Run) -> None:
    seen: list[str] = []

    def proxy(sock: socket.socket, heard: Heard) -> bool:
        seen.append(heard.line)
        is_check = "/v3/clusters" in heard.line
        body = b'{"data":[{"cluster_id":"c"}]}' if is_check else b"{}"
        sock.sendall(answer_of(body, "200 OK", f"Quorumlog-Leader-Url: {leader.url}"))
        return True

    with raw_server(always(answer_of())) as leader, raw_server(proxy) as server:
        routes = Routes([f"{server.url}/a/b/"], checks_cluster=True)
        run(routes, ClientNetwork(), KEYED, KEYED, WRITE)
        assert leader.connections == 0
        routes.add_brokers([leader.url])
        assert routes.urls == (f"{server.url}/a/b",)
    assert seen == [
        "GET /a/b/v3/clusters HTTP/1.1",
        *["GET /a/b/x HTTP/1.1"] * 2,
        "POST /a/b/w HTTP/1.1",
    ]


@both
def test_a_leader_that_can_not_be_reached_is_asked_once(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        gone = f"http://127.0.0.1:{listening.getsockname()[1]}"
    with raw_server(naming(gone)) as server:
        routes = Routes([server.url], checks_cluster=True)
        assert run(routes, ClientNetwork(), *[KEYED] * 5) == [b"{}"] * 5
        assert len(server.heard) == 5


@both
@pytest.mark.parametrize(
    "leader", ["ftp://h:1", "http://h:99999", "//h", "http://u:p@h:1", "http://h:1/p", "x" * 500]
)
def test_a_strange_leader_is_not_followed(run: Run, leader: str) -> None:
    with raw_server(naming(leader)) as server:
        routes = Routes([server.url])
        assert run(routes, ClientNetwork(), KEYED, KEYED) == [b"{}"] * 2
        assert routes.leader("t", 0) is None


# names


@contextlib.contextmanager
def resolved(name: str, addresses: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    real = socket.getaddrinfo

    def lookup(host: Any, *rest: Any, **named: Any) -> Any:
        return real(addresses[0] if host == name else host, *rest, **named)

    with monkeypatch.context() as patched:
        patched.setattr(socket, "getaddrinfo", lookup)
        yield


@pytest.mark.parametrize("is_async", [False, True])
async def test_brokers_that_all_moved_are_found_by_the_given_name(
    is_async: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses = ["127.0.0.1"]
    with raw_server(always(answer_of(b"1"))) as first:
        routes = Routes([f"http://broker.test:{first.port}"], checks_cluster=True)
        async with AsyncClient(routes, retry_s=5.0) as later:
            with (
                Client(routes, retry_s=5.0) as now,
                resolved("broker.test", addresses, monkeypatch),
            ):

                async def run() -> bytes:
                    if is_async:
                        return await later.run(KEYED)
                    return await asyncio.to_thread(now.run, KEYED)

                assert await run() == b"1"
                first.stop()
                with raw_server(always(answer_of(b"2")), address=("127.0.0.2", first.port)):
                    addresses[0] = "127.0.0.2"
                    assert await run() == b"2"


# credentials


def test_contradictory_credentials_are_refused() -> None:
    wrong: list[dict[str, str]] = [
        {"password": "p"},
        {"password_file": "p"},
        {"user": "u"},
        {"user": "u:v", "password": "p"},
        {"user": "u", "password": SECRET, "password_file": "p"},
        {"token": SECRET, "token_file": "t"},
        {"user": "u", "password": SECRET, "token": "t"},
        {"certificate": "c"},
        {"key": "k"},
        {"token": f"{SECRET}\r\nX: y"},
        {"token": ""},
        {"token": f"{SECRET}ü"},
    ]
    for one in wrong:
        with pytest.raises(ConfigError, match="security") as error:
            ClientSecurity(**one)
        assert SECRET not in str(error.value)


def test_credentials_are_in_no_text_of_the_settings(tmp_path: Path) -> None:
    token_file = tmp_path / "token"
    for security in (
        ClientSecurity(user="u", password=SECRET),
        ClientSecurity(token=SECRET),
        ClientSecurity(token_file=str(token_file)),
    ):
        network = ClientNetwork(security=security, headers={"X-Token": SECRET})
        config = CommonConfig(security=security, headers={"X-Token": SECRET})
        for text in (repr(security), str(security), repr(network), repr(config)):
            assert SECRET not in text


@both
def test_credentials_are_sent_and_in_no_error_or_log(
    run: Run, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level("DEBUG")
    (tmp_path / "password").write_text(f"{SECRET}\n")
    (tmp_path / "token").write_text(f"{SECRET}\nsecond line\n")
    basic = "Basic dTpzM2NyM3QtdmFsdWU="
    cases = [
        (ClientSecurity(user="u", password=SECRET), basic),
        (ClientSecurity(user="u", password_file=str(tmp_path / "password")), basic),
        (ClientSecurity(token=SECRET), f"Bearer {SECRET}"),
        (ClientSecurity(token_file=str(tmp_path / "token")), f"Bearer {SECRET}"),
    ]
    with raw_server(always(answer_of(b"{}", "401 No"))) as server:
        for security, expected in cases:
            server.heard.clear()
            network = ClientNetwork(security=security)
            with pytest.raises(AuthenticationError) as error:
                run(Routes([server.url]), network, WRITE)
            assert {one.headers["authorization"] for one in server.heard} == {expected}
            assert len(server.heard) == (2 if security.has_files else 1)
            seen: BaseException | None = error.value
            while seen is not None:
                assert SECRET not in f"{seen!r} {seen}"
                seen = seen.__cause__ or seen.__context__
    assert SECRET not in caplog.text


@both
def test_a_token_that_was_replaced_is_read_again_after_a_401(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("old")

    def check(sock: socket.socket, heard: Heard) -> bool:
        is_new = heard.headers["authorization"] == "Bearer new"
        if not is_new:
            file.write_text("new")
        sock.sendall(answer_of(b"{}", "200 OK" if is_new else "401 No"))
        return True

    network = ClientNetwork(security=ClientSecurity(token_file=str(file)))
    with raw_server(check) as server:
        assert run(Routes([server.url]), network, WRITE, WRITE) == [b"{}"] * 2
        assert len(server.heard) == 3


@both
@pytest.mark.parametrize("content", [None, b"", b"\n", b"a b", b"\xff" + SECRET.encode(), b"a\x01"])
def test_a_file_of_credentials_that_can_not_be_used_is_named(
    run: Run, content: bytes | None, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    network = ClientNetwork(security=ClientSecurity(token_file=str(file)))
    with raw_server(always(answer_of())) as server:
        with pytest.raises(ConfigError, match="token_file") as error:
            run(Routes([server.url]), network, WRITE)
        assert SECRET not in str(error.value)
        assert server.heard == []


def test_own_headers_take_the_place_of_the_clients_own_in_any_case() -> None:
    security = ClientSecurity(token="t")
    network = ClientNetwork(
        security=security,
        client_id="me",
        headers={"AUTHORIZATION": "X", "quorumlog-client-id": "y"},
    )
    assert network.connection_headers() == {"AUTHORIZATION": "X", "quorumlog-client-id": "y"}
    for client_id in ("a\r\nb", "ü"):
        with pytest.raises(ConfigError, match="client_id"):
            ClientNetwork(client_id=client_id).connection_headers()


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://h", ("http", "h", 80, "")),
        ("https://h", ("https", "h", 443, "")),
        ("https://[::1]:8082/a/b", ("https", "::1", 8082, "/a/b")),
    ],
)
def test_addresses_of_servers(url: str, expected: tuple[str, str, int, str]) -> None:
    assert server_address(url) == expected


@pytest.mark.parametrize(
    "url",
    ["h:1", "ftp://h", "http://", "http://h:x", "http://h:70000", "http://u@h", "http://h/?a",
     "http://h/#a", "http://h/a b", "http://h/\u00e4"],
)  # fmt: skip
def test_other_addresses_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"expected|Port|port"):
        server_address(url)


async def test_tls_in_front_of_a_broker(authority: Authority) -> None:
    """The broker's own door answers; the terminator only passes bytes."""
    async with open_door() as door:
        host, port = door.address.rsplit(":", 1)

        async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                while data := await reader.read(65_536):
                    writer.write(data)
                    await writer.drain()
            writer.close()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
            await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))

        context = server_context(authority)
        front = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        url = f"https://127.0.0.1:{front.sockets[0].getsockname()[1]}"
        network = ClientNetwork(security=ClientSecurity(ca=str(authority.ca)))
        records = Call(
            Request(method="POST", path="/topics/flights", body=b'{"records":[{"value":1}]}',
                    content_type="application/vnd.kafka.json.v2+json"),
            lambda answer: answer.json()["offsets"][0]["partition"],
        )  # fmt: skip
        async with front:
            async with AsyncClient(Routes([url], checks_cluster=True), network=network) as client:
                assert await client.run(records) in range(9)

            def blocking() -> object:
                with Client(Routes([url], checks_cluster=True), network=network) as own:
                    return own.run(records)

            assert await asyncio.to_thread(blocking) in range(9)
