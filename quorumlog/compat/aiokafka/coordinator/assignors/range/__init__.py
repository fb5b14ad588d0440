"""One way in which a group shares partitions."""

from http_api.client.compat.aiokafka_types import RangePartitionAssignor

__all__ = ["RangePartitionAssignor"]
