"""Options with which Numba compiles, in one place so that all compiled code follows the same rules.

No fast-math flags: with them, the last bits of what a record adds to a step could depend on its place in the batch.
"""

from __future__ import annotations

from typing import Any

from clipsilon._core.inner_compiler import InnerCompiler

# What is called from Python.
KERNEL: Any = {"nogil": True, "error_model": "numpy"}

# What only compiled code calls: where the compiler decides whether it is inlined, and where it always is. Nothing calls
# it through a C callback, and its wrapper would be a tenth of compiling.
CONTAINED: Any = {"no_cfunc_wrapper": True, "pipeline_class": InnerCompiler}
INLINE: Any = {"forceinline": True, **CONTAINED}
INNER: Any = {"error_model": "numpy", **INLINE}
