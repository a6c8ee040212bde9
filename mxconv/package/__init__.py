"""mxconv's own files: the manifest, the stored arrays, and how a package is opened, checked and fetched."""
