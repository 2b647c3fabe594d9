"""Packaging of evojax; what is installed is pinned in requirements/."""

import pathlib
import re

_ROOT = pathlib.Path(__file__).parent

# Lower bounds are what the tests ran with. requirements/*.txt pin every
# package, BUILD_NOTES.md says why. After a change here: requirements/lock.sh.
# Enough for evojax-diagnose; a training needs the extra `train` as well.
INSTALL_REQUIRES = (
    'absl-py>=2.5',
    'jaxtyping>=0.3.11',
    'jinja2>=3.1',
    'ml-collections>=1.1',
    'numpy>=2.4',
    'pandas>=3.1',
    'pyarrow>=26',
    'pyyaml>=6.0.3',
    'rich>=15',
    'scipy>=1.17',
)
EXTRAS_REQUIRE = {
    'train': (
        'array-record>=0.8',
        'fastapi>=0.165',
        'flax>=0.12.8',
        'fsspec>=2026.9',
        'httptools>=0.9',
        'httpx2>=2.16',
        'importlib-resources>=7',
        'jax>=0.10.2',
        'ml-dtypes>=0.6',
        'mpmath>=1.3',
        'optax>=0.2.8',
        'orbax-checkpoint>=0.12.8',
        'prometheus-client>=0.26',
        'pydantic>=2.14',
        'pydantic-core>=2.50',
        'pytest>=9',  # Code in the box sees it, see evojax/sandbox/image.py.
        'reasoning-gym>=0.1.25',
        'safetensors>=0.8',
        'starlette>=1.10',
        'sympy>=1.14',
        'tensorboardX>=2.6.5',
        'tensorflow-datasets>=4.9.10',
        'tokenizers>=0.23',
        'transformers>=5.23',
        'uvicorn>=0.54',
    ),
    'tpu': ('jax[tpu]>=0.10.2',),
    'cuda12': ('jax[cuda12]>=0.10.2',),
    'cuda13': ('jax[cuda13]>=0.10.2',),
    'wandb': ('wandb>=0.20',),
    # Environments of others; from 0.4 on they have another interface.
    'verifiers': ('verifiers>=0.3,<0.4',),
    # Workdirs and policies at gs://; for s3:// see requirements/s3.txt.
    'gcs': ('gcsfs>=2026.9',),
    # Arms and sweeps on the machines of a cluster.
    'ray': ('ray>=2.60,<2.61',),
    'test': (
        'beartype>=0.23',
        'datasets>=5.2',  # TRL's, for benchmarks/diagnose_logs.py.
        'openai>=3.52',
        'pytest-xdist>=3.8',
        'ruff>=0.17',
        'torch==2.13.0',  # By hand in requirements/torch.txt.
        'trl==1.16.0',
    ),
    'dev': ('pre-commit>=4', 'pyink>=26', 'ruff>=0.17'),
}
CONSOLE_SCRIPTS = ['evojax-diagnose = evojax.diagnosis.__main__:main']
# Folders of data that the package reads at run time.
PACKAGE_DATA = {
    'evojax.domains.coding': ('base_policy/*',),
    'evojax.domains.coding.families': ('*.toml',),
    'evojax.domains.coding.seed_blind': ('*.json',),
    'evojax.domains.coding.seed_harness': ('*.json',),
    'evojax.domains.math': ('base_policy/*',),
    'evojax.domains.math.seed_blind': ('*.json',),
    'evojax.domains.math.seed_harness': ('*.json',),
    'evojax.domains.swe': (
        'base_policy/*',
        'catalogue.json',
        'packages/*/*.md',
        'packages/*/*.toml',
        'packages/*/*/*.py',
    ),
    'evojax.domains.swe.seed_blind': ('*.json',),
    'evojax.domains.swe.seed_harness': ('*.json',),
    'evojax.evidence': ('COLUMNS.md', 'columns.toml'),
    'evojax.report': ('templates/*',),
}


def _version() -> str:
  source = (_ROOT / 'evojax' / '__init__.py').read_text()
  return re.search(r"__version__ = '(.+)'", source)[1]


if __name__ == '__main__':
  import setuptools  # Here: a test reads the names above without it.

  setuptools.setup(
      name='evojax',
      version=_version(),
      description=(
          'Co-evolves a language-model policy and the harness that trains it.'
      ),
      long_description=(_ROOT / 'README.md').read_text(),
      long_description_content_type='text/markdown',
      license='Apache-2.0',
      python_requires='>=3.11',
      packages=setuptools.find_packages(include=('evojax', 'evojax.*')),
      package_data={name: list(files) for name, files in PACKAGE_DATA.items()},
      install_requires=list(INSTALL_REQUIRES),
      extras_require={
          name: list(packages) for name, packages in EXTRAS_REQUIRE.items()
      },
      entry_points={'console_scripts': CONSOLE_SCRIPTS},
  )
