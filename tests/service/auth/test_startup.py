"""Where the server listens, and to whom: refusals to start, TLS, other sites, keys made by hand."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from pydantic import ValidationError

from service.auth import cli
from service.auth.key_store import ApiKeyStore
from service.auth.keys import SECRET_PATTERN
from service.http import server as http_server
from service.settings import Settings
from tests.service.endpoints.anomaly.test_bad_input import check
from tests.support.api_keys import Ring
from tests.support.server import REPO, Server, Start, wait_until

SITE = "https://a.example"


@pytest.mark.parametrize(
    ("given", "starts"),
    [
        ({"host": "127.0.0.1"}, True),
        ({"host": "127.8.8.8"}, True),
        ({"host": "::1"}, True),
        ({"host": "localhost"}, True),
        ({"host": "0.0.0.0"}, False),
        ({"host": "::"}, False),
        ({"host": ""}, False),
        ({"host": "10.0.0.7"}, False),
        ({"host": "localhost.example"}, False),
        ({"host": "0.0.0.0", "open": True}, True),
        ({"host": "0.0.0.0", "keys": "keys.json"}, True),
        ({"admin_host": "0.0.0.0"}, True),  # nothing listens there
        ({"admin_host": "0.0.0.0", "admin_port": 9}, False),
        ({"admin_host": "0.0.0.0", "admin_port": 9, "keys": "keys.json"}, True),
        ({"tls_key": __file__}, False),
        ({"tls_certificate": __file__}, False),
        ({"tls_certificate": __file__, "tls_key": "/no/such/file"}, False),
        ({"tls_certificate": __file__, "tls_key": __file__}, False),  # which is no PEM
        ({"cors_origins": "https://a.example http://b.example:3000"}, True),
        ({"cors_origins": "*"}, False),
        ({"cors_origins": "https://a.example/path"}, False),
        ({"cors_origins": "a.example"}, False),
    ],
    ids=str,
)
def test_what_it_starts_with(given: dict[str, object], starts: bool) -> None:
    if starts:
        Settings.model_validate(given)
        return
    with pytest.raises(ValidationError):
        Settings.model_validate(given)


def test_no_other_site_by_default() -> None:
    assert Settings().cors_origins == ()


def test_it_says_why_it_does_not_start(start: Start, tmp_path: Path) -> None:
    (tmp_path / "bad").write_text('{"keys": [{"name": "Xyzzy"}]}')
    servers = {
        "BASIN_OPEN": start(host="0.0.0.0"),
        "No such file": start(host="0.0.0.0", keys=tmp_path / "none"),
        "keys.0": start(keys=tmp_path / "bad"),
    }
    for reason, server in servers.items():
        assert server.process.wait(120) != 0
        log = server.log.read_text()
        assert reason in log
        assert "Traceback" not in log
        assert "Xyzzy" not in log


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """One for 127.0.0.1, signed by itself, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    made, key = folder / "cert.pem", folder / "key.pem"
    how = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=basin"
    subject = ["-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-out", str(made), "-keyout", str(key)]
    subprocess.run(["openssl", *how.split(), *subject, *files], check=True, capture_output=True)
    return made, key


def test_a_key_that_is_another_s_or_has_a_password(
    certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    made, key = certificate
    other, locked = tmp_path / "other.pem", tmp_path / "locked.pem"
    openssl = ["openssl", "ec", "-in", str(key), "-out", str(locked), "-aes256"]
    subprocess.run([*openssl, "-passout", "pass:Xyzzy"], check=True, capture_output=True)
    new = ["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", str(other)]
    subprocess.run(new, check=True, capture_output=True)
    assert Settings(tls_certificate=made, tls_key=key).tls_key == key
    for bad in (other, locked):
        with pytest.raises(ValidationError, match="must be a certificate and its private key"):
            Settings(tls_certificate=made, tls_key=bad)


def test_whoever_begins_no_handshake_is_left(
    certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "_HANDSHAKE_S", 0.3)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)

    async def play() -> float:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0, ssl=context)
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        began = time.monotonic()
        assert await reader.read() == b""
        writer.close()
        server.close()
        return time.monotonic() - began

    with asyncio.Runner(loop_factory=http_server.new_loop) as runner:
        assert runner.run(play()) < 5


