"""The foundation of all other packages: parts, argument checks, storage, rows of data."""
