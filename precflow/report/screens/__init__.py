"""What verbs show in the terminal of dumps, of one record, and of one pair."""
