"""The names of Python and its standard library that a function may use.

A module of the standard library gives access to everything (`re.enum.sys`), so
its names are listed one by one. A name that is missing here is refused (see
`language`). The worker imports all of these modules before the box forbids it
to open files; NumPy's names are in `numpy_names`.
"""

import functools
import types

import numpy as np

from evojax.harness import numpy_names


def _table(text: str) -> dict[str, frozenset[str]]:
  """Parse 'module: name name ...; module: ...' into module -> names."""
  entries = (entry.partition(':') for entry in text.split(';'))
  return {m.strip(): frozenset(names.split()) for m, _, names in entries}


# Module -> functions and types that may be called.
FUNCTIONS = (
    _table("""
  bisect: bisect bisect_left bisect_right;
  collections: Counter OrderedDict defaultdict deque namedtuple;
  copy: copy deepcopy;
  dataclasses: asdict astuple dataclass field replace;
  functools: cache lru_cache partial reduce;
  heapq: merge nlargest nsmallest;
  itertools: accumulate chain chain.from_iterable combinations
    combinations_with_replacement compress count cycle dropwhile filterfalse
    groupby islice pairwise permutations product repeat starmap takewhile
    zip_longest;
  operator: abs add and_ eq floordiv ge gt itemgetter le lt mod mul ne neg
    not_ or_ pow sub truediv xor;
  re: compile escape findall finditer fullmatch match search split sub subn;
  statistics: correlation covariance fmean geometric_mean harmonic_mean
    linear_regression mean median median_high median_low mode multimode pstdev
    pvariance quantiles stdev variance
""")
    | {
        'math': numpy_names.MATH,
        'numpy': numpy_names.FUNCTIONS | {'finfo', 'iinfo'},
        'numpy.linalg': numpy_names.LINALG,
    }
)
CONSTANTS = (
    _table("""
  re: A ASCII DOTALL I IGNORECASE M MULTILINE S VERBOSE X;
  string: ascii_letters ascii_lowercase ascii_uppercase digits hexdigits
    punctuation whitespace
""")
    | {
        'math': numpy_names.MATH_CONSTANTS,
        'numpy': numpy_names.CONSTANTS,
    }
)
# Module -> names for annotations alone.
TYPES = _table("""
  __future__: annotations;
  collections: ChainMap;
  collections.abc: Callable Collection Container Hashable Iterable Iterator
    Mapping MutableMapping MutableSequence Sequence Set Sized;
  numpy: floating generic integer ndarray number;
  numpy.typing: ArrayLike DTypeLike NDArray;
  re: Match Pattern;
  typing: Any Callable ClassVar Collection Counter DefaultDict Deque Dict Final
    FrozenSet Hashable Iterable Iterator List Literal Mapping MutableMapping
    NamedTuple NewType Optional Sequence Set Sized Tuple Type Union
""")
MODULES = frozenset((*FUNCTIONS, *CONSTANTS, *TYPES))
# Reasons for refusing another module, or a name from one.
NOT_IMPORTED = {
    'jax': 'a function runs on NumPy arrays; `import numpy as np`',
    'torch': 'a function runs on NumPy arrays; `import numpy as np`',
    'tensorflow': 'a function runs on NumPy arrays; `import numpy as np`',
    'scipy': 'the box has NumPy alone; write the formula with np',
    'pandas': 'the box has NumPy alone; write it with np, Counter or a loop',
    'sklearn': 'the box has NumPy alone; write the formula with np',
    'jaxtyping': 'annotate with np.ndarray, or leave the annotation out',
    'random': 'an answer must not differ from run to run, and a fixed seed'
    ' pays by position; compute it from the evidence',
    'secrets': 'an answer must not differ from run to run; compute it from the'
    ' evidence',
    'time': 'an answer must not depend on the clock; compute it from the'
    ' evidence',
    'datetime': 'an answer must not depend on the clock; compute it from the'
    ' evidence',
    'warnings': 'evojax silences warnings already; take it out',
    'logging': 'nothing that a function prints is kept; return a number',
    'threading': 'a function runs alone; call what you need',
    'multiprocessing': 'a function runs alone; call what you need',
    'asyncio': 'a function runs alone; call what you need',
    'concurrent': 'a function runs alone; call what you need',
    'enum': 'use texts or numbers as constants',
    'abc': 'write a class without a base, or functions',
}
OTHERWISE = 'a function sees its arguments alone'
INSTEAD = {
    'operator.attrgetter': 'write `lambda x: x.name`',
    'operator.methodcaller': 'write `lambda x: x.method()`',
    'functools.wraps': 'call one function inside the other',
    'functools.cached_property': 'use @property',
    'functools.singledispatch': 'use if and isinstance',
    'typing.get_type_hints': 'annotations are not read; take it out',
    'typing.cast': 'annotate the name instead: x: float = ...',
    'typing.TypeVar': 'annotate with Any',
    'typing.Protocol': 'annotate with Any',
    'typing.TypedDict': 'use a dataclass, or annotate with Dict',
    'collections.ChainMap': 'write {**a, **b}',
    'collections.UserDict': 'use a dict',
    'itertools.tee': 'make a list of it',
    'heapq.heappush': 'sort, or use heapq.nsmallest',
    'heapq.heapify': 'sort, or use heapq.nsmallest',
}

