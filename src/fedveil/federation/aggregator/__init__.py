"""The aggregator: it asks the sites round by round, adds up what they answer, and keeps the run's records."""
