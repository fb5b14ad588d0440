"""The place of aiokafka's assignors."""
