"""Planted: a new coordinator answers without having loaded what was committed (breaks rule G1)."""

import sys

if "broker" in sys.orig_argv:
    from broker.coordinator import shard

    async def load(self):
        self._state, self._is_loaded = shard.GroupsState(), True
        self._ticked_ms = self._clock.monotonic_ms()
        return True

    shard.Shard._load = load