def test_beyond_this_machine_with_keys_and_tls_for_one_site(
    start: Start, tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    ring = Ring(tmp_path / "keys.json")
    key, (made, private) = ring.add("page"), certificate
    server: Server = start(
        host="0.0.0.0",
        checkpoints=tmp_path,
        wait_for_models=True,
        keys=ring.path,
        tls_certificate=made,
        tls_key=private,
        cors_origins=f"{SITE} https://b.example",
    )
    trusted = ssl.create_default_context(cafile=str(made))
    with httpx.Client(base_url=f"https://127.0.0.1:{server.port}", verify=trusted) as client:

        def lives() -> bool:
            assert server.process.poll() is None, server.log.read_text()
            try:
                return client.get("/health/live").status_code == 200
            except httpx.TransportError:
                return False

        wait_until(lives, 120)
        asked = {"access-control-request-method": "POST"}
        wanted = {"access-control-request-headers": "authorization,content-type,idempotency-key"}
        may = client.options("/classify", headers={"origin": SITE} | asked | wanted)
        assert may.status_code == 200, "without a key, as browsers ask"
        assert may.headers["access-control-allow-origin"] == SITE
        assert "access-control-allow-credentials" not in may.headers
        may_not = client.options("/classify", headers={"origin": "https://evil.example"} | asked)
        assert "access-control-allow-origin" not in may_not.headers
        for headers, status in ((key, 200), ({}, 401)):
            answer = client.get("/memories", headers=headers | {"origin": SITE})
            assert answer.status_code == status
            assert answer.headers["access-control-allow-origin"] == SITE
            assert answer.headers["strict-transport-security"] == "max-age=31536000"
            other = client.get("/memories", headers=headers | {"origin": "https://evil.example"})
            assert "access-control-allow-origin" not in other.headers
        check(client.get("/memories"), 401, "unauthenticated")
    asked = {"BASIN_PORT": str(server.port), "BASIN_TLS_CERTIFICATE": str(made)}
    ready = [sys.executable, str(REPO / "docker/ready.py")]
    seen = subprocess.run(ready, env=os.environ | asked, capture_output=True, text=True)
    assert (seen.returncode, seen.stderr) == (1, ""), "it has no models; but it has answered"
    with (
        socket.create_connection(("127.0.0.1", server.port), 20) as line,
        trusted.wrap_socket(line, server_hostname="127.0.0.1") as safe,
    ):
        safe.sendall(b"no request\r\n\r\n")
        assert b"strict-transport-security: max-age=31536000\r\n" in safe.recv(1 << 16)
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://127.0.0.1:{server.port}/health/live")


def make(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, str]:
    """The key that is printed, and what is said beside it."""
    cli.main(arguments)
    out, told = capsys.readouterr()
    secret = out.splitlines()[-1]
    assert SECRET_PATTERN.fullmatch(secret)
    return secret, told


def test_keys_are_made_and_turned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BASIN_KEYS", raising=False)
    file = tmp_path / "keys.json"
    at = ("--file", str(file))
    first, told = make(capsys, "one", *at, "--routes", "GET /jobs", "/classify", "--models", "m")
    assert not told
    assert file.stat().st_mode & 0o077 == 0
    made = make(capsys, "two", *at, "--rate", "2", "5", "--quota", "1e6", "60")[0]
    ring = ApiKeyStore(file)
    one, two = ring.find_by_secret(first), ring.find_by_secret(made)
    assert one is not None
    assert two is not None
    assert (one.routes, one.models, one.rate) == (("GET /jobs", "/classify"), ("m",), None)
    assert (two.routes, two.models) == ("*", "*")
    assert two.rate is not None
    assert two.rate.bucket.capacity == 5
    file.chmod(0o640)
    second = make(capsys, "one", *at)[0]
    ring.reload()
    assert ring.find_by_secret(first) == ring.find_by_secret(second) == ring.find_by_name("one")
    assert (ring.find_by_name("one") or two).routes == one.routes
    third = make(capsys, "one", *at, "--only", "--expires", "2031-01-01T00:00:00Z")[0]
    ring.reload()
    assert [ring.find_by_secret(secret) is None for secret in (first, second, third)] == [
        True,
        True,
        False,
    ]
    assert ring.find_by_secret(made) == two
    assert file.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in tmp_path.iterdir()] == ["keys.json"]


def test_without_a_file_the_entry_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("BASIN_KEYS", raising=False)
    secret, told = make(capsys, "one", "--models", "*")
    (tmp_path / "keys").write_text(json.dumps({"keys": [json.loads(told)]}))
    assert ApiKeyStore(tmp_path / "keys").find_by_secret(secret) is not None
    assert secret not in told


@pytest.mark.parametrize(
    "arguments",
    [("One",), ("one", "--routes", "classify"), ("one", "--expires", "soon")],
    ids=" ".join,
)
def test_what_is_no_key_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.setenv("BASIN_KEYS", str(tmp_path / "keys"))
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code not in (0, None)
    assert not list(tmp_path.iterdir())


def test_the_command_is_one_of_the_server() -> None:
    made = subprocess.run(
        [sys.executable, "-m", "service", "key", "one"], cwd=REPO, capture_output=True, text=True
    )
    assert made.returncode == 0
    assert SECRET_PATTERN.fullmatch(made.stdout.strip())
