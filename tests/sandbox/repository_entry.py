"""An entry of a repository: reports its folder and the loaded modules."""

import importlib
import json
import os
import sys


def warm():
  importlib.import_module('pluggy')  # A package of the image.


def call(source, data):
  sys.path.insert(0, os.getcwd())
  found = {
      'loaded': 'pluggy' in sys.modules,
      'ours': [name for name in sys.modules if name.startswith('evojax')],
      'files': sorted(os.listdir('.')),
      'custom': 'usercustomize' in sys.modules,
  }
  print(json.dumps(found))
  sys.stdout.flush()
  exec(source)
  return bytes(data)[::-1]
