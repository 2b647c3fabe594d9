"""The language of a text in Latin letters, by its commonest words."""

import re

# Words that are frequent in one language, and rare in most of the others.
# English words that are also keywords of programs are left out.
_FREQUENT = {
    'English': 'the of that we are which have it so what they you was each by'
    ' must to be its then there first',
    'French': 'le les des une est dans pour nous avec donc sur qui cette du et'
    ' pas sont ce il au aux on',
    'German': 'der die das und ist nicht ein eine mit wir auch sich dass von zu'
    ' den für auf im es dem sind',
    'Spanish': 'el los las que una por con es para del como se pero entonces'
    ' son y su lo este hay tenemos',
    'Italian': 'il che di non una per con sono della è gli quindi dei abbiamo'
    ' questo nel del la le si ha',
    'Portuguese': 'o os que não uma para com são do da em é isso temos então ao'
    ' dos das um no na por',
    'Dutch': 'de het een van en niet dat voor zijn met wij dus op ook er wordt'
    ' bij aan we',
    'Swedish': 'och att är det som en på för med inte vi den till har så ett av'
    ' om',
    'Polish': 'jest nie się że na to dla oraz więc przez jak od po czyli do są'
    ' tego',
    'Turkish': 'bir ve bu için ile olarak değil her da olan çok kadar sonra ise'
    ' gibi',
    'Indonesian': 'yang dan adalah untuk dengan dari ini kita tidak pada itu di'
    ' jadi ada',
    'Vietnamese': 'của và là có một các không được ta cho số với này để trong',
}
NAMES = frozenset(_FREQUENT)
_WORDS = {name: frozenset(said.split()) for name, said in _FREQUENT.items()}
_WORD = re.compile(r'[^\W\d_]+')
_FEWEST = 4  # Minimum number of frequent words of a language,
_SHARE = 0.08  # their minimum share of all words,
_AHEAD = 2  # and their number relative to any other language.


def of(text: str) -> str | None:
  """Return the name of the language; None if it is uncertain."""
  found = _WORD.findall(text.lower())
  counts = {
      name: sum(word in words for word in found)
      for name, words in _WORDS.items()
  }
  (count, name), (other, _) = sorted(
      ((count, name) for name, count in counts.items()), reverse=True
  )[:2]
  if count < max(_FEWEST, _SHARE * len(found)) or count < _AHEAD * other:
    return None
  return name
