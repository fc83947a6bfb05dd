"""What is kept on disk: run directories, and the small file that remains of a finished run."""
