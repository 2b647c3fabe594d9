"""Changes to the swe recipe that were tried, with five seeds each.

    python -m evojax.main --mode=sweep --config=configs/swe.py
        --sweep=configs/sweeps/swe_ablation.py --executor=local --workers=2
        --config.eval.problems=93 --config.eval.samples=16

The table of `falling-rate` in "The domain swe" of BUILD_NOTES.md uses these
seeds; for the other settings that section has single runs with other seeds.
All settings are compared with the first, seed by seed. A run takes about 45
minutes on one CPU core.
"""

MODE = 'train'
SEEDS = range(315, 320)
SETTINGS = {
    'reference': {'variant': 'reference'},
    'falling-rate': {'variant': 'reference', 'optim.schedule': 'linear'},
    'entropy-penalty': {'variant': 'reference', 'grpo.entropy_coef': -0.05},
    'seed-recipe': {'steps': 80},
}
