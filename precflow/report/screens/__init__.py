"""What the verbs `inspect` and `compare` print: a dump, one record, or one record of both sides."""
