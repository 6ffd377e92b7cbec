"""Starting the agent of a side: its interpreter and launcher, and the agent packed as one file."""
