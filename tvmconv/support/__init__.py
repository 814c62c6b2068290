"""Services that know nothing of convolutions: caches, the store on disk, child processes, the operating system."""
