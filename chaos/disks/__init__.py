"""Disks that fail as they are told: full, slow, hanging, broken, rotten, and without power."""
