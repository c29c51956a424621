"""Who may use the service: enrolment tokens, TLS, limits, and what strangers can ask for."""

import json
import socket
import ssl
import subprocess
from urllib.parse import urlsplit

import pytest

import clipsilon as cs
from clipsilon._core.http_server import Limits
from clipsilon.local import Client, service
from clipsilon.local.enrolment import enrolment_token, is_enrolled, read_secret
from clipsilon.local.service import Access

LOSS, STEP, RECORD = cs.losses.MallowsLogistic(), cs.schedules.Power(0.2, 0.5), ([0.3, -0.7], 1)
SECRET = b"a secret of the service"


@pytest.fixture
def server(tmp_path):
    with cs.local.Server(tmp_path / "l", start=[0.0, 0.5], step=STEP, loss=LOSS, batch=2) as opened:
        yield opened


def test_only_enrolled_users_report(server):
    with service.running(server, access=Access(SECRET)) as url:
        assert Client(url, enrolment=enrolment_token(SECRET, "ann")).take_part("ann", RECORD, LOSS, 1.0).sequence == 1
        for token in (None, "", "x", enrolment_token(SECRET, "ann"), enrolment_token(b"another secret", "bob")):
            with pytest.raises(cs.local.TurnError, match="the enrolment token is missing, or is not this user's"):
                Client(url, enrolment=token).take_part("bob", RECORD, LOSS, 1.0)
        assert Client(url).model().reports == 1  # what is published needs no token
        body = json.dumps({"user": "ann", "token": "t", "ticket": "", "version": 0, "mu": 1.0, "report": [0.1, 0.1]})
        answer = Client(url)._request("POST", "/report", body.encode())
        assert (answer.status, answer.content["code"]) == (401, "unauthorised")


def test_tokens():
    token = enrolment_token(SECRET, "ann")
    assert is_enrolled(SECRET, "ann", token)
    assert not any(is_enrolled(SECRET, user, token) for user in ("ann ", "Ann", "", None, 7, "a" * 300))
    assert not any(is_enrolled(SECRET, "ann", other) for other in ("", token[:-1], "\ud800"))


def test_the_secret_is_created_once(tmp_path):
    path = tmp_path / "secret"
    with pytest.raises(FileNotFoundError):
        read_secret(path)
    first = read_secret(path, create=True)
    assert read_secret(path, create=True) == read_secret(path) == first
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text("short")
    with pytest.raises(ValueError, match="must be at least 16 printable ASCII characters"):
        read_secret(path)


def test_the_task(tmp_path):
    about = {"batch": 2, "feature_names": ["income"], "round_seconds": 60.0, "most_budget": 3.0}
    loss = cs.losses.HuberRegression(c=1.2)
    with (
        cs.local.Server(tmp_path / "l", start=[0.0, 0.5], step=STEP, loss=loss, **about) as server,
        service.running(server, access=Access(SECRET)) as url,
    ):
        assert Client(url).task() == {
            "loss": {"name": "HuberRegression", "parameters": {"c": 1.2, "least_scale": 0.1}},
            "dimension": 2,
            "features": ["income"],
            "batch": 2,
            "round_seconds": 60.0,
            "enrolment": True,
            "most_budget": 3.0,
            "repeats": "refuse",
        }


def test_statements_are_computed_once(server, monkeypatch):
    server.apply("ann", 1.0, 0, [0.1, 0.2])
    calls, statement = [], server.statement
    monkeypatch.setattr(server, "statement", lambda delta: calls.append(delta) or statement(delta))
    with service.running(server) as url:
        client = Client(url)
        assert all(client.statement(1e-5) == statement(1e-5).summary() for _ in range(20))
        answers = [
            client._exchange(client._own.kept.connection, "GET", f"/statement?delta=1e-{k}", None) for k in (6, 7)
        ]
        assert [answer.status for answer in answers] == [503, 503]
    assert calls == [1e-5]


def test_too_many_requests_are_retried_later(server):
    with service.running(server, access=Access(rate=3.0)) as url:
        client = Client(url)
        assert client.take_part("ann", RECORD, LOSS, 1.0).sequence == 1
        assert client.take_part("bob", RECORD, LOSS, 1.0).sequence == 2  # after a rest


@pytest.fixture
def certificate(tmp_path):
    """Return the files of a certificate for 127.0.0.1 that nobody has signed, and of its key."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    words = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    try:
        subprocess.run(
            ["openssl", *words, *names, "-keyout", key, "-out", certificate], check=True, capture_output=True
        )
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    return certificate, key


@pytest.fixture
def context(certificate):
    """Return the settings of TLS for the server."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(*certificate)
    return made


def test_connections_without_a_handshake_count(server, context, certificate, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    with service.running(server, access=Access(per_address=2), tls=context) as url:
        place = urlsplit(url)
        silent = [socket.create_connection((place.hostname, place.port), timeout=60) for _ in range(2)]
        with pytest.raises(cs.local.NoAnswerError):
            Client(url, patience=0.01).model()
        for connection in silent:
            connection.close()
        assert Client(url).model().reports == 0


def test_connections_without_a_handshake_are_cut_off(server, context, monkeypatch):
    monkeypatch.setattr(service, "Limits", lambda *limits: Limits(*limits, seconds=0.2))
    with service.running(server, tls=context) as url:
        place = urlsplit(url)
        for content in (b"", b"\x16\x03\x01"):
            with socket.create_connection((place.hostname, place.port), timeout=30) as connection:
                connection.sendall(content)
                assert connection.recv(1) == b""
        with socket.create_connection((place.hostname, place.port), timeout=30) as connection:
            connection.sendall(b"GET /model HTTP/1.1\r\n\r\n")
            assert not connection.recv(1000).startswith(b"HTTP")  # nothing is answered unless it is encrypted


def test_encrypted(server, context, certificate, monkeypatch):
    with service.running(server, tls=context) as url:
        assert url.startswith("https://127.0.0.1:")
        with pytest.raises(cs.local.NoAnswerError, match="certificate verify failed|CERTIFICATE_VERIFY_FAILED"):
            Client(url, patience=0.01).model()
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
        client = Client(url)
        assert client.take_part("ann", RECORD, LOSS, 1.0).sequence == 1
        assert client.take_part("bob", RECORD, LOSS, 1.0).sequence == 2
        assert client.model().version == 1
