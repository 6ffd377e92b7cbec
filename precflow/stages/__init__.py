"""The stages of a run, one file each; they connect the other packages, and `registry` finds them."""
