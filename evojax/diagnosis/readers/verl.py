def fits(path):
  return False
