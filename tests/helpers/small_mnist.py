"""Small files in the format of MNIST, with random images."""

import hashlib
import struct

import numpy as np

IMAGES = np.random.default_rng(0).integers(256, size=(50, 28, 28)).astype(np.uint8)
LABELS = np.arange(50, dtype=np.uint8) % 10
TRAIN = 40  # of them; the others are to test on


def idx(entries):
    """Return the IDX file of an array of bytes."""
    return struct.pack(f">I{entries.ndim}I", 0x800 + entries.ndim, *entries.shape) + entries.tobytes()


FILES = {
    "train-images-idx3-ubyte": idx(IMAGES[:TRAIN]),
    "train-labels-idx1-ubyte": idx(LABELS[:TRAIN]),
    "t10k-images-idx3-ubyte": idx(IMAGES[TRAIN:]),
    "t10k-labels-idx1-ubyte": idx(LABELS[TRAIN:]),
}
DIGESTS = {name: hashlib.sha256(content).hexdigest() for name, content in FILES.items()}
