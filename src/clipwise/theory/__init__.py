"""What the papers prove, one module a paper and one function a result."""
