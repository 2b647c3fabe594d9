"""The names of NumPy, math and Python that a harness function may use.

All are pure: no files, no random numbers, no uninitialised memory, no state
that outlives a call. A name that is missing here is refused (see `language`).
"""

import functools
import inspect

import numpy as np

DTYPES = frozenset(
    'bool_ float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64'
    ' intp'.split()
)
DTYPE_TEXTS = DTYPES - {'bool_', 'intp'} | {'bool', 'int', 'float'}
CONSTANTS = frozenset('e inf nan newaxis pi'.split())
UNARY = frozenset(
    'abs absolute arccos arccosh arcsin arcsinh arctan arctanh cbrt ceil cos'
    ' cosh deg2rad degrees exp exp2 expm1 fabs floor isfinite isinf isnan log'
    ' log10 log1p log2 logical_not invert negative positive rad2deg radians'
    ' reciprocal rint sign signbit sin sinh sqrt square tan tanh trunc'.split()
)
BINARY = frozenset(
    'add arctan2 bitwise_and bitwise_or bitwise_xor copysign divide equal'
    ' float_power floor_divide fmax fmin fmod greater greater_equal heaviside'
    ' hypot less less_equal logaddexp logaddexp2 logical_and logical_or'
    ' logical_xor maximum minimum mod multiply not_equal power remainder'
    ' subtract true_divide'.split()
)
# Methods of binary functions: np.maximum.accumulate(x).
UFUNC_METHODS = frozenset(('accumulate', 'outer', 'reduce'))
# Reductions, whose `where` selects entries; elsewhere `where` leaves memory
# uninitialised.
REDUCTIONS = frozenset(
    'all any max mean min nanmax nanmean nanmin nanstd nansum nanvar prod std'
    ' sum var'.split()
)
FUNCTIONS = frozenset(
    'allclose amax amin append arange argmax argmin argpartition argsort'
    ' argwhere around array array_split asarray'
    ' ascontiguousarray atleast_1d atleast_2d atleast_3d average bincount'
    ' broadcast_to clip column_stack concatenate convolve copy corrcoef'
    ' correlate count_nonzero cov cross cumprod cumsum delete diag diagonal'
    ' diff digitize dot ediff1d expand_dims eye flatnonzero flip fliplr'
    ' flipud full full_like geomspace gradient histogram hsplit hstack'
    ' identity indices inner insert interp intersect1d isclose isin'
    ' isscalar kron lexsort linspace logspace matmul median moveaxis'
    ' nan_to_num nanargmax nanargmin nancumsum nanmedian nanpercentile'
    ' nanprod nanquantile ndim nonzero ones ones_like outer pad partition'
    ' percentile polyfit polyval ptp quantile ravel repeat reshape roll'
    ' rot90 round searchsorted select setdiff1d setxor1d shape size sort'
    ' split squeeze stack swapaxes take take_along_axis tensordot tile'
    ' trace transpose trapezoid tri tril triu union1d unique unwrap vstack'
    ' where zeros zeros_like einsum'
    ' diag_indices ix_ meshgrid tril_indices triu_indices'
    ' unravel_index'.split()
).union(UNARY, BINARY, DTYPES, REDUCTIONS)
# NumPy 2 renamed some of them.
FUNCTIONS = frozenset(name for name in FUNCTIONS if hasattr(np, name))
LINALG = frozenset(('det', 'lstsq', 'norm', 'pinv', 'solve'))
MATH = frozenset(
    'acos asin atan atan2 ceil comb copysign cos cosh degrees dist e erf erfc'
    ' exp expm1 fabs floor fmod fsum gamma hypot inf isclose isfinite isinf'
    ' isnan lgamma log log10 log1p log2 nan pi pow prod radians sin sinh sqrt'
    ' tan tanh tau trunc'.split()
)
MATH_CONSTANTS = frozenset(('e', 'inf', 'nan', 'pi', 'tau'))
BUILTINS = frozenset(
    'abs all any bool dict enumerate float int isinstance len list max min'
    ' range reversed round set sorted str sum tuple zip'.split()
)
# Attributes of arrays, strings, lists, dicts and sets. The methods are listed
# with the number of arguments that may be positional: `out` comes after them.
PROPERTIES = frozenset('T dtype itemsize kind nbytes ndim shape size'.split())
METHODS = {
    'all': 1, 'any': 1, 'argmax': 1, 'argmin': 1, 'argsort': 1, 'astype': 1,
    'clip': 2, 'copy': 0, 'cumprod': 1, 'cumsum': 1, 'diagonal': 3, 'dot': 1,
    'fill': 1, 'flatten': 1, 'item': 9, 'max': 1, 'mean': 2, 'min': 1,
    'nonzero': 0, 'prod': 1, 'ravel': 1, 'repeat': 2, 'reshape': 9, 'round': 1,
    'searchsorted': 1, 'sort': 1, 'squeeze': 1, 'std': 2, 'sum': 2,
    'swapaxes': 2, 'take': 2, 'tolist': 0, 'trace': 3, 'transpose': 9,
    'var': 2,
    'append': 1, 'count': 3, 'endswith': 3, 'extend': 1, 'find': 3, 'get': 2,
    'index': 3, 'insert': 2, 'isalnum': 0, 'isalpha': 0, 'isdigit': 0,
    'islower': 0, 'isspace': 0, 'isupper': 0, 'items': 0, 'join': 1, 'keys': 0,
    'lower': 0, 'lstrip': 1, 'partition': 1, 'pop': 2, 'removeprefix': 1,
    'removesuffix': 1, 'replace': 3, 'reverse': 0, 'rfind': 3, 'rpartition': 1,
    'rsplit': 2, 'rstrip': 1, 'setdefault': 2, 'split': 2, 'splitlines': 1,
    'startswith': 3, 'strip': 1, 'title': 0, 'update': 1, 'upper': 0,
    'values': 0, 'add': 1, 'difference': 9, 'discard': 1, 'intersection': 9,
    'isdisjoint': 1, 'issubset': 1, 'issuperset': 1, 'union': 9,
    'appendleft': 1, 'capitalize': 0, 'casefold': 0, 'center': 2, 'clear': 0,
    'elements': 0, 'end': 1, 'expandtabs': 1, 'extendleft': 1, 'findall': 3,
    'finditer': 3, 'format': 9, 'fullmatch': 3, 'group': 9, 'groupdict': 1,
    'groups': 1, 'is_integer': 0, 'isascii': 0, 'isdecimal': 0,
    'isidentifier': 0, 'isnumeric': 0, 'istitle': 0, 'ljust': 2, 'match': 3,
    'most_common': 1, 'move_to_end': 2, 'popitem': 1, 'popleft': 0,
    'remove': 1, 'rjust': 2, 'rotate': 1, 'search': 3, 'span': 1, 'start': 1,
    'sub': 3, 'subn': 3, 'subtract': 1, 'swapcase': 0,
    'symmetric_difference': 1, 'total': 0, 'zfill': 1,
}  # fmt: skip
# Methods of arrays. A method of a class may not have such a name, since calls
# of these must not use some arguments.
OF_ARRAYS = frozenset(name for name in METHODS if hasattr(np.ndarray, name))
# NumPy functions that may be passed on, where their arguments are not checked.
PASSED = UNARY | BINARY | REDUCTIONS | {'median', 'nanmedian', 'ptp'}
KEYWORDS = frozenset(
    'a a_max a_min abs_tol append assume_unique atol axes axis axis1 axis2'
    ' base bins choicelist condlist constant_values copy cumulative ddof'
    ' decimals default default_factory defaults density dtype edge_order'
    ' endpoint equal_nan field_names fill_value fillvalue flags frozen func'
    ' indexing indices initial invert iterable k keepdims key kind kth'
    ' kw_only left max maxlen maxsize maxsplit method min minlength mode n'
    ' nan ndigits ndmin neginf num obj offset ord order pad_width period'
    ' posinf prepend q range rcond rel_tol repeat repeats retstep'
    ' return_counts return_index return_inverse returned reverse right'
    ' rowvar rtol sep shape shift side slots sorter source start step stop'
    ' strict times typename values weights where x y'.split()
)
# Remedies for names that are not on the lists.
INSTEAD = {
    # These answer False when memory runs out, which would tell a function how
    # much memory it has.
    'array_equal': 'np.array_equal is refused; write (x == y).all()',
    'array_equiv': 'np.array_equiv is refused; write (x == y).all()',
    'empty': 'np.empty returns uninitialised memory; use np.zeros',
    'empty_like': 'np.empty_like returns uninitialised memory; use'
    ' np.zeros_like',
    'ndarray': 'np.ndarray returns uninitialised memory; use np.zeros',
    'random': 'np.random makes the answer differ from run to run, and a fixed'
    ' seed pays by position; compute it from the evidence',
    'load': 'np.load reads a file; a function has its arguments alone',
    'vectorize': 'np.vectorize calls what it is given; write it with arrays',
    'apply_along_axis': 'np.apply_along_axis calls what it is given; write it'
    ' with arrays',
    'errstate': "write `with np.errstate(divide='ignore', invalid='ignore'):`,"
    ' or nothing: evojax silences warnings already',
    'fromiter': 'np.fromiter is not allowed; write np.array([...])',
    'piecewise': 'np.piecewise calls what it is given; use np.select',
    'rollaxis': 'np.rollaxis is old; use np.moveaxis',
    'trapz': 'np.trapz is not in every NumPy; use np.trapezoid',
    'in1d': 'np.in1d is not in every NumPy; use np.isin',
    'seterr': 'evojax silences warnings already; take np.seterr out',
    'object_': 'object arrays hold anything; use numbers or texts',
}


@functools.cache
def positional(name: str) -> tuple[int, int | None]:
  """Return how np.<name> takes positional arguments.

  Returns:
    The number of arguments that may be positional (`out` or nothing comes after
    them), and the position of dtype or None.
  """
  if name in UNARY | BINARY | DTYPES:
    return 1 + (name in BINARY), None
  found = inspect.signature(getattr(np, name)).parameters
  places = {parameter: i for i, parameter in enumerate(found)}
  stop = places.get('out', len(places))
  if next(iter(found.values())).kind is inspect.Parameter.VAR_POSITIONAL:
    stop = 99  # np.einsum: all are operands.
  return stop, places.get('dtype')
