"""How Numba compiles functions that only compiled code calls: to simplified code, but not to machine code.

All of them are inlined into kernels, so that nothing would call it, and making it took a tenth of the time that
compiling takes. Kernels are optimised fully, with all that they contain. Optimising each inner function fully before
took another fifth, and made kernels no faster; without simplifying them, batches take 1.3 to 1.6 times as long.
"""

from __future__ import annotations

from typing import Any

from numba.core import typed_passes
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder, _LowerResult
from numba.core.compiler_machinery import register_pass


class InnerCompiler(CompilerBase):  # type: ignore[misc]
    """Numba's pipeline, whose last pass makes no machine code."""

    def define_pipelines(self) -> list[Any]:
        """Return Numba's passes with another last one."""
        pipeline = DefaultPassBuilder.define_nopython_pipeline(self.state)
        pipeline.passes = [
            (_InnerLowering if kind is typed_passes.NativeLowering else kind, text) for kind, text in pipeline.passes
        ]
        pipeline.finalize()
        return [pipeline]


@register_pass(mutates_CFG=True, analysis_only=False)
class _InnerLowering(typed_passes.NativeLowering):  # type: ignore[misc]
    """Lower a function into a library of its own, and declare it to those that call it."""

    _name = "inner_lowering"

    def run_pass(self, state: Any) -> bool:
        library = state.library = _InnerLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        super().run_pass(state)
        lowered = state["cr"]
        entry = [].append  # Numba wants a function of C, by which it finds the library; nothing calls it
        state.targetctx.insert_user_function(entry, lowered.fndesc, [library])
        state["cr"] = _LowerResult(lowered.fndesc, lowered.call_helper, cfunc=entry, env=lowered.env)
        return True


class _InnerLibrary(JITCodeLibrary):  # type: ignore[misc]
    """The code of a function and of what it calls, simplified, without machine code."""

    def _optimize_final_module(self) -> None:
        """Run only the first of the two series of passes that Numba runs: it inlines, and removes reference counts."""
        passes, builder = self._codegen._module_pass_manager(
            loop_vectorize=False, slp_vectorize=False, opt=0, cost="cheap"
        )
        passes.run(self._final_module, builder)

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True
