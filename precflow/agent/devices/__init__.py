"""The devices that a side can run on, one file each, behind one protocol; `choose` picks the first that is here."""
