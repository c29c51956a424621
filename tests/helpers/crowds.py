"""People who send records to a stream, in Python and over HTTP."""

import json
from http.client import HTTPConnection
from urllib.parse import urlsplit

import numpy as np

import clipsilon as cs

D = 5
TOKEN = "a-token-of-some-length"


def settings(**more):
    """Settings of a small stream, all with the same compiled kernel."""
    about = {"dimension": D, "loss": cs.losses.Logistic(), "epsilon": 1.0, "delta": 1e-5, "horizon": 403, "batch": 10}
    return {**about, **more}


def population(n=403, d=D, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, d))
    return x, (rng.random(n) < 1 / (1 + np.exp(-x @ np.linspace(-1, 1, d)))).astype(float)


def records(x, y, first, last):
    return [
        {"person": f"p{i}", "features": x[i].tolist(), "label": float(y[i])} for i in range(first, min(last, len(y)))
    ]


def feed(stream, x, y, first=0, last=None, size=37):
    """Send the records in requests of `size`."""
    last = len(y) if last is None else last
    for k in range(first, last, size):
        stream.submit(records(x, y, k, min(k + size, last)), version=stream.model.version, key=f"k{k}-{last}")


class Caller:
    """One kept connection."""

    def __init__(self, url, token=TOKEN):
        self._connection = HTTPConnection(urlsplit(url).netloc, timeout=60)
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def ask(self, method, path, body=None, **headers):
        content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        self._connection.request(method, path, content, {**self._headers, **headers})
        answer = self._connection.getresponse()
        return answer.status, json.loads(answer.read())

    def close(self):
        self._connection.close()
