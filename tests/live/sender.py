"""A process that sends the records of some people, each reacting to the model that is deployed when it is sent.

    sender.py URL TOKEN FIRST LAST SIZE BETA

Every request is repeated, with the same key, until it is answered. The last line is a JSON object: how many records
were accepted, and the seconds that it took.
"""

import json
import sys
import time
from http.client import HTTPConnection, HTTPException
from urllib.parse import urlsplit

import numpy as np

DEADLINE = 600.0  # seconds


def person(i, d):
    """Return features and label before the reaction, the same in every process."""
    rng = np.random.default_rng([7, i])
    x = rng.standard_normal(d)
    return x, float(rng.random() < 1 / (1 + np.exp(-x @ np.linspace(-1, 1, d))))


class Sender:
    def __init__(self, url, token):
        self._place, self._headers = urlsplit(url).netloc, {"Authorization": f"Bearer {token}"}
        self._connection = HTTPConnection(self._place, timeout=30)
        self._end = time.monotonic() + DEADLINE

    def ask(self, method, path, body=None):
        while time.monotonic() < self._end:
            try:
                self._connection.request(method, path, body, self._headers)
                answer = self._connection.getresponse()
                return answer.status, json.loads(answer.read())
            except (OSError, HTTPException, ValueError):  # the service was killed, perhaps after it took the records
                self._connection.close()
                time.sleep(0.05)
        raise SystemExit("no answer in time")

    def model(self):
        _, content = self.ask("GET", "/model")
        return content["version"], np.array(content["theta"])

    def send(self, key, people, beta):
        """Send some records; return how many were accepted. A model that was replaced meanwhile is fetched again."""
        while True:
            version, theta = self.model()
            moved = [
                {"person": f"p{i}", "features": (x - beta * theta).tolist(), "label": y} for i, (x, y) in people.items()
            ]
            body = json.dumps({"key": key, "version": version, "records": moved})
            status, answer = self.ask("POST", "/records", body)
            if status == 200:
                assert not answer["refused"], answer
                return answer["accepted"]
            assert answer["code"] == "stale", answer


def main(url, token, first, last, size, beta):
    sender = Sender(url, token)
    d = sender.model()[1].size
    crowd = {i: person(i, d) for i in range(first, last)}
    began, accepted = time.monotonic(), 0
    for k in range(first, last, size):
        some = {i: crowd[i] for i in range(k, min(k + size, last))}
        accepted += sender.send(f"from {k}", some, beta)
    print(json.dumps({"accepted": accepted, "seconds": time.monotonic() - began}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6]), float(sys.argv[6]))
