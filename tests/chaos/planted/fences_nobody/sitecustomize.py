"""Planted: a home takes commits of any epoch, as if no later `init` were (breaks T13, rule S6)."""

import sys

if "broker" in sys.orig_argv:
    from broker.transactions import home_decisions

    home_decisions._check_epoch = lambda home, id_, position: None
