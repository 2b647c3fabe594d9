"""The syntax that a harness function may use, as tables for `language`.

Everything that is not listed is refused: a node type that a later Python adds
stays out until it has been reviewed.
"""

import ast

MAX_LOOPS = 3  # Nested loops, comprehensions included.
MAX_ITEMS = 64  # Entries of a literal list, tuple, set or dict.
MAX_NUMBER = 10**9
MAX_TEXT = 200  # Characters of a name or a string, except docstrings.
# Attributes of any evidence, besides its columns.
EVIDENCE = frozenset(('codes', 'columns', 'max_tokens', 'valid'))


def _nodes(names: str) -> tuple[type[ast.AST], ...]:
  return tuple(getattr(ast, name) for name in names.split())


ALLOWED = _nodes(
    # Statements.
    'FunctionDef ClassDef Return Delete Assign AnnAssign AugAssign For While If'
    ' With Raise Try Assert Import ImportFrom Nonlocal Expr Pass Break'
    ' Continue'
    # Expressions.
    ' BoolOp NamedExpr BinOp UnaryOp Lambda IfExp Dict Set ListComp SetComp'
    ' DictComp GeneratorExp Compare Call JoinedStr FormattedValue Constant'
    ' Attribute Subscript Starred Name List Tuple Slice Yield YieldFrom'
    # Their parts.
    ' Module ExceptHandler arguments arg alias keyword comprehension withitem'
    ' expr_context boolop operator unaryop cmpop'
)
# Allowed at the top level of a file, besides functions.
TOP = _nodes('Import ImportFrom Assign AnnAssign ClassDef Pass')
IN_CLASS = _nodes('Assign AnnAssign FunctionDef Pass')
LOOPS = _nodes('For While comprehension')
COMPREHENSIONS = _nodes('ListComp SetComp DictComp GeneratorExp')
TABLES = _nodes('List Tuple Set Dict')
ANNOTATIONS = _nodes('Subscript Tuple List Constant expr_context BinOp BitOr')
NAMED = ('id', 'attr', 'arg', 'name', 'asname')  # Fields that hold a name.
# Nodes that give a value another name.
HANDED_ON = _nodes('Assign AnnAssign NamedExpr Return List Tuple Dict keyword')
# Public methods of namedtuples that begin with an underscore.
OF_NAMEDTUPLES = frozenset(('_asdict', '_replace'))
DTYPES = frozenset(('bool', 'float', 'int'))  # Builtins that are dtypes, too.
# Keywords that an unknown function may take.
OF_ANY = frozenset(('axis', 'ddof', 'keepdims'))
# Keywords that leave memory uninitialised, write into other memory, or make
# arrays of arbitrary objects.
RISKY = frozenset(('casting', 'copy', 'dtype', 'out', 'subok', 'where'))
# Modes of np.pad. 'empty' would leave memory uninitialised, and a function as
# the mode would be called with arrays that it may write into.
PADS = frozenset(
    'constant edge maximum mean median minimum reflect symmetric wrap'.split()
)
# Arguments of np.errstate; 'raise' depends on the processor.
FLOAT_ERRORS = frozenset('all divide invalid over under'.split())
FLOAT_REACTIONS = frozenset(('ignore', 'warn'))
# Refused node type -> its name and the remedy.
INSTEAD = {
    ast.AsyncFunctionDef: 'async; a function runs alone',
    ast.AsyncFor: 'async; a function runs alone',
    ast.AsyncWith: 'async; a function runs alone',
    ast.Await: 'await; a function runs alone',
    ast.TryStar: 'except*; write except',
    ast.Match: 'match; use if and ==',
    ast.Global: 'global; a function remembers nothing, `keep` returns a state',
}
