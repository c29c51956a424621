"""Attempts to make the browser's client spend twice: client_attacks.mjs, run by Node against a service in memory."""

import subprocess
from pathlib import Path

import javascript

pytestmark = javascript.needs_node


def test_the_client_cannot_be_made_to_spend_twice(tmp_path):
    javascript.copy_client(tmp_path)
    attacks = Path(__file__).with_name("client_attacks.mjs")
    (tmp_path / attacks.name).write_bytes(attacks.read_bytes())
    done = subprocess.run(["node", "--test", attacks.name], capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stdout
    assert "\n# fail 0\n" in done.stdout
    assert int(done.stdout.split("\n# pass ")[1].split()[0]) > 35
