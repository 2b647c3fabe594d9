"""Texts from outside, which may not be valid Unicode."""


def without_surrogates(text: str) -> str:
  """Return a text in which '?' replaces each lone surrogate.

  JSON and the names of files may contain them, but no tokenizer takes them, and
  no file in UTF-8 can contain them.
  """
  return text.encode(errors='replace').decode()
