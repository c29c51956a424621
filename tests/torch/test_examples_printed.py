"""Printed digits in the format of MNIST."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("opacus")

from clipsilon.torch.examples import printed  # noqa: E402

torch.set_num_threads(1)


def test_they_depend_on_the_seed_alone():
    pixels, labels = printed.distorted_digits(30, seed=3)
    same, other = printed.distorted_digits(30, seed=3), printed.distorted_digits(30, seed=4)
    assert pixels.shape == (30, 1, 28, 28)
    assert pixels.dtype == torch.float32
    assert torch.equal(pixels, same[0])
    assert torch.equal(labels, same[1])
    assert not torch.equal(pixels, other[0])
    with pytest.raises(ValueError, match="count must be a whole number of at least 1, got 0."):
        printed.distorted_digits(0)


def test_they_look_like_digits_of_mnist():
    pixels, labels = printed.distorted_digits(1000, seed=0)
    ink = pixels
    assert float(ink.min()) == 0.0
    assert float(ink.max()) == 1.0
    assert torch.bincount(labels, minlength=10).min() > 40  # of 100 expected: six deviations below
    shares = ink.mean((1, 2, 3))
    assert float(shares.min()) > 0.01  # none is empty; MNIST has 0.13 on average
    assert 0.08 < float(shares.mean()) < 0.25
    edge = torch.cat([ink[..., 0, :], ink[..., -1, :], ink[..., 0], ink[..., -1]], dim=-1)
    assert float((edge.amax((1, 2)) > 0.5).float().mean()) < 0.1  # few are cut off


def test_fonts_and_strokes_differ():
    drawings = printed._drawings()
    assert drawings.shape[1:] == (10, 56, 56)
    assert len(drawings) >= 4 * 15  # strokes, and fonts that matplotlib has
    assert float(drawings.mean((2, 3)).min()) > 0.01  # every font has every digit
    ink = drawings.mean((1, 2, 3)).reshape(-1, len(printed._STROKES))
    assert bool((ink.diff(dim=1) >= 0).all())  # strokes do not become thinner
    assert bool((ink[:, -1] > ink[:, 0]).all())
