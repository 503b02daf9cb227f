"""What the makers' own code of each family gives for one clip (`tools/dump_official.py`); nothing of paras2s is imported."""
