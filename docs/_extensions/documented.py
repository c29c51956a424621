"""A directive that lists names in a table and then documents each of them, so that API pages name everything once."""

from importlib import import_module

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.ext.autosummary import Autosummary, import_by_name


def entry(name):
    """Return the lines that document a function, or a class or exception with its members."""
    value = import_by_name(name)[1]
    if not isinstance(value, type):
        return [f".. autofunction:: {name}", ""]
    kind = "exception" if issubclass(value, BaseException) else "class"
    return [f".. auto{kind}:: {name}", "   :members:", ""]


class Documented(Autosummary):
    """A table as of `autosummary`, without signatures, and then the entries of its names.

    The names are the lines of the content; or those that the module given as the argument declares public.
    """

    optional_arguments = 1

    def run(self):
        """Return the nodes; called by docutils."""
        self.options["nosignatures"] = True
        source = self.get_source_info()[0]
        if self.arguments:
            (module,) = self.arguments
            names = [f"~{module}.{name}" for name in import_module(module).__all__]
            self.content = StringList(names, source=source)
            lines = [f".. automodule:: {module}", "   :members:", ""]
        else:
            lines = [line for name in self.content if name for line in entry(name.lstrip("~"))]
        table, entries = super().run(), nodes.Element()
        self.state.nested_parse(StringList(lines, source=source), self.content_offset, entries)
        return [*table, *entries.children]


def setup(app):
    """Register the directive; called by Sphinx."""
    app.add_directive("documented", Documented)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
