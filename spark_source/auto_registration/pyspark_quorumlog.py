"""Makes ``format("quorumlog")`` work without registration.

Spark imports every top-level module named ``pyspark_*`` and registers its ``DefaultSource``. An
import error here would break the look-up of all Python data sources, so this module must never
import anything large.
"""

from __future__ import annotations

from spark_source.data_source import DefaultSource as DefaultSource
