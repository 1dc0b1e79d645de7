"""What is on disk: layouts of stores, the block writer, run directories."""
