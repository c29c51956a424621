"""Run the browser's client in Node."""

import json
import shutil
import subprocess
from importlib.resources import files

import pytest

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="Node is not installed")

_FRAME = """
import {{ readFileSync }} from "node:fs";
import * as client from "./client.mjs";
const given = JSON.parse(readFileSync(0, "utf-8"));
const replay = script => {{
  const source = () => BigInt(script[source.drawn++]);
  source.drawn = 0;
  return source;
}};
{body}
"""


def copy_client(folder):
    """Copy the client into a folder under a name that Node takes for a module."""
    target = folder / "client.mjs"
    target.write_bytes((files("clipsilon.local") / "client.js").read_bytes())
    return target


def run(folder, body, given=None):
    """Run the body of a script, which finds the module `client` and the value `given`, and return what it prints.

    `replay` makes a source of words from a list of numbers in decimal; its property `drawn` counts them.
    """
    copy_client(folder)
    (folder / "main.mjs").write_text(_FRAME.format(body=body), "utf-8")
    done = subprocess.run(
        ["node", "main.mjs"], input=json.dumps(given), capture_output=True, text=True, cwd=folder, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
