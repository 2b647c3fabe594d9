"""The syntax that a harness function may use, as tables for `language`.

Everything that is not listed is refused: a node type that a later Python adds
stays out until someone has thought about it.
"""

import ast

MAX_LOOPS = 3  # Nested loops, comprehensions included.
MAX_ITEMS = 64  # Entries of a literal list, tuple, set or dict.
MAX_NUMBER = 10**9
MAX_TEXT = 200  # Characters of a string, docstrings apart.
IMPORTS = {
    'numpy': 'np',
    'math': 'math',
}  # Module -> the only name it may have.
# Attributes of every evidence, beside its columns.
EVIDENCE = frozenset(('codes', 'columns', 'max_tokens', 'valid'))


def _nodes(names: str) -> tuple[type[ast.AST], ...]:
  return tuple(getattr(ast, name) for name in names.split())


ALLOWED = _nodes(
    # Statements.
    'FunctionDef Return Assign AnnAssign AugAssign For If Import Expr Pass'
    ' Break Continue'
    # Expressions.
    ' BoolOp BinOp UnaryOp IfExp Dict Set ListComp SetComp DictComp'
    ' GeneratorExp Compare Call JoinedStr FormattedValue Constant Attribute'
    ' Subscript Starred Name List Tuple Slice Lambda'
    # Their parts.
    ' Module arguments arg alias keyword comprehension expr_context boolop'
    ' operator unaryop cmpop'
)
TOP = _nodes('Import Assign AnnAssign Pass')  # Beside functions in a file.
LOOPS = _nodes('For comprehension')
COMPREHENSIONS = _nodes('ListComp SetComp DictComp GeneratorExp')
TABLES = _nodes('List Tuple Set Dict')
ANNOTATIONS = _nodes('Subscript Tuple Constant expr_context BinOp BitOr')
NAMED = ('id', 'attr', 'arg', 'name', 'asname')  # Fields that hold a name.

# Builtins that return an iterator. An iterator can be read only once, and its
# text shows a memory address, so it must be consumed where it is made.
ITERATORS = frozenset(('enumerate', 'reversed', 'zip'))
# Functions and methods that consume an iterator whole.
READERS = frozenset(
    'all any dict enumerate extend fsum join list max min prod set sorted sum'
    ' tuple union update zip'.split()
)
SORTERS = frozenset(('max', 'min', 'sort', 'sorted'))  # Those that take a key=.
DTYPES = frozenset(('bool', 'float', 'int'))  # Builtins that are dtypes, too.
# Modes of np.pad: 'empty' leaves memory unwritten, and a function as the mode
# would be called with arrays that it may write into.
PADS = frozenset(
    'constant edge maximum mean median minimum reflect symmetric wrap'.split()
)
# Node type that is refused -> its name and what to write instead.
INSTEAD = {
    ast.While: 'while may never end; use `for ... in range(n)`',
    ast.ClassDef: 'classes; use functions and dicts',
    ast.AsyncFunctionDef: 'async; a function runs alone',
    ast.Await: 'await; a function runs alone',
    ast.With: 'with; there is nothing to open, and evojax silences warnings',
    ast.Try: 'try; test what may fail before it does',
    ast.Raise: 'raise; return {} or zeros where nothing can be said',
    ast.Assert: 'assert; return {} or zeros where nothing can be said',
    ast.Match: 'match; use if and ==',
    ast.NamedExpr: ':=; assign on a line of its own',
    ast.Global: 'global; a function remembers nothing, `keep` returns a state',
    ast.Nonlocal: 'nonlocal; a function remembers nothing',
    ast.Delete: 'del; nothing needs it',
    ast.ImportFrom: 'from ... import; write `import numpy as np`',
    ast.Yield: 'yield; build a list',
    ast.YieldFrom: 'yield from; build a list',
}
