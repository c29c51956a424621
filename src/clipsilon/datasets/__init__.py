"""Data sets: real ones, which are downloaded or read from your files, and the papers' synthetic ones."""

from clipsilon.datasets.base import Dataset
from clipsilon.datasets.cod_rna import DataError, codrna, generated_codrna
from clipsilon.datasets.give_me_some_credit import DownloadError, credit, fetch_credit, generated_credit
from clipsilon.datasets.mnist_digits import Digits, fetch_mnist, mnist
from clipsilon.datasets.synthetic import bernoulli, linear, logistic

__all__ = [
    "DataError",
    "Dataset",
    "Digits",
    "DownloadError",
    "bernoulli",
    "codrna",
    "credit",
    "fetch_credit",
    "fetch_mnist",
    "generated_codrna",
    "generated_credit",
    "linear",
    "logistic",
    "mnist",
]
