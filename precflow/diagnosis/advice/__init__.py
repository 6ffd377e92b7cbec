"""From evidence to advice: the rules and what-ifs as files, what they find, and the repro that is handed to a vendor."""
