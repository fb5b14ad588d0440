"""Leadership, ISR, high watermark and the replication stream."""
