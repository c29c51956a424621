"""`clipsilon audit`, as its users type it."""

from command_line import run


def test_audit(tmp_path):
    words = ["DPSGD", "--noise-std", "0.2", "--records", "20", "--steps", "5", "--delta", "1e-5", "--sampling", "full"]
    done = run("audit", *words, "--runs", "300", "--seed", "0", "--plot", str(tmp_path / "curve.png"))
    assert done.exit_code == 0
    assert "an attack (whole run) on its noisy updates shows ε ≥" in done.output
    assert (tmp_path / "curve.png").exists()


def test_an_interrupted_audit_ends_in_one_line(monkeypatch):
    def interrupted(*arguments, **named):
        raise KeyboardInterrupt

    monkeypatch.setattr("clipsilon.privacy.auditing.audit.audit", interrupted)
    done = run("audit", "DPSGD", "--noise-std", 0.2, "--records", 20, "--steps", 5, "--delta", 1e-5)
    assert (done.exit_code, done.output) == (130, "Stopped: nothing was written.\n")
