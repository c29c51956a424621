"""The theorems of the papers, one module a paper and one function a theorem."""
