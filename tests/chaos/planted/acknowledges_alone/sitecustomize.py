"""Planted: a leader's high watermark is its own log end, whoever follows (breaks rule R1)."""

import sys

if "broker" in sys.orig_argv:
    from broker.replication import leader_state

    for name in dir(leader_state):
        role = getattr(leader_state, name)
        if isinstance(role, type) and "maximal_isr" in vars(role):
            role.high_watermark = lambda self, own_end, present: max(own_end, present)
