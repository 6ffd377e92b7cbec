"""From judged records to advice: where the error starts, what the evidence says, and the rules that read it."""
