"""The update as a record of parts, and its parts in order."""