BUILTINS = numpy_names.BUILTINS | frozenset(
    'bin callable chr divmod filter format frozenset getattr hasattr hex iter'
    ' map next oct ord repr slice'.split()
)
# The builtins above that may be called but not passed on, since a string
# decides which attribute they read.
ONLY_CALLED = frozenset(('getattr', 'hasattr'))
# Builtins that may decorate a method.
DECORATORS = frozenset(('classmethod', 'property', 'staticmethod'))
NOT_BUILTIN = {
    'print': 'nothing that a function prints is kept; return a number',
    'type': 'use isinstance(x, ...)',
    'id': 'an address differs from run to run; compare with ==',
    'hash': 'use the value itself as a key',
    'open': 'a function sees its arguments alone',
    'input': 'a function sees its arguments alone',
    'eval': 'write down what it would compute',
    'exec': 'write down what it would run',
    'compile': 'write down what it would run',
    '__import__': 'write an import',
    'setattr': 'assign to a name, or to self.name in a method',
    'delattr': 'assign None',
    'vars': 'name what you need',
    'dir': 'e.columns lists the columns of the evidence',
    'globals': 'name what you need',
    'locals': 'name what you need',
    'object': 'write a class without a base',
    'super': 'write a class without a base',
    'bytes': 'use texts or arrays of numbers',
    'bytearray': 'use texts or arrays of numbers',
    'memoryview': 'use arrays',
    'complex': 'use two real numbers',
    'exit': 'return what was found so far',
    'quit': 'return what was found so far',
    'breakpoint': 'take it out',
    'pow': 'use **',
}
# Exceptions that may be raised, and caught by name. `except Exception` catches
# all of these: see `worker`. Lack of memory or of stack is missing, because its
# consequences depend on the machine.
EXCEPTIONS = frozenset(
    'ArithmeticError AssertionError AttributeError FloatingPointError'
    ' IndexError KeyError LookupError NameError OverflowError StopIteration'
    ' TypeError UnicodeError ValueError ZeroDivisionError'.split()
)
RAISED = EXCEPTIONS | {'NotImplementedError', 'RuntimeError'}
# Exceptions of modules, which may only be caught.
ERRORS = frozenset(('numpy.linalg.LinAlgError', 'statistics.StatisticsError'))
SPECIAL_METHODS = frozenset('__call__ __init__ __len__ __post_init__'.split())

