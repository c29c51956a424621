"""Turn results into pictures, data files, HTML pages and terminal tables."""
