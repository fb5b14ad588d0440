"""Interfaces of other Kafka clients: a program for one of them runs after one changed import line.

`quorumlog.compat.confluent_kafka` and `quorumlog.compat.aiokafka`.
"""
