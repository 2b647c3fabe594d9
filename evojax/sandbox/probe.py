def faults(tier): return []
