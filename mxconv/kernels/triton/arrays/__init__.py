"""What the kernels of a weight read: arrays of a package on a device, and what is made of them at loading."""
