"""Who reads the pairs: threads of this process, or a Dask cluster. The results are the same."""
