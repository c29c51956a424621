"""`clipsilon enrol`, as its users type it."""

from clipsilon.local.enrolment import enrolment_token, read_secret
from command_line import run


def test_tokens_of_users_and_of_lines(tmp_path):
    path = tmp_path / "secret.txt"
    done = run("enrol", path, "ann", "bob")
    secret = read_secret(path)
    expected = [f"{user}\t{enrolment_token(secret, user)}" for user in ("ann", "bob")]
    assert (done.exit_code, done.output.splitlines()) == (0, expected)
    assert run("enrol", path, "ann").output.splitlines() == expected[:1]


def test_a_wrong_name_or_secret_is_refused_in_one_sentence(tmp_path):
    path = tmp_path / "secret.txt"
    assert run("enrol", path, "a" * 300).output.startswith("Error: user must be 1 to 200 printable characters")
    path.write_text("short")
    assert "must be at least 16 printable ASCII characters" in run("enrol", path, "ann").output
