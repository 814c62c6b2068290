"""Records of tuned configurations, one file a device."""
