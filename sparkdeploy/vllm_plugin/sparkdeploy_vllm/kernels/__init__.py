"""GPU kernels of the plugin; importing a kernel module needs Triton."""