# Types of objects that a function may hold, and that give access to the
# interpreter, to memory or to other functions: the frame of a generator has all
# builtins, the `base` of a column is the memory of the whole request.
_LEADING = (
    BaseException, functools.partial, memoryview, np.dtype, np.generic,
    np.ndarray, np.ufunc, property, type, type(functools.cache(len)),
    types.CodeType, types.FrameType, types.GeneratorType, types.TracebackType,
)  # fmt: skip
# Their attributes, except those that give numbers, texts and arrays. An
# attribute is known by its name alone, so no field and no method may have one
# of these names.
LEADING = frozenset(
    name
    for type_ in _LEADING
    for name in dir(type_)
    if not name.startswith('_')
) - frozenset('char close fields imag name names num real'.split())
LEADING -= numpy_names.PROPERTIES | numpy_names.METHODS.keys()
# Attributes of a defaultdict and of a compiled pattern.
LEADING |= {'default_factory', 'scanner'}

# ------------------------------------------------- functions of other functions
# A full name is 'module.name' or the name of a builtin; see `values`.

# Position of the argument that is called, and keywords whose value is called.
TAKERS = {
    'map': 0, 'filter': 0, 'functools.reduce': 0, 'functools.partial': 0,
    'itertools.accumulate': 1, 'itertools.starmap': 0, 're.sub': 1,
    'itertools.takewhile': 0, 'itertools.dropwhile': 0, 're.subn': 1,
    'itertools.filterfalse': 0, 'itertools.groupby': 1,
    'collections.defaultdict': 0,
}  # fmt: skip
TAKEN = {
    'default_factory': ('dataclasses.field',),
    'func': ('itertools.accumulate',),
    'key': (
        'sorted min max heapq.nlargest heapq.nsmallest itertools.groupby'
        ' heapq.merge'.split()
    ),
}
# Functions that return an iterator, which is read once and whose text shows an
# address.
ITERATORS = frozenset(
    ('enumerate', 'filter', 'iter', 'map', 'reversed', 'zip', 'heapq.merge')
    + tuple(f'itertools.{name}' for name in FUNCTIONS['itertools'])
)
# Functions that return a match, whose position in a set depends on its address.
MATCHES = frozenset(('fullmatch', 'match', 'search'))
# Functions that read the iterators passed to them, and return none of them. The
# value is the positions of these arguments; None: all.
READERS = dict.fromkeys(
    'all any dict enumerate frozenset iter list next reversed set sorted sum'
    ' tuple str.join math.fsum math.prod collections.Counter'
    ' collections.OrderedDict collections.deque'.split(),
    (0,),
)
READERS |= {name: (0,) for name in ITERATORS if name.startswith('itertools')}
READERS |= {f'statistics.{n}': None for n in FUNCTIONS['statistics']}
READERS |= {n: (1,) for n in TAKERS if not TAKERS[n] and n != 'map'}
READERS |= dict.fromkeys(
    'map zip max min heapq.merge itertools.chain itertools.compress'
    ' itertools.product itertools.zip_longest isinstance len bool'.split()
)
READERS |= {'heapq.nlargest': (1,), 'heapq.nsmallest': (1,)}
for _name in ('repeat', 'count'):  # They yield their arguments.
  del READERS[f'itertools.{_name}']
for _name in ('functools.partial', 'collections.defaultdict'):
  del READERS[_name]
# Readers that may pass on functions and iterators from their arguments.
PASSING = frozenset(
    'all any bool dict enumerate iter isinstance len list max min next reversed'
    ' tuple zip itertools.chain itertools.chain.from_iterable'
    ' itertools.islice'.split()
)
# Functions that fail at once for an iterator, a match or a method, or reveal
# nothing about it.
SAFE = frozenset('abs bool callable float getattr hasattr int round'.split())
# Methods that read an iterator.
READING_METHODS = frozenset(
    'difference extend extendleft intersection isdisjoint issubset issuperset'
    ' join subtract union update'.split()
)
# Methods that return the content of a container.
GETTERS = frozenset(
    'copy get items pop popitem popleft setdefault values'.split()
)
