"""Take part for many users in one process, for the load test, and print what was sent and answered.

python crowd.py URL NAME USERS
"""

import hashlib
import json
import sys

import numpy as np


def main(url: str, name: str, users: int) -> None:
    import clipsilon as cs
    from clipsilon.local import client

    made, make = [], client.report

    def remembered(*arguments):
        made.append(make(*arguments))
        return made[-1]

    client.report = remembered
    rng = np.random.default_rng(list(name.encode()))
    device = client.Client(url, patience=120.0)
    print("ready", flush=True)
    for k in range(users):
        record, mu = (rng.standard_normal(3), float(rng.integers(2))), float(rng.uniform(0.5, 2.0))
        user = f"{name}-{k}"
        sequence, stated = device.take_part(user, record, cs.losses.MallowsLogistic(), mu)
        digest = hashlib.sha256(made[-1].astype("<f8").tobytes()).hexdigest()
        print(json.dumps({"user": user, "mu": mu, "sequence": sequence, "digest": digest}), flush=True)
        assert stated == mu
        assert len(made) == k + 1, "a second report was made"


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
