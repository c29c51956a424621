"""What every other package stands on: parts, argument checks, storage, rows of data."""
