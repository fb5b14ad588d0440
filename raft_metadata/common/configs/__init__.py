"""The one table of topic, cluster and broker configs, and the choice of the value in force."""
