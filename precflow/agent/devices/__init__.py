"""The devices that a side can run on: one file each, with a common protocol; `choose` picks the first that is available."""
