"""Planted: a leader takes every numbered batch for a new one (breaks invariant T2, rule F1)."""

import sys

if "broker" in sys.orig_argv:
    from broker.log.producer_state import ProducerStates

    ProducerStates.check = lambda self, claim, count, now_ms, **_: None
