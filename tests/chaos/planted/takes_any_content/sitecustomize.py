"""Planted: a home tells a rival's content of a key as the decided one (breaks T9, rule S7)."""

import sys

if "broker" in sys.orig_argv:
    from broker.transactions import home_decisions

    home_decisions._judge_repeat = lambda content, last: home_decisions.Decided(last)
