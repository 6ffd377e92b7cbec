"""Running a comparison on threads of this process or on a Dask cluster, with the same results."""
