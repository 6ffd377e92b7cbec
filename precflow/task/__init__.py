"""Task metrics: numbers of what a model is for (its pictures, words, classes), read from the outputs of two dumps."""
