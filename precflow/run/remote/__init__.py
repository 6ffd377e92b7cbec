"""A store behind a URL: object stores such as S3, or anything else that fsspec reaches."""
