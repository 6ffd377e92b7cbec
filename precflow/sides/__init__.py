"""Starting the agent of a side: its interpreter and launcher, its log, and the agent packed as one file."""
